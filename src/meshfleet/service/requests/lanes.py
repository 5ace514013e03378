"""Who may send to a gateway now, and who waits.

A gateway gets so many requests at a time and no more: its radio is slow, and what waits here can still be
overtaken by something more urgent, or be given up without having been sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

from meshfleet.wire.codes import Priority

if TYPE_CHECKING:
    from collections.abc import Hashable

    from meshfleet.wire.ids import Mac

Ticket = TypeVar("Ticket", bound="Hashable")

_HIGHEST_FIRST: Final = tuple(sorted(Priority, reverse=True))


class _Lane(Generic[Ticket]):
    """What one gateway has to do."""

    __slots__ = ("busy", "waiting")

    def __init__(self) -> None:
        self.busy = 0
        self.waiting: dict[Priority, dict[Ticket, None]] = {}
        """In the order in which they came; few gateways have any."""

    def next(self) -> Ticket | None:
        """Whose turn it is, who waits no longer then."""
        for priority in _HIGHEST_FIRST:
            queue = self.waiting.get(priority)
            if queue:
                ticket = next(iter(queue))
                self.leave_queue(priority, ticket)
                return ticket
        return None

    def leave_queue(self, priority: Priority, ticket: Ticket) -> bool:
        """Wait no longer; whether it waited."""
        queue = self.waiting.get(priority, {})
        if ticket not in queue:
            return False
        del queue[ticket]
        if not queue:
            del self.waiting[priority]
        return True


class Lanes(Generic[Ticket]):
    """A lane for each gateway. Tickets are whatever the caller knows those by who wait."""

    def __init__(self, width: int) -> None:
        """`width`: how many requests a gateway gets at a time."""
        self._width = width
        self._lanes: dict[Mac, _Lane[Ticket]] = {}
        self.waiting = 0
        """How many wait, of all gateways."""

    def enter(self, gateway: Mac, priority: Priority, ticket: Ticket) -> bool:
        """Whether one may go at once; if not, it waits for its turn."""
        lane = self._lanes.setdefault(gateway, _Lane())
        if lane.busy < self._width:
            lane.busy += 1
            return True
        lane.waiting.setdefault(priority, {})[ticket] = None
        self.waiting += 1
        return False

    def leave(self, gateway: Mac) -> Ticket | None:
        """One that went is done. Gives the one that may go in its place, if any."""
        lane = self._lanes[gateway]
        ticket = lane.next()
        if ticket is not None:
            self.waiting -= 1
            return ticket
        lane.busy -= 1
        if not lane.busy:
            del self._lanes[gateway]
        return None

    def give_up(self, gateway: Mac, priority: Priority, ticket: Ticket) -> None:
        """One that waits does not want to go any more. If its turn came meanwhile, nothing happens."""
        lane = self._lanes.get(gateway)
        if lane is not None and lane.leave_queue(priority, ticket):
            self.waiting -= 1
