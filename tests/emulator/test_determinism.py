"""A run depends on its seed alone, for as long as it lasts."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from meshfleet.emulator import Faults, ReportMode
from meshfleet.emulator.simulation.mesh_node import MAX_CHILDREN, MAX_DEPTH
from meshfleet.emulator.simulation.sample_buffer import SAMPLE_CAPACITY
from meshfleet.protocol.codes import Operation
from tests.emulator.simulated_gateway import HOUR, MINUTE, SimulatedGateway, generated_gateway
from tests.row_tables import each_row

if TYPE_CHECKING:
    from meshfleet.mqtt.codec.packets import Publish


SPAN_SECONDS = 25 * MINUTE
"""Seconds in which every report occurs: properties are reported every twenty minutes."""


def select_report_messages(published: list[Publish]) -> list[Publish]:
    return [message for message in published if "/device/" in message.topic]


@pytest.mark.rule("gateway-41")
@each_row("mode", ReportMode)
@each_row("seed", [1, 7])
def test_two_runs_with_the_same_seed_are_identical(mode: ReportMode, seed: int) -> None:
    one, other = generated_gateway(20, seed, mode=mode), generated_gateway(20, seed, mode=mode)
    assert one.advance_in_one_step(SPAN_SECONDS) == other.advance_in_one_step(SPAN_SECONDS)


@pytest.mark.rule("gateway-41")
@each_row("step", [0.37, 5.0, 61.0])
def test_a_run_does_not_depend_on_the_steps_of_time(step: float) -> None:
    in_one_step, in_steps = generated_gateway(20), generated_gateway(20)
    messages = [
        message for _ in range(int(SPAN_SECONDS / step)) for message in in_steps.advance_in_one_step(step)
    ]
    assert messages == in_one_step.advance_in_one_step(int(SPAN_SECONDS / step) * step)


@pytest.mark.rule("gateway-41")
def test_another_seed_gives_another_run() -> None:
    assert generated_gateway(20, 1).advance_in_one_step(10 * MINUTE) != generated_gateway(
        20, 2
    ).advance_in_one_step(10 * MINUTE)


def advance_with_reads(simulation: SimulatedGateway) -> list[Publish]:
    """Advance the simulation while reading many properties. Return the published messages."""
    published = []
    for n in range(int(SPAN_SECONDS / 10.0)):
        device = simulation.devices[n % len(simulation.devices)]
        for identifier in sorted(device.product.identifiers)[n % 5 :: 5]:
            simulation.send(Operation.READ, device.mac, identifier)
        published += simulation.advance_in_one_step(10.0)
    return published


@pytest.mark.rule("gateway-41")
@each_row("mode", ReportMode)
def test_reads_do_not_change_reports(mode: ReportMode) -> None:
    published = advance_with_reads(simulation := generated_gateway(20, mode=mode))
    assert len(published) > len(select_report_messages(published)) + 200
    assert select_report_messages(published) == generated_gateway(20, mode=mode).advance_in_one_step(
        simulation.now
    )


@pytest.mark.rule("gateway-41")
@each_row("faults", [Faults(loss=0.3), Faults(quoted_seq=0.5), Faults(silent=0.5)])
def test_reads_do_not_change_which_reports_have_faults(faults: Faults) -> None:
    published = advance_with_reads(simulation := generated_gateway(10, faults=faults))
    assert select_report_messages(published) == generated_gateway(10, faults=faults).advance_in_one_step(
        simulation.now
    )


@pytest.mark.rule("gateway-41")
@each_row("faults", [Faults(loss=0.3), Faults(duplicate=0.5), Faults(broken_json=0.5)])
def test_faults_do_not_depend_on_the_wall_clock(faults: Faults) -> None:
    def list_topics(simulation: SimulatedGateway) -> list[str]:
        return [message.topic for message in simulation.advance_in_one_step(SPAN_SECONDS)]

    one, other = generated_gateway(10, faults=faults), generated_gateway(10, faults=faults)
    other.clock.rebase(0.0, 1_800_000_000_123, 1.0)
    assert list_topics(one) == list_topics(other)


def test_gateways_in_one_process_do_not_affect_each_other() -> None:
    expected = generated_gateway(10).advance_in_one_step(SPAN_SECONDS)
    one, other = generated_gateway(10), generated_gateway(30, seed=3)
    messages = []
    for _ in range(int(SPAN_SECONDS / MINUTE)):
        messages += one.advance_in_one_step(MINUTE)
        other.advance_in_one_step(MINUTE)
    assert messages == expected


@pytest.mark.rule("gateway-17", "gateway-18", "gateway-19")
@pytest.mark.parametrize("hours", [10, pytest.param(48, marks=pytest.mark.part("long"))])
def test_a_long_run_is_stable(hours: int) -> None:
    simulation = generated_gateway(25)
    published, scheduled_counts = [], []
    parents: dict[str, set[str]] = defaultdict(set)
    for _ in range(hours):
        published.append(len(simulation.advance_in_one_step(HOUR)))
        scheduled_counts.append(simulation.scheduled_count)
        check_tree(simulation)
        for each in simulation.devices:
            if each.node.parent is not None:
                parents[each.mac].add(each.node.parent.mac)
    assert min(published) > 0.8 * max(published)
    assert simulation.gateway.report_count == sum(published)
    assert max(scheduled_counts) <= len(simulation.devices) + 20, "the number of scheduled callbacks grows"
    lengths = [
        len(samples) for each in simulation.devices for samples in (each.sample_buffers or {}).values()
    ]
    assert max(lengths) == SAMPLE_CAPACITY, "unacknowledged samples are limited"
    assert all(
        len(each.sample_buffers or {}) <= len(each.product.series_index) for each in simulation.devices
    )
    assert sum(len(each) > 1 for each in parents.values()) >= 3, "devices change their parents"
    connected = [each for each in simulation.devices if each.is_connected and not each.is_offline]
    assert sum(each.node.depth < 0 for each in connected) <= 0.1 * len(connected)


def check_tree(simulation: SimulatedGateway) -> None:
    for each in simulation.devices:
        node = each.node
        assert node.depth <= MAX_DEPTH
        assert node.child_count <= MAX_CHILDREN
        assert node.child_count == sum(other.node.parent is node for other in simulation.devices)


def test_timed_out_requests_leave_nothing_behind() -> None:
    simulation = generated_gateway(10)
    for _ in range(200):
        for device in simulation.devices:
            simulation.send(Operation.READ, device.mac, "8000")
        simulation.advance_in_one_step(1.0)
    simulation.advance_in_one_step(MINUTE)
    assert simulation.scheduled_count <= len(simulation.devices) + 20
    for device in simulation.devices:
        if device.access is None:
            assert simulation.request(Operation.READ, device.mac, "8000").status == 0, (
                "all queues are empty again"
            )
