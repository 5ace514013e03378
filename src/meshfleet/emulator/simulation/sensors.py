"""Raw sensor values of simulated devices, derived from the seed of the site and the simulated time."""

from __future__ import annotations

from math import sin, tau
from struct import pack
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.emulator.simulation.noise import drift_noise, noise_bits, triangular_noise, uniform_noise
from meshfleet.protocol.codes import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from meshfleet.emulator.simulation.device import SimulatedDevice
    from meshfleet.protocol.ids import Identifier

_HOUR: Final = 3600.0
_DAY: Final = 24 * _HOUR

_START_OF_DAY: Final = 8 * _HOUR
"""Time of day in seconds at simulated time 0: 8 o'clock in the morning."""


def _read_temperature(device: SimulatedDevice, sim_time: float) -> bytes:
    key = device.noise_key
    base = 19.0 + 5.0 * (key & 0xFF) / 0xFF
    daily_swing = 1.2 * sin(tau * (sim_time + _START_OF_DAY - 9 * _HOUR) / _DAY)
    degrees = (
        base
        + daily_swing
        + 1.5 * drift_noise(key, sim_time, 3 * _HOUR)
        + 0.05 * triangular_noise(key, device.heartbeats)
    )
    raw = pack(">h", round(degrees * 100))
    # Newer devices send an additional byte that older layouts do not define.
    return raw + _FIRST_SENSOR if device.product.has_sensor_number else raw


def _read_pressure(device: SimulatedDevice, sim_time: float) -> bytes:
    hpa = (
        1013.0 + 14.0 * drift_noise(0x50A00, sim_time, 12 * _HOUR) + 0.4 * uniform_noise(device.noise_key, 2)
    )
    return pack(">I", round(hpa * 1_000_000))


def _read_humidity(device: SimulatedDevice, sim_time: float) -> bytes:
    percent = (
        42.0
        + 12.0 * drift_noise(device.noise_key ^ 0x48, sim_time, 4 * _HOUR)
        + 0.3 * triangular_noise(device.noise_key, device.heartbeats)
    )
    return pack(">H", round(percent * 10))


def _read_light(device: SimulatedDevice, sim_time: float) -> bytes:
    daylight = max(0.0, sin(tau * (sim_time + _START_OF_DAY - 6 * _HOUR) / _DAY))
    lamps = 320.0 if device.is_moving else 0.0
    return pack(
        ">H",
        round(
            900.0 * daylight * uniform_noise(device.noise_key, 3)
            + lamps
            + 4.0 * uniform_noise(device.noise_key, device.heartbeats)
        ),
    )


def _read_minutes_in_motion(device: SimulatedDevice, sim_time: float) -> bytes:
    return pack(">I", min(int(device.seconds_in_motion(sim_time) // 60), 0xFFFFFFFF))


_SENSORS: Final[Mapping[str, Callable[[SimulatedDevice, float], bytes]]] = {
    "8800": _read_temperature,
    "8801": _read_pressure,
    "8802": _read_humidity,
    "8803": _read_light,
    "8813": _read_minutes_in_motion,
}

_SALTS: Final = {identifier: int(identifier, 16) for identifier in _SENSORS}
_FIRST_SENSOR: Final = b"\x01"
_FAILURES_IN_A_MILLION: Final = 2500
_FAILURES: Final = (Status.FAILED, Status.BUSY, Status.TIMEOUT)


def read_sensor(device: SimulatedDevice, identifier: Identifier, sim_time: float) -> bytes:
    """Return the raw value of a sensor at a simulated time."""
    return _SENSORS[identifier](device, sim_time)


class SensorFailure(NamedTuple):
    """Simulated failure of one measurement, with the fields of the error report."""

    status: Status
    """Value of the field `error` of the report."""
    detail: int | None
    """Value of the field `errorExt` of the report; None if the field is missing."""


def find_sensor_failure(device: SimulatedDevice, identifier: Identifier) -> SensorFailure | None:
    """Return the failure of a measurement in the current heartbeat, or None if it succeeds (gateway-30)."""
    bits = noise_bits(device.noise_key ^ _SALTS[identifier], device.heartbeats)
    if bits % 1_000_000 >= _FAILURES_IN_A_MILLION:
        return None
    return SensorFailure(_FAILURES[(bits >> 8) % len(_FAILURES)], bits >> 16 if bits & 1 else None)
