"""Packets hop through the mesh: they take time, get lost and sent again, and the urgent overtake."""

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
    from meshfleet.emulator.simulation.mesh import MeshNode, SimulatedMesh
    from meshfleet.emulator.simulation.site import SiteDevice

TARGET = device_mac(100)
HOP = AIRTIME_SECONDS + HOP_LATENCY_SECONDS


class ForwarderHarness:
    """Traffic on a mesh, and notes of what became of each packet."""

    def __init__(self, *devices: SiteDevice, key: int = 1) -> None:
        self.mesh: SimulatedMesh = build_mesh(*devices)
        self.agenda = SimulationScheduler()
        self.traffic = PacketForwarder(self.agenda, self.mesh, key)
        self.arrived: list[tuple[object, float]] = []
        self.lost: list[object] = []

    def way(self, number: int) -> tuple[MeshNode, ...]:
        found = self.mesh.find_route(self.mesh.nodes[device_mac(number)])
        assert found is not None
        return (self.mesh.root, *found)

    def send(self, path: tuple[MeshNode, ...], name: object, priority: int = 2) -> None:
        self.traffic.send(
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
def test_a_packet_takes_its_time_at_every_hop(hops: int) -> None:
    air = ForwarderHarness(*extender_chain(hops))
    air.send(air.way(hops), "down")
    air.agenda.run(1e3)
    air.send(air.way(hops)[::-1], "up")
    air.agenda.run(2e3)
    (_, down), (_, up) = air.arrived
    assert down >= hops * HOP - 1e-9
    assert up - 1e3 >= hops * HOP - 1e-9


def test_a_packet_to_oneself_is_there_at_once() -> None:
    air = ForwarderHarness()
    air.send((air.mesh.root,), "own")
    assert air.arrived == [("own", 0.0)]


def test_a_node_sends_one_packet_at_a_time_and_in_order() -> None:
    air = ForwarderHarness(*extender_chain(1))
    for name in range(50):
        air.send(air.way(1), name)
    air.agenda.run(1e3)
    assert air.names == list(range(50))
    times = [t for _, t in air.arrived]
    assert all(later - earlier >= AIRTIME_SECONDS - 1e-9 for earlier, later in pairwise(times))


@pytest.mark.rule("gateway-21")
@each_row("up", [False, True])
def test_what_is_urgent_overtakes(up: bool) -> None:  # noqa: FBT001 # a parameter of the test
    air = ForwarderHarness(*extender_chain(1))
    path = air.way(1)[::-1] if up else air.way(1)
    air.send(path, "in the air", 0)
    for number in range(20):
        for priority in Priority:
            air.send(path, (priority, number), priority)
    air.agenda.run(1e3)
    expected = [(priority, number) for priority in sorted(Priority, reverse=True) for number in range(20)]
    assert air.names == ["in the air", *expected]


@pytest.mark.rule("gateway-21")
def test_what_is_urgent_overtakes_at_every_hop() -> None:
    row = extender_chain(3)
    air = ForwarderHarness(*row, device_at_end(row))
    long = air.way(100)[::-1]
    for number in range(60):
        air.send(air.way(3)[::-1], ("near", number), 1)
    air.agenda.run(0.3)
    air.send(long, "urgent", 4)
    air.send(long, "idle", 0)
    air.agenda.run(1e3)
    assert air.names.index("urgent") < 40
    assert air.names[-1] == "idle"
    assert len(air.names) == 62


def test_lost_packets_are_sent_again() -> None:
    air = ForwarderHarness(place_device(1, 22.0))  # a weak link: of ten packets about one is lost on it
    for name in range(450):
        air.send(air.way(1), name)
    air.agenda.run(1e3)
    assert air.names == list(range(450))
    assert air.lost == []
    assert air.arrived[-1][1] > 470 * AIRTIME_SECONDS + HOP_LATENCY_SECONDS


def test_a_link_that_is_gone_loses_everything_and_says_so_once() -> None:
    air = ForwarderHarness(*extender_chain(2))
    path = air.way(2)
    air.mesh.leave(air.mesh.nodes[device_mac(2)])
    for name in range(10):
        air.send(path, name)
    air.agenda.run(1e3)
    assert (air.names, air.lost) == ([], list(range(10)))


def test_every_packet_has_one_end() -> None:
    air = ForwarderHarness(*extender_chain(4))
    for name in range(300):
        air.send(air.way(4) if name % 2 else air.way(4)[::-1], name, name % 5)
    air.agenda.run(1.0)
    air.mesh.leave(air.mesh.nodes[device_mac(3)])
    air.agenda.run(1e3)
    assert air.names
    assert air.lost
    ends = [*air.names, *air.lost]
    assert (len(ends), set(ends)) == (300, set(range(300)))


def test_a_node_has_room_for_so_many_packets() -> None:
    air = ForwarderHarness(*extender_chain(1))
    for name in range(600):
        air.send(air.way(1), name)
    assert len(air.lost) == 99
    air.agenda.run(1e3)
    assert len(air.names) == 501


@pytest.mark.rule("gateway-21")
def test_a_node_that_is_full_has_room_for_what_is_more_urgent() -> None:
    air = ForwarderHarness(*extender_chain(1))
    for name in range(600):
        air.send(air.way(1), name, 2)
    air.send(air.way(1), "urgent", 4)
    air.agenda.run(1e3)
    assert air.names.index("urgent") == 1


def test_forgotten_packets_arrive_nowhere_and_new_ones_do() -> None:
    air = ForwarderHarness(*extender_chain(1))
    for name in range(20):
        air.send(air.way(1), name)
    air.traffic.clear()
    air.agenda.run(1.0)
    assert len(air.names) <= 1
    air.send(air.way(1), "new")
    air.agenda.run(2.0)
    assert air.names[-1] == "new"


@pytest.mark.rule("gateway-41")
def test_the_same_key_gives_the_same_fate() -> None:
    def fates(key: int) -> list[tuple[object, float]]:
        air = ForwarderHarness(*extender_chain(6), key=key)
        for name in range(100):
            air.send(air.way(6), name, name % 5)
        air.agenda.run(1e3)
        return air.arrived

    assert fates(1) == fates(1)
    assert fates(1) != fates(2)


def far(extenders: int, code: str = "0018") -> RequestDriver:
    row = extender_chain(extenders)
    return RequestDriver(*row, device_at_end(row, code=code))


@pytest.mark.rule("request-7", "gateway-21", "request-6")
@each_row("extenders", [0, 3])
def test_under_load_requests_are_answered_by_their_priority(extenders: int) -> None:
    asked = far(extenders)
    for _ in range(40):
        for priority in (0, 1, None, 3, 4):
            parameters = {} if priority is None else {"priority": priority}
            asked.request(TARGET, "read/8000", id=f"{2 if priority is None else priority}", **parameters)
    answers = [message.body for message in asked.responses()]
    assert {body["status"] for body in answers} == {Status.OK}
    order = [int(body["id"]) for body in answers]
    # The first was in the air when the others came.
    assert order[1:] == sorted(order[1:], reverse=True)


@pytest.mark.rule("request-7")
def test_an_urgent_request_is_answered_before_what_was_asked_earlier() -> None:
    asked = far(3)
    for _ in range(200):
        asked.request(TARGET, "read/8000", id="usual", priority=1)
    asked.advance(0.5)
    asked.request(TARGET, "read/8000", id="urgent", priority=4)
    asked.request(TARGET, "read/8000", id="idle", priority=0)
    order = [message.body["id"] for message in asked.responses()]
    assert order.index("urgent") < 60
    assert order[-1] == "idle"


@pytest.mark.rule("request-7", "gateway-20")
@each_row("extenders", [0, 3])
def test_an_extender_serves_the_urgent_target_next(extenders: int) -> None:
    asked = far(extenders, "000F")
    for _ in range(20):
        asked.request(TARGET, "read/8000", id="usual", priority=1)
    asked.advance(1.5)
    asked.request(TARGET, "read/8000", id="urgent", priority=4)
    order = [message.body["id"] for message in asked.responses()]
    assert order.index("urgent") < 15


def test_a_throughput_test_of_low_priority_does_not_delay_an_urgent_read() -> None:
    times = {}
    for priority in (0, 4):
        asked = far(3)
        asked.request_and_wait(TARGET, "write/8303", value="2710000a0a02")
        asked.advance(3.0)
        times[priority] = asked.request_and_wait(TARGET, "read/8000", priority=priority)
    assert times[4]["status"] == Status.OK
    assert times[4]["responseTime"] < times[0]["responseTime"] / 3
