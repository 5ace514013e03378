"""Records, counted lists and dictionaries: conversions, and errors that name the part."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshfleet.errors.protocol import UndecodableValue, UnencodableValue
from meshfleet.protocol.identifiers.notation import parse_layout
from tests.examples import examples
from tests.row_tables import each_row

INTERVAL = "{interval: u16 20..10240, denominator: u8 1..255}"
TEST = "{packets: u16, burst: u8 1..255, priority: u8 0..4 = 2, msgSize?: u8, extra?: u16}"
TARGETS = "{type: u8, targets: [u8 mac]}"
INFO = "dictionary(0 mac: mac, 2 variant: u8, 3 label: text, 5 flag: void)"
A, B = "aaaaaaaaaaaa", "000000000001"


def decode(notation: str, raw: str) -> Any:
    data = bytes.fromhex(raw)
    value, end = parse_layout(notation).decode(data, 0)
    assert end == len(data)
    return value


def encode(notation: str, value: Any) -> bytes:
    return parse_layout(notation).encode(value, "value")


@each_row(
    ("notation", "raw", "value"),
    [
        (INTERVAL, "00c80a", {"interval": 200, "denominator": 10}),
        (TEST, "01f40304", {"packets": 500, "burst": 3, "priority": 4}),
        (TEST, "01f40304 14", {"packets": 500, "burst": 3, "priority": 4, "msgSize": 20}),
        (TEST, "01f40304 140102", {"packets": 500, "burst": 3, "priority": 4, "msgSize": 20, "extra": 258}),
        ("{on: bool, at: float, label: text}", "01 3fc00000 41", {"on": True, "at": 1.5, "label": "A"}),
        ("{a: u8, v: version}", "05 010203", {"a": 5, "v": "1.2.3"}),
        (TARGETS, "01 00", {"type": 1, "targets": []}),
        (TARGETS, f"01 02 {A} {B}", {"type": 1, "targets": [A, B]}),
        ("[u16 s8]", "0003 ff 00 01", [-1, 0, 1]),
        (INFO, "", {}),
        (INFO, f"0006{A} 020107", {"mac": A, "variant": 7}),
        (INFO, "03 01 41 05 00", {"label": "A", "flag": None}),
        (INFO, "01 02 0102 04 00", {"1": "0102", "4": ""}),
        (INFO, "02 02 0707", {"2": "0707"}),
        (INFO, "03 01 ff", {"3": "ff"}),
        (INFO, "05 01 00", {"5": "00"}),
    ],
)
@pytest.mark.rule("value-16", "value-17", "value-18", "value-19")
def test_bytes_and_json_are_converted_both_ways(notation: str, raw: str, value: Any) -> None:
    assert msgspec.json.encode(decode(notation, raw)) == msgspec.json.encode(value)
    assert encode(notation, value) == bytes.fromhex(raw)


def test_a_missing_field_is_encoded_with_its_default() -> None:
    assert encode(TEST, {"packets": 500, "burst": 3}) == bytes.fromhex("01f40302")


@pytest.mark.rule("value-20")
def test_a_dictionary_is_encoded_in_the_order_of_its_keys() -> None:
    assert encode(INFO, {"255": "00", "variant": 7, "1": "", "mac": A}) == bytes.fromhex(
        f"0006{A} 0100 020107 ff0100"
    )


@each_row(
    ("notation", "raw", "value", "end"),
    [
        (TEST, "01f4030414ab", {"packets": 500, "burst": 3, "priority": 4, "msgSize": 20}, 5),
        ("{a?: u16, b?: u8}", "05", {}, 0),
        ("{a: u8, b?: u16}", "0141", {"a": 1}, 1),
        ("{a: u8, b?: version4, c?: u8}", "01020304", {"a": 1}, 1),
    ],
)
@pytest.mark.rule("value-17", "value-24")
def test_an_incomplete_optional_field_is_left_unread(notation: str, raw: str, value: Any, end: int) -> None:
    assert parse_layout(notation).decode(bytes.fromhex(raw), 0) == (value, end)


@each_row(
    ("notation", "raw", "reason"),
    [
        (INTERVAL, "", "has 0 bytes; at least 3 are required"),
        (INTERVAL, "00c8", "has 2 bytes; at least 3 are required"),
        (TEST, "01f403", "has 3 bytes; at least 4 are required"),
        (TARGETS, "01", "has 1 bytes; at least 2 are required"),
        (TARGETS, f"0102{A}", "has 8 bytes; at least 14 are required"),
        ("{a: u8, on: bool}", "0102", "byte 2 is neither 0 nor 1"),
        (INFO, "02", "has 1 bytes; at least 2 are required"),
        (INFO, "0202", "has 2 bytes; at least 4 are required"),
        (INFO, "020107 03", "has 4 bytes; at least 5 are required"),
    ],
)
@pytest.mark.rule("value-16", "value-17", "value-18", "value-19")
def test_bytes_that_end_too_early_or_do_not_fit_are_refused(notation: str, raw: str, reason: str) -> None:
    with pytest.raises(UndecodableValue, match=reason):
        decode(notation, raw)


@each_row("raw", ["020107 0100", "020107 020108", "ff00 0000"])
@pytest.mark.rule("value-20")
def test_a_dictionary_out_of_order_is_refused(raw: str) -> None:
    with pytest.raises(UndecodableValue, match=r"key \d+ follows key \d+"):
        decode(INFO, raw)


@each_row(
    ("notation", "value", "field", "reason"),
    [
        (INTERVAL, [], "value", "an array is not an object"),
        (INTERVAL, None, "value", "None is not an object"),
        (INTERVAL, {"interval": 19, "denominator": 1}, "value.interval", "is not between 20 and 10240"),
        (INTERVAL, {"interval": 200}, "value.denominator", "is missing"),
        (INTERVAL, {"interval": 200, "denominator": None}, "value.denominator", "is missing"),
        (INTERVAL, {"interval": 200, "denominator": 1, "x": 1}, "value.x", "is not a field of this value"),
        (TEST, {"packets": 1, "burst": 1, "priority": None}, "value.priority", "is missing"),
        (TEST, {"packets": 1, "burst": 1, "extra": 5}, "value.msgSize", "is missing before extra"),
        (TARGETS, {"type": 1, "targets": A}, "value.targets", "is not an array"),
        (TARGETS, {"type": 1, "targets": [A, "x"]}, "value.targets[1]", "is not an even number of hex"),
        (INFO, [], "value", "an array is not an object"),
        (INFO, {"variant": 256}, "value.variant", "is not between 0 and 255"),
        (INFO, {"label": 5}, "value.label", "5 is not a string"),
        (INFO, {"flag": True}, "value.flag", "only null is accepted"),
        (INFO, {"serial": "00"}, "value.serial", "is not a field of this value"),
        (INFO, {"256": "00"}, "value.256", "is not a field of this value"),
        (INFO, {"-1": "00"}, "value.-1", "is not a field of this value"),
        (INFO, {"1": "0"}, "value.1", "is not an even number of hex digits"),
        (INFO, {"1": 5}, "value.1", "is not an even number of hex digits"),
        (INFO, {"1": None}, "value.1", "is not an even number of hex digits"),
        (INFO, {"mac": A, "0": "00"}, "value.0", "repeats key 0"),
        (INFO, {"1": "", "01": ""}, "value.01", "repeats key 1"),
        (INFO, {"1": "00" * 256}, "value.1", "has 256 bytes; at most 255 are allowed"),
        (INFO, {"label": "A" * 256}, "value.label", "has 256 bytes; at most 255 are allowed"),
    ],
)
def test_json_that_does_not_fit_is_refused_with_the_name_of_the_part(
    notation: str, value: Any, field: str, reason: str
) -> None:
    with pytest.raises(UnencodableValue) as refused:
        encode(notation, value)
    assert refused.value.field == field
    assert reason in refused.value.reason


@each_row("notation", [INTERVAL, INFO, "accelerometer"])
@each_row("name", ["x" * 5000, "\ud800", "\x1b[2J"])
def test_the_error_for_an_unknown_name_is_short_and_printable(notation: str, name: str) -> None:
    with pytest.raises(UnencodableValue) as refused:
        encode(notation, {name: 0})
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 200


@pytest.mark.rule("value-18")
def test_the_length_of_a_list_is_limited_by_its_count() -> None:
    assert decode("[u8 u8]", encode("[u8 u8]", [7] * 255).hex()) == [7] * 255
    with pytest.raises(UnencodableValue) as refused:
        encode(TARGETS, {"type": 0, "targets": [A] * 256})
    assert str(refused.value) == "value.targets: has 256 elements; at most 255 are allowed"


FIXED_SIZE = ["bool", "u8", "u16", "s8", "s16/100", "u48", "float", "mac", "hex(2)", "dotted(2)", "bit(3)"]
FIXED_SIZE += ["version4", "u8(a=0, b=1)"]
OPEN_ENDED = ["text", "version", "[u8 u16]", "[u8 mac]"]
NOT_IN_RECORDS = ["dictionary(0 a: u8, 2 b: text, 7 c: version4)", "accelerometer", *OPEN_ENDED]


@st.composite
def notations(draw: st.DrawFn) -> str:
    """Draw any layout without limits."""
    parts = draw(st.lists(st.sampled_from(FIXED_SIZE), min_size=1, max_size=4))
    if draw(st.booleans()):
        return draw(st.sampled_from([*FIXED_SIZE, *NOT_IN_RECORDS]))
    if draw(st.booleans()):
        return _format_record([*parts, draw(st.sampled_from(OPEN_ENDED))])
    return _format_record(parts, draw(st.integers(0, len(parts))))


def _format_record(parts: list[str], first_optional: int = 9) -> str:
    marks = ["?" if index >= first_optional else "" for index in range(len(parts))]
    return "{" + ", ".join(f"f{index}{marks[index]}: {part}" for index, part in enumerate(parts)) + "}"


raws = st.integers(0, 24).flatmap(lambda size: st.binary(min_size=size, max_size=size).map(make_plausible))


def make_plausible(raw: bytes) -> bytes:
    """Return mostly small bytes: short counts, low keys, known enumeration values."""
    return bytes(byte & 3 if byte < 0xF0 else byte for byte in raw)


@settings(max_examples=examples(150))
@given(notations(), raws)
@pytest.mark.rule("value-16", "value-17", "value-19")
def test_a_decoded_value_can_be_encoded_with_any_layout(notation: str, raw: bytes) -> None:
    layout = parse_layout(notation)
    try:
        value, end = layout.decode(raw, 0)
    except UndecodableValue:
        return
    assert 0 <= end <= len(raw)
    written = layout.encode(value, "value")
    assert layout.decode(written, 0) == (value, len(written))
