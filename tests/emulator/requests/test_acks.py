"""Samples stay in their device until somebody has them in safety, and come again when somebody asks."""

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


def desk(extenders: int = 1, *, code: str = "0005", **given: Any) -> RequestDriver:
    row = extender_chain(extenders)
    return RequestDriver(*row, device_at_end(row, code=code), **given)


def told(asked: RequestDriver, kind: str, *, first: int = 0) -> list[dict[str, Any]]:
    topic = f"device/{TARGET}/{kind}"
    return [message.body for message in asked.messages[first:] if message.topic.endswith(topic)]


def ack(asked: RequestDriver, what: str, time: str, type_: int, **more: Any) -> list[dict[str, Any]]:
    """Acknowledge, wait, and give what of the same series came upon it."""
    first = len(asked.messages)
    asked.request(TARGET, what, time=time, type=type_, **more)
    asked.advance(5.0)
    operation, identifier = what.split("/")
    ending = "-decoded" if operation == "ack-decoded" else ""
    return [
        *told(asked, f"measurement{ending}/{identifier}", first=first),
        *told(asked, f"event{ending}/{identifier}", first=first),
    ]


def series(mode: ReportMode) -> tuple[str, str]:
    if mode is ReportMode.RAW:
        return "ack/8800", "measurement/8800"
    return "ack-decoded/temperature", "measurement-decoded/temperature"


@pytest.mark.rule("ack-18", "ack-20", "ack-5")
@each_row("mode", ReportMode)
@each_row("code", ["0005", "0011-04"])
def test_a_backfill_brings_what_is_older_as_it_was(mode: ReportMode, code: str) -> None:
    asked = desk(mode=mode, code=code)
    what, kind = series(mode)
    asked.advance(6 * MINUTE)
    samples = told(asked, kind)
    assert len(samples) > 3
    assert ack(asked, what, samples[-2]["time"], 1) == samples[-3::-1]
    assert not asked.responses()


@pytest.mark.rule("ack-18", "ack-20")
@each_row("mode", ReportMode)
def test_events_come_again_too(mode: ReportMode) -> None:
    asked = desk(mode=mode)
    name, ending = ("8810", "") if mode is ReportMode.RAW else ("motion", "-decoded")
    asked.advance(3600.0)
    samples = told(asked, f"event{ending}/{name}")
    assert len(samples) > 2
    assert ack(asked, f"ack{ending}/{name}", samples[-1]["time"], 1) == samples[-2::-1]


@pytest.mark.rule("ack-19")
def test_type_0_removes_one_sample() -> None:
    asked = desk()
    asked.advance(6 * MINUTE)
    samples = told(asked, "measurement/8800")
    assert ack(asked, "ack/8800", samples[1]["time"], 0) == []
    assert ack(asked, "ack/8800", samples[-1]["time"], 1) == [*samples[-2:1:-1], samples[0]]


@pytest.mark.rule("ack-20")
def test_type_1_removes_the_named_sample_and_those_it_brings_stay() -> None:
    asked = desk()
    asked.advance(4 * MINUTE)
    samples = told(asked, "measurement/8800")
    assert ack(asked, "ack/8800", samples[-2]["time"], 1) == samples[-3::-1]
    assert ack(asked, "ack/8800", samples[-1]["time"], 1) == samples[-3::-1]


@pytest.mark.rule("ack-23")
def test_type_2_erases_that_identifier_alone() -> None:
    asked = desk()
    asked.advance(5 * MINUTE)
    temperatures, humidities = told(asked, "measurement/8800"), told(asked, "measurement/8802")
    assert ack(asked, "ack/8800", temperatures[0]["time"], 2) == []
    assert ack(asked, "ack/8800", temperatures[-1]["time"], 1) == []
    assert ack(asked, "ack/8802", humidities[-1]["time"], 1) == humidities[-2::-1]


def test_an_unknown_time_is_as_good_as_any_to_begin_from() -> None:
    asked = desk()
    asked.advance(4 * MINUTE)
    samples = told(asked, "measurement/8800")
    assert ack(asked, "ack/8800", "1971-01-01T00:00:00Z", 1) == []
    assert ack(asked, "ack/8800", "1971-01-01T00:00:00Z", 0) == []
    assert ack(asked, "ack/8800", "9999-01-01T00:00:00Z", 1) == samples[::-1]


