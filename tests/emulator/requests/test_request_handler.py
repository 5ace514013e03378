"""Every status has its causes, and of several causes the first in the order of the checks tells."""

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

SENSOR, CLIP, EXTENDER, NOBODY = device_mac(50), device_mac(51), device_mac(1), device_mac(99)
FAR_FUTURE = Mac("ffffffffffff")


def desk(**given: Any) -> RequestDriver:
    sensor, clip = place_device(50, 3.0, 2.0), place_device(51, 3.0, -2.0, code="000F")
    return RequestDriver(*extender_chain(1), sensor, clip, **given)


def statuses(found: RequestDriver, device: Mac, *whats: str) -> set[int]:
    return {found.request_and_wait(device, what)["status"] for what in whats}


def test_what_is_read_is_told() -> None:
    asked = desk()
    assert asked.request_and_wait(SENSOR, "read/8000")["value"] == "0018"
    assert asked.request_and_wait(SENSOR, "read-decoded/model-number")["value"] == 0x18
    assert asked.request_and_wait(GATEWAY, "read/8000")["value"] == "2011"
    assert asked.request_and_wait(CLIP, "read-decoded/firmware-version")["value"] == "2.0.9"


@pytest.mark.rule("response-17")
def test_what_stands_behind_a_value_is_told_beside_it() -> None:
    answer = desk().request_and_wait(SENSOR, "read-decoded/motion")
    assert answer["value"] == 0
    assert answer["ext"] == {"transitionCounter": 0, "isTransition": False}


@pytest.mark.rule("request-24")
@each_row("mode", ReportMode)
def test_requests_are_the_same_in_both_modes(mode: ReportMode) -> None:
    asked = desk(mode=mode)
    assert asked.request_and_wait(SENSOR, "read/8110")["value"] == "02"
    assert asked.request_and_wait(SENSOR, "read-decoded/device-mode")["value"] == "connected"
    assert asked.request_and_wait(SENSOR, "write/9802", value="F8")["status"] == 0
    assert asked.request_and_wait(SENSOR, "write-decoded/tx-power", value=-8)["status"] == 0


def test_what_is_written_is_read_and_reported() -> None:
    asked = desk()
    assert asked.request_and_wait(SENSOR, "write/8204", value="00FF") == asked.messages[-1].body
    assert asked.request_and_wait(SENSOR, "read/8204")["value"] == "00ff"
    [report] = [message for message in asked.messages if message.kind == "property/8204"]
    assert report.body["value"] == "00ff"


@pytest.mark.rule("response-18")
@each_row("what", ["write/8204", "write-decoded/tx-power"])
def test_the_response_to_a_write_carries_no_value(what: str) -> None:
    value = "0010" if what == "write/8204" else 0
    assert "value" not in desk().request_and_wait(SENSOR, what, value=value)


@pytest.mark.rule("version-13", "request-9", "response-25")
@each_row("version", ["1.2.0", "2.0.0", "2.0.1", "2.4.0"])
def test_a_gateway_tells_its_version_and_no_device_has_one(version: str) -> None:
    asked = desk(version=Version.parse(version))
    assert asked.request_and_wait(GATEWAY, "apiversion")["version"] == version
    for device in (SENSOR, CLIP, NOBODY):
        answer = asked.request_and_wait(device, "apiversion")
        assert answer["status"] == Status.NOT_SUPPORTED
        assert "version" not in answer


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
@each_row("device", [SENSOR, GATEWAY, NOBODY])
def test_a_payload_that_is_no_request_is_invalid(payload: str | bytes, device: Mac) -> None:
    asked = desk()
    asked.publish(f"mt/gateway/{GATEWAY}/request/{device}/read/8000", payload)
    [response] = asked.responses()
    assert response.body["status"] == Status.INVALID_REQUEST
    readable = isinstance(payload, str) and payload.startswith('{"id":"a"') and payload.endswith("}")
    assert response.body.get("id") == ("a" if readable else None)


@pytest.mark.rule("response-5")
@each_row("given", ["", "a", "0", "ä\n\0\U0001f600", "x" * 5000])
def test_an_id_comes_back_as_it_was_sent(given: str) -> None:
    asked = desk()
    for device, what in ((SENSOR, "read/8000"), (GATEWAY, "apiversion"), (NOBODY, "write/8300")):
        assert asked.request_and_wait(device, what, id=given)["id"] == given
        assert "id" not in asked.request_and_wait(device, what)
    assert asked.request_and_wait(SENSOR, "nonsense", id=given)["id"] == given


