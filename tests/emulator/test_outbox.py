"""What faults do to messages on their way out."""

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

MANY = 5000


def through(faults: Faults, count: int = MANY, *, speed: float = 1.0) -> list[tuple[float, Publish]]:
    """Messages, one in a tenth of a second on the wall, and when they come out."""
    agenda, clock = SimulationScheduler(), SimulatedClock(0, speed)
    outbox = Outbox(faults, agenda, clock, 1)
    came: list[tuple[float, Publish]] = []
    for n in range(count + 600):
        agenda.run(n * speed / 10)
        if n < count:
            outbox.put(f"topic/{n}", msgspec.json.encode({"time": "now", "seq": n % 256}))
        came += ((agenda.now / speed, message) for message in outbox.drain())
    return came


def numbers(came: list[tuple[float, Publish]]) -> list[int]:
    return [int(message.topic.removeprefix("topic/")) for _, message in came]


def payloads(came: list[tuple[float, Publish]]) -> list[bytes]:
    return [message.payload for _, message in came]


@pytest.mark.rule("gateway-2", "gateway-3")
def test_without_trouble_everything_comes_out_at_once_and_in_order() -> None:
    came = through(Faults())
    assert numbers(came) == list(range(MANY))
    assert [round(t * 10) for t, _ in came] == list(range(MANY))
    assert {(message.qos, message.retain) for _, message in came} == {(1, False)}


def test_what_was_taken_is_gone() -> None:
    outbox = Outbox(Faults(), SimulationScheduler(), SimulatedClock(0), 1)
    outbox.put("topic", b"{}")
    assert len(outbox.drain()) == 1
    assert outbox.drain() == []


def bounds(fraction: float) -> tuple[int, int]:
    """How many of all messages a fraction may hit."""
    spread = 0.0 if fraction in {0.0, 1.0} else 0.03
    return round((fraction - spread) * MANY), round((fraction + spread) * MANY)


fractions = each_row("fraction", [0.0, 0.3, 1.0])


@pytest.mark.rule("gateway-38", "gateway-39")
@fractions
def test_a_fraction_is_lost(fraction: float) -> None:
    least, most = bounds(fraction)
    came = numbers(through(Faults(loss=fraction)))
    assert least <= MANY - len(came) <= most
    assert came == sorted(set(came))


@pytest.mark.rule("gateway-38", "gateway-39")
@fractions
def test_a_fraction_comes_twice(fraction: float) -> None:
    least, most = bounds(fraction)
    came = through(Faults(duplicate=fraction))
    counted = Counter(numbers(came))
    assert set(counted) == set(range(MANY))
    assert set(counted.values()) <= {1, 2}
    assert least <= sum(count == 2 for count in counted.values()) <= most
    assert len({(message.topic, message.payload) for _, message in came}) == MANY


@pytest.mark.rule("gateway-38", "gateway-39")
@fractions
def test_a_fraction_is_overtaken_and_nothing_is_lost(fraction: float) -> None:
    came = through(Faults(reorder=fraction))
    assert sorted(numbers(came)) == list(range(MANY))
    late = [t - number / 10 for (t, _), number in zip(came, numbers(came), strict=True)]
    assert max(late) <= 2.1
    least, most = bounds(fraction)
    assert least * 0.9 <= sum(each > 0.001 for each in late) <= most
    swaps = sum(a > b for a, b in pairwise(numbers(came)))
    assert (swaps > MANY / 10) == (fraction > 0.0)


@pytest.mark.rule("gateway-38", "gateway-39")
@fractions
def test_a_fraction_has_its_seq_in_quotes(fraction: float) -> None:
    least, most = bounds(fraction)
    came = payloads(through(Faults(quoted_seq=fraction)))
    quoted = [isinstance(json.loads(payload)["seq"], str) for payload in came]
    assert least <= sum(quoted) <= most
    assert [int(json.loads(payload)["seq"]) for payload in came] == [n % 256 for n in range(MANY)]


def is_json(payload: bytes) -> bool:
    try:
        json.loads(payload)
    except ValueError:
        return False
    return True


@pytest.mark.rule("gateway-38", "gateway-39")
@fractions
def test_a_fraction_breaks_off(fraction: float) -> None:
    least, most = bounds(fraction)
    came = payloads(through(Faults(broken_json=fraction)))
    assert len(came) == MANY
    assert least <= sum(not is_json(payload) for payload in came) <= most


@pytest.mark.rule("gateway-38", "gateway-39", "gateway-42")
@each_row("speed", [1.0, 20.0, 0.5])
@each_row("delay", [0.0, 0.3, 1.0, 30.0])
def test_every_message_comes_as_late_as_it_should_on_the_wall(delay: float, speed: float) -> None:
    came = through(Faults(delay=delay), 100, speed=speed)
    assert numbers(came) == list(range(100))
    for (t, _), number in zip(came, numbers(came), strict=True):
        assert t - number / 10 == pytest.approx(delay, abs=0.11)


def test_one_fault_says_nothing_about_another() -> None:
    came = through(Faults(broken_json=0.5, duplicate=0.5))
    broken = {message.topic for _, message in came if not is_json(message.payload)}
    copies = Counter(message.topic for _, message in came)
    assert 0.22 * MANY < sum(copies[topic] == 2 for topic in broken) < 0.28 * MANY


@each_row("fraction", [0.3, 1.0])
def test_a_quoted_seq_is_still_a_report(fraction: float) -> None:
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


def test_loss_hits_responses_as_well() -> None:
    world = generated_gateway(5, faults=Faults(loss=1.0))
    world.gateway.receive(f"mt/gateway/{world.mac}/request/{world.mac}/apiversion", b"", 0.0)
    assert world.advance_in_one_step(30 * MINUTE) == []
