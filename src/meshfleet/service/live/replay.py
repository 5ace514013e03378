"""What was missed is told again: account by account, a moment at a time, so that nobody waits for it."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import Counter, deque
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from meshfleet.service.live.subscriber import MAX_BACKLOG_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from meshfleet.service.live.event import PublishedEvent
    from meshfleet.service.live.filters import EventFilter, Interest
    from meshfleet.service.live.subscriber import LiveSubscriber


# What was told in the last minutes, and what of it can be told again (rest-149).


class RetentionQuota(NamedTuple):
    """How many wants may be kept, and how many devices, gateways and jobs these may name."""

    filters: int
    named: int


_MAX_EVENTS: Final = 100_000
_MAX_BYTES: Final = 32 * 1024 * 1024
_MAX_AGE_SECONDS: Final = 300.0

_RELEASED_SECONDS: Final = 120.0
"""Seconds for which events are kept for somebody who left: a listener that comes again is to miss nothing."""

_ACCOUNT_QUOTA: Final = RetentionQuota(200, 20_000)
"""What is kept for those of one account who left."""

_TOTAL_QUOTA: Final = RetentionQuota(2000, 100_000)
"""The same for all accounts."""

_COMPACT_FRACTION: Final = 8
"""When the first of so many parts is too old, memory is given back."""

_number = attrgetter("number")


class ReplayBuffer:
    """The last events, the oldest first."""

    def __init__(self) -> None:
        self._events: list[PublishedEvent] = []
        self._first = 0
        """The place of the oldest one; those before it are let go when there are some more."""
        self._bytes = 0
        self._last_dropped = 0
        """The number of the last one that is not here any more."""

    def add(self, event: PublishedEvent) -> None:
        """Keep an event, and let old ones go."""
        self._events.append(event)
        self._bytes += len(event.body)
        while len(self._events) - self._first > _MAX_EVENTS or self._bytes > _MAX_BYTES:
            self._drop()

    def drop_expired(self, now: float) -> None:
        """Let go what is too old."""
        while self._first < len(self._events) and self._events[self._first].at < now - _MAX_AGE_SECONDS:
            self._drop()

    def covers(self, number: int) -> bool:
        """Whether all that came behind an event is here."""
        return number >= self._last_dropped

    def events_after(self, number: int, count: int) -> list[PublishedEvent]:
        """The first ones that were told behind an event."""
        place = bisect_right(self._events, number, lo=self._first, key=_number)
        return self._events[place : place + count]

    def _drop(self) -> None:
        event = self._events[self._first]
        self._bytes -= len(event.body)
        self._last_dropped = event.number
        self._first += 1
        if self._first * _COMPACT_FRACTION > len(self._events):
            del self._events[: self._first]
            self._first = 0


class _CoverageRecord(Struct):
    number: int
    """The events behind this one that are wanted were published."""
    holders: int = 0
    left: float = 0.0
    """When the last holder left."""
    account: tuple[str, str] = ("", "")
    """Whose that one was."""


class CoverageTracker:
    """What is published at all: what somebody wants, or wanted until a moment ago."""

    def __init__(self, interests: Iterable[Interest]) -> None:
        self._interests = tuple(interests)
        self._records: dict[EventFilter, _CoverageRecord] = {}

    def __bool__(self) -> bool:
        return bool(self._records)

    def __contains__(self, want: EventFilter) -> bool:
        return want in self._records

    def add(self, event_filter: EventFilter, number: int) -> None:
        """Somebody wants this from now on."""
        since = self._records.get(event_filter)
        if since is None:
            since = self._records[event_filter] = _CoverageRecord(number)
            for interest in self._interests:
                interest.adjust(event_filter, 1)
        since.holders += 1

    def release(self, event_filter: EventFilter, account: tuple[str, str], now: float) -> None:
        """Somebody of this account does not want it any more."""
        since = self._records[event_filter]
        since.account = account
        since.holders -= 1
        since.left = now

    def covers(self, event_filter: EventFilter, number: int) -> bool:
        """Whether all that is wanted, and came behind an event, was published."""
        same = self._records.get(event_filter)
        if same is not None and same.number <= number:
            return True
        return any(
            since.number <= number and each.covers(event_filter) for each, since in self._records.items()
        )

    def drop_expired(self, now: float) -> None:
        """Forget what nobody wants for a while."""
        left = [want for want, since in self._records.items() if not since.holders]
        left.sort(key=lambda want: self._records[want].left, reverse=True)
        wants: Counter[tuple[str, str] | None] = Counter()
        sizes: Counter[tuple[str, str] | None] = Counter()
        for want in left:
            since = self._records[want]
            for whose in (since.account, None):  # None: of all
                wants[whose] += 1
                sizes[whose] += want.named_count
            is_much = any(
                wants[whose] > share.filters or sizes[whose] > share.named
                for whose, share in ((since.account, _ACCOUNT_QUOTA), (None, _TOTAL_QUOTA))
            )
            if is_much or since.left < now - _RELEASED_SECONDS:
                wants[None] -= 1
                sizes[None] -= want.named_count
                self._drop(want)

    def _drop(self, event_filter: EventFilter) -> None:
        del self._records[event_filter]
        for interest in self._interests:
            interest.adjust(event_filter, -1)


_log = logging.getLogger(__name__)

_SLICE_SECONDS: Final = 0.002
"""Seconds for which events are looked through at once; then for as long others have their turn."""

_EVENTS_PER_CHECK: Final = 64
"""Events between two looks at the clock."""

_CHUNK_BYTES: Final = 64 * 1024
"""Bytes of what is told again that wait as one."""


class Replay:
    """What one listener missed of one want: the events behind one number, up to another."""

    def __init__(self, subscriber: LiveSubscriber, event_filter: EventFilter, after: int, until: int) -> None:
        self.subscriber = subscriber
        self.event_filter = event_filter
        self.after = after
        self.until = until
        self._scanned_to = after
        self._other_subscriptions: list[tuple[EventFilter, int]] | None = None
        """What else is told to the listener, and from where on; None: nobody looked yet."""
        self._found: dict[int, PublishedEvent] = {}
        """Of each device only its newest state, by a number below zero."""
        self._size = 0

    @property
    def is_obsolete(self) -> bool:
        """Whether nobody waits for it any more."""
        return (
            self.subscriber.close_reason is not None
            or self.subscriber.replays.get(self.event_filter) is not self
        )

    def start(self, coverage: CoverageTracker) -> bool:
        """Begin, or go on; False: not all was published that it is about."""
        if self._other_subscriptions is None:
            told = self.subscriber.subscriptions.items()
            # Those that are still to be told again leave out what this one tells, not the other way round.
            self._other_subscriptions = [each for each in told if each[0] not in self.subscriber.replays]
            return coverage.covers(self.event_filter, self.after)
        return True

    def scan(self, buffer: ReplayBuffer, deadline: float, clock: Callable[[], float]) -> bool | None:
        """Look for a while; True: all is found; None: it is not known any more, or too much."""
        while clock() < deadline:
            if not buffer.covers(self._scanned_to):
                return None
            events = buffer.events_after(self._scanned_to, _EVENTS_PER_CHECK)
            for event in events:
                if event.number > self.until:
                    return True
                self._collect(event)
                if self._size > MAX_BACKLOG_BYTES:
                    return None
            if not events:
                return True
            self._scanned_to = events[-1].number
        return False

    def encode_chunks(self) -> list[bytes]:
        """What is to be told."""
        pieces: list[bytes] = []
        piece: list[bytes] = []
        size = 0
        for event in self._found.values():
            piece.append(self.subscriber.encoder(event))
            size += len(piece[-1])
            if size > _CHUNK_BYTES:
                pieces.append(b"".join(piece))
                piece, size = [], 0
        return [*pieces, b"".join(piece)] if piece else pieces

    def _collect(self, event: PublishedEvent) -> None:
        if not self.event_filter.matches(event) or self._is_delivered(event):
            return
        key = ~event.device if event.type == "device" and event.device is not None else event.number
        older = self._found.pop(key, None)
        self._found[key] = event
        self._size += len(event.body) - (0 if older is None else len(older.body))

    def _is_delivered(self, event: PublishedEvent) -> bool:
        """Whether another want of the listener, which had it first, takes care of it."""
        return any(
            since < event.number and each.matches(event) for each, since in self._other_subscriptions or ()
        )


class ReplayScheduler:
    """All that are under way. Accounts take turns, so nobody waits for one that asks for many."""

    def __init__(
        self,
        buffer: ReplayBuffer,
        coverage: CoverageTracker,
        on_failure: Callable[[LiveSubscriber, EventFilter], None],
    ) -> None:
        self._buffer = buffer
        self._coverage = coverage
        self._on_failure = on_failure
        self._queues: dict[tuple[str, str], deque[Replay]] = {}
        self._task: asyncio.Task[None] | None = None

    def schedule(self, replay: Replay) -> None:
        """Tell it when its turn comes; what comes meanwhile waits behind it."""
        replay.subscriber.replays[replay.event_filter] = replay
        self._queues.setdefault(replay.subscriber.account, deque()).append(replay)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="live.replays")

    def close(self) -> None:
        """Tell nothing any more."""
        self._queues.clear()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        while self._queues:
            account = next(iter(self._queues))
            queue = self._queues.pop(account)
            while queue and queue[0].is_obsolete:
                queue.popleft()
            if queue:
                self._queues[account] = queue  # behind all others
                self._run_slice(queue[0], clock)
                await asyncio.sleep(_SLICE_SECONDS)
        self._task = None

    def _run_slice(self, replay: Replay, clock: Callable[[], float]) -> None:
        listener = replay.subscriber
        try:
            is_known = replay.start(self._coverage)
            is_found = replay.scan(self._buffer, clock() + _SLICE_SECONDS, clock) if is_known else None
        except Exception:  # noqa: BLE001 # whatever it is, others wait behind it
            _log.exception("what was missed cannot be told")
            is_found = None
        if is_found is None or (
            is_found and not listener.finish_replay(replay.event_filter, replay.encode_chunks())
        ):
            self._on_failure(listener, replay.event_filter)