@pytest.mark.rule("response-24", "version-16")
def test_an_operation_that_nobody_knows_is_unknown() -> None:
    asked = desk()
    whats = ("nonsense", "READ/8000", "reads/8000", "nonsense/8000/and/more", "read/8000/9", "read/80/00")
    for device in (SENSOR, CLIP, GATEWAY, NOBODY):
        assert statuses(asked, device, *whats) == {Status.UNKNOWN_OPERATION}


@pytest.mark.rule("ack-6", "response-24")
@each_row("version", ["1.2.0", "2.0.0", "2.3.0"])
@each_row("what", ["ack/8803", "ack-decoded/light-intensity"])
@each_row("device", [SENSOR, GATEWAY, NOBODY])
def test_acks_are_unknown_before_their_version(version: str, what: str, device: Mac) -> None:
    asked = desk(version=Version.parse(version))
    answer = asked.request_and_wait(device, what, id="a", time="2026-09-21T14:13:20.000Z", type=0)
    assert (answer["status"], answer["id"]) == (Status.UNKNOWN_OPERATION, "a")


@pytest.mark.rule("response-26")
def test_an_identifier_that_a_device_does_not_have_is_unknown() -> None:
    asked = desk()
    missing = ("read/8112", "read/05", "write/ee8001", "read/9800", "read-decoded/alarm", "read/ff00")
    assert statuses(asked, SENSOR, *missing) == {Status.UNKNOWN_IDENTIFIER}
    unlisted = ("read/9999", "read/80ff", "write/beef", "read/00008000")
    assert statuses(asked, SENSOR, *unlisted) == {Status.UNKNOWN_IDENTIFIER}
    assert (
        asked.request_and_wait(SENSOR, "read/80ff")["origin"] == Origin.CONNECTED
    )  # the device itself says so
    assert statuses(asked, CLIP, "read/8803", "read/8121") == {Status.UNKNOWN_IDENTIFIER}
    assert statuses(asked, GATEWAY, "read/8810", "write/9800") == {Status.UNKNOWN_IDENTIFIER}
    named = ("read-decoded/nonsense", "read-decoded/8000", "write-decoded/Tx-Power")
    assert statuses(asked, SENSOR, *named) == {Status.UNKNOWN_IDENTIFIER}
    malformed = ("read", "read/", "read/800", "read/EF10", "read/xyz", "read/temperature", "write")
    assert statuses(asked, SENSOR, *malformed[:1], *malformed[2:]) == {Status.UNKNOWN_IDENTIFIER}


@pytest.mark.rule("response-27")
def test_what_is_not_possible_there_is_not_supported() -> None:
    asked = desk()
    only_raw = ("read-decoded/power-source", "read-decoded/downlink-configuration")
    assert statuses(asked, EXTENDER, *only_raw) == {Status.NOT_SUPPORTED}
    only_on_gateways = ("write/8304", "write/8111", "read/8125", "write-decoded/firmware-broadcast-control")
    for device in (SENSOR, EXTENDER):
        assert statuses(asked, device, *only_on_gateways[:3]) == {Status.NOT_SUPPORTED}
    assert asked.request_and_wait(CLIP, "write/8110", value="02")["status"] == Status.NOT_SUPPORTED
    assert asked.request_and_wait(EXTENDER, "write/8110", value="04")["status"] == Status.NOT_SUPPORTED


@pytest.mark.rule("response-23")
@each_row("ext", [[], "a", None, {"a": 1}, {"rest": "0"}, {"rest": 5}])
def test_a_wrong_extension_is_an_invalid_value(ext: object) -> None:
    answer = desk().request_and_wait(SENSOR, "write-decoded/tx-power", value=4, ext=ext)
    assert answer["status"] == Status.INVALID_VALUE


@pytest.mark.rule("version-15")
def test_an_extension_is_not_looked_at_before_its_version() -> None:
    for version, status in ((Version(1, 3, 0), Status.OK), (Version(2, 0, 0), Status.INVALID_VALUE)):
        asked = desk(version=version)
        assert asked.request_and_wait(SENSOR, "write-decoded/tx-power", value=0, ext="a")["status"] == status


