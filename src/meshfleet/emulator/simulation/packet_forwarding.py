"""Packets on their way through the mesh, hop by hop.

Every node sends one packet at a time and keeps five queues, one per priority: what is urgent overtakes what
is not at every hop, which shows as soon as there is more to send than the air takes (gateway-21).
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
    from meshfleet.emulator.simulation.mesh import MeshNode, SimulatedMesh

AIRTIME_SECONDS: Final = 0.010
"""Seconds that a node is busy with sending one packet."""

HOP_LATENCY_SECONDS: Final = 0.015
"""Seconds until the next node has it and sends on: half a connection interval."""

_MAX_RETRIES: Final = 8
_MAX_QUEUED_PACKETS: Final = 500
"""Packets that a node has room for; what comes beyond is lost."""


class _Packet:
    __slots__ = ("arrived", "at", "lost", "path", "priority", "tries")

    def __init__(
        self,
        path: Sequence[MeshNode],
        priority: int,
        arrived: ScheduledCallback,
        lost: ScheduledCallback | None,
    ) -> None:
        self.path = path
        self.at = 0
        self.priority = priority
        self.arrived = arrived
        self.lost = lost
        self.tries = 0


class _Sender:
    """What one node has to send: the highest priority first, then in order of arrival."""

    __slots__ = ("is_busy", "queue", "waiting")

    def __init__(self) -> None:
        self.queue: list[tuple[int, int, _Packet]] = []
        self.waiting = [0] * len(Priority)
        """Packets of each priority in the queue: a crowd leaves room for what is more urgent."""
        self.is_busy = False


class PacketForwarder:
    """All packets of one mesh."""

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
        """Send a packet from the first node of a path to the last; then one of both happens."""
        self._enqueue(_Packet(path, priority, on_arrival, on_loss), self._scheduler.now)

    def is_full(self, node: MeshNode, priority: int) -> bool:
        """Whether a node has no room for more packets of a priority."""
        return node in self._senders and self._senders[node].waiting[priority] >= _MAX_QUEUED_PACKETS

    def clear(self) -> None:
        """Forget all packets: the gateway has lost its memory. What waits for them will time out."""
        for sender in self._senders.values():
            sender.queue.clear()
            sender.waiting = [0] * len(Priority)

    def _enqueue(self, packet: _Packet, t: float) -> None:
        """Take a packet in: it has arrived, or waits for its turn to be sent."""
        if packet.at == len(packet.path) - 1:
            packet.arrived(t)
            return
        sender = self._senders.setdefault(packet.path[packet.at], _Sender())
        if sender.waiting[packet.priority] >= _MAX_QUEUED_PACKETS:
            self._drop(packet, t)
            return
        sender.waiting[packet.priority] += 1
        heappush(sender.queue, (-packet.priority, next(self._order), packet))
        if not sender.is_busy:
            self._send_next(packet.path[packet.at], t)

    def _send_next(self, node: MeshNode, t: float) -> None:
        sender = self._senders[node]
        if sender.queue:
            sender.is_busy = True
            _, order, packet = heappop(sender.queue)
            sender.waiting[packet.priority] -= 1
            self._scheduler.at(t + AIRTIME_SECONDS, partial(self._on_sent, node, packet, order))
        else:
            del self._senders[node]

    def _on_sent(self, node: MeshNode, packet: _Packet, order: int, t: float) -> None:
        """A packet has left: it arrives at the next node, or has to be sent again."""
        here, there = packet.path[packet.at], packet.path[packet.at + 1]
        if uniform_noise(self._key + packet.tries, order) >= self._loss_probability(here, there, t):
            packet.at += 1
            packet.tries = 0
            self._scheduler.at(t + HOP_LATENCY_SECONDS, partial(self._enqueue, packet))
        elif packet.tries < _MAX_RETRIES:
            packet.tries += 1
            self._senders[node].waiting[packet.priority] += 1
            heappush(self._senders[node].queue, (-packet.priority, order, packet))
        else:
            self._drop(packet, t)
        self._send_next(node, t)

    def _loss_probability(self, here: MeshNode, there: MeshNode, t: float) -> float:
        """The chance to lose a packet on a link; one that is gone loses them all."""
        child, parent = (here, there) if here.parent is there else (there, here)
        if child.parent is not parent:
            return 1.0
        return radio.packet_loss(self._mesh.link_rssi(child, child.receivers.index(parent), t))

    def _drop(self, packet: _Packet, t: float) -> None:
        if packet.lost is not None:
            packet.lost(t)
