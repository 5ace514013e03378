"""Versions: each feature exists from its version on, and is neither sent nor checked before."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.emulator.conformance.gateway_process import run_command
from tests.emulator.conformance.payload_shapes import (
    FROM_GATEWAY,
    ON_BEHALF_OF_DEVICE,
    ExpectedRoute,
    check_response,
    is_integer_between,
)
from tests.emulator.conformance.site import (
    CLIP,
    EXTENDER,
    KEY,
    LEGACY,
    SEED,
    TRACKER,
    UNKNOWN_DEVICE,
    UNPROVISIONED,
    site,
)
from tests.emulator.conformance.variants import Variant, differs_by_version
from tests.row_tables import each_row

if TYPE_CHECKING:
    from pathlib import Path

    from tests.emulator.conformance.gateway_process import GatewayProcess

CONNECTED_TO_GATEWAY = ExpectedRoute(0, route=(TRACKER,))
BOUNDARIES = {
    version: pytest.param(Variant("raw", version), id=version, marks=pytest.mark.part("variants"))
    for version in ("1.3.0", "2.0.0", "2.0.1", "2.2.0")
}
"""Only in the part `variants`: the tests in `requests` check the same boundaries without a broker."""
WRITES: dict[str, Any] = {"write/9802": "04", "write-decoded/tx-power": 4}
SUFFIXES = ["read/8000", "read-decoded/model-number", *WRITES]


def at_boundaries(*versions: str) -> pytest.MarkDecorator:
    """Run a test at these versions, each the first with some feature."""
    return pytest.mark.parametrize("boundary", [BOUNDARIES[each] for each in versions], indirect=True)


def send_request(gateway: GatewayProcess, device: str, suffix: str, **parameters: Any) -> dict[str, Any]:
    return gateway.request(
        device, suffix, **({"value": WRITES[suffix]} if suffix in WRITES else {}), **parameters
    )


# 1.3.0


def check_last_count(gateway: GatewayProcess) -> None:
    heartbeats = gateway.recorder.wait_for_many(5, lambda message: message.parts[2:] == ("heartbeat",))
    assert {"lastCount" in message.payload for message in heartbeats} == {gateway.has_version("1.3.0")}
    assert all(is_integer_between(0, 3)(message.payload.get("lastCount", 0)) for message in heartbeats)


@differs_by_version()
@pytest.mark.rule("version-3", "version-13", "version-14", "report-1", "report-14")
def test_heartbeats_count_copies_from_1_3_0(gateway: GatewayProcess) -> None:
    check_last_count(gateway)


@at_boundaries("1.3.0")
@pytest.mark.rule("version-3", "version-14")
def test_heartbeats_count_copies_at_1_3_0(boundary: GatewayProcess) -> None:
    check_last_count(boundary)


# 2.0.0 and 2.0.1


@at_boundaries("1.3.0", "2.0.0", "2.0.1", "2.2.0")
@pytest.mark.rule("version-4", "version-14", "version-17")
@each_row("suffix", SUFFIXES)
def test_responses_have_a_route_from_2_0_0(boundary: GatewayProcess, suffix: str) -> None:
    check_response(boundary, send_request(boundary, TRACKER, suffix), CONNECTED_TO_GATEWAY)
    check_response(
        boundary, send_request(boundary, CLIP, suffix), ExpectedRoute(1, extender_route=(boundary.mac,))
    )
    check_response(boundary, send_request(boundary, UNKNOWN_DEVICE, suffix), ON_BEHALF_OF_DEVICE, status=10)


@at_boundaries("1.3.0", "2.0.0", "2.0.1", "2.2.0")
@pytest.mark.rule("version-5", "version-9", "response-14")
def test_the_response_to_apiversion_has_an_origin_from_2_0_1(boundary: GatewayProcess) -> None:
    rest = check_response(boundary, boundary.request(boundary.mac, "apiversion"), FROM_GATEWAY, since="2.0.1")
    assert rest == {"version": boundary.variant.version}
    assert (
        check_response(
            boundary, boundary.request(TRACKER, "apiversion"), ON_BEHALF_OF_DEVICE, status=5, since="2.0.1"
        )
        == {}
    )


EXTENSIONS = [{"rest": "00"}, {"no-such": 1}, 5, "text", []]


def check_ext(gateway: GatewayProcess, ext: object) -> None:
    response = gateway.request(TRACKER, "write-decoded/tx-power", value=4, ext=ext)
    assert response["status"] == (6 if gateway.has_version("2.0.0") else 0)


@differs_by_version()
@pytest.mark.rule("version-4", "version-15", "request-19", "response-23")
@each_row("ext", EXTENSIONS)
def test_a_wrong_ext_is_rejected_from_2_0_0_and_ignored_before(gateway: GatewayProcess, ext: object) -> None:
    check_ext(gateway, ext)


@at_boundaries("1.3.0", "2.0.0")
@pytest.mark.rule("version-4", "version-15")
@each_row("ext", EXTENSIONS)
def test_a_wrong_ext_is_rejected_at_2_0_0_and_not_before(boundary: GatewayProcess, ext: object) -> None:
    check_ext(boundary, ext)


@pytest.mark.rule("request-13", "request-19")
def test_an_empty_ext_is_ignored(gateway: GatewayProcess) -> None:
    assert gateway.request(TRACKER, "write-decoded/tx-power", value=4, ext={})["status"] == 0


@pytest.mark.rule("request-13", "request-19", "value-22")
def test_an_ext_of_an_identifier_that_has_extensions_reaches_the_device(gateway: GatewayProcess) -> None:
    ext = {"transitionCounter": 1, "isTransition": True}
    response = gateway.request(TRACKER, "write-decoded/motion", value=16, ext=ext)
    # Motion is read-only: a rejection by the device shows that the value could be sent.
    assert check_response(gateway, response, CONNECTED_TO_GATEWAY, status=7) == {}


# 2.1.0


def check_extender_id(gateway: GatewayProcess, suffix: str) -> None:
    is_supported = gateway.has_version("2.1.0")
    for extender in (EXTENDER.upper(), EXTENDER):
        expected_route = ExpectedRoute(1, extender_route=(EXTENDER if is_supported else gateway.mac,))
        check_response(gateway, send_request(gateway, CLIP, suffix, extenderId=extender), expected_route)
    response = send_request(gateway, CLIP, suffix, extenderId=gateway.mac.upper())
    check_response(gateway, response, ExpectedRoute(1, extender_route=(gateway.mac,)))
    response = send_request(gateway, CLIP, suffix, extenderId=UNKNOWN_DEVICE.upper())
    assert response["status"] == (10 if is_supported else 0)
    for invalid_id in (7, "xyz", None, ""):
        assert send_request(gateway, CLIP, suffix, extenderId=invalid_id)["status"] == (
            2 if is_supported else 0
        )
    assert send_request(gateway, TRACKER, suffix, extenderId=EXTENDER.upper())["status"] == 0


@differs_by_version()
@pytest.mark.rule("version-6", "version-15", "request-20", "id-28", "response-10", "response-11")
@each_row("suffix", SUFFIXES)
def test_the_extender_can_be_chosen_from_2_1_0(gateway: GatewayProcess, suffix: str) -> None:
    check_extender_id(gateway, suffix)


@at_boundaries("2.0.1")
@pytest.mark.rule("version-6", "version-15")
@each_row("suffix", SUFFIXES)
def test_the_extender_cannot_be_chosen_before_2_1_0(boundary: GatewayProcess, suffix: str) -> None:
    check_extender_id(boundary, suffix)


# 2.2.0


@pytest.fixture(scope="package")
def public_key(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the public key of the unprovisioned device, as the command prints it."""
    gateway = "d0cf5effffff"
    file: Path = tmp_path_factory.mktemp("described") / "site.json"
    file.write_text(json.dumps(site(gateway)))
    output = run_command("gateway", "--mac", gateway, "--seed", SEED, "--site", str(file), "--describe")
    keys: dict[str, str] = {each["mac"]: each.get("publicKey") for each in json.loads(output)["devices"]}
    return keys[UNPROVISIONED]


