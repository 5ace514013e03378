"""Tolerated spellings of reports are decoded to the same report; other payloads raise our error.

Reports have a fast and a complete decoder. Which one handles a payload depends on its spelling and, for
parents, on earlier reports: so every spelling is decoded twice.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.errors.protocol import MalformedPayload, PayloadTooLarge
from meshfleet.protocol import reports
from meshfleet.protocol.codes import Kind
from meshfleet.protocol.hex import Hex
from meshfleet.protocol.ids import Mac
from tests.protocol.strategies import any_reports, json_values, texts
from tests.protocol.test_reports import AT, EXAMPLES
from tests.row_tables import each_row

if TYPE_CHECKING:
    from meshfleet.protocol.reports import Report

LIMIT = 65536
PARENT = Mac("c4bd6a010203")
SECOND = datetime(2020, 11, 4, 10, 7, 20, tzinfo=UTC)

RECORDED: list[tuple[Kind, bytes, Report]] = [
    (
        Kind.HEARTBEAT,  # before 1.3.0
        b'{"time":"2020-11-04T10:07:20.585Z","seq":135,"status":0}',
        reports.Heartbeat(time=AT, seq=135, status=0),
    ),
    (
        Kind.HEARTBEAT,
        b'{"seq": 7, "status": 2.0, "lastCount": 1.0, "time": "2020-11-04T12:07:20.5859999+02:00"}',
        reports.Heartbeat(time=AT, seq=7, status=2, last_count=1),
    ),
    (
        Kind.DFU,
        b'{"time":"2020-11-04T10:07:20Z","parent":"C4BD6A010203","rssi":-58.0}',
        reports.Dfu(time=SECOND, parent=PARENT, rssi=-58),
    ),
    (
        Kind.RSSI,
        b'{\n  "time": "2020-11-04T10:07:20.585",\n  "parent": "c4bd6a010203",\n  "rssi": -58\n}\n',
        reports.Rssi(time=AT, parent=PARENT, rssi=-58),
    ),
    (
        Kind.RSSI,
        b'{"time":"20201104T100720,585Z","parent":"c4BD6a010203","rssi":-58,"channel":37.0,"seq":"0"}',
        reports.Rssi(time=AT, parent=PARENT, rssi=-58, channel=37, seq=0),
    ),
    (
        Kind.PROPERTY,
        b'{"time":"2020-11-04T10:07:20.585Z","value":""}',
        reports.Property(time=AT, value=Hex("")),
    ),
    (
        Kind.PROPERTY_DECODED,
        b'{"time":"2020-11-04T10:07:20.585Z","value":null}',
        reports.PropertyDecoded(time=AT, value=None),
    ),
    (
        Kind.MEASUREMENT,
        b'{"value":"FbEb","seq":20,"time":"2020-11-04T05:07:20.585-05:00"}',
        reports.Measurement(time=AT, seq=20, value=Hex("FbEb")),
    ),
    (
        Kind.MEASUREMENT_DECODED,
        b'{"time":"2020-11-04T10:07:20.585Z","seq":"20","value":{"x":[1,2.5,"\xc3\xa9"]},"unit":"g"}',
        reports.MeasurementDecoded(time=AT, seq=20, value={"x": [1, 2.5, "é"]}),
    ),
    (
        Kind.MEASUREMENT_ERROR_DECODED,
        b'{"time":"2020-11-04T10:07:20.585Z","seq":255.0,"error":99}',
        reports.MeasurementError(time=AT, seq=255, error=99),
    ),
    (
        Kind.EVENT,  # `seq` in quotes, as in a published sample
        b'{"time":"2020-11-04T10:07:20.585Z","seq":"4"}',
        reports.Event(time=AT, seq=4),
    ),
    (
        Kind.EVENT_DECODED,
        b'{"\\u0074ime":"2020-11-04T10:07:20.585Z","seq":4,"value":"\\ud83d\\ude00"}',
        reports.EventDecoded(time=AT, seq=4, value="\U0001f600"),
    ),
]


def _decode_twice(kind: Kind, payload: bytes) -> Report:
    """Decode a payload twice, and check that both reports are equal, with their time in UTC."""
    first, second = reports.decode_report(kind, payload), reports.decode_report(kind, payload)
    assert first == second
    assert first.time.tzinfo is second.time.tzinfo is UTC
    return first


@pytest.mark.rule("report-14", "report-16", "report-17", "report-18")
@each_row(("kind", "payload", "report"), RECORDED)
def test_recorded_messages_are_decoded_the_same_forever(kind: Kind, payload: bytes, report: Report) -> None:
    assert _decode_twice(kind, payload) == report


_WHOLE_NUMBERS = {"status", "lastCount", "rssi", "channel", "error", "errorExt"}


def _respell_time(draw: st.DrawFn, text: str) -> str:
    """Return the same millisecond with another offset and more digits."""
    minutes = draw(st.integers(-23 * 60 - 59, 23 * 60 + 59))
    local_time = datetime.fromisoformat(text) + timedelta(minutes=minutes)
    more_digits = draw(st.sampled_from(["", "0", "9", "49", "999", "5000", "9999", "999999", "9" * 40]))
    size = f"{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"
    offset = ("-" if minutes < 0 else "+") + draw(st.sampled_from([size, size.replace(":", "")]))
    zone = offset if minutes else draw(st.sampled_from(["Z", "", "+00", "+00:00"]))
    return local_time.isoformat(timespec="milliseconds")[:-6] + more_digits + zone


def _change_case(draw: st.DrawFn, text: str) -> str:
    return "".join(draw(st.sampled_from([digit, digit.upper()])) for digit in text)


def _respell_field(draw: st.DrawFn, kind: Kind, field: str, value: Any) -> Any:
    if field == "time":
        return _respell_time(draw, value)
    if field == "parent" or (field == "value" and not kind.is_decoded):
        return _change_case(draw, value)
    if field == "seq":
        return draw(st.sampled_from([value, float(value), str(value)]))
    return draw(st.sampled_from([value, float(value)])) if field in _WHOLE_NUMBERS else value


@st.composite
def respelled_reports(draw: st.DrawFn) -> tuple[Kind, Report, bytes]:
    """Draw a report, and a payload with the same meaning in a tolerated spelling."""
    topic, report = draw(any_reports())
    plain = json.loads(reports.encode_report(topic.kind, report))
    fields = {name: _respell_field(draw, topic.kind, name, value) for name, value in plain.items()}
    unknown = draw(st.dictionaries(texts.map("x-{}".format), json_values, max_size=3))
    shuffled = dict(draw(st.permutations(sorted((fields | unknown).items()))))
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", "\r\n:")]))
    text = json.dumps(shuffled, separators=separators, ensure_ascii=draw(st.booleans()))
    return topic.kind, report, draw(st.sampled_from(["", "\n ", "\t"])).encode() + text.encode()


def _normalize_hex(report: Report) -> Report:
    """Return the report with its hex in lower case, to compare bytes and not texts."""
    if isinstance(report, reports.Property | reports.Measurement | reports.Event) and report.value:
        return msgspec.structs.replace(report, value=Hex(report.value.lower()))
    return report


@pytest.mark.rule("report-16", "report-17", "report-18")
@given(respelled_reports())
def test_a_report_in_any_tolerated_spelling_is_the_same_report(drawn: tuple[Kind, Report, bytes]) -> None:
    kind, report, payload = drawn
    assert _normalize_hex(_decode_twice(kind, payload)) == report


FINE_TIMES = [("5859999", 585), ("999999999", 999), ("5855", 585), ("585999", 585), ("0009999", 0)]


@pytest.mark.rule("id-23")
@each_row(("digits", "millis"), FINE_TIMES)
@each_row(
    "shape",
    [
        b'{"time":"2020-11-04T10:07:20.%bZ","seq":1,"status":0}',
        b'{"time": "2020-11-04T10:07:20.%bZ", "seq": 1, "status": 0}',
        b'{"seq":1,"time":"2020-11-04T10:07:20.%bZ","status":0}',
        b'{"seq":1,"status":0,"time":"2020-11-04T10:07:20.%b+00:00"}',
        b'{"seq":"1","status":0,"time":"2020-11-04T10:07:20.%bZ"}',
        b'{"time":"2020-11-04T12:07:20.%b+02:00","seq":1,"status":0}',
    ],
)
def test_digits_beyond_the_millisecond_are_truncated(shape: bytes, digits: str, millis: int) -> None:
    time = SECOND + timedelta(milliseconds=millis)
    expected = reports.Heartbeat(time=time, seq=1, status=0)
    assert _decode_twice(Kind.HEARTBEAT, shape % digits.encode()) == expected


@pytest.mark.rule("id-23")
@each_row("time", [rb"20\u002e5859999Z", rb"20.\u0035859999Z", rb"20.585999\u0039Z"])
def test_digits_beyond_the_millisecond_are_truncated_in_an_escaped_time(time: bytes) -> None:
    payload = b'{"time":"2020-11-04T10:07:%b","seq":1,"status":0}' % time
    assert _decode_twice(Kind.HEARTBEAT, payload) == reports.Heartbeat(time=AT, seq=1, status=0)


@pytest.mark.rule("id-23")
@each_row("time", ["2020-11-04T10:07:20.5859999Z", "2020-11-04T12:07:20.585+02:00"])
@each_row("length", [20, 23, 40])
def test_a_text_before_the_time_does_not_change_how_it_is_decoded(length: int, time: str) -> None:
    text = "Z" * length
    payload = f'{{"value":"{text}","time":"{time}"}}'.encode()
    assert _decode_twice(Kind.PROPERTY_DECODED, payload) == reports.PropertyDecoded(time=AT, value=text)


@pytest.mark.rule("report-28")
@each_row("kind", Kind)
def test_a_payload_of_64_kib_is_decoded_and_one_byte_more_is_rejected(kind: Kind) -> None:
    payload, report = EXAMPLES[kind]
    assert _decode_twice(kind, payload.ljust(LIMIT)) == report
    with pytest.raises(PayloadTooLarge):
        reports.decode_report(kind, payload.ljust(LIMIT + 1))


def _with_field(value: bytes) -> bytes:
    return b'{"time":"2020-11-04T10:07:20.585Z","seq":1,"status":0,"x":' + value + b"}"


@pytest.mark.rule("report-12", "report-20")
@each_row("kind", Kind)
@each_row(
    "payload",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b" ", id="a space"),
        pytest.param(b"null", id="null"),
        pytest.param(b"[]", id="an array"),
        pytest.param(b'[{"time":"2020-11-04T10:07:20.585Z"}]', id="an object in an array"),
        pytest.param(b'"text"', id="a text"),
        pytest.param(b"{", id="half an object"),
        pytest.param(b"{'seq':1}", id="single quotes"),
        pytest.param(b'\xef\xbb\xbf{"seq":1}', id="a byte order mark"),
        pytest.param('{"seq":1}'.encode("utf-16"), id="UTF-16"),
        pytest.param(_with_field(b"1") + b"x", id="a byte behind"),
        pytest.param(_with_field(b"1") + b"\x00", id="a NUL behind"),
        pytest.param(_with_field(b"1") * 2, id="two objects"),
        pytest.param(_with_field(b"1,"), id="a comma too many"),
        pytest.param(_with_field(b"01"), id="a leading zero"),
        pytest.param(_with_field(b"NaN"), id="NaN"),
        pytest.param(_with_field(b'"\xff"'), id="a byte that is not UTF-8"),
        pytest.param(_with_field(b'"\xc0\xaf"'), id="an overlong character"),
        pytest.param(_with_field(b'"\xed\xa0\x80"'), id="a surrogate in UTF-8"),
        pytest.param(_with_field(b'{"\xff":1}'), id="a name that is not UTF-8"),
        pytest.param(_with_field(b'"\\ud800"'), id="half a surrogate pair"),
        pytest.param(_with_field(b'"\\udc00x"'), id="the other half"),
        pytest.param(_with_field(b'"\n"'), id="a bare line feed"),
    ],
)
def test_a_payload_that_is_not_a_json_object_in_utf_8_is_rejected(kind: Kind, payload: bytes) -> None:
    with pytest.raises(MalformedPayload) as rejected:
        reports.decode_report(kind, payload)
    assert rejected.value.field == "payload"


@pytest.mark.rule("report-20")
@each_row("value", [b'"\xff"', b'{"\xff":1}', b'"\\ud800"', b"nul", b"[" * 30_000])
def test_a_decoded_value_that_is_not_json_is_rejected(value: bytes) -> None:
    with pytest.raises(MalformedPayload) as rejected:
        reports.decode_report(
            Kind.PROPERTY_DECODED, b'{"time":"2020-11-04T10:07:20.585Z","value":' + value + b"}"
        )
    assert rejected.value.field == "payload"


@each_row("kind", Kind)
@each_row(
    "value",
    [
        pytest.param(b"1e999", id="a number out of range"),
        pytest.param(b"1" * 5000, id="a number of 5000 digits"),
        pytest.param(b"[" * 30_000 + b"]" * 30_000, id="a deep array"),
        pytest.param(b'{"x":' * 9_000 + b"1" + b"}" * 9_000, id="a deep object"),
    ],
)
def test_json_beyond_our_limits_is_rejected(kind: Kind, value: bytes) -> None:
    with pytest.raises(MalformedPayload) as rejected:
        reports.decode_report(kind, EXAMPLES[kind][0][:-1] + b',"x":' + value + b"}")
    assert rejected.value.field == "payload"


@each_row("number", [2**53 + 2, 2**64, 10**400, -(10**400)])
def test_a_decoded_number_keeps_all_its_digits(number: int) -> None:
    payload = f'{{"time":"2020-11-04T10:07:20.585Z","value":{number}}}'.encode()
    assert _decode_twice(Kind.PROPERTY_DECODED, payload) == reports.PropertyDecoded(time=AT, value=number)


def test_the_last_of_repeated_fields_wins() -> None:
    payload = b'{"time":"2020-11-04T10:07:20.585Z","seq":1,"value":"00","seq":"2","value":"01"}'
    assert _decode_twice(Kind.MEASUREMENT, payload) == reports.Measurement(time=AT, seq=2, value=Hex("01"))
