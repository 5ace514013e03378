"""Effects of faults on published messages."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import pytest

from meshfleet.emulator import Faults, SimulatedClock
from meshfleet.emulator.outbox import Outbox
from meshfleet.emulator.simulation.clock import SimulationScheduler
from meshfleet.protocol import reports
from meshfleet.protocol.topics import ReportTopic
from tests.emulator.simulated_gateway import HOUR, MINUTE, generated_gateway
from tests.row_tables import each_row

if TYPE_CHECKING:
    from meshfleet.mqtt.codec.packets import Publish

MESSAGE_COUNT = 5000


def publish_through_outbox(
    faults: Faults, count: int = MESSAGE_COUNT, *, speed: float = 1.0
) -> list[tuple[float, Publish]]:
    """Publish a message every tenth of a second. Return the messages with their wall-clock times."""
    scheduler, clock = SimulationScheduler(), SimulatedClock(0, speed)
    outbox = Outbox(faults, scheduler, clock, 1)
    published: list[tuple[float, Publish]] = []
    for n in range(count + 600):
        scheduler.run(n * speed / 10)
        if n < count:
            outbox.put(f"topic/{n}", msgspec.json.encode({"time": "now", "seq": n % 256}))
        published += ((scheduler.now / speed, message) for message in outbox.drain())
    return published


def list_numbers(published: list[tuple[float, Publish]]) -> list[int]:
    return [int(message.topic.removeprefix("topic/")) for _, message in published]


def list_payloads(published: list[tuple[float, Publish]]) -> list[bytes]:
    return [message.payload for _, message in published]


@pytest.mark.rule("gateway-2", "gateway-3")
def test_without_faults_messages_are_published_at_once_and_in_order() -> None:
    published = publish_through_outbox(Faults())
    assert list_numbers(published) == list(range(MESSAGE_COUNT))
    assert [round(t * 10) for t, _ in published] == list(range(MESSAGE_COUNT))
    assert {(message.qos, message.retain) for _, message in published} == {(1, False)}


def test_drained_messages_are_removed() -> None:
    outbox = Outbox(Faults(), SimulationScheduler(), SimulatedClock(0), 1)
    outbox.put("topic", b"{}")
    assert len(outbox.drain()) == 1
    assert outbox.drain() == []


def get_bounds(fraction: float) -> tuple[int, int]:
    """Return the minimum and maximum number of messages that a fraction affects."""
    spread = 0.0 if fraction in {0.0, 1.0} else 0.03
    return round((fraction - spread) * MESSAGE_COUNT), round((fraction + spread) * MESSAGE_COUNT)


each_fraction = each_row("fraction", [0.0, 0.3, 1.0])


@pytest.mark.rule("gateway-38", "gateway-39")
@each_fraction
def test_a_fraction_of_the_messages_is_lost(fraction: float) -> None:
    minimum, maximum = get_bounds(fraction)
    published = list_numbers(publish_through_outbox(Faults(loss=fraction)))
    assert minimum <= MESSAGE_COUNT - len(published) <= maximum
    assert published == sorted(set(published))


@pytest.mark.rule("gateway-38", "gateway-39")
@each_fraction
def test_a_fraction_of_the_messages_is_duplicated(fraction: float) -> None:
    minimum, maximum = get_bounds(fraction)
    published = publish_through_outbox(Faults(duplicate=fraction))
    counts = Counter(list_numbers(published))
    assert set(counts) == set(range(MESSAGE_COUNT))
    assert set(counts.values()) <= {1, 2}
    assert minimum <= sum(count == 2 for count in counts.values()) <= maximum
    assert len({(message.topic, message.payload) for _, message in published}) == MESSAGE_COUNT


@pytest.mark.rule("gateway-38", "gateway-39")
@each_fraction
def test_a_fraction_of_the_messages_is_reordered_and_none_is_lost(fraction: float) -> None:
    published = publish_through_outbox(Faults(reorder=fraction))
    assert sorted(list_numbers(published)) == list(range(MESSAGE_COUNT))
    delays = [t - number / 10 for (t, _), number in zip(published, list_numbers(published), strict=True)]
    assert max(delays) <= 2.1
    minimum, maximum = get_bounds(fraction)
    assert minimum * 0.9 <= sum(delay > 0.001 for delay in delays) <= maximum
    swaps = sum(a > b for a, b in pairwise(list_numbers(published)))
    assert (swaps > MESSAGE_COUNT / 10) == (fraction > 0.0)


@pytest.mark.rule("gateway-38", "gateway-39")
@each_fraction
def test_a_fraction_of_the_messages_has_a_quoted_seq(fraction: float) -> None:
    minimum, maximum = get_bounds(fraction)
    published = list_payloads(publish_through_outbox(Faults(quoted_seq=fraction)))
    quoted_flags = [isinstance(json.loads(payload)["seq"], str) for payload in published]
    assert minimum <= sum(quoted_flags) <= maximum
    assert [int(json.loads(payload)["seq"]) for payload in published] == [
        n % 256 for n in range(MESSAGE_COUNT)
    ]


def is_json(payload: bytes) -> bool:
    try:
        json.loads(payload)
    except ValueError:
        return False
    return True


@pytest.mark.rule("gateway-38", "gateway-39")
@each_fraction
def test_a_fraction_of_the_messages_is_truncated(fraction: float) -> None:
    minimum, maximum = get_bounds(fraction)
    published = list_payloads(publish_through_outbox(Faults(broken_json=fraction)))
    assert len(published) == MESSAGE_COUNT
    assert minimum <= sum(not is_json(payload) for payload in published) <= maximum


@pytest.mark.rule("gateway-38", "gateway-39", "gateway-42")
@each_row("speed", [1.0, 20.0, 0.5])
@each_row("delay", [0.0, 0.3, 1.0, 30.0])
def test_every_message_is_delayed_in_wall_clock_time(delay: float, speed: float) -> None:
    published = publish_through_outbox(Faults(delay=delay), 100, speed=speed)
    assert list_numbers(published) == list(range(100))
    for (t, _), number in zip(published, list_numbers(published), strict=True):
        assert t - number / 10 == pytest.approx(delay, abs=0.11)


def test_faults_are_independent_of_each_other() -> None:
    published = publish_through_outbox(Faults(broken_json=0.5, duplicate=0.5))
    broken = {message.topic for _, message in published if not is_json(message.payload)}
    copy_counts = Counter(message.topic for _, message in published)
    assert 0.22 * MESSAGE_COUNT < sum(copy_counts[topic] == 2 for topic in broken) < 0.28 * MESSAGE_COUNT


@each_row("fraction", [0.3, 1.0])
def test_a_report_with_a_quoted_seq_is_valid(fraction: float) -> None:
    plain, quoted = (
        generated_gateway(10).advance_in_one_step(HOUR),
        generated_gateway(10, faults=Faults(quoted_seq=fraction)).advance_in_one_step(HOUR),
    )
    topics = generated_gateway(1).gateway.topics
    changed = 0
    for one, other in zip(plain, quoted, strict=True):
        topic = topics.parse(other.topic)
        assert isinstance(topic, ReportTopic)
        assert reports.decode_report(topic.kind, other.payload) == reports.decode_report(
            topic.kind, one.payload
        )
        changed += one.payload != other.payload
    assert changed / len(plain) == pytest.approx(fraction, abs=0.03)


def test_responses_can_be_lost() -> None:
    simulation = generated_gateway(5, faults=Faults(loss=1.0))
    simulation.gateway.receive(f"mt/gateway/{simulation.mac}/request/{simulation.mac}/apiversion", b"", 0.0)
    assert simulation.advance_in_one_step(30 * MINUTE) == []
