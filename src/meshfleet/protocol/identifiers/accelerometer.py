"""Layout of the accelerometer configuration (property 8200).

The first byte consists of bit fields. Some of them determine the units of the bytes that follow.
"""

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
"""Sampling rate in Hz by rate code, the index of the tuple; 0 Hz means off."""

SCALES_G: Final = (2, 4, 8, 16)
"""Full scale in g by scale code, the index of the tuple."""

THRESHOLD_STEPS_MG: Final = (16, 32, 62, 186)
"""Unit of the threshold bytes in mg by scale code, the index of the tuple."""

BLOCKING_STEP_MS: Final = 100
"""Unit of the blocking time byte in ms."""

_SIZE: Final = 7
_SEVEN_BITS = NumberLayout(1, signed=False, limits=(0, 127))
_EIGHT_BITS = NumberLayout(1, signed=False)
_INTERRUPT_1, _INTERRUPT_2 = 0x40, 0x80

_FIELD_NAMES: Final = (
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
    """Accelerometer configuration of seven bytes; an object in JSON.

    The object has the rate in Hz, full scale in g, thresholds in mg and blocking time in ms. A duration is a
    number of samples, so its length in seconds depends on the rate.
    """

    def decode(self, raw: bytes, offset: int) -> tuple[dict[str, Json], int]:
        """Decode seven bytes to the configuration object."""
        end = offset + _SIZE
        if len(raw) < end:
            raise build_too_short_error(raw, end)
        control, threshold1, duration1, blocking, count, threshold2, duration2 = raw[offset:end]
        rate_code, scale_code = control & 0x0F, control >> 4 & 0x03
        if rate_code >= len(RATES_HZ):
            raise UndecodableValue("value", f"{rate_code} is not a rate code")
        if (threshold1 | duration1 | threshold2 | duration2) & 0x80:
            raise UndecodableValue("value", "the highest bit of a threshold or duration is set")
        values = (
            RATES_HZ[rate_code],
            SCALES_G[scale_code],
            bool(control & _INTERRUPT_1),
            bool(control & _INTERRUPT_2),
            threshold1 * THRESHOLD_STEPS_MG[scale_code],
            duration1,
            blocking * BLOCKING_STEP_MS,
            count,
            threshold2 * THRESHOLD_STEPS_MG[scale_code],
            duration2,
        )
        return dict(zip(_FIELD_NAMES, values, strict=True)), end

    def encode(self, value: Json, field: str) -> bytes:
        """Encode the configuration object. Thresholds and the blocking time are rounded to their units."""
        configuration = _ConfigurationObject(value, field)
        rate_code = configuration.encode_choice("outputDataRate", RATES_HZ)
        scale_code = configuration.encode_choice("fullScale", SCALES_G)
        control = rate_code | scale_code << 4
        control |= _INTERRUPT_1 * configuration.encode_flag(
            "interrupt1"
        ) | _INTERRUPT_2 * configuration.encode_flag("interrupt2")
        threshold_step = THRESHOLD_STEPS_MG[scale_code]
        return b"".join(
            (
                bytes([control]),
                configuration.encode_steps("threshold1", threshold_step, _SEVEN_BITS),
                configuration.encode_steps("duration1", 1, _SEVEN_BITS),
                configuration.encode_steps("blockingTime", BLOCKING_STEP_MS, _EIGHT_BITS),
                configuration.encode_steps("interruptCount", 1, _EIGHT_BITS),
                configuration.encode_steps("threshold2", threshold_step, _SEVEN_BITS),
                configuration.encode_steps("duration2", 1, _SEVEN_BITS),
            )
        )


class _ConfigurationObject:
    """Configuration object to encode, with an encoder for each kind of field."""

    def __init__(self, value: Json, field: str) -> None:
        if not isinstance(value, dict):
            raise UnencodableValue(field, f"{quote_input(value)} is not an object")
        if unknown := value.keys() - set(_FIELD_NAMES):
            raise UnencodableValue(join_field_path(field, min(unknown)), "is not a field of this value")
        if missing := set(_FIELD_NAMES) - value.keys():
            raise UnencodableValue(join_field_path(field, min(missing)), "is missing")
        self._values = value
        self._field = field

    def encode_choice(self, name: str, choices: tuple[int, ...]) -> int:
        """Return the index of a field's value in `choices`."""
        value = self._values[name]
        if isinstance(value, bool) or value not in choices:
            reason = f"{quote_input(value)} is not one of {', '.join(map(str, choices))}"
            raise UnencodableValue(f"{self._field}.{name}", reason)
        return choices.index(value)

    def encode_flag(self, name: str) -> int:
        """Return 1 or 0 for a boolean field."""
        return BoolLayout().encode(self._values[name], f"{self._field}.{name}")[0]

    def encode_steps(self, name: str, step: int, layout: NumberLayout) -> bytes:
        """Encode the value of a field as a number of steps, each `step` in the unit of the field; rounded."""
        value, field = self._values[name], f"{self._field}.{name}"
        if step == 1:
            return layout.encode(value, field)
        if not is_number(value):
            raise UnencodableValue(field, f"{quote_input(value)} is not a number")
        highest = layout.high * step
        if not -step <= value <= highest + step or not 0 <= round(value / step) <= layout.high:
            raise UnencodableValue(field, f"{quote_input(value)} is not between 0 and {highest}")
        return bytes([round(value / step)])
