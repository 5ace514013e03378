"""Notation of layouts: every construct, every mistake, and arbitrary text."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshfleet.errors.protocol import UndecodableValue
from meshfleet.protocol.identifiers.notation import NotationError, parse_layout
from tests.row_tables import each_row


@each_row(
    ("notation", "raw", "value"),
    [
        ("void", "", None),
        ("bool", "01", True),
        ("u8", "80", 0x80),
        ("u16", "8000", 0x8000),
        ("u32", "80000000", 0x80000000),
        ("u48", "800000000000", 0x800000000000),
        ("s8", "80", -0x80),
        ("s16", "8000", -0x8000),
        ("s32", "80000000", -0x80000000),
        ("float", "3f800000", 1.0),
        ("text", "6162", "ab"),
        ("mac", "c8b1a2030405", "c8b1a2030405"),
        ("version", "010203", "1.2.3"),
        ("version4", "01020304", "1.2.3-beta.4"),
        ("hex(2)", "abcd", "abcd"),
        ("dotted(2)", "0102", "1.2"),
        ("bit(2)", "04", True),
        ("s16/100", "1234", 46.6),
        ("u16 20..10240", "00c8", 200),
        ("s8 -40..8", "d8", -40),
        ("u8/10 0..100", "0f", 1.5),
        ("u8(dfu=1, connected=2)", "02", "connected"),
        ("s8(low=-1)", "ff", "low"),
        ("u8 1..2(dfu=1, connected=2)", "01", "dfu"),
        ("{interval: u16, priority: u8 = 2, msgSize?: u8}", "000102", {"interval": 1, "priority": 2}),
        ("[u8 mac]", "01c8b1a2030405", ["c8b1a2030405"]),
        ("{a: u8, b: [u8 u8]}", "0501 02", {"a": 5, "b": [2]}),
        ("{a: u8, b: version}", "05010203", {"a": 5, "b": "1.2.3"}),
        ("{a: u8, b: text}", "056162", {"a": 5, "b": "ab"}),
        ("dictionary(0 mac: mac, 1 variant: u8)", "010107", {"variant": 7}),
    ],
)
def test_every_construct_is_a_layout(notation: str, raw: str, value: Any) -> None:
    layout = parse_layout(notation)
    assert layout.decode(bytes.fromhex(raw), 0) == (value, len(bytes.fromhex(raw)))
    assert layout.encode(value, "value") == bytes.fromhex(raw)


@each_row(
    "notation",
    ["{a:u8,b?:u16/10 1..5}", " { a : u8 , b ? : u16 / 10 1 .. 5 } ", "{a: u8,\tb?: u16/10  1..5}"],
)
def test_blanks_do_not_matter(notation: str) -> None:
    assert parse_layout(notation).decode(b"\x01\x00\x05", 0) == ({"a": 1, "b": 0.5}, 3)


@each_row(
    ("notation", "message"),
    [
        ("", "the end is not a type"),
        ("u9", "'u9' is not a type"),
        ("U8", "'U8' is not a type"),
        ("raw", "'raw' is not a type"),
        ("5", "'5' is not a type"),
        ("u8 u8", "expected the end, found 'u8'"),
        ("u8}", "expected the end, found '}'"),
        ("u8; u8", "'; u8' is not valid syntax"),
        ("u8/1.5", "'.5' is not valid syntax"),
        ("u8/", "expected a number, found the end"),
        ("u8/0", "cannot be divided by 0"),
        ("u8/-10", "cannot be divided by -10"),
        ("u8 5", "expected '..', found the end"),
        ("u8 5..", "expected a number, found the end"),
        ("u8 5..x", "expected a number, found 'x'"),
        ("u8 0..256", "u8: 0..256 is not within 0..255"),
        ("u8 -1..5", "u8: -1..5 is not within 0..255"),
        ("s8 -129..0", "s8: -129..0 is not within -128..127"),
        ("u8 9..5", "u8: 9..5 is not within 0..255"),
        ("u8()", "expected a name, found ')'"),
        ("u8(dfu)", "expected '=', found ')'"),
        ("u8(dfu=x)", "expected a number, found 'x'"),
        ("u8(dfu=1", "expected ')', found the end"),
        ("u8(dfu=1, dfu=2)", "'dfu' or 2 is used twice"),
        ("u8(dfu=1, off=1)", "'off' or 1 is used twice"),
        ("hex", "expected '(', found the end"),
        ("hex()", "expected a number, found ')'"),
        ("hex(0)", "hex(0) is not between hex(1) and hex(255)"),
        ("hex(256)", "hex(256) is not between hex(1) and hex(255)"),
        ("dotted(9)", "dotted(9) is not between dotted(1) and dotted(8)"),
        ("bit(8)", "bit(8) is not between bit(0) and bit(7)"),
        ("bit(-1)", "bit(-1) is not between bit(0) and bit(7)"),
        ("hex(\u0663)", "is not valid syntax"),
        ("{", "expected a name, found the end"),
        ("{}", "expected a name, found '}'"),
        ("{a}", "expected ':', found '}'"),
        ("{a:}", "'}' is not a type"),
        ("{a: u8", "expected '}', found the end"),
        ("{a: u8,}", "expected a name, found '}'"),
        ("{1: u8}", "expected a name, found '1'"),
        ("{a: u8, a: u8}", "'a' is used twice"),
        ("{a?: u8, b: u8}", "'b' follows an optional field, so it must be optional too"),
        ("{a: text, b: u8}", "no field can follow 'a', which has no fixed size"),
        ("{a: version, b: u8}", "no field can follow 'a', which has no fixed size"),
        ("{a: [u8 u8], b: u8}", "no field can follow 'a', which has no fixed size"),
        ("{a?: text}", "'a': only a field of fixed size can be optional"),
        ("{a: u8, b?: [u8 u16]}", "'b': only a field of fixed size can be optional"),
        ("{a: void}", "'a': void is not allowed in a record"),
        ("{a: {b: u8}}", "'{' is not a type here"),
        ("{a: dictionary(0 b: u8)}", "'dictionary' is not a type here"),
        ("[u8 {a: u8}]", "'{' is not a type here"),
        ("[u8 [u8 u8]]", "'[' is not a type here"),
        ("dictionary(0 a: dictionary(0 b: u8))", "'dictionary' is not a type here"),
        ("{a: u8 = x}", "expected a number, found 'x'"),
        ("{a?: u8 = 1}", "'a': only a required number can have a default"),
        ("{a: mac = 1}", "'a': only a required number can have a default"),
        ("[", "the end is not a type"),
        ("[mac mac]", "the count of a list must be u8 or u16"),
        ("[u8(a=1) mac]", "the count of a list must be u8 or u16"),
        ("[u8]", "']' is not a type"),
        ("[u8 mac", "expected ']', found the end"),
        ("[u8 text]", "the elements of a list must have a fixed size"),
        ("[u8 void]", "the elements of a list must have a fixed size"),
        ("dictionary", "expected '(', found the end"),
        ("dictionary()", "expected a number, found ')'"),
        ("dictionary(a: u8)", "expected a number, found 'a'"),
        ("dictionary(0: u8)", "expected a name, found ':'"),
        ("dictionary(0 a u8)", "expected ':', found 'u8'"),
        ("dictionary(0 a: u8, 0 b: u8)", "'b' or key 0 is used twice"),
        ("dictionary(256 a: u8)", "key 256 is not a byte"),
        ("dictionary(0 a: u8, 1 a: u8)", "'a' or key 1 is used twice"),
        ("dictionary(0 a: u8", "expected ')', found the end"),
    ],
)
def test_a_mistake_is_explained(notation: str, message: str) -> None:
    with pytest.raises(NotationError) as mistake:
        parse_layout(notation)
    assert message in str(mistake.value)


@each_row(
    "notation",
    [
        "{a: void, b: u8}",  # `a` cannot be missing and cannot be encoded
        "[u32 u8]",  # a count of four bytes allows four billion elements
        "[s8 mac]",
        "[u8 0..5 mac]",
        "[u8/10 mac]",  # a count is a plain number
        "u8/10(a=1)",  # a keyword represents a plain number
        "u8(a=300)",
        "u8 0..5(a=6)",
        "{a: u8 = 300}",
        "{a: u8 0..4 = 5}",
    ],
)
def test_a_layout_whose_values_do_not_survive_a_round_trip_is_a_mistake(notation: str) -> None:
    with pytest.raises(NotationError):
        parse_layout(notation)


@each_row(
    "notation",
    [
        "{a: " * 5000,
        "{a: " * 5000 + "u8" + "}" * 5000,
        "[u8 " * 5000 + "u8" + "]" * 5000,
        "dictionary(0 a: " * 5000,
        "[" * 100_000,
    ],
)
def test_a_layout_that_is_nested_too_deep_is_a_mistake(notation: str) -> None:
    with pytest.raises(NotationError):
        parse_layout(notation)


NINES = "9" * 5000


@each_row(
    "notation",
    [
        f"u8 0..{NINES}",
        f"u8 -{NINES}..0",
        f"u8/{NINES}",
        f"u8/{NINES[:4000]}",
        f"u8(a={NINES})",
        f"hex({NINES[:4000]})",
        f"u48 0..{NINES[:4000]}",
        f"dictionary({NINES[:4000]} a: u8)",
        "u8 " * 50_000,
        "x" * 100_000,
        "{a: u8, " * 50_000,
        f"u8({'x' * 5000}=300)",
        f"{{{'x' * 5000}: u8 = 300}}",
    ],
)
def test_a_mistake_of_any_length_has_a_short_message(notation: str) -> None:
    with pytest.raises(NotationError) as mistake:
        parse_layout(notation)
    assert len(str(mistake.value)) < 200


def test_a_record_has_up_to_255_fields() -> None:
    layout = parse_layout("{" + ", ".join(f"f{index}?: u8" for index in range(255)) + "}")
    value, end = layout.decode(bytes(200), 0)
    assert (len(value), end) == (200, 200)
    with pytest.raises(NotationError, match="at most 255 fields"):
        parse_layout("{" + ", ".join(f"f{index}?: u8" for index in range(256)) + "}")


PIECES = (
    *("{", "}", "(", ")", "[", "]", ",", ":", "=", "?", "/", "..", " ", "-", "-1", "0", "1", "2", "300"),
    *("a", "b", "u8", "u16", "u48", "s8", "bool", "text", "mac", "void", "version", "version4", "float"),
    *("hex(2)", "dotted(2)", "bit(1)", "dictionary(0 a:", "dictionary", "{a: ", "[u8 ", "accelerometer"),
)
written = st.text() | st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


@given(written)
@example("u8 ²..³")
@example("\x00")
@example("\ud800")
def test_any_text_is_a_layout_or_a_mistake(text: str) -> None:
    try:
        layout = parse_layout(text)
    except NotationError:
        return
    with suppress(UndecodableValue):
        layout.decode(b"\x01\x02\x00\x03", 0)
