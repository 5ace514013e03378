"""Each kind of report: an exact example, required and optional fields, and invalid values."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from meshfleet.errors.protocol import (
    MalformedIdentifier,
    MalformedInput,
    MalformedMac,
    MalformedPayload,
    MalformedTopic,
)
from meshfleet.protocol import reports
from meshfleet.protocol.codes import Kind, Status
from meshfleet.protocol.hex import Hex, parse_hex
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.ids import Mac, Version
from meshfleet.protocol.topics import ReportTopic, TopicCodec
from tests.protocol.strategies import exts, json_values, macs, wholes
from tests.row_tables import each_row

if TYPE_CHECKING:
    from meshfleet.protocol.reports import Report

AT = datetime(2020, 11, 4, 10, 7, 20, 585_000, tzinfo=UTC)
PARENT = Mac("c4bd6a010203")
FAILED_MEASUREMENT = reports.MeasurementError(time=AT, seq=7, error=9, error_ext=-2)

EXAMPLES: dict[Kind, tuple[bytes, Report]] = {
    Kind.HEARTBEAT: (
        b'{"time":"2020-11-04T10:07:20.585Z","seq":135,"status":0,"lastCount":3}',
        reports.Heartbeat(time=AT, seq=135, status=0, last_count=3),
    ),
    Kind.DFU: (
        b'{"time":"2020-11-04T10:07:20.585Z","parent":"c4bd6a010203","rssi":-58}',
        reports.Dfu(time=AT, parent=PARENT, rssi=-58),
    ),
    Kind.RSSI: (
        (
            b'{"time":"2020-11-04T10:07:20.585Z","parent":"c4bd6a010203","rssi":-71,'
            b'"channel":38,"seq":255,"unreachable":true}'
        ),
        reports.Rssi(time=AT, parent=PARENT, rssi=-71, channel=38, seq=255, unreachable=True),
    ),
    Kind.PROPERTY: (
        b'{"time":"2020-11-04T10:07:20.585Z","value":"2011","seq":0}',
        reports.Property(time=AT, value=Hex("2011"), seq=0),
    ),
    Kind.PROPERTY_DECODED: (
        b'{"time":"2020-11-04T10:07:20.585Z","value":"1.2.3","ext":{"rest":"05"},"seq":1}',
        reports.PropertyDecoded(time=AT, value="1.2.3", ext={"rest": "05"}, seq=1),
    ),
    Kind.MEASUREMENT: (
        b'{"time":"2020-11-04T10:07:20.585Z","seq":20,"value":"fbeb"}',
        reports.Measurement(time=AT, seq=20, value=Hex("fbeb")),
    ),
    Kind.MEASUREMENT_DECODED: (
        b'{"time":"2020-11-04T10:07:20.585Z","seq":20,"value":-10.45,"ext":{}}',
        reports.MeasurementDecoded(time=AT, seq=20, value=-10.45, ext={}),
    ),
    Kind.MEASUREMENT_ERROR: (
        b'{"time":"2020-11-04T10:07:20.585Z","seq":7,"error":9,"errorExt":-2}',
        FAILED_MEASUREMENT,
    ),
    Kind.MEASUREMENT_ERROR_DECODED: (
        b'{"time":"2020-11-04T10:07:20.585Z","seq":7,"error":9,"errorExt":-2}',
        FAILED_MEASUREMENT,
    ),
    Kind.EVENT: (
        b'{"time":"2020-11-04T10:07:20.585Z","seq":4,"value":"10"}',
        reports.Event(time=AT, seq=4, value=Hex("10")),
    ),
    Kind.EVENT_DECODED: (
        b'{"time":"2020-11-04T10:07:20.585Z","seq":4,"value":16,"ext":{"isTransition":true}}',
        reports.EventDecoded(time=AT, seq=4, value=16, ext={"isTransition": True}),
    ),
}

REQUIRED = {
    Kind.HEARTBEAT: ("time", "seq", "status"),
    Kind.DFU: ("time", "parent", "rssi"),
    Kind.RSSI: ("time", "parent", "rssi"),
    Kind.PROPERTY: ("time", "value"),
    Kind.PROPERTY_DECODED: ("time", "value"),
    Kind.MEASUREMENT: ("time", "seq", "value"),
    Kind.MEASUREMENT_DECODED: ("time", "seq", "value"),
    Kind.MEASUREMENT_ERROR: ("time", "seq", "error"),
    Kind.MEASUREMENT_ERROR_DECODED: ("time", "seq", "error"),
    Kind.EVENT: ("time", "seq"),
    Kind.EVENT_DECODED: ("time", "seq"),
}
ATTRIBUTES = {"lastCount": "last_count", "errorExt": "error_ext"}

NOT_A_WHOLE_NUMBER: list[Any] = [None, True, "0", 1.5, [], {}, 2**53 + 2, -(2**53) - 2, 10**400]
NOT_HEX: list[Any] = [None, False, 10, 1.5, [], {}, "1", "123", "0x12", "gg", "12 34", "\u0661\u0662"]
WRONG: dict[str, list[Any]] = {
    "time": [None, True, 1604484440, 1.5, [], {}, "", "now", "2020-11-04", "2020-11-31T10:07:20Z"],
    "seq": [None, True, 1.5, [], {}, "", "x", "-1", "1.0", " 1", "0x1", "256", 256, -1, 10**400],
    "parent": [
        None,
        True,
        1,
        1.5,
        [],
        {},
        "",
        "c4bd6a01020",
        "c4bd6a0102030",
        "c4bd6a01020g",
        "c4:bd:6a:01:02:03",
    ],
    "status": NOT_A_WHOLE_NUMBER,
    "lastCount": [*NOT_A_WHOLE_NUMBER, -1],
    "rssi": NOT_A_WHOLE_NUMBER,
    "error": NOT_A_WHOLE_NUMBER,
    "errorExt": NOT_A_WHOLE_NUMBER,
    "channel": [None, True, "37", 37.5, [], {}, 36, 40, 0],
    "unreachable": [None, 0, 1, "false", 1.5, [], {}],
    "value": NOT_HEX,
    "ext": [None, True, "x", 1, 1.5, []],
}


def _example_fields(kind: Kind) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(EXAMPLES[kind][0])
    return fields


def _optional_fields(kind: Kind) -> list[str]:
    return [field for field in _example_fields(kind) if field not in REQUIRED[kind]]


def _invalid_values(kind: Kind, field: str) -> list[Any]:
    return [] if field == "value" and kind.is_decoded else WRONG[field]


def _decode(kind: Kind, fields: dict[str, Any]) -> Report:
    return reports.decode_report(kind, json.dumps(fields).encode())


@pytest.mark.rule("report-1", "report-2", "report-3", "report-4", "report-5", "report-6", "report-7")
@pytest.mark.rule("report-8", "report-9", "report-10", "report-11", "report-13")
@each_row("kind", Kind)
def test_a_report_of_each_kind_is_decoded_field_by_field(kind: Kind) -> None:
    payload, report = EXAMPLES[kind]
    assert reports.decode_report(kind, payload) == report
    assert type(reports.decode_report(kind, payload)) is type(report)


@each_row("kind", Kind)
def test_a_report_of_each_kind_is_encoded_exactly(kind: Kind) -> None:
    payload, report = EXAMPLES[kind]
    assert reports.encode_report(kind, report) == payload


@pytest.mark.rule("report-1", "report-2", "report-3", "report-4", "report-5", "report-6", "report-7")
@pytest.mark.rule("report-8", "report-9", "report-10", "report-11", "report-13", "report-21")
@each_row(("kind", "field"), [(kind, field) for kind in Kind for field in REQUIRED[kind]])
def test_a_report_without_a_required_field_is_rejected(kind: Kind, field: str) -> None:
    fields = _example_fields(kind)
    del fields[field]
    with pytest.raises(MalformedPayload) as rejected:
        _decode(kind, fields)
    assert (rejected.value.field, rejected.value.reason) == (field, "is missing")


@pytest.mark.rule("report-3", "report-4", "report-5", "report-7", "report-8", "report-9")
@pytest.mark.rule("report-10", "report-11", "report-14", "report-15")
@each_row(("kind", "field"), [(kind, field) for kind in Kind for field in _optional_fields(kind)])
def test_a_report_without_an_optional_field_is_decoded(kind: Kind, field: str) -> None:
    fields = _example_fields(kind)
    del fields[field]
    absent = False if field == "unreachable" else UNSET
    expected = msgspec.structs.replace(EXAMPLES[kind][1], **{ATTRIBUTES.get(field, field): absent})
    assert _decode(kind, fields) == expected


@pytest.mark.rule("report-21", "report-22", "report-23", "report-24", "report-25", "report-52")
@pytest.mark.rule("report-1", "report-2", "report-3", "report-4", "report-5", "report-6", "report-7")
@pytest.mark.rule("report-8", "report-9", "report-10", "report-11")
@each_row(
    ("kind", "field", "wrong"),
    [
        pytest.param(kind, field, wrong, id=f"{kind}-{field}-{str(wrong)[:20]}")
        for kind in Kind
        for field in _example_fields(kind)
        for wrong in _invalid_values(kind, field)
    ],
)
def test_an_error_names_the_invalid_field(kind: Kind, field: str, wrong: Any) -> None:
    with pytest.raises(MalformedInput) as rejected:
        _decode(kind, _example_fields(kind) | {field: wrong})
    assert rejected.value.field == field


@pytest.mark.rule("report-5", "report-7", "report-11", "report-52")
@given(
    st.sampled_from([kind for kind in Kind if "value" in _example_fields(kind) and kind.is_decoded]),
    json_values,
    exts,
)
def test_a_decoded_value_is_any_json_and_null_too(kind: Kind, value: Any, ext: dict[str, Any]) -> None:
    fields = _example_fields(kind) | {"value": value, "ext": ext}
    assert _decode(kind, fields) == msgspec.structs.replace(EXAMPLES[kind][1], value=value, ext=ext)


@pytest.mark.rule("report-52")
def test_a_null_value_differs_from_an_absent_one() -> None:
    fields = _example_fields(Kind.EVENT_DECODED)
    absent = reports.EventDecoded(time=AT, seq=4, ext={"isTransition": True})
    assert _decode(Kind.EVENT_DECODED, fields | {"value": None}) != absent


@pytest.mark.rule("report-39")
@given(wholes)
def test_a_heartbeat_status_is_any_whole_number(status: int) -> None:
    fields = _example_fields(Kind.HEARTBEAT) | {"status": status}
    assert _decode(Kind.HEARTBEAT, fields) == reports.Heartbeat(time=AT, seq=135, status=status, last_count=3)


@pytest.mark.rule("report-40")
@given(st.sampled_from(Status) | wholes, wholes)
def test_a_measurement_error_is_a_status_or_any_other_number(error: int, error_ext: int) -> None:
    fields = _example_fields(Kind.MEASUREMENT_ERROR) | {"error": int(error), "errorExt": error_ext}
    expected = reports.MeasurementError(time=AT, seq=7, error=error, error_ext=error_ext)
    assert _decode(Kind.MEASUREMENT_ERROR, fields) == expected


@pytest.mark.rule("report-41")
@each_row("rssi", [-127, -58, -1, 0, 20])
@each_row("kind", [Kind.DFU, Kind.RSSI])
def test_an_rssi_is_a_number_of_either_sign(kind: Kind, rssi: int) -> None:
    expected = msgspec.structs.replace(EXAMPLES[kind][1], rssi=rssi)
    assert _decode(kind, _example_fields(kind) | {"rssi": rssi}) == expected


@pytest.mark.rule("report-42")
@given(macs)
def test_the_gateway_itself_may_be_the_parent(gateway: Mac) -> None:
    topic = TopicCodec().parse(f"mt/gateway/{gateway}/device/c4bd6a040506/rssi")
    assert isinstance(topic, ReportTopic)
    report = _decode(topic.kind, {"time": "2020-11-04T10:07:20.585Z", "parent": topic.gateway, "rssi": -40})
    assert report == reports.Rssi(time=AT, parent=gateway, rssi=-40)


@pytest.mark.rule("report-19")
@each_row("kind", [Kind.PROPERTY, Kind.MEASUREMENT, Kind.EVENT])
def test_extra_bytes_of_a_raw_value_are_decoded_as_its_extension(kind: Kind) -> None:
    report = _decode(kind, _example_fields(kind) | {"value": "fbebc0ffee"})
    assert isinstance(report, reports.Property | reports.Measurement | reports.Event)
    assert report.value == "fbebc0ffee"
    decoded = BUILTIN_CATALOGUE.decode("8800", parse_hex(report.value))
    assert (decoded.value, decoded.ext) == (-10.45, {"rest": "c0ffee"})


@pytest.mark.rule("id-26")
@each_row("kind", [Kind.PROPERTY, Kind.MEASUREMENT, Kind.EVENT])
def test_a_raw_value_is_encoded_in_lower_case(kind: Kind) -> None:
    report = _decode(kind, _example_fields(kind) | {"value": "C0FFee"})
    assert json.loads(reports.encode_report(kind, report))["value"] == "c0ffee"


@pytest.mark.rule("report-14")
@each_row(("version", "has_field"), [("1.2.0", False), ("1.3.0", True), ("2.4.0", True)])
def test_a_gateway_before_1_3_0_sends_no_last_count(version: str, *, has_field: bool) -> None:
    report = EXAMPLES[Kind.HEARTBEAT][1]
    payload = reports.encode_report(Kind.HEARTBEAT, report, version=Version.parse(version))
    assert (b"lastCount" in payload) == has_field


@pytest.mark.rule("report-24", "report-25", "report-26", "report-27")
@each_row(
    ("suffix", "error"),
    [
        ("c4bd6a04050/heartbeat", MalformedMac),
        ("C4BD6A040506/heartbeat", MalformedMac),
        ("c4bd6a040506/humidity", MalformedTopic),
        ("c4bd6a040506/Heartbeat", MalformedTopic),
        ("c4bd6a040506/heartbeat/8800", MalformedIdentifier),
        ("c4bd6a040506/measurement", MalformedIdentifier),
        ("c4bd6a040506/measurement/880", MalformedIdentifier),
        ("c4bd6a040506/measurement/temperature", MalformedIdentifier),
        ("c4bd6a040506/measurement-decoded", MalformedIdentifier),
        ("c4bd6a040506/measurement/8800/8800", MalformedTopic),
    ],
)
def test_a_report_on_a_malformed_topic_is_rejected(suffix: str, error: type[MalformedInput]) -> None:
    with pytest.raises(error):
        TopicCodec().parse(f"mt/gateway/c4bd6a010203/device/{suffix}")
