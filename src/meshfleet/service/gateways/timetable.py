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

_APART: Final = 20
"""Milliseconds for each of those that connect together: 5,000 of them are asked over 100 s."""

_SOON: Final = (15 * _SECOND, _MINUTE, 5 * _MINUTE)
"""How long to wait before the next tries; a gateway may be busy with its own start."""

_REST: Final = _MINUTE
"""A gateway that comes and goes is not asked more often than this."""

_DOUBT: Final = 30 * _SECOND
"""Nor because of its clock more often than this, and half as often after each try without an answer. A device
is silent after three minutes at the earliest, so none seems silent because a clock was set."""

_DOUBLED: Final = 7
"""So often that pause is doubled: it is an hour then."""


class _Plan(Struct):
    """What is planned for a gateway."""

    connection: int | None
    """None: it is not connected."""
    due: int | None
    """None: nothing is planned."""
    tries: int = 0
    asked: int | None = None
    is_asked: bool = False
    """Whether it is being asked at this moment."""


class Timetable:
    """Knows no clock itself: every call brings the time."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._plans: dict[int, _Plan] = {}

    def see(self, present: Mapping[int, int], now: int) -> None:
        """Which gateways are connected now, each with the number of its connection."""
        plans = self._plans
        new = [
            each for each, number in present.items() if each not in plans or plans[each].connection != number
        ]
        spread = len(new) * _APART
        for gateway in new:
            self._meet(gateway, present[gateway], now + self._random.randrange(spread))
        gone = [each for each in plans if each not in present]
        for gateway in gone:
            self._part_with(gateway, now)

    def doubt(self, gateways: Collection[int], now: int) -> None:
        """Plan to measure the clocks of these, which every answer does."""
        for gateway in gateways:
            plan = self._plans.get(gateway)
            if plan is None or plan.connection is None or plan.is_asked:
                continue
            pause = min(_DOUBT << min(plan.tries, _DOUBLED), _HOUR)  # one that does not answer is left alone
            if plan.asked is None or now - plan.asked >= pause:
                plan.due = now if plan.due is None else min(plan.due, now)

    def take(self, now: int, most: int) -> list[int]:
        """So many of those to be asked now, who are being asked from now on; newcomers come first."""
        waiting = (
            (plan.tries, plan.due, gateway)
            for gateway, plan in self._plans.items()
            if plan.due is not None and plan.due <= now and not plan.is_asked
        )
        taken = [gateway for _, _, gateway in nsmallest(most, waiting)]
        for gateway in taken:
            plan = self._plans[gateway]
            plan.due, plan.asked, plan.is_asked = None, now, True
        return taken

    def answered(self, gateway: int, now: int) -> None:
        """Note that a gateway told its version. It is asked again in an hour, since clocks drift."""
        if (plan := self._plans.get(gateway)) is None:
            return
        plan.is_asked, plan.tries = False, 0
        if plan.connection is not None and plan.due is None:
            plan.due = now + self._about(_HOUR)

    def failed(self, gateway: int, now: int) -> None:
        """Note that a gateway did not answer. It is asked again soon, and after a few tries in an hour."""
        plan = self._plans.get(gateway)
        if plan is None:
            return
        plan.is_asked, plan.tries = False, plan.tries + 1
        if plan.connection is None or plan.due is not None:  # it went, or came again meanwhile
            return
        plan.due = now + self._about(_SOON[plan.tries - 1] if plan.tries <= len(_SOON) else _HOUR)

    def _meet(self, gateway: int, connection: int, due: int) -> None:
        plan = self._plans.setdefault(gateway, _Plan(connection, due))
        plan.connection, plan.tries = connection, 0
        plan.due = due if plan.asked is None else max(due, plan.asked + _REST)

    def _part_with(self, gateway: int, now: int) -> None:
        """Ask it no more, and forget it when it stays away."""
        plan = self._plans[gateway]
        plan.connection = plan.due = None
        if not plan.is_asked and (plan.asked is None or now - plan.asked >= _REST):
            del self._plans[gateway]

    def _about(self, delay: int) -> int:
        """Not all at the same time."""
        return round(delay * self._random.uniform(0.9, 1.1))
