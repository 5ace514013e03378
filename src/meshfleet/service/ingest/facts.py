"""Properties that tell what a device is, and which of their values can be true (rest-46)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from meshfleet.errors import MalformedVersion
from meshfleet.wire.identifiers import BUILTIN
from meshfleet.wire.identifiers.numbers import identifier_number
from meshfleet.wire.ids import Version, model_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MODEL, FIRMWARE, HARDWARE, VARIANT, BATTERY = (
    identifier_number(BUILTIN[name].id)
    for name in ("model-number", "firmware-version", "hardware-version", "variant", "battery-level")
)


def _whole(most: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and 0 <= value <= most


def _is_version(value: Any) -> bool:
    try:
        Version.parse(value)
    except (MalformedVersion, TypeError):
        return False
    return True


FACTS: Final[Mapping[int, Callable[[Any], bool]]] = {
    MODEL: _whole(0xFFFF),
    VARIANT: _whole(0xFF),
    FIRMWARE: _is_version,
    HARDWARE: _is_version,
    BATTERY: _whole(100),  # percent; 255 stands for a battery of which nothing is known
}
"""Which values each may have. Others are kept as samples, and tell nothing."""

SEEN: Final[Mapping[int, Callable[[Any], dict[str, Any]]]] = {
    MODEL: lambda value: {"model": model_number(value)},
    VARIANT: lambda value: {"variant": value},
    FIRMWARE: lambda value: {"firmware": Version.parse(value)},
    HARDWARE: lambda value: {"hardware": Version.parse(value)},
}
"""What each says of a device, as fields of a `Sighting`."""
