"""Status of responses: each has its causes, and the first failed check determines it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from meshfleet.emulator import Faults, ReportMode
from meshfleet.emulator.requests.request_handler import MAX_OPEN_REQUESTS
from meshfleet.emulator.simulation.products import DeviceMode
from meshfleet.protocol.codes import Operation, Origin, Status
from meshfleet.protocol.ids import Mac, Version
from meshfleet.protocol.responses import decode_response
from tests.emulator.requests.driver import RequestDriver, extender_chain
from tests.emulator.simulation.sites import GATEWAY, device_mac, place_device
from tests.row_tables import each_row

SENSOR, CLIP, EXTENDER, UNKNOWN = device_mac(50), device_mac(51), device_mac(1), device_mac(99)
BROADCAST = Mac("ffffffffffff")


def create_driver(**settings: Any) -> RequestDriver:
    sensor, clip = place_device(50, 3.0, 2.0), place_device(51, 3.0, -2.0, code="000F")
    return RequestDriver(*extender_chain(1), sensor, clip, **settings)


def get_statuses(driver: RequestDriver, device: Mac, *operations: str) -> set[int]:
    return {driver.request_and_wait(device, operation)["status"] for operation in operations}


def test_a_read_returns_the_value() -> None:
    driver = create_driver()
    assert driver.request_and_wait(SENSOR, "read/8000")["value"] == "0018"
    assert driver.request_and_wait(SENSOR, "read-decoded/model-number")["value"] == 0x18
    assert driver.request_and_wait(GATEWAY, "read/8000")["value"] == "2011"
    assert driver.request_and_wait(CLIP, "read-decoded/firmware-version")["value"] == "2.0.9"


@pytest.mark.rule("response-17")
def test_a_decoded_read_returns_the_extension_in_ext() -> None:
    response = create_driver().request_and_wait(SENSOR, "read-decoded/motion")
    assert response["value"] == 0
    assert response["ext"] == {"transitionCounter": 0, "isTransition": False}


@pytest.mark.rule("request-24")
@each_row("mode", ReportMode)
def test_requests_are_the_same_in_both_modes(mode: ReportMode) -> None:
    driver = create_driver(mode=mode)
    assert driver.request_and_wait(SENSOR, "read/8110")["value"] == "02"
    assert driver.request_and_wait(SENSOR, "read-decoded/device-mode")["value"] == "connected"
    assert driver.request_and_wait(SENSOR, "write/9802", value="F8")["status"] == 0
    assert driver.request_and_wait(SENSOR, "write-decoded/tx-power", value=-8)["status"] == 0


def test_a_written_value_is_read_and_reported() -> None:
    driver = create_driver()
    assert driver.request_and_wait(SENSOR, "write/8204", value="00FF") == driver.messages[-1].body
    assert driver.request_and_wait(SENSOR, "read/8204")["value"] == "00ff"
    [report] = [message for message in driver.messages if message.kind == "property/8204"]
    assert report.body["value"] == "00ff"


@pytest.mark.rule("response-18")
@each_row("operation", ["write/8204", "write-decoded/tx-power"])
def test_the_response_to_a_write_carries_no_value(operation: str) -> None:
    value = "0010" if operation == "write/8204" else 0
    assert "value" not in create_driver().request_and_wait(SENSOR, operation, value=value)


@pytest.mark.rule("version-13", "request-9", "response-25")
@each_row("version", ["1.2.0", "2.0.0", "2.0.1", "2.4.0"])
def test_only_a_gateway_returns_an_api_version(version: str) -> None:
    driver = create_driver(version=Version.parse(version))
    assert driver.request_and_wait(GATEWAY, "apiversion")["version"] == version
    for device in (SENSOR, CLIP, UNKNOWN):
        response = driver.request_and_wait(device, "apiversion")
        assert response["status"] == Status.NOT_SUPPORTED
        assert "version" not in response


@pytest.mark.rule("response-22")
@each_row(
    "payload",
    [
        "nonsense",
        "[]",
        "1",
        '{"id":"a"',
        '{"id":"a","priority":5}',
        '{"id":"a","priority":-1}',
        '{"id":"a","priority":"2"}',
        '{"id":"a","priority":2.5}',
        '{"id":"a","priority":null}',
        '{"id":"a","extenderId":"c0"}',
        '{"id":"a","accessType":"secret"}',
        '{"id":"a","publicKey":"abc"}',
        '{"id":"a","key":7}',
        '{"id":7}',
        b'{"id":"a","x":"\xff"}',
    ],
)
@each_row("device", [SENSOR, GATEWAY, UNKNOWN])
def test_a_payload_that_is_not_a_request_is_invalid(payload: str | bytes, device: Mac) -> None:
    driver = create_driver()
    driver.publish(f"mt/gateway/{GATEWAY}/request/{device}/read/8000", payload)
    [response] = driver.responses()
    assert response.body["status"] == Status.INVALID_REQUEST
    has_readable_id = isinstance(payload, str) and payload.startswith('{"id":"a"') and payload.endswith("}")
    assert response.body.get("id") == ("a" if has_readable_id else None)


@pytest.mark.rule("response-5")
@each_row("request_id", ["", "a", "0", "ä\n\0\U0001f600", "x" * 5000])
def test_an_id_is_returned_unchanged(request_id: str) -> None:
    driver = create_driver()
    for device, operation in ((SENSOR, "read/8000"), (GATEWAY, "apiversion"), (UNKNOWN, "write/8300")):
        assert driver.request_and_wait(device, operation, id=request_id)["id"] == request_id
        assert "id" not in driver.request_and_wait(device, operation)
    assert driver.request_and_wait(SENSOR, "nonsense", id=request_id)["id"] == request_id


@pytest.mark.rule("response-24", "version-16")
def test_an_unknown_operation_is_rejected() -> None:
    driver = create_driver()
    operations = (
        "nonsense",
        "READ/8000",
        "reads/8000",
        "nonsense/8000/and/more",
        "read/8000/9",
        "read/80/00",
    )
    for device in (SENSOR, CLIP, GATEWAY, UNKNOWN):
        assert get_statuses(driver, device, *operations) == {Status.UNKNOWN_OPERATION}


@pytest.mark.rule("ack-6", "response-24")
@each_row("version", ["1.2.0", "2.0.0", "2.3.0"])
@each_row("operation", ["ack/8803", "ack-decoded/light-intensity"])
@each_row("device", [SENSOR, GATEWAY, UNKNOWN])
def test_acks_are_unknown_before_their_version(version: str, operation: str, device: Mac) -> None:
    driver = create_driver(version=Version.parse(version))
    response = driver.request_and_wait(device, operation, id="a", time="2026-09-21T14:13:20.000Z", type=0)
    assert (response["status"], response["id"]) == (Status.UNKNOWN_OPERATION, "a")


@pytest.mark.rule("response-26")
def test_an_identifier_that_a_device_does_not_have_is_unknown() -> None:
    driver = create_driver()
    missing_identifiers = (
        "read/8112",
        "read/05",
        "write/ee8001",
        "read/9800",
        "read-decoded/alarm",
        "read/ff00",
    )
    assert get_statuses(driver, SENSOR, *missing_identifiers) == {Status.UNKNOWN_IDENTIFIER}
    unlisted = ("read/9999", "read/80ff", "write/beef", "read/00008000")
    assert get_statuses(driver, SENSOR, *unlisted) == {Status.UNKNOWN_IDENTIFIER}
    # The device itself responds, not the gateway.
    assert driver.request_and_wait(SENSOR, "read/80ff")["origin"] == Origin.CONNECTED
    assert get_statuses(driver, CLIP, "read/8803", "read/8121") == {Status.UNKNOWN_IDENTIFIER}
    assert get_statuses(driver, GATEWAY, "read/8810", "write/9800") == {Status.UNKNOWN_IDENTIFIER}
    named = ("read-decoded/nonsense", "read-decoded/8000", "write-decoded/Tx-Power")
    assert get_statuses(driver, SENSOR, *named) == {Status.UNKNOWN_IDENTIFIER}
    malformed = ("read", "read/", "read/800", "read/EF10", "read/xyz", "read/temperature", "write")
    assert get_statuses(driver, SENSOR, *malformed[:1], *malformed[2:]) == {Status.UNKNOWN_IDENTIFIER}


@pytest.mark.rule("response-27")
def test_an_operation_that_the_device_cannot_perform_is_not_supported() -> None:
    driver = create_driver()
    only_raw = ("read-decoded/power-source", "read-decoded/downlink-configuration")
    assert get_statuses(driver, EXTENDER, *only_raw) == {Status.NOT_SUPPORTED}
    only_on_gateways = ("write/8304", "write/8111", "read/8125", "write-decoded/firmware-broadcast-control")
    for device in (SENSOR, EXTENDER):
        assert get_statuses(driver, device, *only_on_gateways[:3]) == {Status.NOT_SUPPORTED}
    assert driver.request_and_wait(CLIP, "write/8110", value="02")["status"] == Status.NOT_SUPPORTED
    assert driver.request_and_wait(EXTENDER, "write/8110", value="04")["status"] == Status.NOT_SUPPORTED


@pytest.mark.rule("response-23")
@each_row("ext", [[], "a", None, {"a": 1}, {"rest": "0"}, {"rest": 5}])
def test_a_wrong_extension_is_an_invalid_value(ext: object) -> None:
    response = create_driver().request_and_wait(SENSOR, "write-decoded/tx-power", value=4, ext=ext)
    assert response["status"] == Status.INVALID_VALUE


@pytest.mark.rule("version-15")
def test_an_extension_is_ignored_before_its_version() -> None:
    for version, status in ((Version(1, 3, 0), Status.OK), (Version(2, 0, 0), Status.INVALID_VALUE)):
        driver = create_driver(version=version)
        assert driver.request_and_wait(SENSOR, "write-decoded/tx-power", value=0, ext="a")["status"] == status


@pytest.mark.rule("response-28")
def test_reads_and_writes_respect_the_access_of_the_identifier() -> None:
    driver = create_driver()
    written = ("write/8000", "write/8813", "write-decoded/battery-level", "write/8305")
    read = ("read/8300", "read-decoded/soft-reset", "read/8303")
    for device in (SENSOR, CLIP):
        assert {
            driver.request_and_wait(device, operation, value=None)["status"]
            for operation in (*written[:1], *written[3:])
        } == {7}
        assert get_statuses(driver, device, *read) == {Status.ACCESS_NOT_ALLOWED}
    assert (
        driver.request_and_wait(SENSOR, "write-decoded/battery-level", value=1)["status"]
        == Status.ACCESS_NOT_ALLOWED
    )
    assert driver.request_and_wait(GATEWAY, "read/8111")["status"] == Status.ACCESS_NOT_ALLOWED


@pytest.mark.rule("response-33", "gateway-35")
@each_row("device", [SENSOR, GATEWAY, CLIP])
def test_reporting_of_properties_is_busy_while_it_runs(device: Mac) -> None:
    driver = create_driver()
    assert driver.request_and_wait(device, "write/8302")["status"] == Status.OK
    assert (
        driver.request_and_wait(device, "write-decoded/request-property-reporting")["status"] == Status.BUSY
    )
    driver.advance(30.0)
    assert driver.request_and_wait(device, "write/8302")["status"] == Status.OK


@pytest.mark.rule("response-33")
def test_a_gateway_rejects_too_many_requests_and_recovers() -> None:
    driver = create_driver(faults=Faults(silent=1.0))
    for number in range(MAX_OPEN_REQUESTS + 3):
        driver.request(SENSOR, "read/8000", id=str(number))
    busy = [message.body for message in driver.messages if message.is_response]
    assert [(body["id"], body["status"]) for body in busy] == [
        (str(MAX_OPEN_REQUESTS + number), Status.BUSY) for number in range(3)
    ]
    assert {body["origin"] for body in busy} == {32}
    driver.advance(11.0)
    driver.request(SENSOR, "read/8000", id="again")
    assert [
        message.body["status"] for message in driver.responses() if message.body.get("id") == "again"
    ] == [9]


def test_requests_with_a_response_are_no_longer_open() -> None:
    driver = create_driver()
    for _ in range(MAX_OPEN_REQUESTS):
        driver.request(SENSOR, "read/8000")
    responses = driver.responses(5.0)
    assert [message.body["status"] for message in responses] == [Status.OK] * MAX_OPEN_REQUESTS
    assert driver.request_and_wait(SENSOR, "read/8000")["status"] == Status.OK


@pytest.mark.rule("response-31", "response-20")
def test_an_unknown_device_is_unreachable() -> None:
    for device in (UNKNOWN, BROADCAST):
        response = create_driver().request_and_wait(device, "read/8000")
        assert (response["status"], response["origin"]) == (Status.UNREACHABLE, 32)


def test_a_device_without_a_link_is_unreachable() -> None:
    driver = RequestDriver(place_device(1, 300.0), place_device(2, 310.0, code="000F"), place_device(3, 3.0))
    assert {driver.request_and_wait(device_mac(number), "read/8000")["status"] for number in (1, 2)} == {
        Status.UNREACHABLE
    }
    assert driver.request_and_wait(device_mac(3), "write/8300")["status"] == Status.OK
    driver.advance(0.5)
    assert driver.request_and_wait(device_mac(3), "read/8000")["status"] == Status.UNREACHABLE


def test_the_first_of_several_errors_determines_the_status() -> None:
    driver = create_driver()
    assert driver.request_and_wait(UNKNOWN, "nonsense", priority=9)["status"] == Status.UNKNOWN_OPERATION
    assert driver.request_and_wait(UNKNOWN, "read/8112", priority=9)["status"] == Status.INVALID_REQUEST
    assert driver.request_and_wait(UNKNOWN, "write/8000", value="0")["status"] == Status.INVALID_VALUE
    assert driver.request_and_wait(UNKNOWN, "read/8112")["status"] == Status.UNREACHABLE
    assert (
        driver.request_and_wait(SENSOR, "write/8000", key="00", value="00")["status"] == Status.ACCESS_DENIED
    )
    assert driver.request_and_wait(SENSOR, "write/8112", value="00")["status"] == Status.UNKNOWN_IDENTIFIER
    assert (
        driver.request_and_wait(SENSOR, "write/8000", value="00" * 99)["status"] == Status.ACCESS_NOT_ALLOWED
    )


@pytest.mark.rule("gateway-15", "gateway-16", "topic-4")
def test_only_gateways_that_know_the_device_respond_to_a_request_to_all() -> None:
    driver = create_driver()
    for operation in ("read/8000", "nonsense", "read", "read-decoded/nonsense", "apiversion"):
        driver.publish(f"mt/gateways/request/{UNKNOWN}/{operation}", {"id": operation})
        driver.publish(f"mt/gateways/request/{SENSOR}/{operation}", {"id": operation})
        driver.publish(f"mt/gateways/request/ffffffffffff/{operation}", {"id": operation})
    responses = {(message.topic.split("/")[4], message.body["id"]): message for message in driver.responses()}
    assert {device for device, _ in responses} == {SENSOR, GATEWAY}
    assert len(responses) == len(driver.responses()) == 10
    for (device, operation), message in responses.items():
        assert message.topic == f"mt/gateway/{GATEWAY}/response/{device}/{operation}"
    assert responses[SENSOR, "read/8000"].body["value"] == "0018"
    assert responses[GATEWAY, "apiversion"].body["version"] == "2.4.0"


def test_a_request_to_another_gateway_is_ignored() -> None:
    driver = create_driver()
    for operation in ("read/8000", "nonsense", "apiversion"):
        driver.publish(f"mt/gateway/{device_mac(77)}/request/{SENSOR}/{operation}", {})
    assert driver.responses() == []


def test_a_repeated_request_is_executed_again_with_a_second_response() -> None:
    driver = create_driver()
    for _ in range(2):
        driver.request(SENSOR, "write/8204", id="a", value="0010")
    assert [message.body["id"] for message in driver.responses()] == ["a", "a"]
    assert driver.request_and_wait(SENSOR, "read/8204")["value"] == "0010"


@pytest.mark.rule("request-18")
def test_a_null_write_triggers_a_command() -> None:
    driver = create_driver()
    assert int(driver.request_and_wait(SENSOR, "read/8101")["value"], 16) > 1000
    assert driver.request_and_wait(SENSOR, "write/8300")["status"] == Status.OK
    driver.advance(30.0)
    assert int(driver.request_and_wait(SENSOR, "read/8101")["value"], 16) < 30
    assert driver.request_and_wait(SENSOR, "read/8102")["value"] == "04"


def test_a_device_with_an_empty_battery_does_not_respond() -> None:
    driver = RequestDriver(
        replace(place_device(1, 2.0), battery=0), replace(place_device(2, 2.0, 1.0, code="000F"), battery=0)
    )
    for number, origin in ((1, 32), (2, 16)):
        response = driver.request_and_wait(device_mac(number), "read/8000")
        assert (response["status"], response["origin"]) == (Status.TIMEOUT, origin)


@pytest.mark.rule("gateway-33")
def test_a_device_that_enters_storage_mode_stops_its_property_report() -> None:
    driver = create_driver()
    driver.request_and_wait(SENSOR, "write/8302")
    driver.request_and_wait(SENSOR, "write/8110", value="03")
    driver.wait(lambda message: message.kind == "property/8110" and message.body["value"] == "03")
    kinds = [message.kind for message in driver.advance(30.0) if message.topic.split("/")[4] == SENSOR]
    assert set(kinds) <= {"event/8112"}


@pytest.mark.rule("gateway-32")
def test_only_a_mode_write_wakes_a_device_from_storage_mode() -> None:
    driver = RequestDriver(replace(place_device(1, 3.0), mode=DeviceMode.STORAGE))
    assert driver.request_and_wait(device_mac(1), "read/8110")["status"] == Status.TIMEOUT
    assert driver.request_and_wait(device_mac(1), "write/9802", value="00")["status"] == Status.TIMEOUT
    assert (
        driver.request_and_wait(device_mac(1), "write-decoded/device-mode", value="connected")["status"]
        == Status.OK
    )
    driver.advance(1.0)
    response = driver.request_and_wait(device_mac(1), "read/8110")
    assert (response["value"], response["origin"]) == ("02", 0)


@pytest.mark.rule("version-17", "version-14", "version-5")
@each_row("version", ["1.2.0", "1.3.0", "2.0.0", "2.0.1", "2.4.0"])
def test_responses_have_the_fields_of_their_version(version: str) -> None:
    driver = create_driver(version=Version.parse(version))
    newer_fields = {"responseTime", "origin", "route", "extenderId", "extenderRoute"}
    for device, operation in (
        (SENSOR, "read/8000"),
        (CLIP, "write/8300"),
        (UNKNOWN, "read/8000"),
        (SENSOR, "no"),
    ):
        fields = driver.request_and_wait(device, operation).keys() & newer_fields
        assert fields >= {"responseTime", "origin"} if version >= "2.0.0" else not fields
    assert ("origin" in driver.request_and_wait(GATEWAY, "apiversion")) == (version >= "2.0.1")
    decode_response(Operation.APIVERSION, driver.messages[-1].payload)
