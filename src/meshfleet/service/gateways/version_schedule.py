"""When which gateway is asked for its version (version-10), and with it for its time (report-48).

A gateway that has just connected is asked, and asked again a few times if it does not answer. After that it
is asked hourly, whether it answered or not: clocks drift. One whose clock is in doubt is asked at once.
Thousands that connect together are asked one after the other.
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
"""Milliseconds for each of those that connect together: 5,000 of them are asked over 100 s."""

_RETRY_DELAYS: Final = (15 * _SECOND, _MINUTE, 5 * _MINUTE)
"""How long to wait before the next tries; a gateway may be busy with its own start."""

_MIN_INTERVAL: Final = _MINUTE
"""A gateway that comes and goes is not asked more often than this."""

_CLOCK_CHECK_INTERVAL: Final = 30 * _SECOND
"""Nor because of its clock more often than this, and half as often after each try without an answer. A device
is silent after three minutes at the earliest, so none seems silent because a clock was set."""

_MAX_DOUBLINGS: Final = 7
"""So often that pause is doubled: it is an hour then."""


class _PlannedRequest(Struct):
    """What is planned for a gateway."""

    connection: int | None
    """None: it is not connected."""
    due_at: int | None
    """None: nothing is planned."""
    failures: int = 0
    sent_at: int | None = None
    is_pending: bool = False
    """Whether it is being asked at this moment."""


class VersionSchedule:
    """Knows no clock itself: every call brings the time."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._plans: dict[int, _PlannedRequest] = {}

    def update_connections(self, connections: Mapping[int, int], now: int) -> None:
        """Which gateways are connected now, each with the number of its connection."""
        plans = self._plans
        new = [
            each
            for each, number in connections.items()
            if each not in plans or plans[each].connection != number
        ]
        spread = len(new) * _SPACING_MS
        for gateway in new:
            self._add_connection(gateway, connections[gateway], now + self._random.randrange(spread))
        gone = [each for each in plans if each not in connections]
        for gateway in gone:
            self._remove_connection(gateway, now)

    def expedite(self, gateways: Collection[int], now: int) -> None:
        """Plan to measure the clocks of these, which every answer does."""
        for gateway in gateways:
            plan = self._plans.get(gateway)
            if plan is None or plan.connection is None or plan.is_pending:
                continue
            pause = min(
                _CLOCK_CHECK_INTERVAL << min(plan.failures, _MAX_DOUBLINGS), _HOUR
            )  # one that does not answer is left alone
            if plan.sent_at is None or now - plan.sent_at >= pause:
                plan.due_at = now if plan.due_at is None else min(plan.due_at, now)

    def pop_due(self, now: int, limit: int) -> list[int]:
        """So many of those to be asked now, who are being asked from now on; newcomers come first."""
        waiting = (
            (plan.failures, plan.due_at, gateway)
            for gateway, plan in self._plans.items()
            if plan.due_at is not None and plan.due_at <= now and not plan.is_pending
        )
        taken = [gateway for _, _, gateway in nsmallest(limit, waiting)]
        for gateway in taken:
            plan = self._plans[gateway]
            plan.due_at, plan.sent_at, plan.is_pending = None, now, True
        return taken

    def record_response(self, gateway: int, now: int) -> None:
        """Note that a gateway told its version. It is asked again in an hour, since clocks drift."""
        if (plan := self._plans.get(gateway)) is None:
            return
        plan.is_pending, plan.failures = False, 0
        if plan.connection is not None and plan.due_at is None:
            plan.due_at = now + self._jitter(_HOUR)

    def record_failure(self, gateway: int, now: int) -> None:
        """Note that a gateway did not answer. It is asked again soon, and after a few tries in an hour."""
        plan = self._plans.get(gateway)
        if plan is None:
            return
        plan.is_pending, plan.failures = False, plan.failures + 1
        if plan.connection is None or plan.due_at is not None:  # it went, or came again meanwhile
            return
        plan.due_at = now + self._jitter(
            _RETRY_DELAYS[plan.failures - 1] if plan.failures <= len(_RETRY_DELAYS) else _HOUR
        )

    def _add_connection(self, gateway: int, connection: int, due: int) -> None:
        plan = self._plans.setdefault(gateway, _PlannedRequest(connection, due))
        plan.connection, plan.failures = connection, 0
        plan.due_at = due if plan.sent_at is None else max(due, plan.sent_at + _MIN_INTERVAL)

    def _remove_connection(self, gateway: int, now: int) -> None:
        """Ask it no more, and forget it when it stays away."""
        plan = self._plans[gateway]
        plan.connection = plan.due_at = None
        if not plan.is_pending and (plan.sent_at is None or now - plan.sent_at >= _MIN_INTERVAL):
            del self._plans[gateway]

    def _jitter(self, delay: int) -> int:
        """Not all at the same time."""
        return round(delay * self._random.uniform(0.9, 1.1))