WRONG_KEY = "00" * 16
ACCESSES: list[tuple[str, dict[str, Any], int]] = [
    (TRACKER, {}, 0),
    (TRACKER, {"key": KEY}, 0),
    (TRACKER, {"key": KEY.upper()}, 0),
    (TRACKER, {"key": WRONG_KEY}, 11),
    (TRACKER, {"accessType": "legacy"}, 11),
    (TRACKER, {"accessType": "unprovisioned", "publicKey": "the right one"}, 11),
    (LEGACY, {}, 11),
    (LEGACY, {"accessType": "legacy"}, 0),
    (LEGACY, {"accessType": "legacy", "key": KEY}, 0),
    (LEGACY, {"accessType": "legacy", "key": WRONG_KEY}, 11),
    (LEGACY, {"accessType": "unprovisioned", "publicKey": "the right one"}, 11),
    (UNPROVISIONED, {}, 11),
    (UNPROVISIONED, {"accessType": "legacy"}, 11),
    (UNPROVISIONED, {"accessType": "unprovisioned"}, 11),
    (UNPROVISIONED, {"accessType": "unprovisioned", "publicKey": "the right one"}, 0),
    (UNPROVISIONED, {"accessType": "unprovisioned", "publicKey": "04" * 65}, 11),
    (TRACKER, {"accessType": "secret"}, 2),
    (TRACKER, {"accessType": 1}, 2),
    (TRACKER, {"accessType": None}, 2),
    (TRACKER, {"key": "xyz"}, 2),
    (TRACKER, {"key": 7}, 2),
    (UNPROVISIONED, {"accessType": "unprovisioned", "publicKey": "0"}, 2),
    (UNPROVISIONED, {"accessType": "unprovisioned", "publicKey": 7}, 2),
]
_each_access = each_row(("device", "parameters", "status"), ACCESSES)