@pytest.mark.rule("response-28")
def test_access_is_as_the_identifier_allows() -> None:
    asked = desk()
    written = ("write/8000", "write/8813", "write-decoded/battery-level", "write/8305")
    read = ("read/8300", "read-decoded/soft-reset", "read/8303")
    for device in (SENSOR, CLIP):
        assert {
            asked.request_and_wait(device, what, value=None)["status"]
            for what in (*written[:1], *written[3:])
        } == {7}
        assert statuses(asked, device, *read) == {Status.ACCESS_NOT_ALLOWED}
    assert (
        asked.request_and_wait(SENSOR, "write-decoded/battery-level", value=1)["status"]
        == Status.ACCESS_NOT_ALLOWED
    )
    assert asked.request_and_wait(GATEWAY, "read/8111")["status"] == Status.ACCESS_NOT_ALLOWED


@pytest.mark.rule("response-33", "gateway-35")
@each_row("device", [SENSOR, GATEWAY, CLIP])
def test_reporting_of_properties_is_busy_while_it_runs(device: Mac) -> None:
    asked = desk()
    assert asked.request_and_wait(device, "write/8302")["status"] == Status.OK
    assert asked.request_and_wait(device, "write-decoded/request-property-reporting")["status"] == Status.BUSY
    asked.advance(30.0)
    assert asked.request_and_wait(device, "write/8302")["status"] == Status.OK


@pytest.mark.rule("response-33")
def test_a_gateway_works_on_so_many_requests_and_recovers() -> None:
    asked = desk(faults=Faults(silent=1.0))
    for number in range(MAX_OPEN_REQUESTS + 3):
        asked.request(SENSOR, "read/8000", id=str(number))
    busy = [message.body for message in asked.messages if message.is_response]
    assert [(body["id"], body["status"]) for body in busy] == [
        (str(MAX_OPEN_REQUESTS + number), Status.BUSY) for number in range(3)
    ]
    assert {body["origin"] for body in busy} == {32}
    asked.advance(11.0)
    asked.request(SENSOR, "read/8000", id="again")
    assert [message.body["status"] for message in asked.responses() if message.body.get("id") == "again"] == [
        9
    ]


def test_requests_that_are_answered_are_open_no_more() -> None:
    asked = desk()
    for _ in range(MAX_OPEN_REQUESTS):
        asked.request(SENSOR, "read/8000")
    answered = asked.responses(5.0)
    assert [message.body["status"] for message in answered] == [Status.OK] * MAX_OPEN_REQUESTS
    assert asked.request_and_wait(SENSOR, "read/8000")["status"] == Status.OK


@pytest.mark.rule("response-31", "response-20")
def test_a_device_that_nobody_knows_is_unreachable() -> None:
    for device in (NOBODY, FAR_FUTURE):
        answer = desk().request_and_wait(device, "read/8000")
        assert (answer["status"], answer["origin"]) == (Status.UNREACHABLE, 32)


def test_a_device_without_a_link_is_unreachable() -> None:
    alone = RequestDriver(place_device(1, 300.0), place_device(2, 310.0, code="000F"), place_device(3, 3.0))
    assert {alone.request_and_wait(device_mac(number), "read/8000")["status"] for number in (1, 2)} == {
        Status.UNREACHABLE
    }
    assert alone.request_and_wait(device_mac(3), "write/8300")["status"] == Status.OK
    alone.advance(0.5)
    assert alone.request_and_wait(device_mac(3), "read/8000")["status"] == Status.UNREACHABLE


def test_of_several_mistakes_the_first_in_line_tells() -> None:
    asked = desk()
    assert asked.request_and_wait(NOBODY, "nonsense", priority=9)["status"] == Status.UNKNOWN_OPERATION
    assert asked.request_and_wait(NOBODY, "read/8112", priority=9)["status"] == Status.INVALID_REQUEST
    assert asked.request_and_wait(NOBODY, "write/8000", value="0")["status"] == Status.INVALID_VALUE
    assert asked.request_and_wait(NOBODY, "read/8112")["status"] == Status.UNREACHABLE
    assert (
        asked.request_and_wait(SENSOR, "write/8000", key="00", value="00")["status"] == Status.ACCESS_DENIED
    )
    assert asked.request_and_wait(SENSOR, "write/8112", value="00")["status"] == Status.UNKNOWN_IDENTIFIER
    assert (
        asked.request_and_wait(SENSOR, "write/8000", value="00" * 99)["status"] == Status.ACCESS_NOT_ALLOWED
    )


