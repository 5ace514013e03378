"""Configuration of the accelerometer, whose thresholds are scaled by another field."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.errors.protocol import UndecodableValue, UnencodableValue
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE, DecodedValue
from tests.row_tables import each_row

EXAMPLE = bytes.fromhex("d3200003050000")
VALUE = {
    "outputDataRate": 25,
    "fullScale": 4,
    "interrupt1": True,
    "interrupt2": True,
    "threshold1": 1024,
    "duration1": 0,
    "blockingTime": 300,
    "interruptCount": 5,
    "threshold2": 0,
    "duration2": 0,
}
RATES = (0, 1, 10, 25, 50, 100, 200, 400, 1620, 1344)
SCALES = (2, 4, 8, 16)
STEPS = (16, 32, 62, 186)


def decode(raw: bytes) -> dict[str, Any]:
    value: dict[str, Any] = BUILTIN_CATALOGUE.decode("accelerometer-configuration", raw).value
    return value


def encode(**changes: Any) -> bytes:
    """Encode the example with these changes."""
    return BUILTIN_CATALOGUE.encode("accelerometer-configuration", {**VALUE, **changes})


def refuse(**changes: Any) -> tuple[str, str]:
    """Return the field and the reason with which the example with these changes is refused."""
    with pytest.raises(UnencodableValue) as refused:
        encode(**changes)
    return refused.value.field, refused.value.reason


@pytest.mark.rule("value-43")
def test_the_documented_example_is_decoded_and_encoded() -> None:
    assert BUILTIN_CATALOGUE.decode("8200", EXAMPLE) == DecodedValue(VALUE)
    assert encode() == EXAMPLE


@each_row(("code", "rate"), [*enumerate(RATES)])
@pytest.mark.rule("value-43")
def test_the_low_four_bits_are_the_rate(code: int, rate: int) -> None:
    assert decode(bytes([code, *bytes(6)]))["outputDataRate"] == rate
    assert encode(outputDataRate=rate)[0] & 0x0F == code


@each_row(("code", "scale"), [*enumerate(SCALES)])
@pytest.mark.rule("value-43")
def test_the_step_of_thresholds_depends_on_the_full_scale(code: int, scale: int) -> None:
    value = decode(bytes([code << 4, 3, 0, 0, 0, 127, 0]))
    step = STEPS[code]
    assert (value["fullScale"], value["threshold1"], value["threshold2"]) == (scale, 3 * step, 127 * step)
    raw = encode(fullScale=scale, threshold1=3 * step, threshold2=127 * step)
    assert (raw[0] >> 4 & 3, raw[1], raw[5]) == (code, 3, 127)


@each_row(
    ("control", "interrupt1", "interrupt2"),
    [(0x00, False, False), (0x40, True, False), (0x80, False, True), (0xC0, True, True)],
)
@pytest.mark.rule("value-43")
def test_each_interrupt_has_its_bit(control: int, *, interrupt1: bool, interrupt2: bool) -> None:
    value = decode(bytes([control, *bytes(6)]))
    assert (value["interrupt1"], value["interrupt2"]) == (interrupt1, interrupt2)
    assert encode(interrupt1=interrupt1, interrupt2=interrupt2)[0] & 0xC0 == control


@pytest.mark.rule("value-43")
def test_every_byte_has_its_field() -> None:
    value = decode(bytes.fromhex("00010203040506"))
    assert (value["threshold1"], value["duration1"]) == (16, 2)
    assert (value["blockingTime"], value["interruptCount"]) == (300, 4)
    assert (value["threshold2"], value["duration2"]) == (80, 6)
    assert BUILTIN_CATALOGUE.encode("8200", value).hex() == "00010203040506"


@each_row(
    ("raw", "reason"),
    [
        ("d32000030500", "has 6 bytes; at least 7 are required"),
        ("", "has 0 bytes; at least 7 are required"),
        ("0a000000000000", "10 is not a rate code"),
        ("ff000000000000", "15 is not a rate code"),
        ("00800000000000", "the highest bit of a threshold or duration is set"),
        ("00008000000000", "the highest bit of a threshold or duration is set"),
        ("00000000008000", "the highest bit of a threshold or duration is set"),
        ("00000000000080", "the highest bit of a threshold or duration is set"),
    ],
)
@pytest.mark.rule("value-43")
def test_invalid_bytes_are_refused(raw: str, reason: str) -> None:
    with pytest.raises(UndecodableValue, match=reason):
        decode(bytes.fromhex(raw))


@pytest.mark.rule("value-24")
def test_bytes_after_the_seven_are_the_remainder() -> None:
    assert BUILTIN_CATALOGUE.decode("8200", EXAMPLE + b"\xab") == DecodedValue(VALUE, {"rest": "ab"})
    assert BUILTIN_CATALOGUE.encode("8200", VALUE, {"rest": "ab"}) == EXAMPLE + b"\xab"


@each_row(
    ("changes", "index", "byte"),
    [
        ({"threshold1": 1030}, 1, 0x20),
        ({"threshold1": 1050.0}, 1, 0x21),
        ({"threshold2": 15}, 5, 0),
        ({"blockingTime": 349}, 3, 3),
        ({"blockingTime": 351}, 3, 4),
        ({"blockingTime": 25549}, 3, 255),
    ],
)
@pytest.mark.rule("value-43")
def test_a_value_is_rounded_to_the_nearest_step(changes: dict[str, Any], index: int, byte: int) -> None:
    assert encode(**changes)[index] == byte


@each_row(
    ("field", "highest"),
    [
        ("threshold1", 127 * 32),
        ("threshold2", 127 * 32),
        ("duration1", 127),
        ("duration2", 127),
        ("blockingTime", 25500),
        ("interruptCount", 255),
    ],
)
@pytest.mark.rule("value-44")
def test_values_out_of_range_are_refused(field: str, highest: int) -> None:
    assert decode(encode(**{field: highest}))[field] == highest
    for value in (highest + 100, -100):
        field_path, reason = refuse(**{field: value})
        assert field_path == f"value.{field}"
        assert f"{value} is not between 0 and {highest}" in reason


@each_row("field", VALUE)
@each_row(
    "invalid",
    [None, "25", [], {}, math.nan, math.inf, -math.inf, -1e308, pytest.param(10**400, id="10**400")],
)
def test_invalid_values_are_refused_in_every_field(field: str, invalid: Any) -> None:
    assert refuse(**{field: invalid})[0] == f"value.{field}"


@each_row("field", [name for name in VALUE if "interrupt" not in name])
def test_a_boolean_is_not_a_number(field: str) -> None:
    assert refuse(**{field: True})[0] == f"value.{field}"


@each_row("field", ["interrupt1", "interrupt2"])
def test_a_number_is_not_a_boolean(field: str) -> None:
    assert refuse(**{field: 1}) == (f"value.{field}", "1 is not a boolean")


@each_row(("field", "value"), [("outputDataRate", 26), ("fullScale", 3), ("duration1", 0.5)])
@pytest.mark.rule("value-43")
def test_a_value_without_a_code_is_refused(field: str, value: float) -> None:
    assert refuse(**{field: value})[0] == f"value.{field}"


def test_an_unknown_field_is_refused() -> None:
    assert refuse(extra=1) == ("value.extra", "is not a field of this value")


@each_row("field", VALUE)
def test_a_missing_field_is_refused(field: str) -> None:
    with pytest.raises(UnencodableValue) as refused:
        BUILTIN_CATALOGUE.encode("8200", {name: VALUE[name] for name in VALUE if name != field})
    assert (refused.value.field, refused.value.reason) == (f"value.{field}", "is missing")


@each_row("value", [None, [], "d3200003050000", 5])
def test_a_value_that_is_not_an_object_is_refused(value: Any) -> None:
    with pytest.raises(UnencodableValue, match="is not an object"):
        BUILTIN_CATALOGUE.encode("8200", value)


bits7, bits8 = st.integers(0, 127), st.integers(0, 255)
controls = st.builds(lambda rate, high: rate | high << 4, st.integers(0, 9), st.integers(0, 15))


@given(st.tuples(controls, bits7, bits7, bits8, bits8, bits7, bits7).map(bytes))
@pytest.mark.rule("value-43")
def test_every_configuration_survives_a_round_trip(raw: bytes) -> None:
    assert BUILTIN_CATALOGUE.encode("8200", decode(raw)) == raw