def check_access(
    gateway: GatewayProcess, device: str, parameters: dict[str, Any], status: int, *, key: str
) -> None:
    """Check the status of all operations. Before 2.2.0 the parameters are ignored and all succeed."""
    actual_parameters = {
        name: key if value == "the right one" else value for name, value in parameters.items()
    }
    for suffix in SUFFIXES:
        response = send_request(gateway, device, suffix, **actual_parameters)
        assert response["status"] == (status if gateway.has_version("2.2.0") else 0), (suffix, response)


@differs_by_version()
@_each_access
@pytest.mark.rule("version-7", "version-15", "request-21", "request-22", "request-23", "response-32")
def test_access_is_checked_from_2_2_0_and_its_parameters_are_ignored_before(
    gateway: GatewayProcess, public_key: str, device: str, parameters: dict[str, Any], status: int
) -> None:
    check_access(gateway, device, parameters, status, key=public_key)


@at_boundaries("2.2.0")
@_each_access
@pytest.mark.rule("version-7", "response-32")
def test_access_is_checked_at_2_2_0(
    boundary: GatewayProcess, public_key: str, device: str, parameters: dict[str, Any], status: int
) -> None:
    check_access(boundary, device, parameters, status, key=public_key)


@pytest.mark.rule("response-32")
def test_an_access_error_does_not_repeat_the_key(gateway: GatewayProcess) -> None:
    wrong_key = "c0ffee" * 8
    response = gateway.request(TRACKER, "read/8000", key=wrong_key, publicKey=wrong_key)
    assert wrong_key not in json.dumps(response).lower()


# Reported version


@differs_by_version()
@pytest.mark.rule("version-9", "version-13", "version-18", "response-14")
def test_apiversion_returns_the_version_of_the_gateway(gateway: GatewayProcess) -> None:
    assert gateway.request(gateway.mac, "apiversion")["version"] == gateway.variant.version
