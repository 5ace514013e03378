"""What the properties of a device hold: those that were set, and those that follow from its state."""

from __future__ import annotations

from hashlib import sha256
from struct import pack
from typing import TYPE_CHECKING, Final

from meshfleet.gateway.world.senses import sense
from meshfleet.gateway.world.site import public_key
from meshfleet.wire.ids import Identifier

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from meshfleet.gateway.world.device import Device

_CHIPS: Final = {"NRF51822": 0x51822, "NRF52832": 0x52832, "NRF52840": 0x52840}

_EMPTY_BATTERY: Final = 2000
_FULL_BATTERY: Final = 3000
"""mV."""


def read(device: Device, identifier: Identifier, t: float) -> bytes:
    """What a property holds, or a sensor says now."""
    if identifier in device.product.measured:
        return sense(device, identifier, t)
    if find := _STATE.get(identifier):
        return find(device, t)
    return device.value(identifier)


def version_bytes(device: Device) -> bytes:
    """The firmware version; a release has no fourth byte."""
    major, minor, patch, _ = device.version
    return bytes((major, minor, patch, device.version.beta))[: 4 if device.version.beta else 3]


def model(device: Device) -> int:
    """The model number as a number."""
    return int(device.product.model, 16)


def _vdd(device: Device, t: float) -> bytes:
    full = _FULL_BATTERY - _EMPTY_BATTERY
    return pack(">H", _EMPTY_BATTERY + full * device.battery_level(t) // 100)


def _motion(device: Device, _t: float) -> bytes:
    cause = device.product.motion if device.is_moving else 0
    return pack(">BIB", cause, device.transitions & 0xFFFFFFFF, 0)


def motion_event(device: Device) -> bytes:
    """The motion at the moment of a transition, with the flag that says so."""
    return _motion(device, 0.0)[:-1] + b"\x01"


def _production_info_extended(device: Device, _t: float) -> bytes:
    major, minor, patch, _ = device.version
    entries = (
        bytes.fromhex(device.mac),
        pack(">H", model(device)),
        bytes((device.product.variant,)),
        bytes((major, minor, patch, device.version.beta)),
        public_key(device.mac),
        pack(">I", _CHIPS[device.product.chip.name]),
        pack(">I", 0x41414230),
        pack(">I", 0x2000),
    )
    return b"".join(bytes((key, len(entry))) + entry for key, entry in enumerate(entries))


def _update_state(device: Device, _t: float) -> bytes:
    return device.update or IDLE


IDLE: Final = bytes(9)
"""firmware-update-state (8120) when there is nothing to tell."""

_BROADCAST_IDLE: Final = IDLE + bytes(4)
_NORDIC_IDLE: Final = IDLE + bytes(6)

_STATE: Final[Mapping[str, Callable[[Device, float], bytes]]] = {
    "8000": lambda device, _: pack(">H", model(device)),
    "8001": lambda device, _: version_bytes(device),
    "8002": lambda device, _: bytes(device.product.hardware),
    "8003": lambda device, _: bytes.fromhex(device.mac),
    "8005": _production_info_extended,
    "8006": lambda device, _: sha256(device.mac.encode()).digest()[:4],
    "8007": lambda device, _: bytes((device.product.variant,)),
    "8008": lambda device, _: public_key(device.mac),
    "8020": lambda *_: b"\x02",
    "8100": lambda device, t: bytes((device.battery_level(t),)),
    "8101": lambda device, t: pack(">I", min(int(t - device.booted), 0xFFFFFFFF)),
    "8102": lambda device, _: bytes((device.reset,)),
    "8103": _vdd,
    "8110": lambda device, _: bytes((device.mode,)),
    "8120": _update_state,
    "8125": lambda device, _: (device.values or {}).get(Identifier("8125"), _BROADCAST_IDLE),
    "8130": lambda device, _: (device.values or {}).get(Identifier("8130"), _NORDIC_IDLE),
    "8305": lambda device, _: pack(">I", device.received),
    "8810": _motion,
    "8813": lambda device, t: sense(device, Identifier("8813"), t),
    "8831": lambda device, _: pack(">I", device.doors & 0xFFFFFFFF),
}
"""Properties that nobody sets."""
