"""What devices sense."""

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


def device(number: int = 1, *, code: str = "0005", seed: int = 1) -> SimulatedDevice:
    fixture = place_device(number, 2.0, code=code)
    return SimulatedDevice(fixture, build_mesh(fixture).nodes[fixture.mac], seed)


def series(of: SimulatedDevice, identifier: Identifier, days: float = 3.0) -> list[float]:
    """What a device measures, minute by minute."""
    values = []
    for beat in range(int(days * 1440)):
        of.heartbeats = beat
        values.append(BUILTIN_CATALOGUE.decode(identifier, read_sensor(of, identifier, 60.0 * beat)).value)
    return values


@each_row("number", range(5))
@each_row(
    ("identifier", "least", "most", "step"),
    [(TEMPERATURE, 12.0, 32.0, 0.25), (PRESSURE, 950.0, 1060.0, 0.5), (HUMIDITY, 15.0, 75.0, 2.0)],
)
def test_the_climate_is_that_of_a_house_and_changes_slowly(
    number: int, identifier: Identifier, least: float, most: float, step: float
) -> None:
    values = series(device(number), identifier)
    assert least < min(values)
    assert max(values) < most
    assert max(values) - min(values) > step
    assert max(abs(a - b) for a, b in pairwise(values)) < step


def test_the_afternoon_is_warmer_than_the_night() -> None:
    days = [series(device(number), TEMPERATURE, days=8) for number in range(10)]
    # The world begins at eight in the morning.
    afternoons = fmean(day[1440 * n + 6 * 60] for day in days for n in range(8))
    nights = fmean(day[1440 * n + 18 * 60] for day in days for n in range(8))
    assert afternoons > nights + 1.0


def test_rooms_differ_and_the_weather_is_the_same_for_all() -> None:
    temperatures = [fmean(series(device(number), TEMPERATURE)) for number in range(10)]
    pressures = [fmean(series(device(number), PRESSURE)) for number in range(10)]
    assert max(temperatures) - min(temperatures) > 1.0
    assert max(pressures) - min(pressures) < 0.5


def test_it_is_dark_at_night_and_bright_by_day_and_motion_switches_the_lamps_on() -> None:
    sensor = device(code="0018")
    values = series(sensor, LIGHT, days=1)
    assert max(values[12 * 60 : 20 * 60]) <= 5
    assert max(values) > max(values[12 * 60 : 20 * 60])
    night = 16 * HOUR
    dark = int.from_bytes(read_sensor(sensor, LIGHT, night), "big")
    sensor.toggle_motion(night)
    assert int.from_bytes(read_sensor(sensor, LIGHT, night), "big") - dark > 200


def test_light_fits_its_two_bytes_and_minutes_stop_at_the_most() -> None:
    for number in range(20):
        assert all(0 <= value <= 0xFFFF for value in series(device(number, code="0018"), LIGHT, days=1))
    sensor = device(code="0018")
    sensor.motion_seconds = 1e12
    assert read_sensor(sensor, MINUTES, 0.0) == b"\xff\xff\xff\xff"


def test_minutes_in_motion_are_whole_ones() -> None:
    sensor = device(code="0018")
    sensor.toggle_motion(100.0)
    told = [
        int.from_bytes(read_sensor(sensor, MINUTES, t), "big") for t in (100.0, 159.9, 160.0, 219.0, 220.0)
    ]
    assert told == [0, 0, 1, 1, 2]
    sensor.toggle_motion(225.0)
    assert int.from_bytes(read_sensor(sensor, MINUTES, 9e9), "big") == 2


def test_newer_devices_say_which_sensor_a_temperature_is_of() -> None:
    assert len(read_sensor(device(code="0050"), TEMPERATURE, 0.0)) == 3
    assert len(read_sensor(device(code="0005"), TEMPERATURE, 0.0)) == 2


def test_asking_twice_gives_the_same_and_another_seed_another_value() -> None:
    assert series(device(), TEMPERATURE, 0.1) == series(device(), TEMPERATURE, 0.1)
    assert series(device(), TEMPERATURE, 0.1) != series(device(seed=2), TEMPERATURE, 0.1)
    assert series(device(1), TEMPERATURE, 0.1) != series(device(2), TEMPERATURE, 0.1)


@pytest.mark.rule("gateway-30")
@each_row("identifier", [TEMPERATURE, HUMIDITY])
def test_a_few_measurements_in_a_thousand_fail_for_one_of_three_reasons(identifier: Identifier) -> None:
    sensor, failures = device(), []
    for sensor.heartbeats in range(100_000):
        failures += [found] if (found := find_sensor_failure(sensor, identifier)) else []
    assert 150 < len(failures) < 350
    reasons = Counter(status for status, _ in failures)
    assert set(reasons) == {Status.FAILED, Status.BUSY, Status.TIMEOUT}
    assert min(reasons.values()) > len(failures) / 6
    details = [detail for _, detail in failures if detail is not None]
    assert len(failures) / 4 < len(details) < 3 * len(failures) / 4


def test_the_sensors_of_one_device_fail_independently() -> None:
    sensor, both = device(), 0
    for sensor.heartbeats in range(100_000):
        both += bool(find_sensor_failure(sensor, TEMPERATURE) and find_sensor_failure(sensor, HUMIDITY))
    assert both < 10


@pytest.mark.rule("value-36")
def test_the_minutes_in_motion_stay_at_their_maximum() -> None:
    one = device()
    one.motion_seconds = 60.0 * 0xFFFFFFFE
    assert read_sensor(one, MINUTES, 0.0).hex() == "fffffffe"
    one.motion_seconds = 60.0 * 2**33
    assert read_sensor(one, MINUTES, 0.0).hex() == "ffffffff"
