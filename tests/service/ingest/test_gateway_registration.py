"""Gateways that register themselves, and what is kept of the passwords of the others."""

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


def numbers(*macs: Mac) -> set[int]:
    return {mac_to_int(mac) for mac in macs}


def claim(database: Database, mac: Mac) -> str:
    return database.write_now(store.claim_gateway, mac, name=None, by=COMMAND_LINE, now=1)


def audited(database: Database) -> list[tuple[str, str, str]]:
    query = select(audit.c.actor, audit.c.action, audit.c.target).order_by(audit.c.id)
    return database.read_now(lambda connection: [tuple(row) for row in connection.execute(query)])


# --- Registering ---


@pytest.mark.rule("rest-79")
def test_a_gateway_that_registers_itself_is_claimed_without_a_password(database: Database) -> None:
    database.write_now(register_gateways, numbers(A, B), 5)
    assert database.read_now(list_claimed_gateways) == numbers(A, B)
    shown = database.read_now(store.load_gateway, A)
    assert (shown.mac, shown.device_id, shown.friendly_name) == (A, to_device_id(A), "Device 0001")
    assert database.read_now(store.load_password_digests, [A, B]) == {}
    assert database.read_now(store.load_broker_hashes) == {A: None, B: None}


def test_each_is_a_device_and_a_row_of_the_audit_log(database: Database) -> None:
    database.write_now(register_gateways, numbers(B, A), 5)
    query = select(device.c.id, device.c.created_at).order_by(device.c.id)
    found = database.read_now(lambda connection: [tuple(row) for row in connection.execute(query)])
    assert found == [(mac_to_int(A), 5), (mac_to_int(B), 5)]
    assert audited(database) == [
        ("program: service", "gateway.register", to_device_id(A)),
        ("program: service", "gateway.register", to_device_id(B)),
    ]


def test_who_is_claimed_stays_as_it_is(database: Database) -> None:
    claim(database, A)
    before = database.read_now(store.load_password_digests, [A])
    for _ in range(2):
        database.write_now(register_gateways, numbers(A, B), 5)
    assert database.read_now(list_claimed_gateways) == numbers(A, B)
    assert database.read_now(store.load_password_digests, [A, B]) == before
    assert [action for _, action, _ in audited(database)] == ["gateway.claim", "gateway.register"]


def test_a_released_gateway_registers_again(database: Database) -> None:
    database.write_now(register_gateways, numbers(A), 5)
    database.write_now(store.release_gateway, A, by=COMMAND_LINE, now=6)
    assert database.read_now(list_claimed_gateways) == set()
    database.write_now(register_gateways, numbers(A), 7)
    assert database.read_now(list_claimed_gateways) == numbers(A)


def test_the_address_of_all_gateways_is_nobodys(database: Database) -> None:
    database.write_now(register_gateways, numbers(EVERY_GATEWAY, A), 5)
    assert database.read_now(list_claimed_gateways) == numbers(A)


def test_nobody_is_registered_without_a_change(database: Database) -> None:
    database.write_now(register_gateways, set(), 5)
    assert (database.read_now(list_claimed_gateways), audited(database)) == (set(), [])


def test_thousands_can_come_at_once(database: Database) -> None:
    many = {mac_to_int(A) + number for number in range(3000)}
    database.write_now(register_gateways, many, 5)
    assert database.read_now(list_claimed_gateways) == many


# --- Passwords for another broker ---


def matches_hash(hashed: str | None, password: str) -> bool:
    """Whether mosquitto would let this password in: its format, read by hand."""
    assert hashed is not None
    empty, kind, rounds, salt, made = hashed.split("$")
    assert (empty, kind, rounds) == ("", "7", "101")
    assert (len(base64.b64decode(salt)), len(base64.b64decode(made))) == (12, 64)
    found = hashlib.pbkdf2_hmac("sha512", password.encode(), base64.b64decode(salt), int(rounds))
    return found == base64.b64decode(made)


def test_a_claim_is_kept_as_another_broker_checks_it(database: Database) -> None:
    passwords = {mac: claim(database, mac) for mac in (C, A)}
    hashes = database.read_now(store.load_broker_hashes)
    assert list(hashes) == [A, C]
    assert [matches_hash(hashes[mac], passwords[mac]) for mac in (A, C)] == [True, True]
    assert not matches_hash(hashes[A], passwords[C])


def test_a_rotation_is_kept_too_also_of_who_registered_itself(database: Database) -> None:
    database.write_now(register_gateways, numbers(A), 5)
    password = database.write_now(store.rotate_password, A, by=COMMAND_LINE, now=6)
    assert matches_hash(database.read_now(store.load_broker_hashes)[A], password)
    again = database.write_now(store.rotate_password, A, by=COMMAND_LINE, now=7)
    assert matches_hash(database.read_now(store.load_broker_hashes)[A], again)
    assert not matches_hash(database.read_now(store.load_broker_hashes)[A], password)


def test_two_that_share_a_password_would_not_share_a_hash(database: Database) -> None:
    claim(database, A)
    before = database.read_now(store.load_broker_hashes)[A]
    salts = {str(before).split("$")[3]}
    for _ in range(5):
        database.write_now(store.rotate_password, A, by=COMMAND_LINE, now=6)
        salts.add(str(database.read_now(store.load_broker_hashes)[A]).split("$")[3])
    assert len(salts) == 6


def test_no_password_itself_is_kept(database: Database) -> None:
    password = claim(database, A)
    row = database.read_now(lambda connection: tuple(connection.execute(select(gateway)).one()))
    assert password not in str(row)
