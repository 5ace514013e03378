"""What all sessions hold together, and how much any of them may."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from meshfleet.settings import Limits


_SHARE: Final = 10
"""One account may hold no more than such a part of all that may wait."""


class Share:
    """What all sessions of one account hold."""

    __slots__ = ("__weakref__", "size")

    def __init__(self) -> None:
        self.size = 0
        """Bytes."""


class Stock:
    """Counts what sessions owe, and knows the limits. One for all of them."""

    __slots__ = (
        "_shares",
        "delivered",
        "dropped",
        "in_flight",
        "queue_bytes",
        "queue_length",
        "queues_bytes",
        "received",
        "share_bytes",
        "size",
    )

    def __init__(self, limits: Limits) -> None:
        self.in_flight = limits.in_flight
        self.queue_length = limits.queue_length
        self.queue_bytes = limits.queue_bytes
        self.queues_bytes = limits.queues_bytes
        self.share_bytes = max(limits.queue_bytes, limits.queues_bytes // _SHARE)
        self.size = 0
        """Bytes that are owed to all clients."""
        self._shares: WeakValueDictionary[str, Share] = WeakValueDictionary()
        self.received = 0
        """Messages that came."""
        self.delivered = 0
        """Messages that were sent."""
        self.dropped = 0
        """Messages that were not, because nobody was there or the queue was full."""

    def share(self, account: str) -> Share:
        """What an account holds, as long as it has a session."""
        return self._shares.setdefault(account, Share())
