"""Gateways that register themselves, and password hashes of claimed ones."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select

from meshfleet.db.tables import audit, device, gateway
from meshfleet.protocol.ids import EVERY_GATEWAY, Mac, mac_to_int, to_device_id
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.gateways import store
from meshfleet.service.ingest.gateway_admission import list_claimed_gateways, register_gateways

if TYPE_CHECKING:
    from meshfleet.db import Database

pytestmark = pytest.mark.both_databases

A, B, C = (Mac(f"02005e00000{number}") for number in "123")


def to_numbers(*macs: Mac) -> set[int]:
    return {mac_to_int(mac) for mac in macs}


def claim(database: Database, mac: Mac) -> str:
    return database.write_now(store.claim_gateway, mac, name=None, by=COMMAND_LINE, now=1)


def list_audit(database: Database) -> list[tuple[str, str, str]]:
    query = select(audit.c.actor, audit.c.action, audit.c.target).order_by(audit.c.id)
    return database.read_now(lambda connection: [tuple(row) for row in connection.execute(query)])


# --- Registration ---


@pytest.mark.rule("rest-79")
def test_a_gateway_that_registers_itself_is_claimed_without_a_password(database: Database) -> None:
    database.write_now(register_gateways, to_numbers(A, B), 5)
    assert database.read_now(list_claimed_gateways) == to_numbers(A, B)
    gateway_view = database.read_now(store.load_gateway, A)
    assert (gateway_view.mac, gateway_view.device_id, gateway_view.friendly_name) == (
        A,
        to_device_id(A),
        "Device 0001",
    )
    assert database.read_now(store.load_password_digests, [A, B]) == {}
    assert database.read_now(store.load_broker_hashes) == {A: None, B: None}


def test_each_registered_gateway_has_a_device_and_an_audit_entry(database: Database) -> None:
    database.write_now(register_gateways, to_numbers(B, A), 5)
    query = select(device.c.id, device.c.created_at).order_by(device.c.id)
    rows = database.read_now(lambda connection: [tuple(row) for row in connection.execute(query)])
    assert rows == [(mac_to_int(A), 5), (mac_to_int(B), 5)]
    assert list_audit(database) == [
        ("program: service", "gateway.register", to_device_id(A)),
        ("program: service", "gateway.register", to_device_id(B)),
    ]


def test_a_claimed_gateway_is_unchanged(database: Database) -> None:
    claim(database, A)
    before = database.read_now(store.load_password_digests, [A])
    for _ in range(2):
        database.write_now(register_gateways, to_numbers(A, B), 5)
    assert database.read_now(list_claimed_gateways) == to_numbers(A, B)
    assert database.read_now(store.load_password_digests, [A, B]) == before
    assert [action for _, action, _ in list_audit(database)] == ["gateway.claim", "gateway.register"]


def test_a_released_gateway_registers_again(database: Database) -> None:
    database.write_now(register_gateways, to_numbers(A), 5)
    database.write_now(store.release_gateway, A, by=COMMAND_LINE, now=6)
    assert database.read_now(list_claimed_gateways) == set()
    database.write_now(register_gateways, to_numbers(A), 7)
    assert database.read_now(list_claimed_gateways) == to_numbers(A)


def test_the_address_of_all_gateways_is_not_registered(database: Database) -> None:
    database.write_now(register_gateways, to_numbers(EVERY_GATEWAY, A), 5)
    assert database.read_now(list_claimed_gateways) == to_numbers(A)


def test_registering_no_gateways_changes_nothing(database: Database) -> None:
    database.write_now(register_gateways, set(), 5)
    assert (database.read_now(list_claimed_gateways), list_audit(database)) == (set(), [])


def test_thousands_of_gateways_can_register_at_once(database: Database) -> None:
    many = {mac_to_int(A) + number for number in range(3000)}
    database.write_now(register_gateways, many, 5)
    assert database.read_now(list_claimed_gateways) == many


# --- Passwords for an external broker ---


def matches_hash(hashed: str | None, password: str) -> bool:
    """Return whether mosquitto would accept this password, by parsing its hash format."""
    assert hashed is not None
    empty, kind, rounds, salt, digest = hashed.split("$")
    assert (empty, kind, rounds) == ("", "7", "101")
    assert (len(base64.b64decode(salt)), len(base64.b64decode(digest))) == (12, 64)
    expected = hashlib.pbkdf2_hmac("sha512", password.encode(), base64.b64decode(salt), int(rounds))
    return expected == base64.b64decode(digest)


def test_the_hash_of_a_claim_is_stored_for_an_external_broker(database: Database) -> None:
    passwords = {mac: claim(database, mac) for mac in (C, A)}
    hashes = database.read_now(store.load_broker_hashes)
    assert list(hashes) == [A, C]
    assert [matches_hash(hashes[mac], passwords[mac]) for mac in (A, C)] == [True, True]
    assert not matches_hash(hashes[A], passwords[C])


def test_the_hash_of_a_rotated_password_is_stored_also_for_a_registered_gateway(database: Database) -> None:
    database.write_now(register_gateways, to_numbers(A), 5)
    password = database.write_now(store.rotate_password, A, by=COMMAND_LINE, now=6)
    assert matches_hash(database.read_now(store.load_broker_hashes)[A], password)
    new_password = database.write_now(store.rotate_password, A, by=COMMAND_LINE, now=7)
    assert matches_hash(database.read_now(store.load_broker_hashes)[A], new_password)
    assert not matches_hash(database.read_now(store.load_broker_hashes)[A], password)


def test_every_hash_has_its_own_salt(database: Database) -> None:
    claim(database, A)
    before = database.read_now(store.load_broker_hashes)[A]
    salts = {str(before).split("$")[3]}
    for _ in range(5):
        database.write_now(store.rotate_password, A, by=COMMAND_LINE, now=6)
        salts.add(str(database.read_now(store.load_broker_hashes)[A]).split("$")[3])
    assert len(salts) == 6


def test_no_plain_password_is_stored(database: Database) -> None:
    password = claim(database, A)
    row = database.read_now(lambda connection: tuple(connection.execute(select(gateway)).one()))
    assert password not in str(row)