@each_row(
    "what",
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
def test_an_ack_of_another_identifier_touches_nothing(what: str) -> None:
    asked = desk()
    asked.advance(4 * MINUTE)
    samples = told(asked, "measurement/8800")
    for type_ in (0, 2):
        ack(asked, what, samples[1]["time"], type_)
    assert ack(asked, "ack/8800", samples[-1]["time"], 1) == samples[-2::-1]
    assert not asked.responses()


@pytest.mark.rule("ack-22")
def test_a_second_wish_during_a_backfill_starts_nothing_and_a_later_one_does() -> None:
    asked = desk()
    asked.advance(30 * MINUTE)
    samples = told(asked, "measurement/8800")
    first = len(asked.messages)
    for _ in range(3):
        asked.request(TARGET, "ack/8800", time=samples[-1]["time"], type=1)
        asked.advance(0.3)
    asked.request(TARGET, "ack/8800", time=samples[-2]["time"], type=1)
    asked.advance(10.0)
    assert told(asked, "measurement/8800", first=first) == samples[-2::-1]
    assert ack(asked, "ack/8800", samples[-1]["time"], 1) == samples[-3::-1]


def test_what_is_acknowledged_during_a_backfill_is_not_brought() -> None:
    asked = desk()
    asked.advance(30 * MINUTE)
    samples = told(asked, "measurement/8800")
    first = len(asked.messages)
    asked.request(TARGET, "ack/8800", time=samples[-1]["time"], type=1)
    asked.advance(0.3)
    asked.request(TARGET, "ack/8800", time=samples[0]["time"], type=0)
    asked.advance(10.0)
    assert told(asked, "measurement/8800", first=first) == samples[-2:0:-1]


def test_erasing_ends_a_backfill() -> None:
    asked = desk()
    asked.advance(30 * MINUTE)
    samples = told(asked, "measurement/8800")
    first = len(asked.messages)
    asked.request(TARGET, "ack/8800", time=samples[-1]["time"], type=1)
    asked.advance(0.3)
    asked.request(TARGET, "ack/8800", time=samples[0]["time"], type=2)
    asked.advance(10.0)
    assert 0 < len(told(asked, "measurement/8800", first=first)) < len(samples) - 1


@pytest.mark.rule("ack-10", "id-20", "id-23")
@each_row("spelling", ["offset", "micros", "none", "basic"])
def test_a_time_is_the_same_however_it_is_spelled(spelling: str) -> None:
    asked = desk()
    asked.advance(3 * MINUTE)
    samples = told(asked, "measurement/8800")
    time = datetime.fromisoformat(samples[0]["time"])
    spelled = {
        "offset": (time + timedelta(hours=5, minutes=30)).isoformat().replace("+00:00", "+05:30"),
        "micros": samples[0]["time"].replace("Z", "999Z"),
        "none": samples[0]["time"].removesuffix("Z"),
        "basic": time.strftime("%Y%m%dT%H%M%S") + samples[0]["time"][-5:],
    }[spelling]
    assert ack(asked, "ack/8800", spelled, 0) == []
    assert ack(asked, "ack/8800", samples[-1]["time"], 1) == samples[-2:0:-1]


@each_row(
    "given",
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
def test_a_malformed_ack_does_nothing(given: dict[str, Any]) -> None:
    asked = desk()
    asked.advance(3 * MINUTE)
    samples = told(asked, "measurement/8800")
    asked.request(TARGET, "ack/8800", **given)
    assert ack(asked, "ack/8800", "9999-01-01T00:00:00Z", 1) == samples[::-1]
    assert not asked.responses()


@each_row("what", ["8300", "8301"])
@each_row("device", [GATEWAY, TARGET])
def test_samples_survive_a_restart(device: Any, what: str) -> None:
    asked = desk()
    asked.advance(4 * MINUTE)
    samples = told(asked, "measurement/8800")
    asked.request_and_wait(device, f"write/{what}")
    asked.advance(20.0)
    brought = ack(asked, "ack/8800", "9999-01-01T00:00:00Z", 1)
    assert brought[-len(samples) :] == samples[::-1]


def test_samples_survive_crashes_and_those_nobody_heard_come_by_backfill() -> None:
    asked = desk(faults=Faults(crash=170.0))
    asked.advance(40 * MINUTE)
    heard = told(asked, "measurement/8800")
    # Beats fall into restarts now and then: the device measured, and the gateway was not there.
    seqs = [sample["seq"] for sample in heard]
    missing = set(range(seqs[-1])) - set(seqs)
    assert missing
    while asked.gateway.is_down:
        asked.advance(1.0)
    brought = ack(asked, "ack/8800", "9999-01-01T00:00:00Z", 1)
    assert [sample["seq"] for sample in brought] == list(range(seqs[-1] + 1))[::-1]


def test_a_restart_during_a_backfill_ends_it_and_the_next_wish_is_heard() -> None:
    for device in (GATEWAY, TARGET):
        asked = desk()
        asked.advance(90 * MINUTE)
        samples = told(asked, "measurement/8800")
        asked.request_and_wait(device, "write/8300")
        asked.request(TARGET, "ack/8800", time=samples[-1]["time"], type=1)
        asked.advance(20.0)
        brought = ack(asked, "ack/8800", "9999-01-01T00:00:00Z", 1)
        assert brought[-len(samples) + 1 :] == samples[-2::-1]


def test_the_oldest_samples_give_way() -> None:
    asked = desk()
    asked.advance((SAMPLE_CAPACITY + 9) * MINUTE)
    samples = told(asked, "measurement/8801")
    assert len(samples) > SAMPLE_CAPACITY
    first = len(asked.messages)
    asked.request(TARGET, "ack/8801", time="9999-01-01T00:00:00Z", type=1)
    asked.advance(58.0)
    brought = told(asked, "measurement/8801", first=first)
    assert [each for each in brought if each in samples][:SAMPLE_CAPACITY] == samples[
        : -SAMPLE_CAPACITY - 1 : -1
    ]
    assert samples[-SAMPLE_CAPACITY - 1] not in brought


@pytest.mark.rule("ack-7")
def test_properties_are_never_kept() -> None:
    asked = desk()
    asked.advance(50 * MINUTE)
    assert len(told(asked, "property/8001")) > 1
    first = len(asked.messages)
    for identifier in ("8001", "8100", "8110", "8101"):
        asked.request(TARGET, f"ack/{identifier}", time="9999-01-01T00:00:00Z", type=1)
    asked.advance(3.0)
    assert not [
        m for m in asked.messages[first:] if m.kind.startswith(("property", "event", "measurement/81"))
    ]


def test_a_gateway_keeps_samples_of_its_own() -> None:
    asked = desk()
    asked.advance(4 * MINUTE)
    topic = f"device/{GATEWAY}/measurement/8800"
    samples = [m.body for m in asked.messages if m.topic.endswith(topic)]
    first = len(asked.messages)
    asked.request(GATEWAY, "ack/8800", time=samples[-1]["time"], type=1)
    asked.advance(3.0)
    assert [m.body for m in asked.messages[first:] if m.topic.endswith(topic)] == samples[-2::-1]


def test_acks_to_all_gateways_reach_those_who_know_the_device() -> None:
    asked = desk()
    asked.advance(4 * MINUTE)
    samples = told(asked, "measurement/8800")
    first = len(asked.messages)
    given = {"time": samples[-1]["time"], "type": 1}
    asked.publish(f"mt/gateways/request/{TARGET}/ack/8800", given)
    asked.publish(f"mt/gateways/request/{device_mac(9)}/ack/8800", given)
    asked.advance(5.0)
    assert told(asked, "measurement/8800", first=first) == samples[-2::-1]
    assert not asked.responses()


@pytest.mark.rule("gateway-40")
def test_a_silent_device_hears_no_ack_either() -> None:
    asked = desk(faults=Faults(silent=1.0))
    asked.advance(4 * MINUTE)
    assert told(asked, "measurement/8800")
    assert ack(asked, "ack/8800", "9999-01-01T00:00:00Z", 1) == []


def test_a_device_that_hears_nothing_loses_nothing() -> None:
    asked = desk()
    asked.advance(4 * MINUTE)
    samples = told(asked, "measurement/8800")
    asked.request_and_wait(TARGET, "write/8110", value="03")
    asked.advance(1.0)
    assert ack(asked, "ack/8800", samples[0]["time"], 2) == []
    asked.request_and_wait(TARGET, "write/8110", value="02")
    asked.advance(1.0)
    assert ack(asked, "ack/8800", samples[-1]["time"], 1) == samples[-2::-1]


def test_before_their_version_nothing_is_kept() -> None:
    asked = desk(version=Version(2, 3, 0))
    asked.advance(4 * MINUTE)
    samples = told(asked, "measurement/8800")
    assert ack(asked, "ack/8800", samples[-1]["time"], 1) == []


def test_the_event_that_the_gateway_makes_for_a_stored_device_is_not_fetched_from_it() -> None:
    asked = RequestDriver(replace(place_device(100, 3.0), mode=DeviceMode.STORAGE))
    asked.advance(4 * MINUTE)
    assert len(told(asked, "event/8112")) > 2
    assert ack(asked, "ack/8112", "9999-01-01T00:00:00Z", 1) == []


def test_samples_of_one_millisecond_are_all_brought() -> None:
    asked = desk(speed=200_000.0)
    asked.advance(10 * MINUTE)
    samples = told(asked, "measurement/8800")
    assert len({sample["time"] for sample in samples}) < len(samples)
    assert ack(asked, "ack/8800", "9999-01-01T00:00:00Z", 1) == samples[::-1]


@each_row("code", ["0018", "000F"])
def test_a_device_that_nobody_hears_keeps_what_happens_to_itself(code: str) -> None:
    alone = RequestDriver(place_device(100, 300.0, code=code))
    alone.advance(7200.0)
    assert [message.kind for message in alone.messages if f"/device/{TARGET}/" in message.topic] == []
