"""Counts the bytes of messages queued for MQTT clients, and holds the limits on these bytes."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from meshfleet.mqtt.broker.log_limiter import LogLimiter

if TYPE_CHECKING:
    from meshfleet.mqtt.broker_limits import BrokerLimits


_ACCOUNT_SHARE_DIVISOR: Final = 2
"""All sessions of one account together may queue the total byte limit divided by this number."""

_ABSENT_SHARE_DIVISOR: Final = 2
"""Sessions of disconnected clients may queue each byte limit divided by this number; connected clients may
queue the rest."""


class AccountUsage:
    """Counters of the bytes queued for all sessions of one account."""

    __slots__ = ("__weakref__", "absent_bytes", "queued_bytes")

    def __init__(self) -> None:
        self.queued_bytes = 0
        self.absent_bytes = 0
        """Part of `queued_bytes` that is queued for disconnected clients."""


class QueueQuotas:
    """Counters and limits of queued messages, shared by all sessions of a broker."""

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
        self.apply_limits(limits)
        self.slow_seconds = slow_seconds
        """Seconds without an acknowledgement after which a client with a full queue counts as slow."""
        self.clock = time.monotonic
        self.queued_bytes = 0
        """Bytes of messages queued for all clients."""
        self.absent_queued_bytes = 0
        """Part of `queued_bytes` that is queued for disconnected clients."""
        self._account_usages: WeakValueDictionary[str, AccountUsage] = WeakValueDictionary()
        self.received_count = 0
        """Number of messages received from clients."""
        self.delivered_count = 0
        """Number of messages sent to clients."""
        self.dropped_counts = Counter[str](
            {"absent": 0, "session-full": 0, "account-full": 0, "total-full": 0, "cut-off": 0}
        )
        """Number of dropped messages, by the reason for dropping them."""
        self.drop_log_limiter = LogLimiter()
        self.cut_off_count = 0
        """Number of connections closed because their client did not keep up."""

    def apply_limits(self, limits: BrokerLimits) -> None:
        """Set the limits. Messages that are queued already stay."""
        self.max_in_flight = limits.in_flight
        self.max_session_bytes = limits.queue_bytes
        self.max_total_bytes = limits.queues_bytes
        self.max_account_bytes = max(limits.queue_bytes, limits.queues_bytes // _ACCOUNT_SHARE_DIVISOR)
        self.max_absent_bytes = limits.queues_bytes // _ABSENT_SHARE_DIVISOR
        self.max_absent_account_bytes = max(
            limits.queue_bytes, self.max_account_bytes // _ABSENT_SHARE_DIVISOR
        )

    def get_account_usage(self, account: str) -> AccountUsage:
        """Return the byte counters that all sessions of an account share.

        The counters are discarded with the last session of the account.
        """
        return self._account_usages.setdefault(account, AccountUsage())
