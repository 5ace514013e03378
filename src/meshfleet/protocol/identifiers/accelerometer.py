"""The configuration of the accelerometer (8200): one byte of bit fields that gives others their scale."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.errors import join_field_path, quote_input
from meshfleet.errors.protocol import UndecodableValue, UnencodableValue
from meshfleet.protocol.identifiers.layouts import (
    BoolLayout,
    Layout,
    NumberLayout,
    build_too_short_error,
    is_number,
)

if TYPE_CHECKING:
    from meshfleet.protocol.fields import Json

RATES_HZ: Final = (0, 1, 10, 25, 50, 100, 200, 400, 1620, 1344)
"""Samples per second, by code; 0 is off."""

SCALES_G: Final = (2, 4, 8, 16)
"""Full scale in g, by code."""

THRESHOLD_STEPS_MG: Final = (16, 32, 62, 186)
"""What one step of a threshold is in mg, by the code of the full scale."""

BLOCKING_STEP_MS: Final = 100
"""What one step of the blocking time is in ms."""

_SIZE: Final = 7
_SEVEN_BITS = NumberLayout(1, signed=False, limits=(0, 127))
_EIGHT_BITS = NumberLayout(1, signed=False)
_INTERRUPT_1, _INTERRUPT_2 = 0x40, 0x80

_NAMES: Final = (
    "outputDataRate",
    "fullScale",
    "interrupt1",
    "interrupt2",
    "threshold1",
    "duration1",
    "blockingTime",
    "interruptCount",
    "threshold2",
    "duration2",
)


class AccelerometerLayout(Layout):
    """Seven bytes; an object with the rate in Hz, full scale in g, thresholds in mg, the blocking time in ms.

    A duration counts samples: how long that is follows from the rate.
    """

    def decode(self, raw: bytes, at: int) -> tuple[dict[str, Json], int]:
        """Give the object."""
        end = at + _SIZE
        if len(raw) < end:
            raise build_too_short_error(raw, end)
        control, threshold1, duration1, blocking, count, threshold2, duration2 = raw[at:end]
        rate, scale = control & 0x0F, control >> 4 & 0x03
        if rate >= len(RATES_HZ):
            raise UndecodableValue("value", f"{rate} is not the code of a rate")
        if (threshold1 | duration1 | threshold2 | duration2) & 0x80:
            raise UndecodableValue("value", "the highest bit of a threshold or duration is set")
        values = (
            RATES_HZ[rate],
            SCALES_G[scale],
            bool(control & _INTERRUPT_1),
            bool(control & _INTERRUPT_2),
            threshold1 * THRESHOLD_STEPS_MG[scale],
            duration1,
            blocking * BLOCKING_STEP_MS,
            count,
            threshold2 * THRESHOLD_STEPS_MG[scale],
            duration2,
        )
        return dict(zip(_NAMES, values, strict=True)), end

    def encode(self, value: Json, field: str) -> bytes:
        """Take the same object; thresholds and the blocking time are rounded to their steps."""
        given = _ConfigurationObject(value, field)
        rate = given.code("outputDataRate", RATES_HZ)
        scale = given.code("fullScale", SCALES_G)
        control = rate | scale << 4
        control |= _INTERRUPT_1 * given.flag("interrupt1") | _INTERRUPT_2 * given.flag("interrupt2")
        step = THRESHOLD_STEPS_MG[scale]
        return b"".join(
            (
                bytes([control]),
                given.steps("threshold1", step, _SEVEN_BITS),
                given.steps("duration1", 1, _SEVEN_BITS),
                given.steps("blockingTime", BLOCKING_STEP_MS, _EIGHT_BITS),
                given.steps("interruptCount", 1, _EIGHT_BITS),
                given.steps("threshold2", step, _SEVEN_BITS),
                given.steps("duration2", 1, _SEVEN_BITS),
            )
        )


class _ConfigurationObject:
    """The object to write, field by field."""

    def __init__(self, value: Json, field: str) -> None:
        if not isinstance(value, dict):
            raise UnencodableValue(field, f"{quote_input(value)} is not an object")
        if unknown := value.keys() - set(_NAMES):
            raise UnencodableValue(join_field_path(field, min(unknown)), "is not a field of this value")
        if missing := set(_NAMES) - value.keys():
            raise UnencodableValue(join_field_path(field, min(missing)), "is missing")
        self._values = value
        self._field = field

    def code(self, name: str, choices: tuple[int, ...]) -> int:
        value = self._values[name]
        if isinstance(value, bool) or value not in choices:
            reason = f"{quote_input(value)} is not one of {', '.join(map(str, choices))}"
            raise UnencodableValue(f"{self._field}.{name}", reason)
        return choices.index(value)

    def flag(self, name: str) -> int:
        return BoolLayout().encode(self._values[name], f"{self._field}.{name}")[0]

    def steps(self, name: str, step: int, number: NumberLayout) -> bytes:
        value, field = self._values[name], f"{self._field}.{name}"
        if step == 1:
            return number.encode(value, field)
        if not is_number(value):
            raise UnencodableValue(field, f"{quote_input(value)} is not a number")
        most = number.high * step
        if not -step <= value <= most + step or not 0 <= round(value / step) <= number.high:
            raise UnencodableValue(field, f"{quote_input(value)} is not between 0 and {most}")
        return bytes([round(value / step)])
