"""State of one simulated device."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from meshfleet.emulator.simulation.device import ResetCause, SimulatedDevice
from meshfleet.emulator.simulation.products import PRODUCTS_BY_CODE, DeviceMode, ProductProfile
from meshfleet.emulator.simulation.sample_buffer import SAMPLE_CAPACITY, DeviceSample
from meshfleet.protocol.codes import Kind
from meshfleet.protocol.ids import Identifier
from tests.emulator.simulation.sites import build_mesh, place_device
from tests.row_tables import each_row

YEAR = 365 * 24 * 3600.0


def create_device(code: str = "0005", *, battery: int = 90, seed: int = 1) -> SimulatedDevice:
    site_device = replace(place_device(1, 2.0, code=code), battery=battery)
    return SimulatedDevice(site_device, build_mesh(site_device).nodes[site_device.mac], seed)


@pytest.mark.rule("report-38")
def test_sequence_numbers_wrap_around_after_255() -> None:
    tracker = create_device()
    seqs = [tracker.next_seq(Kind.MEASUREMENT, Identifier("8800")) for _ in range(600)]
    assert seqs == [n % 256 for n in range(600)]


def test_series_have_independent_sequence_numbers() -> None:
    tracker = create_device()
    for kind, identifier in tracker.product.series_index:
        assert [tracker.next_seq(kind, identifier) for _ in range(3)] == [0, 1, 2]


@pytest.mark.rule("gateway-27")
def test_a_battery_drains_in_about_five_years_and_never_below_0() -> None:
    tracker = create_device(battery=100)
    levels = [tracker.battery_level(year * YEAR / 4) for year in range(60)]
    assert levels[0] == 100
    assert all(a >= b for a, b in pairwise(levels))
    assert 45 <= levels[10] <= 55
    assert levels[16] > 0
    assert levels[24] == levels[-1] == 0


@pytest.mark.rule("gateway-29")
def test_a_device_reports_a_low_battery_before_it_is_empty() -> None:
    tracker = create_device(battery=100)
    status = [tracker.heartbeat_status(week * YEAR / 52) for week in range(5 * 52)]
    assert status == sorted(status)
    assert set(status) == {0, 1}
    assert 15 < status.count(1) < 35


@each_row("code", ["0040", "2011"])
def test_a_device_with_mains_power_is_never_low(code: str) -> None:
    device = create_device(code, battery=100)
    assert device.battery_level(50 * YEAR) == 100
    assert device.heartbeat_status(50 * YEAR) == 0


@pytest.mark.rule("gateway-29")
def test_a_sensor_fault_takes_precedence_over_a_low_battery() -> None:
    tracker = create_device(battery=5)
    assert tracker.heartbeat_status(0.0) == 1
    tracker.has_sensor_fault = True
    assert tracker.heartbeat_status(0.0) == 2


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=30))
def test_seconds_in_motion_are_those_between_a_start_and_the_next_stop(pauses: list[float]) -> None:
    tracker, t, expected = create_device(), 0.0, 0.0
    for pause in pauses:
        expected += pause if tracker.is_moving else 0.0
        t += pause
        assert tracker.seconds_in_motion(t) == pytest.approx(expected)
        tracker.toggle_motion(t)
    assert tracker.motion_transitions == len(pauses)
    assert tracker.is_moving == (len(pauses) % 2 == 1)


def test_a_time_before_the_last_change_of_motion_is_not_negative() -> None:
    tracker = create_device()
    tracker.toggle_motion(100.0)
    assert tracker.seconds_in_motion(99.9) == 0.0


@pytest.mark.rule("gateway-27")
def test_a_device_sleeps_when_it_has_not_moved_for_a_while() -> None:
    tracker = create_device()
    tracker.toggle_motion(1000.0)
    assert not tracker.is_asleep(5000.0)
    tracker.toggle_motion(5000.0)
    assert not tracker.is_asleep(5059.0)
    assert tracker.is_asleep(5061.0)
    tracker.set_value(Identifier("9808"), b"\x01\x00")
    assert not tracker.is_asleep(5255.0)
    assert tracker.is_asleep(5257.0)


def find_longest_delay(device: SimulatedDevice, t: float) -> float:
    return max(device.seconds_to_advertisement(t, n) for n in range(500))


def test_the_advertisement_interval_depends_on_the_state_of_the_device() -> None:
    clip = create_device("000F")
    assert 2.9 < find_longest_delay(clip, 1000.0) <= 3.0, "asleep"
    clip.toggle_motion(1000.0)
    assert 0.19 < find_longest_delay(clip, 1000.0) <= 0.2, "awake"
    clip.set_value(Identifier("9801"), b"\1")
    assert 0.48 < find_longest_delay(clip, 1000.0) <= 0.5, "urgent"
    clip.set_value(Identifier("9805"), b"\x00\x64\x01")
    clip.set_value(Identifier("9800"), b"\1")
    assert 0.09 < find_longest_delay(clip, 1000.0) <= 0.1, "alarm raised"


def test_a_door_counter_counts_sometimes_and_never_decreases() -> None:
    counter, openings = create_device("0050"), []
    for counter.heartbeats in range(2000):
        openings.append(counter.count_new_door_openings())
    assert min(openings) == 0
    assert 0 < sum(openings) < 4 * len(openings)


def test_a_restart_keeps_stored_state_and_clears_running_operations() -> None:
    tracker = create_device()
    tracker.set_value(Identifier("9802"), b"\0")
    tracker.sample_buffer(Kind.EVENT, Identifier("8810")).add(DeviceSample(1, 0, b"\1"))
    tracker.toggle_motion(10.0)
    tracker.next_seq(Kind.HEARTBEAT)
    tracker.is_reporting, tracker.received_test_packets = True, 5
    tracker.restart(1000.0, ResetCause.SOFTWARE)
    assert (tracker.booted_at, tracker.reset_cause) == (1000.0, ResetCause.SOFTWARE)
    assert tracker.value(Identifier("9802")) == b"\0"
    assert len(tracker.sample_buffer(Kind.EVENT, Identifier("8810"))) == 1
    assert (tracker.motion_transitions, tracker.next_seq(Kind.HEARTBEAT)) == (1, 1)
    assert not tracker.is_reporting
    assert tracker.received_test_packets == 0


def test_the_samples_of_a_series_are_limited_and_the_oldest_are_dropped() -> None:
    buffer = create_device().sample_buffer(Kind.MEASUREMENT, Identifier("8800"))
    for n in range(SAMPLE_CAPACITY + 100):
        buffer.add(DeviceSample(n, n & 0xFF, b"\0\0"))
    assert len(buffer) == SAMPLE_CAPACITY
    assert [sample.millis for sample in buffer] == list(range(100, SAMPLE_CAPACITY + 100))


@each_row("mode", DeviceMode)
def test_devices_in_storage_and_dfu_mode_receive_no_requests(mode: DeviceMode) -> None:
    tracker = create_device()
    tracker.mode = mode
    assert tracker.is_reachable == (mode in {DeviceMode.CONNECTED, DeviceMode.UNCONNECTED})
    tracker.is_offline = True
    assert not tracker.is_reachable


@each_row("product", PRODUCTS_BY_CODE.values())
def test_a_property_that_was_never_written_has_its_default_value(product: ProductProfile) -> None:
    code = next(code for code, each in PRODUCTS_BY_CODE.items() if each is product)
    one, other = create_device(code), create_device(code)
    for identifier, raw in product.default_values.items():
        one.set_value(identifier, b"changed")
        assert (one.value(identifier), other.value(identifier)) == (b"changed", raw)


def test_devices_have_different_uptimes_at_the_start() -> None:
    boot_times = {create_device(seed=seed).booted_at for seed in range(20)}
    assert len(boot_times) == 20
    assert all(-60 * 86_400 < boot_time <= 0 for boot_time in boot_times)
