"""Forwarding of packets through the mesh: latency, loss, retries and priorities."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from meshfleet.emulator.simulation.clock import SimulationScheduler
from meshfleet.emulator.simulation.packet_forwarding import (
    AIRTIME_SECONDS,
    HOP_LATENCY_SECONDS,
    PacketForwarder,
)
from meshfleet.protocol.codes import Priority, Status
from tests.emulator.requests.driver import RequestDriver, device_at_end, extender_chain
from tests.emulator.simulation.sites import build_mesh, device_mac, place_device
from tests.row_tables import each_row

if TYPE_CHECKING:
    from meshfleet.emulator.simulation.mesh import SimulatedMesh
    from meshfleet.emulator.simulation.mesh_node import MeshNode
    from meshfleet.emulator.simulation.site import SiteDevice

TARGET = device_mac(100)
HOP = AIRTIME_SECONDS + HOP_LATENCY_SECONDS


class ForwarderHarness:
    """Forwarder on a mesh, with records of the fate of each packet."""

    def __init__(self, *devices: SiteDevice, key: int = 1) -> None:
        self.mesh: SimulatedMesh = build_mesh(*devices)
        self.scheduler = SimulationScheduler()
        self.forwarder = PacketForwarder(self.scheduler, self.mesh, key)
        self.arrived: list[tuple[object, float]] = []
        self.lost: list[object] = []

    def find_path(self, number: int) -> tuple[MeshNode, ...]:
        route = self.mesh.find_route(self.mesh.nodes[device_mac(number)])
        assert route is not None
        return (self.mesh.root, *route)

    def send(self, path: tuple[MeshNode, ...], name: object, priority: int = 2) -> None:
        self.forwarder.send(
            path,
            priority=priority,
            on_arrival=lambda t: self.arrived.append((name, t)),
            on_loss=lambda _t: self.lost.append(name),
        )

    @property
    def names(self) -> list[object]:
        return [name for name, _ in self.arrived]


@pytest.mark.rule("gateway-27")
@each_row("hops", [1, 2, 5, 11])
def test_every_hop_adds_latency(hops: int) -> None:
    harness = ForwarderHarness(*extender_chain(hops))
    harness.send(harness.find_path(hops), "down")
    harness.scheduler.run(1e3)
    harness.send(harness.find_path(hops)[::-1], "up")
    harness.scheduler.run(2e3)
    (_, down), (_, up) = harness.arrived
    assert down >= hops * HOP - 1e-9
    assert up - 1e3 >= hops * HOP - 1e-9


def test_a_packet_to_its_sender_arrives_at_once() -> None:
    harness = ForwarderHarness()
    harness.send((harness.mesh.root,), "own")
    assert harness.arrived == [("own", 0.0)]


def test_a_node_sends_one_packet_at_a_time_and_in_order() -> None:
    harness = ForwarderHarness(*extender_chain(1))
    for name in range(50):
        harness.send(harness.find_path(1), name)
    harness.scheduler.run(1e3)
    assert harness.names == list(range(50))
    times = [t for _, t in harness.arrived]
    assert all(later - earlier >= AIRTIME_SECONDS - 1e-9 for earlier, later in pairwise(times))


@pytest.mark.rule("gateway-21")
@each_row("is_upstream", [False, True])
def test_higher_priorities_overtake_others(is_upstream: bool) -> None:  # noqa: FBT001 # test parameter
    harness = ForwarderHarness(*extender_chain(1))
    path = harness.find_path(1)[::-1] if is_upstream else harness.find_path(1)
    harness.send(path, "in the air", 0)
    for number in range(20):
        for priority in Priority:
            harness.send(path, (priority, number), priority)
    harness.scheduler.run(1e3)
    expected = [(priority, number) for priority in sorted(Priority, reverse=True) for number in range(20)]
    assert harness.names == ["in the air", *expected]


@pytest.mark.rule("gateway-21")
def test_higher_priorities_overtake_others_at_every_hop() -> None:
    chain = extender_chain(3)
    harness = ForwarderHarness(*chain, device_at_end(chain))
    long_path = harness.find_path(100)[::-1]
    for number in range(60):
        harness.send(harness.find_path(3)[::-1], ("near", number), 1)
    harness.scheduler.run(0.3)
    harness.send(long_path, "urgent", 4)
    harness.send(long_path, "idle", 0)
    harness.scheduler.run(1e3)
    assert harness.names.index("urgent") < 40
    assert harness.names[-1] == "idle"
    assert len(harness.names) == 62


def test_lost_packets_are_sent_again() -> None:
    harness = ForwarderHarness(place_device(1, 22.0))  # a weak link that loses about one packet in ten
    for name in range(450):
        harness.send(harness.find_path(1), name)
    harness.scheduler.run(1e3)
    assert harness.names == list(range(450))
    assert harness.lost == []
    assert harness.arrived[-1][1] > 470 * AIRTIME_SECONDS + HOP_LATENCY_SECONDS


def test_a_link_that_no_longer_exists_loses_each_packet_once() -> None:
    harness = ForwarderHarness(*extender_chain(2))
    path = harness.find_path(2)
    harness.mesh.leave(harness.mesh.nodes[device_mac(2)])
    for name in range(10):
        harness.send(path, name)
    harness.scheduler.run(1e3)
    assert (harness.names, harness.lost) == ([], list(range(10)))


def test_every_packet_either_arrives_or_is_lost() -> None:
    harness = ForwarderHarness(*extender_chain(4))
    for name in range(300):
        harness.send(harness.find_path(4) if name % 2 else harness.find_path(4)[::-1], name, name % 5)
    harness.scheduler.run(1.0)
    harness.mesh.leave(harness.mesh.nodes[device_mac(3)])
    harness.scheduler.run(1e3)
    assert harness.names
    assert harness.lost
    outcomes = [*harness.names, *harness.lost]
    assert (len(outcomes), set(outcomes)) == (300, set(range(300)))


def test_a_full_queue_drops_further_packets() -> None:
    harness = ForwarderHarness(*extender_chain(1))
    for name in range(600):
        harness.send(harness.find_path(1), name)
    assert len(harness.lost) == 99
    harness.scheduler.run(1e3)
    assert len(harness.names) == 501


@pytest.mark.rule("gateway-21")
def test_a_full_queue_accepts_packets_of_higher_priority() -> None:
    harness = ForwarderHarness(*extender_chain(1))
    for name in range(600):
        harness.send(harness.find_path(1), name, 2)
    harness.send(harness.find_path(1), "urgent", 4)
    harness.scheduler.run(1e3)
    assert harness.names.index("urgent") == 1


def test_discarded_packets_do_not_arrive_and_later_ones_do() -> None:
    harness = ForwarderHarness(*extender_chain(1))
    for name in range(20):
        harness.send(harness.find_path(1), name)
    harness.forwarder.drop_queued_packets()
    harness.scheduler.run(1.0)
    assert len(harness.names) <= 1
    harness.send(harness.find_path(1), "new")
    harness.scheduler.run(2.0)
    assert harness.names[-1] == "new"


@pytest.mark.rule("gateway-41")
def test_arrivals_depend_on_the_key_alone() -> None:
    def run(key: int) -> list[tuple[object, float]]:
        harness = ForwarderHarness(*extender_chain(6), key=key)
        for name in range(100):
            harness.send(harness.find_path(6), name, name % 5)
        harness.scheduler.run(1e3)
        return harness.arrived

    assert run(1) == run(1)
    assert run(1) != run(2)


def create_driver(extenders: int, code: str = "0018") -> RequestDriver:
    chain = extender_chain(extenders)
    return RequestDriver(*chain, device_at_end(chain, code=code))


@pytest.mark.rule("request-7", "gateway-21", "request-6")
@each_row("extenders", [0, 3])
def test_responses_come_in_order_of_priority_under_load(extenders: int) -> None:
    driver = create_driver(extenders)
    for _ in range(40):
        for priority in (0, 1, None, 3, 4):
            parameters = {} if priority is None else {"priority": priority}
            driver.request(TARGET, "read/8000", id=f"{2 if priority is None else priority}", **parameters)
    bodies = [message.body for message in driver.responses()]
    assert {body["status"] for body in bodies} == {Status.OK}
    order = [int(body["id"]) for body in bodies]
    # The first one was being sent when the others were queued.
    assert order[1:] == sorted(order[1:], reverse=True)


@pytest.mark.rule("request-7")
def test_an_urgent_request_has_its_response_before_earlier_requests() -> None:
    driver = create_driver(3)
    for _ in range(200):
        driver.request(TARGET, "read/8000", id="usual", priority=1)
    driver.advance(0.5)
    driver.request(TARGET, "read/8000", id="urgent", priority=4)
    driver.request(TARGET, "read/8000", id="idle", priority=0)
    order = [message.body["id"] for message in driver.responses()]
    assert order.index("urgent") < 60
    assert order[-1] == "idle"


@pytest.mark.rule("request-7", "gateway-20")
@each_row("extenders", [0, 3])
def test_an_extender_serves_the_urgent_target_next(extenders: int) -> None:
    driver = create_driver(extenders, "000F")
    for _ in range(20):
        driver.request(TARGET, "read/8000", id="usual", priority=1)
    driver.advance(1.5)
    driver.request(TARGET, "read/8000", id="urgent", priority=4)
    order = [message.body["id"] for message in driver.responses()]
    assert order.index("urgent") < 15


def test_a_throughput_test_of_low_priority_does_not_delay_an_urgent_read() -> None:
    times = {}
    for priority in (0, 4):
        driver = create_driver(3)
        driver.request_and_wait(TARGET, "write/8303", value="2710000a0a02")
        driver.advance(3.0)
        times[priority] = driver.request_and_wait(TARGET, "read/8000", priority=priority)
    assert times[4]["status"] == Status.OK
    assert times[4]["responseTime"] < times[0]["responseTime"] / 3
