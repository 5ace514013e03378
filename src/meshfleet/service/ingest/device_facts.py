"""Properties that describe a device (model, versions, battery), and checks of their values (rest-46)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from meshfleet.errors.protocol import MalformedVersion
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.identifiers.numbers import identifier_to_int
from meshfleet.protocol.ids import Version, format_model_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MODEL, FIRMWARE, HARDWARE, VARIANT, BATTERY = (
    identifier_to_int(BUILTIN_CATALOGUE[name].id)
    for name in ("model-number", "firmware-version", "hardware-version", "variant", "battery-level")
)


def _build_integer_check(highest: int) -> Callable[[Any], bool]:
    """Build a function that returns whether a value is an integer from 0 to `highest`."""
    return lambda value: type(value) is int and 0 <= value <= highest


def _is_version(value: Any) -> bool:
    try:
        Version.parse(value)
    except (MalformedVersion, TypeError):
        return False
    return True


FACT_VALIDATORS: Final[Mapping[int, Callable[[Any], bool]]] = {
    MODEL: _build_integer_check(0xFFFF),
    VARIANT: _build_integer_check(0xFF),
    FIRMWARE: _is_version,
    HARDWARE: _is_version,
    BATTERY: _build_integer_check(100),  # percent; 255 means unknown
}
"""Functions that return whether a property value is valid, by identifier of the property.

Invalid values are stored as samples, but do not change the device's record.
"""

FACT_FIELD_BUILDERS: Final[Mapping[int, Callable[[Any], dict[str, Any]]]] = {
    MODEL: lambda value: {"model": format_model_number(value)},
    VARIANT: lambda value: {"variant": value},
    FIRMWARE: lambda value: {"firmware": Version.parse(value)},
    HARDWARE: lambda value: {"hardware": Version.parse(value)},
}
"""Functions that convert a property value to fields of `DeviceObservation`, by property identifier."""
