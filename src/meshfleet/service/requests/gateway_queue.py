"""Queues of requests that wait until their gateway can process another request.

A gateway gets a limited number of requests at a time, because its radio is slow. Requests with a higher
priority are sent first. A queued request can be canceled before it is sent.
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
    """Number of active requests to one gateway, and the queued requests to this gateway."""

    __slots__ = ("active", "queued")

    def __init__(self) -> None:
        self.active = 0
        """Number of occupied slots: requests that the gateway is processing."""
        self.queued: dict[Priority, dict[Ticket, None]] = {}
        """Tickets of queued requests by priority, in the order of arrival."""

    def pop_ticket(self) -> Ticket | None:
        """Remove and return the oldest ticket with the highest priority; None if no ticket is queued."""
        for priority in _HIGHEST_FIRST:
            queue = self.queued.get(priority)
            if queue:
                ticket = next(iter(queue))
                self.remove_ticket(priority, ticket)
                return ticket
        return None

    def remove_ticket(self, priority: Priority, ticket: Ticket) -> bool:
        """Remove a ticket from the queue. Return False if the ticket was not queued."""
        queue = self.queued.get(priority, {})
        if ticket not in queue:
            return False
        del queue[ticket]
        if not queue:
            del self.queued[priority]
        return True


class GatewayQueues(Generic[Ticket]):
    """Request queues of all gateways. Each request that a gateway is processing occupies one of its slots.

    A ticket is any value with which the caller identifies a queued request.
    """

    def __init__(self, max_concurrent: int) -> None:
        """Create empty queues. A gateway gets at most `max_concurrent` requests at a time."""
        self._max_concurrent = max_concurrent
        self._queues: dict[Mac, _GatewayQueue[Ticket]] = {}
        self.queued = 0
        """Number of queued requests to all gateways together."""

    def acquire_or_enqueue(self, gateway: Mac, priority: Priority, ticket: Ticket) -> bool:
        """Occupy a slot of a gateway and return True. If no slot is free, queue `ticket` and return False."""
        queue = self._queues.setdefault(gateway, _GatewayQueue())
        if queue.active < self._max_concurrent:
            queue.active += 1
            return True
        queue.queued.setdefault(priority, {})[ticket] = None
        self.queued += 1
        return False

    def set_max_concurrent(self, max_concurrent: int) -> list[tuple[Mac, Ticket]]:
        """Change the number of slots per gateway. Return the tickets that leave the queue, by gateway.

        Each of these tickets occupies a new slot. If there are fewer slots than before, running requests keep
        theirs, and slots above the new number disappear when they are released.
        """
        self._max_concurrent = max_concurrent
        granted = []
        for gateway, queue in self._queues.items():
            while queue.active < max_concurrent and (ticket := queue.pop_ticket()) is not None:
                queue.active += 1
                granted.append((gateway, ticket))
        self.queued -= len(granted)
        return granted

    def release_slot(self, gateway: Mac) -> Ticket | None:
        """Release a slot of a gateway. Return the queued ticket that now occupies the slot, or None."""
        queue = self._queues[gateway]
        ticket = queue.pop_ticket() if queue.active <= self._max_concurrent else None
        if ticket is not None:
            self.queued -= 1
            return ticket
        queue.active -= 1
        if not queue.active:
            del self._queues[gateway]
        return None

    def cancel_ticket(self, gateway: Mac, priority: Priority, ticket: Ticket) -> None:
        """Remove a ticket from the queue of a gateway. Do nothing if the ticket is not queued."""
        queue = self._queues.get(gateway)
        if queue is not None and queue.remove_ticket(priority, ticket):
            self.queued -= 1
