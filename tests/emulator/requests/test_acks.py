"""Acks: devices keep samples until they are acknowledged, and publish them again in a backfill."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from meshfleet.emulator import Faults, ReportMode
from meshfleet.emulator.simulation.products import DeviceMode
from meshfleet.emulator.simulation.sample_buffer import SAMPLE_CAPACITY
from meshfleet.protocol.ids import Version
from tests.emulator.requests.driver import RequestDriver, device_at_end, extender_chain
from tests.emulator.simulation.sites import GATEWAY, device_mac, place_device
from tests.row_tables import each_row

TARGET = device_mac(100)
MINUTE = 60.0


def create_driver(extenders: int = 1, *, code: str = "0005", **settings: Any) -> RequestDriver:
    chain = extender_chain(extenders)
    return RequestDriver(*chain, device_at_end(chain, code=code), **settings)


def select_bodies(driver: RequestDriver, kind: str, *, first: int = 0) -> list[dict[str, Any]]:
    topic = f"device/{TARGET}/{kind}"
    return [message.body for message in driver.messages[first:] if message.topic.endswith(topic)]


def ack(driver: RequestDriver, path: str, time: str, type_: int, **parameters: Any) -> list[dict[str, Any]]:
    """Send an ack and wait. Return the samples of the same series published since."""
    first = len(driver.messages)
    driver.request(TARGET, path, time=time, type=type_, **parameters)
    driver.advance(5.0)
    operation, identifier = path.split("/")
    suffix = "-decoded" if operation == "ack-decoded" else ""
    return [
        *select_bodies(driver, f"measurement{suffix}/{identifier}", first=first),
        *select_bodies(driver, f"event{suffix}/{identifier}", first=first),
    ]


def get_series(mode: ReportMode) -> tuple[str, str]:
    if mode is ReportMode.RAW:
        return "ack/8800", "measurement/8800"
    return "ack-decoded/temperature", "measurement-decoded/temperature"


@pytest.mark.rule("ack-18", "ack-20", "ack-5")
@each_row("mode", ReportMode)
@each_row("code", ["0005", "0011-04"])
def test_a_backfill_publishes_older_samples_unchanged(mode: ReportMode, code: str) -> None:
    driver = create_driver(mode=mode, code=code)
    path, kind = get_series(mode)
    driver.advance(6 * MINUTE)
    samples = select_bodies(driver, kind)
    assert len(samples) > 3
    assert ack(driver, path, samples[-2]["time"], 1) == samples[-3::-1]
    assert not driver.responses()


@pytest.mark.rule("ack-18", "ack-20")
@each_row("mode", ReportMode)
def test_a_backfill_includes_events(mode: ReportMode) -> None:
    driver = create_driver(mode=mode)
    name, suffix = ("8810", "") if mode is ReportMode.RAW else ("motion", "-decoded")
    driver.advance(3600.0)
    samples = select_bodies(driver, f"event{suffix}/{name}")
    assert len(samples) > 2
    assert ack(driver, f"ack{suffix}/{name}", samples[-1]["time"], 1) == samples[-2::-1]


@pytest.mark.rule("ack-19")
def test_type_0_deletes_one_sample() -> None:
    driver = create_driver()
    driver.advance(6 * MINUTE)
    samples = select_bodies(driver, "measurement/8800")
    assert ack(driver, "ack/8800", samples[1]["time"], 0) == []
    assert ack(driver, "ack/8800", samples[-1]["time"], 1) == [*samples[-2:1:-1], samples[0]]


@pytest.mark.rule("ack-20")
def test_type_1_deletes_the_given_sample_and_keeps_the_backfilled_ones() -> None:
    driver = create_driver()
    driver.advance(4 * MINUTE)
    samples = select_bodies(driver, "measurement/8800")
    assert ack(driver, "ack/8800", samples[-2]["time"], 1) == samples[-3::-1]
    assert ack(driver, "ack/8800", samples[-1]["time"], 1) == samples[-3::-1]


@pytest.mark.rule("ack-23")
def test_type_2_erases_that_identifier_alone() -> None:
    driver = create_driver()
    driver.advance(5 * MINUTE)
    temperatures, humidities = (
        select_bodies(driver, "measurement/8800"),
        select_bodies(driver, "measurement/8802"),
    )
    assert ack(driver, "ack/8800", temperatures[0]["time"], 2) == []
    assert ack(driver, "ack/8800", temperatures[-1]["time"], 1) == []
    assert ack(driver, "ack/8802", humidities[-1]["time"], 1) == humidities[-2::-1]


def test_a_backfill_may_start_from_an_unknown_time() -> None:
    driver = create_driver()
    driver.advance(4 * MINUTE)
    samples = select_bodies(driver, "measurement/8800")
    assert ack(driver, "ack/8800", "1971-01-01T00:00:00Z", 1) == []
    assert ack(driver, "ack/8800", "1971-01-01T00:00:00Z", 0) == []
    assert ack(driver, "ack/8800", "9999-01-01T00:00:00Z", 1) == samples[::-1]


@each_row(
    "operation",
    [
        "ack/8801",
        "ack/8112",
        "ack/05",
        "ack/8001",
        "ack-decoded/nonsense",
        "ack-decoded/8800",
        "ack/temperature",
    ],
)
def test_an_ack_of_another_identifier_has_no_effect(operation: str) -> None:
    driver = create_driver()
    driver.advance(4 * MINUTE)
    samples = select_bodies(driver, "measurement/8800")
    for type_ in (0, 2):
        ack(driver, operation, samples[1]["time"], type_)
    assert ack(driver, "ack/8800", samples[-1]["time"], 1) == samples[-2::-1]
    assert not driver.responses()


@pytest.mark.rule("ack-22")
def test_a_second_request_during_a_backfill_is_ignored_and_a_later_one_is_not() -> None:
    driver = create_driver()
    driver.advance(30 * MINUTE)
    samples = select_bodies(driver, "measurement/8800")
    first = len(driver.messages)
    for _ in range(3):
        driver.request(TARGET, "ack/8800", time=samples[-1]["time"], type=1)
        driver.advance(0.3)
    driver.request(TARGET, "ack/8800", time=samples[-2]["time"], type=1)
    driver.advance(10.0)
    assert select_bodies(driver, "measurement/8800", first=first) == samples[-2::-1]
    assert ack(driver, "ack/8800", samples[-1]["time"], 1) == samples[-3::-1]


def test_a_sample_acknowledged_during_a_backfill_is_not_published() -> None:
    driver = create_driver()
    driver.advance(30 * MINUTE)
    samples = select_bodies(driver, "measurement/8800")
    first = len(driver.messages)
    driver.request(TARGET, "ack/8800", time=samples[-1]["time"], type=1)
    driver.advance(0.3)
    driver.request(TARGET, "ack/8800", time=samples[0]["time"], type=0)
    driver.advance(10.0)
    assert select_bodies(driver, "measurement/8800", first=first) == samples[-2:0:-1]


def test_erasing_ends_a_backfill() -> None:
    driver = create_driver()
    driver.advance(30 * MINUTE)
    samples = select_bodies(driver, "measurement/8800")
    first = len(driver.messages)
    driver.request(TARGET, "ack/8800", time=samples[-1]["time"], type=1)
    driver.advance(0.3)
    driver.request(TARGET, "ack/8800", time=samples[0]["time"], type=2)
    driver.advance(10.0)
    assert 0 < len(select_bodies(driver, "measurement/8800", first=first)) < len(samples) - 1


@pytest.mark.rule("ack-10", "id-20", "id-23")
@each_row("spelling", ["offset", "micros", "none", "basic"])
def test_all_formats_of_a_time_are_equal(spelling: str) -> None:
    driver = create_driver()
    driver.advance(3 * MINUTE)
    samples = select_bodies(driver, "measurement/8800")
    time = datetime.fromisoformat(samples[0]["time"])
    formatted = {
        "offset": (time + timedelta(hours=5, minutes=30)).isoformat().replace("+00:00", "+05:30"),
        "micros": samples[0]["time"].replace("Z", "999Z"),
        "none": samples[0]["time"].removesuffix("Z"),
        "basic": time.strftime("%Y%m%dT%H%M%S") + samples[0]["time"][-5:],
    }[spelling]
    assert ack(driver, "ack/8800", formatted, 0) == []
    assert ack(driver, "ack/8800", samples[-1]["time"], 1) == samples[-2:0:-1]


@each_row(
    "parameters",
    [
        {},
        {"time": "yesterday", "type": 2},
        {"type": 2},
        {"time": "9999-01-01T00:00:00Z"},
        {"time": "9999-01-01T00:00:00Z", "type": 3},
        {"time": "9999-01-01T00:00:00Z", "type": "2"},
        {"time": "9999-01-01T00:00:00Z", "type": 2, "priority": 5},
        {"time": 5, "type": 2},
    ],
)
def test_a_malformed_ack_has_no_effect(parameters: dict[str, Any]) -> None:
    driver = create_driver()
    driver.advance(3 * MINUTE)
    samples = select_bodies(driver, "measurement/8800")
    driver.request(TARGET, "ack/8800", **parameters)
    assert ack(driver, "ack/8800", "9999-01-01T00:00:00Z", 1) == samples[::-1]
    assert not driver.responses()


@each_row("reset_command", ["8300", "8301"])
@each_row("device", [GATEWAY, TARGET])
def test_samples_survive_a_restart(device: Any, reset_command: str) -> None:
    driver = create_driver()
    driver.advance(4 * MINUTE)
    samples = select_bodies(driver, "measurement/8800")
    driver.request_and_wait(device, f"write/{reset_command}")
    driver.advance(20.0)
    backfilled = ack(driver, "ack/8800", "9999-01-01T00:00:00Z", 1)
    assert backfilled[-len(samples) :] == samples[::-1]


def test_samples_survive_crashes_and_missed_ones_are_backfilled() -> None:
    driver = create_driver(faults=Faults(crash=170.0))
    driver.advance(40 * MINUTE)
    received = select_bodies(driver, "measurement/8800")
    # Some heartbeats fall into restarts: the device measures while the gateway is down.
    seqs = [sample["seq"] for sample in received]
    missing = set(range(seqs[-1])) - set(seqs)
    assert missing
    while driver.gateway.is_restarting:
        driver.advance(1.0)
    backfilled = ack(driver, "ack/8800", "9999-01-01T00:00:00Z", 1)
    assert [sample["seq"] for sample in backfilled] == list(range(seqs[-1] + 1))[::-1]


def test_a_restart_ends_a_backfill_and_the_next_request_starts_another() -> None:
    for device in (GATEWAY, TARGET):
        driver = create_driver()
        driver.advance(90 * MINUTE)
        samples = select_bodies(driver, "measurement/8800")
        driver.request_and_wait(device, "write/8300")
        driver.request(TARGET, "ack/8800", time=samples[-1]["time"], type=1)
        driver.advance(20.0)
        backfilled = ack(driver, "ack/8800", "9999-01-01T00:00:00Z", 1)
        assert backfilled[-len(samples) + 1 :] == samples[-2::-1]


def test_a_full_buffer_drops_the_oldest_samples() -> None:
    driver = create_driver()
    driver.advance((SAMPLE_CAPACITY + 9) * MINUTE)
    samples = select_bodies(driver, "measurement/8801")
    assert len(samples) > SAMPLE_CAPACITY
    first = len(driver.messages)
    driver.request(TARGET, "ack/8801", time="9999-01-01T00:00:00Z", type=1)
    driver.advance(58.0)
    backfilled = select_bodies(driver, "measurement/8801", first=first)
    assert [sample for sample in backfilled if sample in samples][:SAMPLE_CAPACITY] == samples[
        : -SAMPLE_CAPACITY - 1 : -1
    ]
    assert samples[-SAMPLE_CAPACITY - 1] not in backfilled


@pytest.mark.rule("ack-7")
def test_properties_are_never_buffered() -> None:
    driver = create_driver()
    driver.advance(50 * MINUTE)
    assert len(select_bodies(driver, "property/8001")) > 1
    first = len(driver.messages)
    for identifier in ("8001", "8100", "8110", "8101"):
        driver.request(TARGET, f"ack/{identifier}", time="9999-01-01T00:00:00Z", type=1)
    driver.advance(3.0)
    assert not [
        message
        for message in driver.messages[first:]
        if message.kind.startswith(("property", "event", "measurement/81"))
    ]


def test_a_gateway_buffers_its_own_samples() -> None:
    driver = create_driver()
    driver.advance(4 * MINUTE)
    topic = f"device/{GATEWAY}/measurement/8800"
    samples = [message.body for message in driver.messages if message.topic.endswith(topic)]
    first = len(driver.messages)
    driver.request(GATEWAY, "ack/8800", time=samples[-1]["time"], type=1)
    driver.advance(3.0)
    assert [message.body for message in driver.messages[first:] if message.topic.endswith(topic)] == samples[
        -2::-1
    ]


def test_acks_to_all_gateways_reach_the_gateway_of_the_device() -> None:
    driver = create_driver()
    driver.advance(4 * MINUTE)
    samples = select_bodies(driver, "measurement/8800")
    first = len(driver.messages)
    parameters = {"time": samples[-1]["time"], "type": 1}
    driver.publish(f"mt/gateways/request/{TARGET}/ack/8800", parameters)
    driver.publish(f"mt/gateways/request/{device_mac(9)}/ack/8800", parameters)
    driver.advance(5.0)
    assert select_bodies(driver, "measurement/8800", first=first) == samples[-2::-1]
    assert not driver.responses()


@pytest.mark.rule("gateway-40")
def test_a_silent_device_ignores_acks() -> None:
    driver = create_driver(faults=Faults(silent=1.0))
    driver.advance(4 * MINUTE)
    assert select_bodies(driver, "measurement/8800")
    assert ack(driver, "ack/8800", "9999-01-01T00:00:00Z", 1) == []


def test_a_device_in_storage_mode_ignores_acks() -> None:
    driver = create_driver()
    driver.advance(4 * MINUTE)
    samples = select_bodies(driver, "measurement/8800")
    driver.request_and_wait(TARGET, "write/8110", value="03")
    driver.advance(1.0)
    assert ack(driver, "ack/8800", samples[0]["time"], 2) == []
    driver.request_and_wait(TARGET, "write/8110", value="02")
    driver.advance(1.0)
    assert ack(driver, "ack/8800", samples[-1]["time"], 1) == samples[-2::-1]


def test_samples_are_not_buffered_before_their_version() -> None:
    driver = create_driver(version=Version(2, 3, 0))
    driver.advance(4 * MINUTE)
    samples = select_bodies(driver, "measurement/8800")
    assert ack(driver, "ack/8800", samples[-1]["time"], 1) == []


def test_the_storage_mode_event_of_the_gateway_is_not_buffered() -> None:
    driver = RequestDriver(replace(place_device(100, 3.0), mode=DeviceMode.STORAGE))
    driver.advance(4 * MINUTE)
    assert len(select_bodies(driver, "event/8112")) > 2
    assert ack(driver, "ack/8112", "9999-01-01T00:00:00Z", 1) == []


def test_samples_of_the_same_millisecond_are_all_backfilled() -> None:
    driver = create_driver(speed=200_000.0)
    driver.advance(10 * MINUTE)
    samples = select_bodies(driver, "measurement/8800")
    assert len({sample["time"] for sample in samples}) < len(samples)
    assert ack(driver, "ack/8800", "9999-01-01T00:00:00Z", 1) == samples[::-1]


@each_row("code", ["0018", "000F"])
def test_a_device_out_of_range_has_no_reports(code: str) -> None:
    driver = RequestDriver(place_device(100, 300.0, code=code))
    driver.advance(7200.0)
    assert [message.kind for message in driver.messages if f"/device/{TARGET}/" in message.topic] == []
