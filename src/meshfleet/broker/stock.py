"""What all sessions hold together, and how much any of them may."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from meshfleet.broker.log_limit import LogLimit

if TYPE_CHECKING:
    from meshfleet.settings import Limits


_SHARE: Final = 2
"""The sessions of one account may hold such a part of all that may wait."""

_ABSENT: Final = 2
"""Sessions of absent clients may hold such a part of each limit; the rest is for connected clients."""


class Share:
    """What all sessions of one account hold."""

    __slots__ = ("__weakref__", "absent_size", "size")

    def __init__(self) -> None:
        self.size = 0
        """Bytes."""
        self.absent_size = 0
        """Bytes of these that wait for clients that are away."""


class Stock:
    """Counts what waits for clients, and knows the limits. One for all sessions."""

    __slots__ = (
        "_shares",
        "absent_bytes",
        "absent_share_bytes",
        "absent_size",
        "clock",
        "cut_off",
        "delivered",
        "drop_lines",
        "dropped",
        "in_flight",
        "queue_bytes",
        "queues_bytes",
        "received",
        "share_bytes",
        "size",
        "slow_seconds",
    )

    def __init__(self, limits: Limits, slow_seconds: float) -> None:
        self.in_flight = limits.in_flight
        self.queue_bytes = limits.queue_bytes
        self.queues_bytes = limits.queues_bytes
        self.share_bytes = max(limits.queue_bytes, limits.queues_bytes // _SHARE)
        self.absent_bytes = limits.queues_bytes // _ABSENT
        self.absent_share_bytes = max(limits.queue_bytes, self.share_bytes // _ABSENT)
        self.slow_seconds = slow_seconds
        """A client whose queue is full is slow when it acknowledged nothing for so long."""
        self.clock = time.monotonic
        self.size = 0
        """Bytes that wait for all clients."""
        self.absent_size = 0
        """Bytes of these that wait for clients that are away."""
        self._shares: WeakValueDictionary[str, Share] = WeakValueDictionary()
        self.received = 0
        """Messages that came."""
        self.delivered = 0
        """Messages that were sent."""
        self.dropped = Counter[str](
            {"absent": 0, "session-full": 0, "account-full": 0, "total-full": 0, "cut-off": 0}
        )
        """Messages that were not, by the reason."""
        self.drop_lines = LogLimit()
        self.cut_off = 0
        """Connections that ended because their client did not keep up."""

    def share(self, account: str) -> Share:
        """What an account holds, as long as it has a session."""
        return self._shares.setdefault(account, Share())
