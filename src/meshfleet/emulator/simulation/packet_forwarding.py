"""Forwards packets through the simulated mesh, hop by hop.

Every node sends one packet at a time and has a queue per priority: packets of higher priority overtake
packets of lower priority at every hop (gateway-21).
"""

from __future__ import annotations

from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Final

from meshfleet.emulator.simulation import radio
from meshfleet.emulator.simulation.noise import uniform_noise
from meshfleet.protocol.codes import Priority

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.emulator.simulation.clock import ScheduledCallback, SimulationScheduler
    from meshfleet.emulator.simulation.mesh import SimulatedMesh
    from meshfleet.emulator.simulation.mesh_node import MeshNode

AIRTIME_SECONDS: Final = 0.010
"""Simulated seconds for which a node is busy with sending one packet."""

HOP_LATENCY_SECONDS: Final = 0.015
"""Simulated seconds from the end of sending until the next node can forward the packet."""

_MAX_RETRIES: Final = 8
"""Maximum number of times that a node repeats a packet that was lost on a link."""
_MAX_QUEUED_PACKETS: Final = 500
"""Maximum number of packets of one priority queued at a node; further packets are lost."""


class _Packet:
    """Packet on its way along a path of mesh nodes; `hop_index` is the index of its current node."""

    __slots__ = ("hop_index", "on_arrival", "on_loss", "path", "priority", "retries")

    def __init__(
        self,
        path: Sequence[MeshNode],
        priority: int,
        on_arrival: ScheduledCallback,
        on_loss: ScheduledCallback | None,
    ) -> None:
        self.path = path
        self.hop_index = 0
        self.priority = priority
        self.on_arrival = on_arrival
        self.on_loss = on_loss
        self.retries = 0


class _Sender:
    """Send queue of one mesh node: highest priority first, then in order of arrival."""

    __slots__ = ("is_busy", "queue", "queued_by_priority")

    def __init__(self) -> None:
        self.queue: list[tuple[int, int, _Packet]] = []
        self.queued_by_priority = [0] * len(Priority)
        """Number of queued packets by priority; each priority has its own limit."""
        self.is_busy = False


class PacketForwarder:
    """Forwards all packets of one mesh."""

    def __init__(self, scheduler: SimulationScheduler, mesh: SimulatedMesh, key: int) -> None:
        self._scheduler = scheduler
        self._mesh = mesh
        self._key = key
        self._senders: dict[MeshNode, _Sender] = {}
        self._order = count()

    def send(
        self,
        path: Sequence[MeshNode],
        *,
        priority: int,
        on_arrival: ScheduledCallback,
        on_loss: ScheduledCallback | None = None,
    ) -> None:
        """Send a packet along a path, starting at the first node.

        Call `on_arrival` when the packet has reached the last node, or `on_loss` when it is lost.
        """
        self._enqueue(_Packet(path, priority, on_arrival, on_loss), self._scheduler.now)

    def is_queue_full(self, node: MeshNode, priority: int) -> bool:
        """Return whether a mesh node has the maximum number of queued packets of a priority."""
        return (
            node in self._senders and self._senders[node].queued_by_priority[priority] >= _MAX_QUEUED_PACKETS
        )

    def drop_queued_packets(self) -> None:
        """Discard all queued packets without callbacks, when the gateway restarts."""
        for sender in self._senders.values():
            sender.queue.clear()
            sender.queued_by_priority = [0] * len(Priority)

    def _enqueue(self, packet: _Packet, sim_time: float) -> None:
        """Deliver a packet at the end of its path, or queue the packet at its current node."""
        if packet.hop_index == len(packet.path) - 1:
            packet.on_arrival(sim_time)
            return
        sender = self._senders.setdefault(packet.path[packet.hop_index], _Sender())
        if sender.queued_by_priority[packet.priority] >= _MAX_QUEUED_PACKETS:
            self._drop_packet(packet, sim_time)
            return
        sender.queued_by_priority[packet.priority] += 1
        heappush(sender.queue, (-packet.priority, next(self._order), packet))
        if not sender.is_busy:
            self._send_next(packet.path[packet.hop_index], sim_time)

    def _send_next(self, node: MeshNode, sim_time: float) -> None:
        """Start to send the next queued packet of a node, if any."""
        sender = self._senders[node]
        if sender.queue:
            sender.is_busy = True
            _, order, packet = heappop(sender.queue)
            sender.queued_by_priority[packet.priority] -= 1
            self._scheduler.at(sim_time + AIRTIME_SECONDS, partial(self._on_sent, node, packet, order))
        else:
            del self._senders[node]

    def _on_sent(self, node: MeshNode, packet: _Packet, order: int, sim_time: float) -> None:
        """Move a sent packet to the next node; if it was lost, queue it again or drop it."""
        sender_node, receiver_node = packet.path[packet.hop_index], packet.path[packet.hop_index + 1]
        if uniform_noise(self._key + packet.retries, order) >= self._compute_loss_probability(
            sender_node, receiver_node, sim_time
        ):
            packet.hop_index += 1
            packet.retries = 0
            self._scheduler.at(sim_time + HOP_LATENCY_SECONDS, partial(self._enqueue, packet))
        elif packet.retries < _MAX_RETRIES:
            packet.retries += 1
            self._senders[node].queued_by_priority[packet.priority] += 1
            heappush(self._senders[node].queue, (-packet.priority, order, packet))
        else:
            self._drop_packet(packet, sim_time)
        self._send_next(node, sim_time)

    def _compute_loss_probability(
        self, sender_node: MeshNode, receiver_node: MeshNode, sim_time: float
    ) -> float:
        """Return the probability that a packet is lost on a link; 1 if the link no longer exists."""
        child, parent = (
            (sender_node, receiver_node)
            if sender_node.parent is receiver_node
            else (receiver_node, sender_node)
        )
        if child.parent is not parent:
            return 1.0
        return radio.compute_packet_loss(
            self._mesh.compute_link_rssi(child, child.receivers.index(parent), sim_time)
        )

    def _drop_packet(self, packet: _Packet, sim_time: float) -> None:
        """Give up a packet, and call its `on_loss`."""
        if packet.on_loss is not None:
            packet.on_loss(sim_time)
