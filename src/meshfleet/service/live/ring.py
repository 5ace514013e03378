"""What was told in the last minutes, and what of it can be told again (rest-149)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meshfleet.service.live.event import Event
    from meshfleet.service.live.want import Interest, Want

_EVENTS: Final = 100_000
_BYTES: Final = 32 * 1024 * 1024
_SECONDS: Final = 300.0

_KEPT: Final = 120.0
"""Seconds for which events are kept for somebody who left: a listener that comes again is to miss nothing."""

_GONE, _GONE_SIZE = 200, 20_000
"""How many wants of those who left are kept, and how many devices these may name."""


class Ring:
    """The last events, the oldest first."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._bytes = 0
        self._lost = 0
        """The number of the last one that is not here any more."""

    def add(self, event: Event) -> None:
        """Keep an event, and let old ones go."""
        self._events.append(event)
        self._bytes += len(event.body)
        while len(self._events) > _EVENTS or self._bytes > _BYTES:
            self._drop()

    def age(self, now: float) -> None:
        """Let go what is too old."""
        while self._events and self._events[0].at < now - _SECONDS:
            self._drop()

    def reaches(self, number: int) -> bool:
        """Whether all that came behind an event is here."""
        return number >= self._lost

    def behind(self, number: int, want: Want) -> list[Event]:
        """What was told behind an event, of each device only its newest state."""
        found: list[Event] = []
        told: set[int | None] = set()
        for event in reversed(self._events):
            if event.number <= number:
                break
            if not want.takes(event):
                continue
            if event.type == "device":
                if event.device in told:
                    continue
                told.add(event.device)
            found.append(event)
        return found[::-1]

    def _drop(self) -> None:
        event = self._events.popleft()
        self._bytes -= len(event.body)
        self._lost = event.number


class _Since(Struct):
    number: int
    """The events behind this one that are wanted were published."""
    holders: int = 0
    left: float = 0.0
    """When the last holder left."""


class Coverage:
    """What is published at all: what somebody wants, or wanted until a moment ago."""

    def __init__(self, interests: Iterable[Interest]) -> None:
        self._interests = tuple(interests)
        self._since: dict[Want, _Since] = {}

    def __bool__(self) -> bool:
        return bool(self._since)

    def begin(self, want: Want, number: int) -> None:
        """Somebody wants this from now on."""
        since = self._since.get(want)
        if since is None:
            since = self._since[want] = _Since(number)
            for interest in self._interests:
                interest.change(want, 1)
        since.holders += 1

    def end(self, want: Want, now: float) -> None:
        """Somebody does not want it any more."""
        since = self._since[want]
        since.holders -= 1
        since.left = now

    def reaches(self, want: Want, number: int) -> bool:
        """Whether all that is wanted, and came behind an event, was published."""
        return any(since.number <= number and each.covers(want) for each, since in self._since.items())

    def age(self, now: float) -> None:
        """Forget what nobody wants for a while."""
        left = [want for want, since in self._since.items() if not since.holders]
        left.sort(key=lambda want: self._since[want].left, reverse=True)
        size = 0
        for place, want in enumerate(left):
            size += want.size
            if place >= _GONE or size > _GONE_SIZE or self._since[want].left < now - _KEPT:
                del self._since[want]
                for interest in self._interests:
                    interest.change(want, -1)
