"""Access to devices inside and outside of the secure network requires the right access type and keys."""

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

PROVISIONED, UNPROVISIONED, LEGACY, UNCONNECTED = device_mac(1), device_mac(2), device_mac(3), device_mac(4)
KEYS = {
    "right": DEFAULT_NETWORK_KEY.hex(),
    "upper case": DEFAULT_NETWORK_KEY.hex().upper(),
    "wrong": "0f" * 16,
    "short": "00",
    "empty": "",
}
OPERATIONS = ("read/8000", "read-decoded/model-number", "write/9802", "write-decoded/tx-power")
VALUES: dict[str, Any] = {"write/9802": "00", "write-decoded/tx-power": 0}


def create_driver(version: str = "2.4.0") -> RequestDriver:
    """Return a driver with two provisioned devices, an unprovisioned and a legacy one."""
    return RequestDriver(
        place_device(1, 3.0),
        replace(place_device(2, 0.0, 3.0, code="0063"), access=AccessType.UNPROVISIONED),
        replace(place_device(3, -3.0, code="000F"), access=AccessType.LEGACY),
        place_device(4, 0.0, -3.0, code="000F"),
        version=Version.parse(version),
    )


def get_status(driver: RequestDriver, device: Mac, operation: str, **parameters: Any) -> int:
    if operation in VALUES:
        parameters["value"] = VALUES[operation]
    status: int = driver.request_and_wait(device, operation, **parameters)["status"]
    return status


VALID_ACCESS: dict[Any, dict[str, str]] = {
    PROVISIONED: {},
    UNCONNECTED: {},
    GATEWAY: {},
    UNPROVISIONED: {"accessType": "unprovisioned", "publicKey": derive_public_key(UNPROVISIONED).hex()},
    LEGACY: {"accessType": "legacy"},
}


@pytest.mark.rule("request-21", "request-22")
@each_row("operation", OPERATIONS)
@each_row("device", VALID_ACCESS)
def test_each_device_is_accessible_in_its_own_way(device: Mac, operation: str) -> None:
    assert get_status(create_driver(), device, operation, **VALID_ACCESS[device]) == Status.OK


@pytest.mark.rule("response-32", "request-23")
@each_row("device", VALID_ACCESS)
@each_row("operation", OPERATIONS)
def test_only_the_network_key_is_accepted(device: Mac, operation: str) -> None:
    driver = create_driver()
    for name, key in KEYS.items():
        expected = Status.OK if name in {"right", "upper case"} else Status.ACCESS_DENIED
        assert get_status(driver, device, operation, key=key, **VALID_ACCESS[device]) == expected, name


@pytest.mark.rule("response-32")
@each_row(
    ("device", "parameters"),
    [
        *product(
            (PROVISIONED, UNCONNECTED, GATEWAY), ({"accessType": "unprovisioned"}, {"accessType": "legacy"})
        ),
        *product((UNPROVISIONED,), ({}, {"accessType": "legacy"}, {"accessType": "unprovisioned"})),
        *product((LEGACY,), ({}, {"accessType": "unprovisioned"})),
        (LEGACY, {"accessType": "unprovisioned", "publicKey": derive_public_key(LEGACY).hex()}),
        (UNPROVISIONED, {"publicKey": derive_public_key(UNPROVISIONED).hex()}),
        (PROVISIONED, {"accessType": "unprovisioned", "publicKey": derive_public_key(PROVISIONED).hex()}),
    ],
)
def test_any_other_access_is_denied(device: Mac, parameters: dict[str, str]) -> None:
    driver = create_driver()
    for operation in OPERATIONS:
        assert get_status(driver, device, operation, **parameters) == Status.ACCESS_DENIED


@pytest.mark.rule("request-22")
def test_the_public_key_is_compared_completely_and_in_either_case() -> None:
    driver, key = create_driver(), derive_public_key(UNPROVISIONED).hex()
    parameters = {"accessType": "unprovisioned"}
    assert get_status(driver, UNPROVISIONED, "read/8000", publicKey=key.upper(), **parameters) == Status.OK
    for wrong_key in (
        key[:-1] + "0",
        key[:-2],
        key + "00",
        "",
        derive_public_key(LEGACY).hex(),
        "04" + "00" * 64,
    ):
        assert (
            get_status(driver, UNPROVISIONED, "read/8000", publicKey=wrong_key, **parameters)
            == Status.ACCESS_DENIED
        )


