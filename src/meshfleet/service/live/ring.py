"""What was told in the last minutes, and what of it can be told again (rest-149)."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meshfleet.service.live.event import Event
    from meshfleet.service.live.want import Interest, Want


class Share(NamedTuple):
    """How many wants may be kept, and how many devices, gateways and jobs these may name."""

    wants: int
    size: int


_EVENTS: Final = 100_000
_BYTES: Final = 32 * 1024 * 1024
_SECONDS: Final = 300.0

_KEPT: Final = 120.0
"""Seconds for which events are kept for somebody who left: a listener that comes again is to miss nothing."""

_GONE: Final = Share(200, 20_000)
"""What is kept for those of one account who left."""

_ALL_GONE: Final = Share(2000, 100_000)
"""The same for all accounts."""

_PARTS: Final = 8
"""When the first of so many parts is too old, memory is given back."""

_number = attrgetter("number")


class Ring:
    """The last events, the oldest first."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._first = 0
        """The place of the oldest one; those before it are let go when there are some more."""
        self._bytes = 0
        self._lost = 0
        """The number of the last one that is not here any more."""

    def add(self, event: Event) -> None:
        """Keep an event, and let old ones go."""
        self._events.append(event)
        self._bytes += len(event.body)
        while len(self._events) - self._first > _EVENTS or self._bytes > _BYTES:
            self._drop()

    def age(self, now: float) -> None:
        """Let go what is too old."""
        while self._first < len(self._events) and self._events[self._first].at < now - _SECONDS:
            self._drop()

    def reaches(self, number: int) -> bool:
        """Whether all that came behind an event is here."""
        return number >= self._lost

    def behind(self, number: int, count: int) -> list[Event]:
        """The first ones that were told behind an event."""
        place = bisect_right(self._events, number, lo=self._first, key=_number)
        return self._events[place : place + count]

    def _drop(self) -> None:
        event = self._events[self._first]
        self._bytes -= len(event.body)
        self._lost = event.number
        self._first += 1
        if self._first * _PARTS > len(self._events):
            del self._events[: self._first]
            self._first = 0


class _Since(Struct):
    number: int
    """The events behind this one that are wanted were published."""
    holders: int = 0
    left: float = 0.0
    """When the last holder left."""
    account: tuple[str, str] = ("", "")
    """Whose that one was."""


class Coverage:
    """What is published at all: what somebody wants, or wanted until a moment ago."""

    def __init__(self, interests: Iterable[Interest]) -> None:
        self._interests = tuple(interests)
        self._since: dict[Want, _Since] = {}

    def __bool__(self) -> bool:
        return bool(self._since)

    def __contains__(self, want: Want) -> bool:
        return want in self._since

    def begin(self, want: Want, number: int) -> None:
        """Somebody wants this from now on."""
        since = self._since.get(want)
        if since is None:
            since = self._since[want] = _Since(number)
            for interest in self._interests:
                interest.change(want, 1)
        since.holders += 1

    def end(self, want: Want, account: tuple[str, str], now: float) -> None:
        """Somebody of this account does not want it any more."""
        since = self._since[want]
        since.account = account
        since.holders -= 1
        since.left = now

    def reaches(self, want: Want, number: int) -> bool:
        """Whether all that is wanted, and came behind an event, was published."""
        same = self._since.get(want)
        if same is not None and same.number <= number:
            return True
        return any(since.number <= number and each.covers(want) for each, since in self._since.items())

    def age(self, now: float) -> None:
        """Forget what nobody wants for a while."""
        left = [want for want, since in self._since.items() if not since.holders]
        left.sort(key=lambda want: self._since[want].left, reverse=True)
        wants: Counter[tuple[str, str] | None] = Counter()
        sizes: Counter[tuple[str, str] | None] = Counter()
        for want in left:
            since = self._since[want]
            for whose in (since.account, None):  # None: of all
                wants[whose] += 1
                sizes[whose] += want.size
            is_much = any(
                wants[whose] > share.wants or sizes[whose] > share.size
                for whose, share in ((since.account, _GONE), (None, _ALL_GONE))
            )
            if is_much or since.left < now - _KEPT:
                wants[None] -= 1
                sizes[None] -= want.size
                self._forget(want)

    def _forget(self, want: Want) -> None:
        del self._since[want]
        for interest in self._interests:
            interest.change(want, -1)
