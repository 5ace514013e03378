"""Each layout on its own: conversions of bytes and JSON, and invalid values."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.errors.protocol import UndecodableValue, UnencodableValue
from meshfleet.protocol.identifiers.notation import parse_layout
from tests.row_tables import each_row

NUMBERS = {
    "u8": (0, 2**8 - 1),
    "u16": (0, 2**16 - 1),
    "u32": (0, 2**32 - 1),
    "u48": (0, 2**48 - 1),
    "s8": (-(2**7), 2**7 - 1),
    "s16": (-(2**15), 2**15 - 1),
    "s32": (-(2**31), 2**31 - 1),
}
SIMPLE = (
    *("void", "bool", "float", "text", "mac", "version", "version4", "hex(3)", "dotted(2)", "bit(7)"),
    *NUMBERS,
    *("s16/100", "u48/3", "u8(a=1, b=2)", "s32(low=-5)"),
)


def decode(notation: str, raw: bytes) -> Any:
    value, end = parse_layout(notation).decode(raw, 0)
    assert end <= len(raw)
    return value


def encode(notation: str, value: Any) -> bytes:
    return parse_layout(notation).encode(value, "value")


@each_row(
    ("notation", "raw", "value"),
    [
        ("void", "", None),
        ("bool", "00", False),
        ("bool", "01", True),
        ("u8", "ff", 255),
        ("u16", "0102", 0x0102),
        ("u32", "01020304", 0x01020304),
        ("u48", "010203040506", 0x010203040506),
        ("s8", "80", -128),
        ("s16", "fffe", -2),
        ("s32", "80000000", -(2**31)),
        ("float", "3fc00000", 1.5),
        ("float", "c2280000", -42.0),
        ("text", "48656ac3a5", "Hejå"),
        ("text", "", ""),
        ("mac", "c8b1a2030405", "c8b1a2030405"),
        ("hex(3)", "00abff", "00abff"),
        ("version4", "01020300", "1.2.3"),
        ("version4", "010203ff", "1.2.3-beta.255"),
        ("version", "010203", "1.2.3"),
        ("version", "010203ff", "1.2.3-beta.255"),
        ("dotted(1)", "07", "7"),
        ("dotted(3)", "0100ff", "1.0.255"),
        ("bit(7)", "80", True),
        ("bit(0)", "00", False),
        ("u16/10", "000f", 1.5),
        ("s16/100", "ffff", -0.01),
        ("u48/1000", "0000000005dc", 1.5),
        ("u8(off=0, on=9)", "09", "on"),
        ("s16(low=-5)", "fffb", "low"),
        ("u48(far=4294967296)", "000100000000", "far"),
    ],
)
@pytest.mark.rule("value-1", "value-2", "value-3", "value-4", "value-5", "value-6", "value-7", "value-8")
@pytest.mark.rule("value-9", "value-10", "value-11", "value-13", "value-14", "value-15")
def test_bytes_and_json_are_converted_both_ways(notation: str, raw: str, value: Any) -> None:
    assert msgspec.json.encode(decode(notation, bytes.fromhex(raw))) == msgspec.json.encode(value)
    assert encode(notation, value).hex() == raw


@each_row("notation", NUMBERS)
@given(st.data())
@pytest.mark.rule("value-1", "value-4", "value-5", "value-6")
def test_every_number_in_range_survives_a_round_trip(notation: str, data: st.DataObject) -> None:
    number = data.draw(st.integers(*NUMBERS[notation]))
    raw = encode(notation, number)
    assert len(raw) == int(notation[1:]) // 8
    assert raw == number.to_bytes(len(raw), "big", signed=notation.startswith("s"))
    assert decode(notation, raw) == number


@each_row("notation", NUMBERS)
@each_row("beyond", [-1, 1])
@pytest.mark.rule("value-4", "value-5", "value-6", "value-44")
def test_a_number_just_outside_its_type_is_refused(notation: str, beyond: int) -> None:
    low, high = NUMBERS[notation]
    with pytest.raises(UnencodableValue, match=f"is not between {low} and {high}"):
        encode(notation, high + 1 if beyond > 0 else low - 1)


@each_row(
    ("notation", "value", "raw"),
    [
        ("s16/100", 46.604, "1234"),
        ("s16/100", 46.596, "1234"),
        ("s16/100", -10.4549, "fbeb"),
        ("s16/100", 5, "01f4"),
        ("u8/10", 25.54, "ff"),
        ("u32/1000000", 1024.9672954, "3d17c27f"),
        ("s16/100", 0.001, "0000"),
        ("s16/100", 327.67, "7fff"),
        ("s16/100", -327.68, "8000"),
    ],
)
@pytest.mark.rule("value-10")
def test_a_scaled_number_is_rounded_to_its_resolution(notation: str, value: float, raw: str) -> None:
    assert encode(notation, value).hex() == raw


@given(st.sampled_from([10, 100, 186, 1000000]), st.integers(0, 2**32 - 1))
@pytest.mark.rule("value-10")
def test_every_scaled_number_survives_a_round_trip(scale: int, number: int) -> None:
    raw = number.to_bytes(4, "big")
    assert decode(f"u32/{scale}", raw) == number / scale
    assert encode(f"u32/{scale}", number / scale) == raw


@each_row(
    ("notation", "fits", "refused", "range_"),
    [
        ("u8 10..20", [10, 20, 15.0], [9, 21], "10 and 20"),
        ("s8 -40..8", [-40, 8], [-41, 9, -128, 127], "-40 and 8"),
        ("u8/10 0..100", [0, 10.0, 10.04], [10.06, -0.06], "0.0 and 10.0"),
        ("s16/100", [327.67], [327.68, -327.69, 1e9], "-327.68 and 327.67"),
    ],
)
@pytest.mark.rule("value-44")
def test_a_number_outside_its_limits_is_refused_with_the_range(
    notation: str, fits: list[float], refused: list[float], range_: str
) -> None:
    assert all(encode(notation, value) for value in fits)
    for value in refused:
        with pytest.raises(UnencodableValue, match=f"is not between {range_}"):
            encode(notation, value)


@given(st.binary(min_size=1, max_size=1))
@pytest.mark.rule("value-44")
def test_limits_do_not_apply_to_decoding(raw: bytes) -> None:
    assert decode("u8 10..20", raw) == raw[0]


HUGE = pytest.param(10**400, id="10**400")
HUGER = pytest.param(10**5000, id="10**5000")
NOT_A_NUMBER: list[Any] = [True, False, None, "5", "", [], [5], {}, math.nan, math.inf, -math.inf]


@each_row("value", [*NOT_A_NUMBER, 1e308, -1e308, HUGE, HUGER])
@each_row("notation", ["u8", "s32", "u48", "s16/100", "u8 0..1", "float"])
def test_a_value_that_is_not_a_number_or_too_large_is_refused(notation: str, value: Any) -> None:
    with pytest.raises(UnencodableValue) as refused:
        encode(notation, value)
    assert refused.value.field == "value"


@each_row("value", [0.5, 2.0000001, -0.1])
def test_an_unscaled_number_must_be_whole(value: float) -> None:
    with pytest.raises(UnencodableValue, match="is not a whole number"):
        encode("u8", value)


def test_a_whole_number_may_have_a_zero_fraction() -> None:
    assert encode("u16", 2.0) == b"\x00\x02"


@each_row(
    ("notation", "value", "reason"),
    [
        ("void", False, "only null is accepted"),
        ("void", "", "only null is accepted"),
        ("bool", 1, "1 is not a boolean"),
        ("bit(0)", 0, "0 is not a boolean"),
        ("float", 3.5e38, "too large for 4 bytes"),
        ("text", 5, "5 is not a string"),
        ("text", "\ud800", "is not valid Unicode text"),
        ("mac", None, "None is not a string"),
        ("mac", "c8:b1:a2:03:04:05", "is not an even number of hex digits"),
        ("mac", "c8b1a203040", "is not an even number of hex digits"),
        ("mac", "c8b1a20304", "has 5 bytes; exactly 6 are required"),
        ("hex(2)", "\ud800", "is not an even number of hex digits"),
        ("hex(2)", "aabbcc", "has 3 bytes; exactly 2 are required"),
        ("version", "1.2", "is not M.m.p"),
        ("version", "01.2.3", "is not M.m.p"),
        ("version", "1.2.256", "is not M.m.p"),
        ("version4", "1.2.3-beta.0", "is not a version such as"),
        ("version4", "1.2.3-beta.256", "is not a version"),
        ("version4", 1.2, "is not a string"),
        ("dotted(2)", "1.2.3", "is not 2 numbers up to 255"),
        ("dotted(2)", "1.256", "is not 2 numbers up to 255"),
        ("dotted(2)", "1.\u0663", "is not 2 numbers up to 255"),
        ("u8(dfu=1, off=2)", "on", "'on' is not one of dfu, off"),
        ("u8(dfu=1, off=2)", 1, "1 is not one of dfu, off"),
        ("u8(dfu=1, off=2)", ["dfu"], "is not one of dfu, off"),
    ],
)
def test_json_that_does_not_fit_is_refused_with_the_reason(notation: str, value: Any, reason: str) -> None:
    with pytest.raises(UnencodableValue) as refused:
        encode(notation, value)
    assert (refused.value.field, reason in refused.value.reason) == ("value", True), refused.value


def test_hex_is_accepted_in_any_case() -> None:
    assert encode("mac", "C8b1A2030405").hex() == "c8b1a2030405"


@each_row(
    ("notation", "raw", "reason"),
    [
        ("bool", "02", "byte 2 is neither 0 nor 1"),
        ("float", "7fc00000", "nan has no JSON form"),
        ("float", "ff800000", "-inf has no JSON form"),
        ("text", "ff", "is not UTF-8"),
        ("text", "eda080", "is not UTF-8"),
        ("u8(dfu=1)", "02", "2 is not a value of this enumeration"),
        ("version", "0102", "has 2 bytes; at least 3 are required"),
        ("version4", "010203", "has 3 bytes; at least 4 are required"),
    ],
)
@pytest.mark.rule("value-3", "value-7", "value-8", "value-11")
def test_bytes_that_do_not_fit_are_refused_with_the_reason(notation: str, raw: str, reason: str) -> None:
    with pytest.raises(UndecodableValue, match=reason):
        decode(notation, bytes.fromhex(raw))


@each_row(
    ("notation", "size"),
    [("bool", 1), ("s16/100", 2), ("u32", 4), ("u48", 6), ("float", 4), ("mac", 6), ("hex(65)", 65)],
)
@pytest.mark.rule("value-4", "value-5", "value-6", "value-7", "value-9")
def test_a_raw_value_that_ends_too_early_is_refused(notation: str, size: int) -> None:
    decode(notation, bytes(size))
    with pytest.raises(UndecodableValue, match=f"has {size - 1} bytes; at least {size} are required"):
        decode(notation, bytes(size - 1))


@given(raw=st.binary(max_size=8))
@each_row("notation", SIMPLE)
def test_a_decoded_value_survives_a_round_trip(notation: str, raw: bytes) -> None:
    try:
        value = decode(notation, raw)
    except UndecodableValue:
        return
    msgspec.json.encode(value)
    assert decode(notation, encode(notation, value)) == value
