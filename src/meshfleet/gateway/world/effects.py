"""What a device checks before it takes a value, beyond the layout, and what else changes with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.gateway.world.node import MAX_CHILDREN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from meshfleet.gateway.world.device import Device
    from meshfleet.wire.ids import Identifier

_USUAL_POWER: Final = 4
_LONGEST_PRESS: Final = 8000
_PRESS_STEP: Final = 100


def fits(device: Device, identifier: Identifier, raw: bytes) -> bool:
    """Whether the device takes a value that its layout allows."""
    limit = _LIMITS.get(identifier)
    return limit is None or limit(device, raw)


def take_effect(device: Device, identifier: Identifier, raw: bytes) -> None:
    """Change what follows from a property."""
    if effect := _EFFECTS.get(identifier):
        effect(device, raw)


def _power_fits(device: Device, raw: bytes) -> bool:
    return int.from_bytes(raw, "big", signed=True) in device.product.chip.value


def _press_fits(_device: Device, raw: bytes) -> bool:
    millis = int.from_bytes(raw, "big")
    return millis <= _LONGEST_PRESS and millis % _PRESS_STEP == 0


_LIMITS: Final[Mapping[str, Callable[[Device, bytes], bool]]] = {
    "8150": lambda _device, raw: len(raw) == 1,
    "8204": lambda _device, raw: len(raw) == 2,  # noqa: PLR2004 # seconds in two bytes
    "8210": lambda _device, raw: len(raw) == 1 and raw[0] <= MAX_CHILDREN,
    "9802": _power_fits,
    "9803": _press_fits,
}


def _set_power(device: Device, raw: bytes) -> None:
    device.node.gain = float(int.from_bytes(raw, "big", signed=True) - _USUAL_POWER)


def _set_capacity(device: Device, raw: bytes) -> None:
    device.node.capacity = raw[0]


_EFFECTS: Final[Mapping[str, Callable[[Device, bytes], None]]] = {
    "8210": _set_capacity,
    "9802": _set_power,
}
