"""Devices inside the secure network and outside of it are reached with the right words and keys only."""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from meshfleet.emulator.simulation.site import DEFAULT_NETWORK_KEY, derive_public_key
from meshfleet.protocol.codes import AccessType, Status
from meshfleet.protocol.ids import Version
from tests.emulator.requests.driver import RequestDriver
from tests.emulator.simulation.sites import GATEWAY, device_mac, place_device
from tests.row_tables import each_row

if TYPE_CHECKING:
    from meshfleet.protocol.ids import Mac

INSIDE, FRESH, OLD, WORN = device_mac(1), device_mac(2), device_mac(3), device_mac(4)
KEYS = {
    "right": DEFAULT_NETWORK_KEY.hex(),
    "upper case": DEFAULT_NETWORK_KEY.hex().upper(),
    "wrong": "0f" * 16,
    "short": "00",
    "empty": "",
}
OPERATIONS = ("read/8000", "read-decoded/model-number", "write/9802", "write-decoded/tx-power")
VALUES: dict[str, Any] = {"write/9802": "00", "write-decoded/tx-power": 0}


def desk(version: str = "2.4.0") -> RequestDriver:
    """One provisioned device, connected, and one not; one unprovisioned and one of before."""
    return RequestDriver(
        place_device(1, 3.0),
        replace(place_device(2, 0.0, 3.0, code="0063"), access=AccessType.UNPROVISIONED),
        replace(place_device(3, -3.0, code="000F"), access=AccessType.LEGACY),
        place_device(4, 0.0, -3.0, code="000F"),
        version=Version.parse(version),
    )


def ask(asked: RequestDriver, device: Mac, what: str, **parameters: Any) -> int:
    if what in VALUES:
        parameters["value"] = VALUES[what]
    status: int = asked.request_and_wait(device, what, **parameters)["status"]
    return status


RIGHT: dict[Any, dict[str, str]] = {
    INSIDE: {},
    WORN: {},
    GATEWAY: {},
    FRESH: {"accessType": "unprovisioned", "publicKey": derive_public_key(FRESH).hex()},
    OLD: {"accessType": "legacy"},
}


@pytest.mark.rule("request-21", "request-22")
@each_row("what", OPERATIONS)
@each_row("device", RIGHT)
def test_each_device_has_its_way_in(device: Mac, what: str) -> None:
    assert ask(desk(), device, what, **RIGHT[device]) == Status.OK


@pytest.mark.rule("response-32", "request-23")
@each_row("device", RIGHT)
@each_row("what", OPERATIONS)
def test_the_key_of_the_network_opens_and_any_other_does_not(device: Mac, what: str) -> None:
    asked = desk()
    for name, key in KEYS.items():
        expected = Status.OK if name in {"right", "upper case"} else Status.ACCESS_DENIED
        assert ask(asked, device, what, key=key, **RIGHT[device]) == expected, name


@pytest.mark.rule("response-32")
@each_row(
    ("device", "given"),
    [
        *product((INSIDE, WORN, GATEWAY), ({"accessType": "unprovisioned"}, {"accessType": "legacy"})),
        *product((FRESH,), ({}, {"accessType": "legacy"}, {"accessType": "unprovisioned"})),
        *product((OLD,), ({}, {"accessType": "unprovisioned"})),
        (OLD, {"accessType": "unprovisioned", "publicKey": derive_public_key(OLD).hex()}),
        (FRESH, {"publicKey": derive_public_key(FRESH).hex()}),
        (INSIDE, {"accessType": "unprovisioned", "publicKey": derive_public_key(INSIDE).hex()}),
    ],
)
def test_another_way_in_is_denied(device: Mac, given: dict[str, str]) -> None:
    asked = desk()
    for what in OPERATIONS:
        assert ask(asked, device, what, **given) == Status.ACCESS_DENIED


@pytest.mark.rule("request-22")
def test_the_public_key_counts_in_either_case_and_to_the_last_digit() -> None:
    asked, key = desk(), derive_public_key(FRESH).hex()
    given = {"accessType": "unprovisioned"}
    assert ask(asked, FRESH, "read/8000", publicKey=key.upper(), **given) == Status.OK
    for wrong in (key[:-1] + "0", key[:-2], key + "00", "", derive_public_key(OLD).hex(), "04" + "00" * 64):
        assert ask(asked, FRESH, "read/8000", publicKey=wrong, **given) == Status.ACCESS_DENIED


