"""Bodies of samples, series and rejected reports."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from meshfleet.errors.protocol import MalformedPayload
from meshfleet.rest.telemetry import (
    DEFAULT_POINTS,
    MAX_POINTS,
    MIN_POINTS,
    Bucket,
    Reject,
    RejectPage,
    Sample,
    SamplePage,
    Series,
    parse_points,
)
from tests.row_tables import each_row

NEXT = "a"
AT = "2020-11-04T10:07:20.880Z"
SAMPLE = Sample(
    time=AT,
    kind="measurement-error",
    identifier="8800",
    name="temperature",
    seq=255,
    value={"a": [1, 2.5, None, "é"]},
    raw="0866",
    ext={"rest": "ff"},
    error=9,
    error_ext=1,
    gateway="d0cf5e000001",
    clock="past",
    corrected_time="2020-11-04T04:07:20.880Z",
)
SAMPLE_TEXT = (
    '{"time":"2020-11-04T10:07:20.880Z","kind":"measurement-error","identifier":"8800","name":"temperature",'
    '"seq":255,"value":{"a":[1,2.5,null,"é"]},"raw":"0866","ext":{"rest":"ff"},"error":9,"errorExt":1,'
    '"gateway":"d0cf5e000001","clock":"past","correctedTime":"2020-11-04T04:07:20.880Z"}'
)
EMPTY_SAMPLE = Sample(
    time=AT,
    kind="event",
    identifier=None,
    name=None,
    seq=None,
    value=None,
    raw=None,
    ext=None,
    error=None,
    error_ext=None,
    gateway="d0cf5e000001",
    clock=None,
)
EMPTY_SAMPLE_TEXT = (
    '{"time":"2020-11-04T10:07:20.880Z","kind":"event","identifier":null,"name":null,"seq":null,"value":null,'
    '"raw":null,"ext":null,"error":null,"errorExt":null,"gateway":"d0cf5e000001","clock":null}'
)
BUCKET = Bucket(time=AT, min=-1, mean=0.5, max=2, count=2, last=2)
EMPTY_BUCKET = Bucket(time=AT, min=None, mean=None, max=None, count=0, last=None)
SERIES = Series(
    identifier="8800",
    name="temperature",
    unit="°C",
    complete_up_to=None,
    gap_checked=False,
    items=[BUCKET, EMPTY_BUCKET],
)
SERIES_TEXT = (
    '{"identifier":"8800","name":"temperature","unit":"°C","completeUpTo":null,"gapChecked":false,"items":['
    '{"time":"2020-11-04T10:07:20.880Z","min":-1,"mean":0.5,"max":2,"count":2,"last":2},'
    '{"time":"2020-11-04T10:07:20.880Z","min":null,"mean":null,"max":null,"count":0,"last":null}]}'
)
REJECT = Reject(time=AT, gateway=None, topic="mt/x", reason="topic: no", payload="\ufffd")
REJECT_TEXT = (
    '{"time":"2020-11-04T10:07:20.880Z","gateway":null,"topic":"mt/x","reason":"topic: no",'
    '"payload":"\ufffd"}'
)
BODIES: list[tuple[msgspec.Struct, str]] = [
    (SAMPLE, SAMPLE_TEXT),
    (EMPTY_SAMPLE, EMPTY_SAMPLE_TEXT),
    (SamplePage(items=[EMPTY_SAMPLE], next_token=NEXT), f'{{"items":[{EMPTY_SAMPLE_TEXT}],"nextToken":"a"}}'),
    (SERIES, SERIES_TEXT),
    (REJECT, REJECT_TEXT),
    (RejectPage(items=[REJECT], next_token=None), f'{{"items":[{REJECT_TEXT}],"nextToken":null}}'),
]


@pytest.mark.rule("rest-81", "rest-85", "rest-86", "rest-95")
@each_row(("body", "text"), BODIES)
def test_a_body_is_decoded_and_encoded_exactly(body: msgspec.Struct, text: str) -> None:
    assert msgspec.json.decode(text, type=type(body)) == body
    assert msgspec.json.encode(body).decode() == text


@pytest.mark.rule("rest-81", "rest-82", "rest-179")
@each_row(
    ("field", "values"),
    [
        ("time", ["2020-11-04T10:07:20Z", None, 5]),
        ("kind", ["Event", "link", "heartbeat", "rssi", 3, None]),
        ("identifier", ["88F0", "880", "", "8800880088", 34816]),
        ("seq", ["5", 1.5]),
        ("raw", ["0", "FF", 0]),
        ("ext", [[], "{}", 1]),
        ("gateway", ["D0CF5E000001", None, "bmac-d0cf5e000001"]),
        ("clock", ["", "now", 1, True]),
    ],
)
def test_an_ill_typed_field_of_a_sample_is_refused(field: str, values: list[Any]) -> None:
    for value in values:
        fields = json.loads(SAMPLE_TEXT) | {field: value}
        with pytest.raises(msgspec.ValidationError, match=field):
            msgspec.json.decode(json.dumps(fields), type=Sample)


@each_row("value", [None, True, 0, -1.5, 2**70, "x", [], {"a": [{}]}])
def test_a_value_may_be_any_json(value: Any) -> None:
    fields = json.loads(SAMPLE_TEXT) | {"value": value}
    assert msgspec.json.decode(json.dumps(fields), type=Sample).value == value


@pytest.mark.rule("rest-183")
def test_points_must_be_a_number_within_limits() -> None:
    assert (MIN_POINTS, DEFAULT_POINTS, MAX_POINTS) == (1, 300, 2000)
    assert [parse_points(text) for text in ("1", "0002", "300", "2000")] == [1, 2, 300, 2000]
    for text in ("", "0", "2001", "-1", "+1", "1.0", " 1", "1\n", "\u0661", "1e2", "0" * 30 + "1"):
        with pytest.raises(MalformedPayload, match="Points"):
            parse_points(text)
