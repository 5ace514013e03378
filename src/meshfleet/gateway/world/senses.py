"""What devices sense: values that follow from the seed and the time, as raw as a device has them."""

from __future__ import annotations

from math import sin, tau
from struct import pack
from typing import TYPE_CHECKING, Final

from meshfleet.gateway.world.noise import bits, drift, noise, wobble
from meshfleet.wire.codes import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from meshfleet.gateway.world.device import Device
    from meshfleet.wire.ids import Identifier

_HOUR: Final = 3600.0
_DAY: Final = 24 * _HOUR

_MORNING: Final = 8 * _HOUR
"""The world begins at eight o'clock, when buildings wake up."""


def _temperature(device: Device, t: float) -> bytes:
    key = device.key
    room = 19.0 + 5.0 * (key & 0xFF) / 0xFF
    sun = 1.2 * sin(tau * (t + _MORNING - 9 * _HOUR) / _DAY)
    degrees = room + sun + 1.5 * drift(key, t, 3 * _HOUR) + 0.05 * wobble(key, device.beats)
    raw = pack(">h", round(degrees * 100))
    # Newer devices send more than old dictionaries know.
    return raw + _FIRST_SENSOR if device.product.numbers_sensors else raw


def _pressure(device: Device, t: float) -> bytes:
    hpa = 1013.0 + 14.0 * drift(0x50A00, t, 12 * _HOUR) + 0.4 * noise(device.key, 2)
    return pack(">I", round(hpa * 1_000_000))


def _humidity(device: Device, t: float) -> bytes:
    percent = 42.0 + 12.0 * drift(device.key ^ 0x48, t, 4 * _HOUR) + 0.3 * wobble(device.key, device.beats)
    return pack(">H", round(percent * 10))


def _light(device: Device, t: float) -> bytes:
    day = max(0.0, sin(tau * (t + _MORNING - 6 * _HOUR) / _DAY))
    lamps = 320.0 if device.is_moving else 0.0
    return pack(
        ">H", round(900.0 * day * noise(device.key, 3) + lamps + 4.0 * noise(device.key, device.beats))
    )


def _minutes_in_motion(device: Device, t: float) -> bytes:
    return pack(">I", min(int(device.seconds_in_motion(t) // 60), 0xFFFFFFFF))


_SENSES: Final[Mapping[str, Callable[[Device, float], bytes]]] = {
    "8800": _temperature,
    "8801": _pressure,
    "8802": _humidity,
    "8803": _light,
    "8813": _minutes_in_motion,
}

_SALTS: Final = {identifier: int(identifier, 16) for identifier in _SENSES}
_FIRST_SENSOR: Final = b"\x01"
_FAILURES_IN_A_MILLION: Final = 2500
_FAILURES: Final = (Status.FAILED, Status.BUSY, Status.TIMEOUT)


def sense(device: Device, identifier: Identifier, t: float) -> bytes:
    """What the device measures now."""
    return _SENSES[identifier](device, t)


def failure(device: Device, identifier: Identifier) -> tuple[Status, int | None] | None:
    """Why the measurement of this beat failed, with a detail now and then; None: it did not (gateway-30)."""
    dice = bits(device.key ^ _SALTS[identifier], device.beats)
    if dice % 1_000_000 >= _FAILURES_IN_A_MILLION:
        return None
    return _FAILURES[(dice >> 8) % len(_FAILURES)], (dice >> 16 if dice & 1 else None)
