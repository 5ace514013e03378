"""What all sessions hold together, and how much any of them may."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshfleet.settings import Limits


class Stock:
    """Counts what sessions owe, and knows the limits. One for all of them."""

    __slots__ = (
        "delivered",
        "dropped",
        "in_flight",
        "queue_bytes",
        "queue_length",
        "queues_bytes",
        "received",
        "size",
    )

    def __init__(self, limits: Limits) -> None:
        self.in_flight = limits.in_flight
        self.queue_length = limits.queue_length
        self.queue_bytes = limits.queue_bytes
        self.queues_bytes = limits.queues_bytes
        self.size = 0
        """Bytes that are owed to all clients."""
        self.received = 0
        """Messages that came."""
        self.delivered = 0
        """Messages that were sent."""
        self.dropped = 0
        """Messages that were not, because nobody was there or the queue was full."""
