"""Sensor values of devices."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from statistics import fmean

import pytest

from meshfleet.emulator.simulation.device import SimulatedDevice
from meshfleet.emulator.simulation.sensors import find_sensor_failure, read_sensor
from meshfleet.protocol.codes import Status
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.ids import Identifier
from tests.emulator.simulation.sites import build_mesh, place_device
from tests.row_tables import each_row

HOUR = 3600.0
DAY = 24 * HOUR
TEMPERATURE, PRESSURE, HUMIDITY = Identifier("8800"), Identifier("8801"), Identifier("8802")
LIGHT, MINUTES = Identifier("8803"), Identifier("8813")


def create_device(number: int = 1, *, code: str = "0005", seed: int = 1) -> SimulatedDevice:
    site_device = place_device(number, 2.0, code=code)
    return SimulatedDevice(site_device, build_mesh(site_device).nodes[site_device.mac], seed)


def read_series(device: SimulatedDevice, identifier: Identifier, days: float = 3.0) -> list[float]:
    """Return the values of a sensor, one per minute."""
    values = []
    for heartbeat in range(int(days * 1440)):
        device.heartbeats = heartbeat
        values.append(
            BUILTIN_CATALOGUE.decode(identifier, read_sensor(device, identifier, 60.0 * heartbeat)).value
        )
    return values


@each_row("number", range(5))
@each_row(
    ("identifier", "minimum", "maximum", "step"),
    [(TEMPERATURE, 12.0, 32.0, 0.25), (PRESSURE, 950.0, 1060.0, 0.5), (HUMIDITY, 15.0, 75.0, 2.0)],
)
def test_the_climate_is_that_of_a_building_and_changes_slowly(
    number: int, identifier: Identifier, minimum: float, maximum: float, step: float
) -> None:
    values = read_series(create_device(number), identifier)
    assert minimum < min(values)
    assert max(values) < maximum
    assert max(values) - min(values) > step
    assert max(abs(a - b) for a, b in pairwise(values)) < step


def test_the_afternoon_is_warmer_than_the_night() -> None:
    days = [read_series(create_device(number), TEMPERATURE, days=8) for number in range(10)]
    # The simulation starts at eight in the morning.
    afternoons = fmean(day[1440 * n + 6 * 60] for day in days for n in range(8))
    nights = fmean(day[1440 * n + 18 * 60] for day in days for n in range(8))
    assert afternoons > nights + 1.0


def test_temperatures_differ_by_room_and_the_pressure_is_the_same() -> None:
    temperatures = [fmean(read_series(create_device(number), TEMPERATURE)) for number in range(10)]
    pressures = [fmean(read_series(create_device(number), PRESSURE)) for number in range(10)]
    assert max(temperatures) - min(temperatures) > 1.0
    assert max(pressures) - min(pressures) < 0.5


def test_light_depends_on_the_time_of_day_and_on_motion() -> None:
    sensor = create_device(code="0018")
    values = read_series(sensor, LIGHT, days=1)
    assert max(values[12 * 60 : 20 * 60]) <= 5
    assert max(values) > max(values[12 * 60 : 20 * 60])
    night = 16 * HOUR
    dark = int.from_bytes(read_sensor(sensor, LIGHT, night), "big")
    sensor.toggle_motion(night)
    assert int.from_bytes(read_sensor(sensor, LIGHT, night), "big") - dark > 200


def test_light_fits_in_two_bytes_and_minutes_stop_at_their_maximum() -> None:
    for number in range(20):
        assert all(
            0 <= value <= 0xFFFF for value in read_series(create_device(number, code="0018"), LIGHT, days=1)
        )
    sensor = create_device(code="0018")
    sensor.motion_seconds = 1e12
    assert read_sensor(sensor, MINUTES, 0.0) == b"\xff\xff\xff\xff"


def test_minutes_in_motion_are_rounded_down() -> None:
    sensor = create_device(code="0018")
    sensor.toggle_motion(100.0)
    minutes = [
        int.from_bytes(read_sensor(sensor, MINUTES, t), "big") for t in (100.0, 159.9, 160.0, 219.0, 220.0)
    ]
    assert minutes == [0, 0, 1, 1, 2]
    sensor.toggle_motion(225.0)
    assert int.from_bytes(read_sensor(sensor, MINUTES, 9e9), "big") == 2


def test_newer_devices_append_the_sensor_number_to_a_temperature() -> None:
    assert len(read_sensor(create_device(code="0050"), TEMPERATURE, 0.0)) == 3
    assert len(read_sensor(create_device(code="0005"), TEMPERATURE, 0.0)) == 2


def test_values_depend_on_device_seed_and_time_alone() -> None:
    assert read_series(create_device(), TEMPERATURE, 0.1) == read_series(create_device(), TEMPERATURE, 0.1)
    assert read_series(create_device(), TEMPERATURE, 0.1) != read_series(
        create_device(seed=2), TEMPERATURE, 0.1
    )
    assert read_series(create_device(1), TEMPERATURE, 0.1) != read_series(create_device(2), TEMPERATURE, 0.1)


@pytest.mark.rule("gateway-30")
@each_row("identifier", [TEMPERATURE, HUMIDITY])
def test_a_few_measurements_in_a_thousand_fail_for_one_of_three_reasons(identifier: Identifier) -> None:
    sensor, failures = create_device(), []
    for sensor.heartbeats in range(100_000):
        failures += [failure] if (failure := find_sensor_failure(sensor, identifier)) else []
    assert 150 < len(failures) < 350
    reasons = Counter(status for status, _ in failures)
    assert set(reasons) == {Status.FAILED, Status.BUSY, Status.TIMEOUT}
    assert min(reasons.values()) > len(failures) / 6
    details = [detail for _, detail in failures if detail is not None]
    assert len(failures) / 4 < len(details) < 3 * len(failures) / 4


def test_the_sensors_of_one_device_fail_independently() -> None:
    sensor, both = create_device(), 0
    for sensor.heartbeats in range(100_000):
        both += bool(find_sensor_failure(sensor, TEMPERATURE) and find_sensor_failure(sensor, HUMIDITY))
    assert both < 10


@pytest.mark.rule("value-36")
def test_the_minutes_in_motion_stay_at_their_maximum() -> None:
    sensor = create_device()
    sensor.motion_seconds = 60.0 * 0xFFFFFFFE
    assert read_sensor(sensor, MINUTES, 0.0).hex() == "fffffffe"
    sensor.motion_seconds = 60.0 * 2**33
    assert read_sensor(sensor, MINUTES, 0.0).hex() == "ffffffff"
