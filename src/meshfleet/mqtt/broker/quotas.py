"""What all sessions hold together, and how much any of them may."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from meshfleet.mqtt.broker.log_limiter import LogLimiter

if TYPE_CHECKING:
    from meshfleet.mqtt.broker_limits import BrokerLimits


_ACCOUNT_SHARE_DIVISOR: Final = 2
"""The sessions of one account may hold such a part of all that may wait."""

_ABSENT_SHARE_DIVISOR: Final = 2
"""Sessions of absent clients may hold such a part of each limit; the rest is for connected clients."""


class AccountUsage:
    """What all sessions of one account hold."""

    __slots__ = ("__weakref__", "absent_bytes", "queued_bytes")

    def __init__(self) -> None:
        self.queued_bytes = 0
        """Bytes."""
        self.absent_bytes = 0
        """Bytes of these that wait for clients that are away."""


class QueueQuotas:
    """Counts what waits for clients, and knows the limits. One for all sessions."""

    __slots__ = (
        "_account_usages",
        "absent_queued_bytes",
        "clock",
        "cut_off_count",
        "delivered_count",
        "drop_log_limiter",
        "dropped_counts",
        "max_absent_account_bytes",
        "max_absent_bytes",
        "max_account_bytes",
        "max_in_flight",
        "max_session_bytes",
        "max_total_bytes",
        "queued_bytes",
        "received_count",
        "slow_seconds",
    )

    def __init__(self, limits: BrokerLimits, slow_seconds: float) -> None:
        self.max_in_flight = limits.in_flight
        self.max_session_bytes = limits.queue_bytes
        self.max_total_bytes = limits.queues_bytes
        self.max_account_bytes = max(limits.queue_bytes, limits.queues_bytes // _ACCOUNT_SHARE_DIVISOR)
        self.max_absent_bytes = limits.queues_bytes // _ABSENT_SHARE_DIVISOR
        self.max_absent_account_bytes = max(
            limits.queue_bytes, self.max_account_bytes // _ABSENT_SHARE_DIVISOR
        )
        self.slow_seconds = slow_seconds
        """A client whose queue is full is slow when it acknowledged nothing for so long."""
        self.clock = time.monotonic
        self.queued_bytes = 0
        """Bytes that wait for all clients."""
        self.absent_queued_bytes = 0
        """Bytes of these that wait for clients that are away."""
        self._account_usages: WeakValueDictionary[str, AccountUsage] = WeakValueDictionary()
        self.received_count = 0
        """Messages that came."""
        self.delivered_count = 0
        """Messages that were sent."""
        self.dropped_counts = Counter[str](
            {"absent": 0, "session-full": 0, "account-full": 0, "total-full": 0, "cut-off": 0}
        )
        """Messages that were not, by the reason."""
        self.drop_log_limiter = LogLimiter()
        self.cut_off_count = 0
        """Connections that ended because their client did not keep up."""

    def account_usage(self, account: str) -> AccountUsage:
        """What an account holds, as long as it has a session."""
        return self._account_usages.setdefault(account, AccountUsage())
