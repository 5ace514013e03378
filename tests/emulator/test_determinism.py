"""The same seed gives the same run, for as long as it lasts."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from meshfleet.emulator import Faults
from meshfleet.emulator import ReportMode as Writing
from meshfleet.emulator.simulation.mesh import MAX_CHILDREN, MAX_DEPTH
from meshfleet.emulator.simulation.sample_buffer import SAMPLE_CAPACITY
from meshfleet.protocol.codes import Operation
from tests.emulator.simulated_gateway import HOUR, MINUTE, SimulatedGateway, generated_gateway
from tests.row_tables import each_row

if TYPE_CHECKING:
    from meshfleet.mqtt.codec.packets import Publish


SPAN = 25 * MINUTE
"""All that a device tells comes within: properties every twenty minutes."""


def only_reports(published: list[Publish]) -> list[Publish]:
    return [message for message in published if "/device/" in message.topic]


@pytest.mark.rule("gateway-41")
@each_row("mode", Writing)
@each_row("seed", [1, 7])
def test_two_runs_with_one_seed_are_the_same_to_the_byte(mode: Writing, seed: int) -> None:
    one, other = generated_gateway(20, seed, mode=mode), generated_gateway(20, seed, mode=mode)
    assert one.advance_in_one_step(SPAN) == other.advance_in_one_step(SPAN)


@pytest.mark.rule("gateway-41")
@each_row("step", [0.37, 5.0, 61.0])
def test_it_does_not_matter_in_which_steps_time_passes(step: float) -> None:
    whole, stepped = generated_gateway(20), generated_gateway(20)
    messages = [message for _ in range(int(SPAN / step)) for message in stepped.advance_in_one_step(step)]
    assert messages == whole.advance_in_one_step(int(SPAN / step) * step)


@pytest.mark.rule("gateway-41")
def test_another_seed_gives_another_run() -> None:
    assert generated_gateway(20, 1).advance_in_one_step(10 * MINUTE) != generated_gateway(
        20, 2
    ).advance_in_one_step(10 * MINUTE)


def asked(world: SimulatedGateway) -> list[Publish]:
    """Let somebody read all sorts of things all the time."""
    published = []
    for n in range(int(SPAN / 10.0)):
        device = world.devices[n % len(world.devices)]
        for identifier in sorted(device.product.identifiers)[n % 5 :: 5]:
            world.send(Operation.READ, device.mac, identifier)
        published += world.advance_in_one_step(10.0)
    return published


@pytest.mark.rule("gateway-41")
@each_row("mode", Writing)
def test_reading_changes_nothing_of_what_is_reported(mode: Writing) -> None:
    questioned = asked(world := generated_gateway(20, mode=mode))
    assert len(questioned) > len(only_reports(questioned)) + 200
    assert only_reports(questioned) == generated_gateway(20, mode=mode).advance_in_one_step(world.now)


@pytest.mark.rule("gateway-41")
@each_row("faults", [Faults(loss=0.3), Faults(quoted_seq=0.5), Faults(silent=0.5)])
def test_reading_does_not_change_which_reports_are_in_trouble(faults: Faults) -> None:
    questioned = asked(world := generated_gateway(10, faults=faults))
    assert only_reports(questioned) == generated_gateway(10, faults=faults).advance_in_one_step(world.now)


@pytest.mark.rule("gateway-41")
@each_row("faults", [Faults(loss=0.3), Faults(duplicate=0.5), Faults(broken_json=0.5)])
def test_the_same_trouble_comes_at_another_time_of_the_day(faults: Faults) -> None:
    def topics(world: SimulatedGateway) -> list[str]:
        return [message.topic for message in world.advance_in_one_step(SPAN)]

    one, other = generated_gateway(10, faults=faults), generated_gateway(10, faults=faults)
    other.clock.rebase(0.0, 1_800_000_000_123, 1.0)
    assert topics(one) == topics(other)


def test_gateways_side_by_side_do_not_disturb_each_other() -> None:
    alone = generated_gateway(10).advance_in_one_step(SPAN)
    one, other = generated_gateway(10), generated_gateway(30, seed=3)
    messages = []
    for _ in range(int(SPAN / MINUTE)):
        messages += one.advance_in_one_step(MINUTE)
        other.advance_in_one_step(MINUTE)
    assert messages == alone


@pytest.mark.rule("gateway-17", "gateway-18", "gateway-19")
@pytest.mark.parametrize("hours", [10, pytest.param(48, marks=pytest.mark.part("long"))])
def test_hours_pass_without_trouble_and_the_last_is_like_the_first(hours: int) -> None:
    world = generated_gateway(25)
    published, planned = [], []
    parents: dict[str, set[str]] = defaultdict(set)
    for _ in range(hours):
        published.append(len(world.advance_in_one_step(HOUR)))
        planned.append(world.scheduled_count)
        check_tree(world)
        for each in world.devices:
            if each.node.parent is not None:
                parents[each.mac].add(each.node.parent.mac)
    assert min(published) > 0.8 * max(published)
    assert world.gateway.report_count == sum(published)
    assert max(planned) <= len(world.devices) + 20, "the agenda grows"
    lengths = [len(samples) for each in world.devices for samples in (each.sample_buffers or {}).values()]
    assert max(lengths) == SAMPLE_CAPACITY, "samples that nobody acknowledges are bounded"
    assert all(len(each.sample_buffers or {}) <= len(each.product.series_index) for each in world.devices)
    assert sum(len(each) > 1 for each in parents.values()) >= 3, "devices change their parents"
    joined = [each for each in world.devices if each.is_connected and not each.is_offline]
    assert sum(each.node.depth < 0 for each in joined) <= 0.1 * len(joined)


def check_tree(world: SimulatedGateway) -> None:
    for each in world.devices:
        node = each.node
        assert node.depth <= MAX_DEPTH
        assert node.child_count <= MAX_CHILDREN
        assert node.child_count == sum(other.node.parent is node for other in world.devices)


def test_requests_that_nobody_waits_for_any_more_leave_nothing_behind() -> None:
    world = generated_gateway(10)
    for _ in range(200):
        for device in world.devices:
            world.send(Operation.READ, device.mac, "8000")
        world.advance_in_one_step(1.0)
    world.advance_in_one_step(MINUTE)
    assert world.scheduled_count <= len(world.devices) + 20
    for device in world.devices:
        if device.access is None:
            assert world.request(Operation.READ, device.mac, "8000").status == 0, "all queues are empty again"
