"""The same seed gives the same run, for as long as it lasts."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import pytest

from meshfleet.gateway import Faults
from meshfleet.gateway import Mode as Writing
from meshfleet.gateway.world.mesh import MAX_DEPTH
from meshfleet.gateway.world.node import MAX_CHILDREN
from meshfleet.gateway.world.samples import CAPACITY
from meshfleet.wire.codes import Operation
from tests.gateway.living import HOUR, MINUTE, World, town
from tests.gateway.tables import each_row

if TYPE_CHECKING:
    from meshfleet.wire.mqtt.packets import Publish


def only_reports(published: list[Publish]) -> list[Publish]:
    return [message for message in published if "/device/" in message.topic]


@pytest.mark.rule("gateway-41")
@each_row("mode", Writing)
@each_row("seed", [1, 7])
def test_two_runs_with_one_seed_are_the_same_to_the_byte(mode: Writing, seed: int) -> None:
    one, other = town(20, seed, mode=mode), town(20, seed, mode=mode)
    assert one.leap(HOUR) == other.leap(HOUR)


@pytest.mark.rule("gateway-41")
@each_row("step", [0.37, 5.0, 61.0])
def test_it_does_not_matter_in_which_steps_time_passes(step: float) -> None:
    whole, stepped = town(20), town(20)
    messages = [message for _ in range(int(HOUR / step)) for message in stepped.leap(step)]
    assert messages == whole.leap(int(HOUR / step) * step)


@pytest.mark.rule("gateway-41")
def test_another_seed_gives_another_run() -> None:
    assert town(20, 1).leap(10 * MINUTE) != town(20, 2).leap(10 * MINUTE)


def asked(world: World, hours: int) -> list[Publish]:
    """Let somebody read all sorts of things all the time."""
    published = []
    for n in range(hours * 360):
        device = world.devices[n % len(world.devices)]
        for identifier in sorted(device.product.identifiers)[n % 5 :: 5]:
            world.send(Operation.READ, device.mac, identifier)
        published += world.leap(10.0)
    return published


@pytest.mark.rule("gateway-41")
@each_row("mode", Writing)
def test_reading_changes_nothing_of_what_is_reported(mode: Writing) -> None:
    questioned = asked(world := town(20, mode=mode), 1)
    assert len(questioned) > len(only_reports(questioned)) + 500
    assert only_reports(questioned) == town(20, mode=mode).leap(world.now)


@pytest.mark.rule("gateway-41")
@each_row("faults", [Faults(loss=0.3), Faults(quoted_seq=0.5), Faults(silent=0.5)])
def test_reading_does_not_change_which_reports_are_in_trouble(faults: Faults) -> None:
    questioned = asked(world := town(10, faults=faults), 1)
    assert only_reports(questioned) == town(10, faults=faults).leap(world.now)


@pytest.mark.rule("gateway-41")
@each_row("faults", [Faults(loss=0.3), Faults(duplicate=0.5), Faults(broken_json=0.5)])
def test_the_same_trouble_comes_at_another_time_of_the_day(faults: Faults) -> None:
    def topics(world: World) -> list[str]:
        return [message.topic for message in world.leap(HOUR)]

    one, other = town(10, faults=faults), town(10, faults=faults)
    other.clock.bend(0.0, 1_800_000_000_123, 1.0)
    assert topics(one) == topics(other)


def test_gateways_side_by_side_do_not_disturb_each_other() -> None:
    alone = town(10).leap(HOUR)
    one, other = town(10), town(30, seed=3)
    messages = []
    for _ in range(60):
        messages += one.leap(MINUTE)
        other.leap(MINUTE)
    assert messages == alone


one_worker = pytest.mark.xdist_group("two days")
"""They share a run that takes its time."""


class Long(NamedTuple):
    """A long run, hour by hour."""

    world: World
    planned: list[int]
    published: list[int]
    parents: dict[str, set[str]]


@pytest.fixture(scope="module")
def two_days() -> Long:
    """48 hours with 50 devices, in which nothing may go wrong."""
    run = Long(town(50), [], [], defaultdict(set))
    for _ in range(48):
        run.published.append(len(run.world.leap(HOUR)))
        run.planned.append(run.world.planned)
        for each in run.world.devices:
            node = each.node
            assert node.depth <= MAX_DEPTH
            assert node.children <= MAX_CHILDREN
            assert node.children == sum(other.node.parent is node for other in run.world.devices)
            if node.parent is not None:
                run.parents[each.mac].add(node.parent.mac)
    return run


@one_worker
@pytest.mark.rule("gateway-17", "gateway-18")
def test_two_days_pass_without_trouble_and_every_hour_is_as_busy_as_the_others(two_days: Long) -> None:
    assert min(two_days.published) > 0.8 * max(two_days.published)
    assert two_days.world.gateway.reports == sum(two_days.published)


@one_worker
def test_the_agenda_does_not_grow(two_days: Long) -> None:
    assert max(two_days.planned) <= len(two_days.world.devices) + 20


@one_worker
def test_samples_that_nobody_acknowledges_are_bounded(two_days: Long) -> None:
    lengths = [len(samples) for each in two_days.world.devices for samples in (each.samples or {}).values()]
    assert max(lengths) == CAPACITY
    assert all(len(each.samples or {}) <= len(each.product.series) for each in two_days.world.devices)


@one_worker
@pytest.mark.rule("gateway-19")
def test_devices_change_their_parents_in_two_days_and_the_tree_stays_whole(two_days: Long) -> None:
    assert sum(len(parents) > 1 for parents in two_days.parents.values()) >= 5
    joined = [each for each in two_days.world.devices if each.is_connected and not each.is_away]
    assert sum(each.node.depth < 0 for each in joined) <= 0.1 * len(joined)


def test_requests_that_nobody_waits_for_any_more_leave_nothing_behind() -> None:
    world = town(10)
    for _ in range(600):
        for device in world.devices:
            world.send(Operation.READ, device.mac, "8000")
        world.leap(1.0)
    world.leap(MINUTE)
    assert world.planned <= len(world.devices) + 20
    for device in world.devices:
        if device.access is None:
            assert world.ask(Operation.READ, device.mac, "8000").status == 0, "all queues are empty again"