@pytest.mark.rule("gateway-15", "gateway-16", "topic-4")
def test_a_request_to_all_gateways_is_answered_by_those_who_know_the_device() -> None:
    asked = desk()
    for what in ("read/8000", "nonsense", "read", "read-decoded/nonsense", "apiversion"):
        asked.publish(f"mt/gateways/request/{NOBODY}/{what}", {"id": what})
        asked.publish(f"mt/gateways/request/{SENSOR}/{what}", {"id": what})
        asked.publish(f"mt/gateways/request/ffffffffffff/{what}", {"id": what})
    found = {(message.topic.split("/")[4], message.body["id"]): message for message in asked.responses()}
    assert {device for device, _ in found} == {SENSOR, GATEWAY}
    assert len(found) == len(asked.responses()) == 10
    for (device, what), message in found.items():
        assert message.topic == f"mt/gateway/{GATEWAY}/response/{device}/{what}"
    assert found[SENSOR, "read/8000"].body["value"] == "0018"
    assert found[GATEWAY, "apiversion"].body["version"] == "2.4.0"


def test_a_request_to_another_gateway_is_none_of_ours() -> None:
    asked = desk()
    for what in ("read/8000", "nonsense", "apiversion"):
        asked.publish(f"mt/gateway/{device_mac(77)}/request/{SENSOR}/{what}", {})
    assert asked.responses() == []


def test_a_request_that_comes_twice_is_answered_twice_and_done_once_more() -> None:
    asked = desk()
    for _ in range(2):
        asked.request(SENSOR, "write/8204", id="a", value="0010")
    assert [message.body["id"] for message in asked.responses()] == ["a", "a"]
    assert asked.request_and_wait(SENSOR, "read/8204")["value"] == "0010"


@pytest.mark.rule("request-18")
def test_a_null_write_triggers_a_command() -> None:
    asked = desk()
    assert int(asked.request_and_wait(SENSOR, "read/8101")["value"], 16) > 1000
    assert asked.request_and_wait(SENSOR, "write/8300")["status"] == Status.OK
    asked.advance(30.0)
    assert int(asked.request_and_wait(SENSOR, "read/8101")["value"], 16) < 30
    assert asked.request_and_wait(SENSOR, "read/8102")["value"] == "04"


def test_a_device_with_an_empty_battery_says_nothing() -> None:
    flat = RequestDriver(
        replace(place_device(1, 2.0), battery=0), replace(place_device(2, 2.0, 1.0, code="000F"), battery=0)
    )
    for number, origin in ((1, 32), (2, 16)):
        answer = flat.request_and_wait(device_mac(number), "read/8000")
        assert (answer["status"], answer["origin"]) == (Status.TIMEOUT, origin)


@pytest.mark.rule("gateway-33")
def test_a_device_that_goes_to_storage_breaks_off_what_it_was_telling() -> None:
    asked = desk()
    asked.request_and_wait(SENSOR, "write/8302")
    asked.request_and_wait(SENSOR, "write/8110", value="03")
    asked.wait(lambda message: message.kind == "property/8110" and message.body["value"] == "03")
    told = [m.kind for m in asked.advance(30.0) if m.topic.split("/")[4] == SENSOR]
    assert set(told) <= {"event/8112"}


@pytest.mark.rule("gateway-32")
def test_a_device_is_woken_from_storage_by_its_mode_alone() -> None:
    asked = RequestDriver(replace(place_device(1, 3.0), mode=DeviceMode.STORAGE))
    assert asked.request_and_wait(device_mac(1), "read/8110")["status"] == Status.TIMEOUT
    assert asked.request_and_wait(device_mac(1), "write/9802", value="00")["status"] == Status.TIMEOUT
    assert (
        asked.request_and_wait(device_mac(1), "write-decoded/device-mode", value="connected")["status"]
        == Status.OK
    )
    asked.advance(1.0)
    answer = asked.request_and_wait(device_mac(1), "read/8110")
    assert (answer["value"], answer["origin"]) == ("02", 0)


@pytest.mark.rule("version-17", "version-14", "version-5")
@each_row("version", ["1.2.0", "1.3.0", "2.0.0", "2.0.1", "2.4.0"])
def test_responses_have_what_their_version_knows(version: str) -> None:
    asked = desk(version=Version.parse(version))
    newer = {"responseTime", "origin", "route", "extenderId", "extenderRoute"}
    for device, what in ((SENSOR, "read/8000"), (CLIP, "write/8300"), (NOBODY, "read/8000"), (SENSOR, "no")):
        fields = asked.request_and_wait(device, what).keys() & newer
        assert fields >= {"responseTime", "origin"} if version >= "2.0.0" else not fields
    assert ("origin" in asked.request_and_wait(GATEWAY, "apiversion")) == (version >= "2.0.1")
    decode_response(Operation.APIVERSION, asked.messages[-1].payload)