def test_who_is_denied_changes_nothing_and_learns_nothing() -> None:
    asked = desk()
    for wrong in ({"key": KEYS["wrong"]}, {"accessType": "legacy"}):
        for what in ("write/8204", "write/8300", "read/8112", "write/8000", "write/8302"):
            answer = asked.request_and_wait(INSIDE, what, value="0001", **wrong)
            assert answer["status"] == Status.ACCESS_DENIED
            assert "value" not in answer
    assert asked.request_and_wait(INSIDE, "read/8204")["value"] == "003c"
    assert asked.request_and_wait(INSIDE, "read/8102")["value"] == "00"


def test_a_refusal_comes_from_the_target_by_its_way() -> None:
    asked = desk()
    near = asked.request_and_wait(INSIDE, "read/8000", key=KEYS["wrong"])
    assert (near["origin"], near["route"]) == (0, INSIDE)
    through = asked.request_and_wait(FRESH, "read/8000")
    assert (through["origin"], through["extenderId"]) == (1, GATEWAY.upper())


@each_row("device", RIGHT)
def test_a_public_key_without_its_word_means_nothing_to_others(device: Mac) -> None:
    if device != FRESH:
        assert ask(desk(), device, "read/8000", publicKey="00", **RIGHT[device]) == Status.OK


@pytest.mark.rule("version-15")
@each_row("version", ["1.2.0", "2.0.0", "2.1.0"])
@each_row("device", RIGHT)
def test_before_its_version_there_is_no_access_to_speak_of(version: str, device: Mac) -> None:
    asked = desk(version)
    for what in OPERATIONS:
        for given in ({}, {"accessType": "legacy"}, {"accessType": 5, "key": "x", "publicKey": []}):
            assert ask(asked, device, what, **given) == Status.OK


@pytest.mark.rule("version-7")
def test_from_its_version_on_there_is_access() -> None:
    assert ask(desk("2.2.0"), OLD, "read/8000") == Status.ACCESS_DENIED
    assert ask(desk("2.2.0"), OLD, "read/8000", accessType=5) == Status.INVALID_REQUEST


def test_acks_need_no_key() -> None:
    asked, topic = desk(), f"{FRESH}/measurement/8813"
    first, second = (asked.wait(lambda message: message.topic.endswith(topic)) for _ in range(2))
    before = len(asked.messages)
    asked.request(FRESH, "ack/8813", time=second.body["time"], type=1)
    asked.advance(5.0)
    assert [m.body for m in asked.messages[before:] if m.topic.endswith(topic)] == [first.body]


SECRET = "5ec4e7" * 3
"""As a client may send it: right, wrong or not even hex."""


@pytest.mark.rule("request-32")
@each_row("name", ["key", "publicKey"])
@each_row("spoil", ["", "x", "é", "\\ud83d", "0", '","priority":"', '"', "\\u0000"])
@each_row("what", [*OPERATIONS, "apiversion", "nonsense", "read", "ack/8813", "read-decoded/x"])
def test_keys_are_never_repeated(name: str, spoil: str, what: str) -> None:
    asked = desk()
    for device in (INSIDE, FRESH, OLD, GATEWAY, device_mac(9)):
        for access in ("unprovisioned", "legacy", SECRET):
            payload = f'{{"accessType":"{access}","{name}":"{SECRET}{spoil}","id":"a"}}'
            asked.publish(f"mt/gateway/{GATEWAY}/request/{device}/{what}", payload)
    answers = asked.responses()
    assert answers or what.startswith("ack")
    for message in asked.messages:
        assert SECRET not in message.topic.lower()
        assert SECRET.encode() not in message.payload.lower()


@pytest.mark.rule("request-32")
def test_the_key_of_the_network_is_in_no_message() -> None:
    asked = desk()
    asked.request_and_wait(INSIDE, "read/8000", key=DEFAULT_NETWORK_KEY.hex())
    asked.request_and_wait(INSIDE, "write/8302", key=DEFAULT_NETWORK_KEY.hex())
    asked.advance(180.0)
    assert asked.messages
    assert all(DEFAULT_NETWORK_KEY.hex() not in json.dumps(message.body) for message in asked.messages)
