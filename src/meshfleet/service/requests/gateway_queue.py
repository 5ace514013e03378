"""Who may send to a gateway now, and who waits.

A gateway gets so many requests at a time and no more: its radio is slow, and what waits here can still be
overtaken by something more urgent, or be given up without having been sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

from meshfleet.protocol.codes import Priority

if TYPE_CHECKING:
    from collections.abc import Hashable

    from meshfleet.protocol.ids import Mac

Ticket = TypeVar("Ticket", bound="Hashable")

_HIGHEST_FIRST: Final = tuple(sorted(Priority, reverse=True))


class _GatewayQueue(Generic[Ticket]):
    """What one gateway has to do."""

    __slots__ = ("active", "queued")

    def __init__(self) -> None:
        self.active = 0
        self.queued: dict[Priority, dict[Ticket, None]] = {}
        """In the order in which they came; few gateways have any."""

    def pop(self) -> Ticket | None:
        """Whose turn it is, who waits no longer then."""
        for priority in _HIGHEST_FIRST:
            queue = self.queued.get(priority)
            if queue:
                ticket = next(iter(queue))
                self.remove(priority, ticket)
                return ticket
        return None

    def remove(self, priority: Priority, ticket: Ticket) -> bool:
        """Wait no longer; whether it waited."""
        queue = self.queued.get(priority, {})
        if ticket not in queue:
            return False
        del queue[ticket]
        if not queue:
            del self.queued[priority]
        return True


class GatewayQueues(Generic[Ticket]):
    """A lane for each gateway. Tickets are whatever the caller knows those by who wait."""

    def __init__(self, max_concurrent: int) -> None:
        """`width`: how many requests a gateway gets at a time."""
        self._max_concurrent = max_concurrent
        self._queues: dict[Mac, _GatewayQueue[Ticket]] = {}
        self.queued = 0
        """How many wait, of all gateways."""

    def acquire_or_enqueue(self, gateway: Mac, priority: Priority, ticket: Ticket) -> bool:
        """Whether one may go at once; if not, it waits for its turn."""
        lane = self._queues.setdefault(gateway, _GatewayQueue())
        if lane.active < self._max_concurrent:
            lane.active += 1
            return True
        lane.queued.setdefault(priority, {})[ticket] = None
        self.queued += 1
        return False

    def release(self, gateway: Mac) -> Ticket | None:
        """One that went is done. Gives the one that may go in its place, if any."""
        lane = self._queues[gateway]
        ticket = lane.pop()
        if ticket is not None:
            self.queued -= 1
            return ticket
        lane.active -= 1
        if not lane.active:
            del self._queues[gateway]
        return None

    def cancel(self, gateway: Mac, priority: Priority, ticket: Ticket) -> None:
        """One that waits does not want to go any more. If its turn came meanwhile, nothing happens."""
        lane = self._queues.get(gateway)
        if lane is not None and lane.remove(priority, ticket):
            self.queued -= 1
