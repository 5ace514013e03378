"""Schedules API version requests to gateways (version-10), which also measure their clocks (report-48).

A gateway gets a request after it has connected, with a few retries if it does not respond. Later it gets a
request every hour, because clocks drift. A gateway whose clock may be wrong gets a request at once. If
thousands of gateways connect together, their requests are spread over time.
"""

from __future__ import annotations

from heapq import nsmallest
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from random import Random

_SECOND: Final = 1000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE

_SPACING_MS: Final = 20
"""Average milliseconds between two version requests if many gateways connect at the same time."""

_RETRY_DELAYS: Final = (15 * _SECOND, _MINUTE, 5 * _MINUTE)
"""Milliseconds before the first, second and third retry. A gateway may still be starting."""

_MIN_INTERVAL: Final = _MINUTE
"""Minimum milliseconds between two version requests to a gateway that reconnects often."""

_CLOCK_CHECK_INTERVAL: Final = 30 * _SECOND
"""Minimum milliseconds between two requests that measure a suspect clock, doubled after each failure.

The clock is measured before a device counts as silent, which takes at least three minutes.
"""

_MAX_DOUBLINGS: Final = 7
"""Maximum number of doublings of `_CLOCK_CHECK_INTERVAL`, which then exceeds its maximum of an hour."""


class _PlannedRequest(Struct):
    """Next version request to a gateway. Times are monotonic times in milliseconds."""

    connection: int | None
    """Number that differs for each connection of the gateway; None if it is not connected."""
    due_at: int | None
    """Time of the next request; None if no request is planned."""
    failures: int = 0
    """Number of failed requests since the last response, or since the gateway connected."""
    sent_at: int | None = None
    """Time when the last request was sent; None if none was sent."""
    is_pending: bool = False
    """Whether a version request waits for its response."""


class VersionSchedule:
    """Decides when each gateway gets its next version request. Times are monotonic, in milliseconds."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._plans: dict[int, _PlannedRequest] = {}

    def update_connections(self, connections: Mapping[int, int], now: int) -> None:
        """Set the gateways that are connected now, each with its connection number.

        Plan requests to gateways with a new connection, and cancel requests to disconnected gateways.
        """
        plans = self._plans
        new = [
            each
            for each, number in connections.items()
            if each not in plans or plans[each].connection != number
        ]
        spread = len(new) * _SPACING_MS
        for gateway in new:
            self._add_connection(gateway, connections[gateway], now + self._random.randrange(spread))
        disconnected = [each for each in plans if each not in connections]
        for gateway in disconnected:
            self._remove_connection(gateway, now)

    def expedite_requests(self, gateways: Collection[int], now: int) -> None:
        """Make version requests to gateways due now, because their clocks must be measured.

        Skip a gateway that got a request recently: in the last 30 seconds, or longer if it did not respond.
        """
        for gateway in gateways:
            plan = self._plans.get(gateway)
            if plan is None or plan.connection is None or plan.is_pending:
                continue
            # Gateways that do not respond get longer delays.
            delay = min(_CLOCK_CHECK_INTERVAL << min(plan.failures, _MAX_DOUBLINGS), _HOUR)
            if plan.sent_at is None or now - plan.sent_at >= delay:
                plan.due_at = now if plan.due_at is None else min(plan.due_at, now)

    def pop_due_gateways(self, now: int, limit: int) -> list[int]:
        """Return at most `limit` gateways whose version request is due, the fewest failures first.

        The requests count as pending until `record_response` or `record_failure` is called.
        """
        due = (
            (plan.failures, plan.due_at, gateway)
            for gateway, plan in self._plans.items()
            if plan.due_at is not None and plan.due_at <= now and not plan.is_pending
        )
        gateways = [gateway for _, _, gateway in nsmallest(limit, due)]
        for gateway in gateways:
            plan = self._plans[gateway]
            plan.due_at, plan.sent_at, plan.is_pending = None, now, True
        return gateways

    def record_response(self, gateway: int, now: int) -> None:
        """Record that a gateway responded, and plan its next version request in about an hour."""
        if (plan := self._plans.get(gateway)) is None:
            return
        plan.is_pending, plan.failures = False, 0
        if plan.connection is not None and plan.due_at is None:
            plan.due_at = now + self._add_jitter(_HOUR)

    def record_failure(self, gateway: int, now: int) -> None:
        """Record that a gateway did not respond, and plan a retry: first soon, later every hour."""
        plan = self._plans.get(gateway)
        if plan is None:
            return
        plan.is_pending, plan.failures = False, plan.failures + 1
        if plan.connection is None or plan.due_at is not None:  # it disconnected, or reconnected meanwhile
            return
        plan.due_at = now + self._add_jitter(
            _RETRY_DELAYS[plan.failures - 1] if plan.failures <= len(_RETRY_DELAYS) else _HOUR
        )

    def _add_connection(self, gateway: int, connection: int, due_at: int) -> None:
        """Plan a version request to a newly connected gateway, at least a minute after its last request."""
        plan = self._plans.setdefault(gateway, _PlannedRequest(connection, due_at))
        plan.connection, plan.failures = connection, 0
        plan.due_at = due_at if plan.sent_at is None else max(due_at, plan.sent_at + _MIN_INTERVAL)

    def _remove_connection(self, gateway: int, now: int) -> None:
        """Cancel the request to a disconnected gateway. Forget the gateway if its last request is old."""
        plan = self._plans[gateway]
        plan.connection = plan.due_at = None
        if not plan.is_pending and (plan.sent_at is None or now - plan.sent_at >= _MIN_INTERVAL):
            del self._plans[gateway]

    def _add_jitter(self, delay: int) -> int:
        """Return a delay varied randomly by up to 10 %, so that requests do not coincide."""
        return round(delay * self._random.uniform(0.9, 1.1))