def test_a_denied_request_changes_nothing_and_returns_nothing() -> None:
    driver = create_driver()
    for wrong_access in ({"key": KEYS["wrong"]}, {"accessType": "legacy"}):
        for operation in ("write/8204", "write/8300", "read/8112", "write/8000", "write/8302"):
            response = driver.request_and_wait(PROVISIONED, operation, value="0001", **wrong_access)
            assert response["status"] == Status.ACCESS_DENIED
            assert "value" not in response
    assert driver.request_and_wait(PROVISIONED, "read/8204")["value"] == "003c"
    assert driver.request_and_wait(PROVISIONED, "read/8102")["value"] == "00"


def test_a_denial_has_the_origin_and_route_of_the_target() -> None:
    driver = create_driver()
    direct = driver.request_and_wait(PROVISIONED, "read/8000", key=KEYS["wrong"])
    assert (direct["origin"], direct["route"]) == (0, PROVISIONED)
    relayed = driver.request_and_wait(UNPROVISIONED, "read/8000")
    assert (relayed["origin"], relayed["extenderId"]) == (1, GATEWAY.upper())


@each_row("device", VALID_ACCESS)
def test_a_public_key_without_access_type_is_ignored(device: Mac) -> None:
    if device != UNPROVISIONED:
        assert (
            get_status(create_driver(), device, "read/8000", publicKey="00", **VALID_ACCESS[device])
            == Status.OK
        )


@pytest.mark.rule("version-15")
@each_row("version", ["1.2.0", "2.0.0", "2.1.0"])
@each_row("device", VALID_ACCESS)
def test_access_is_not_checked_before_its_version(version: str, device: Mac) -> None:
    driver = create_driver(version)
    for operation in OPERATIONS:
        for parameters in ({}, {"accessType": "legacy"}, {"accessType": 5, "key": "x", "publicKey": []}):
            assert get_status(driver, device, operation, **parameters) == Status.OK


@pytest.mark.rule("version-7")
def test_access_is_checked_from_its_version_on() -> None:
    assert get_status(create_driver("2.2.0"), LEGACY, "read/8000") == Status.ACCESS_DENIED
    assert get_status(create_driver("2.2.0"), LEGACY, "read/8000", accessType=5) == Status.INVALID_REQUEST


def test_acks_need_no_key() -> None:
    driver, topic = create_driver(), f"{UNPROVISIONED}/measurement/8813"
    first_sample, second_sample = (
        driver.wait(lambda message: message.topic.endswith(topic)) for _ in range(2)
    )
    before = len(driver.messages)
    driver.request(UNPROVISIONED, "ack/8813", time=second_sample.body["time"], type=1)
    driver.advance(5.0)
    assert [m.body for m in driver.messages[before:] if m.topic.endswith(topic)] == [first_sample.body]


SECRET = "5ec4e7" * 3
"""Key as a client may send it: right, wrong or not even hex."""


@pytest.mark.rule("request-32")
@each_row("name", ["key", "publicKey"])
@each_row("suffix", ["", "x", "é", "\\ud83d", "0", '","priority":"', '"', "\\u0000"])
@each_row("operation", [*OPERATIONS, "apiversion", "nonsense", "read", "ack/8813", "read-decoded/x"])
def test_keys_are_never_repeated(name: str, suffix: str, operation: str) -> None:
    driver = create_driver()
    for device in (PROVISIONED, UNPROVISIONED, LEGACY, GATEWAY, device_mac(9)):
        for access in ("unprovisioned", "legacy", SECRET):
            payload = f'{{"accessType":"{access}","{name}":"{SECRET}{suffix}","id":"a"}}'
            driver.publish(f"mt/gateway/{GATEWAY}/request/{device}/{operation}", payload)
    responses = driver.responses()
    assert responses or operation.startswith("ack")
    for message in driver.messages:
        assert SECRET not in message.topic.lower()
        assert SECRET.encode() not in message.payload.lower()


@pytest.mark.rule("request-32")
def test_the_network_key_is_in_no_message() -> None:
    driver = create_driver()
    driver.request_and_wait(PROVISIONED, "read/8000", key=DEFAULT_NETWORK_KEY.hex())
    driver.request_and_wait(PROVISIONED, "write/8302", key=DEFAULT_NETWORK_KEY.hex())
    driver.advance(180.0)
    assert driver.messages
    assert all(DEFAULT_NETWORK_KEY.hex() not in json.dumps(message.body) for message in driver.messages)
