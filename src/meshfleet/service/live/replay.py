"""Replay of missed events to subscribers that resume.

Accounts take turns and each replay runs in short slices, so that live events are not delayed.
"""

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


# Events of the last minutes, and which filters can be replayed from them (rest-149).


class RetentionQuota(NamedTuple):
    """Maximum number of filters to retain, and of the devices, gateways and jobs in them."""

    filters: int
    named: int


_MAX_EVENTS: Final = 100_000
_MAX_BYTES: Final = 32 * 1024 * 1024
_MAX_AGE_SECONDS: Final = 300.0

_RELEASED_SECONDS: Final = 120.0
"""Seconds for which the events of a closed subscription are still published, so that it can resume."""

_ACCOUNT_QUOTA: Final = RetentionQuota(200, 20_000)
"""Limits for the closed subscriptions of one account."""

_TOTAL_QUOTA: Final = RetentionQuota(2000, 100_000)
"""Limits for the closed subscriptions of all accounts."""

_COMPACT_FRACTION: Final = 8
"""Part (1/N) of the list at which dropped events are removed from it."""

_number = attrgetter("number")


class ReplayBuffer:
    """Most recent events, the oldest first."""

    def __init__(self) -> None:
        self._events: list[PublishedEvent] = []
        self._first = 0
        """Index of the oldest retained event. Those before it are removed in bulk later."""
        self._bytes = 0
        self._last_dropped = 0
        """Number of the last event that was dropped."""

    def add(self, event: PublishedEvent) -> None:
        """Append an event, and drop the oldest ones beyond the limits."""
        self._events.append(event)
        self._bytes += len(event.body)
        while len(self._events) - self._first > _MAX_EVENTS or self._bytes > _MAX_BYTES:
            self._drop()

    def drop_expired(self, now: float) -> None:
        """Drop events that are too old."""
        while self._first < len(self._events) and self._events[self._first].at < now - _MAX_AGE_SECONDS:
            self._drop()

    def covers(self, number: int) -> bool:
        """Return whether all events after the one with this number are retained."""
        return number >= self._last_dropped

    def events_after(self, number: int, count: int) -> list[PublishedEvent]:
        """Return up to `count` events after the one with this number."""
        start = bisect_right(self._events, number, lo=self._first, key=_number)
        return self._events[start : start + count]

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
    """All matching events after this number were published."""
    holders: int = 0
    released_at: float = 0.0
    """Time when the last subscriber closed the subscription."""
    account: tuple[str, str] = ("", "")
    """Account of that subscriber."""


class CoverageTracker:
    """Filters whose events are published: those in use, and those closed a short while ago."""

    def __init__(self, interests: Iterable[Interest]) -> None:
        self._interests = tuple(interests)
        self._records: dict[EventFilter, _CoverageRecord] = {}

    def __bool__(self) -> bool:
        return bool(self._records)

    def __contains__(self, event_filter: EventFilter) -> bool:
        return event_filter in self._records

    def add(self, event_filter: EventFilter, number: int) -> None:
        """Count a subscriber that uses the filter from event `number` on."""
        record = self._records.get(event_filter)
        if record is None:
            record = self._records[event_filter] = _CoverageRecord(number)
            for interest in self._interests:
                interest.adjust(event_filter, 1)
        record.holders += 1

    def release(self, event_filter: EventFilter, account: tuple[str, str], now: float) -> None:
        """Uncount a subscriber of this account."""
        record = self._records[event_filter]
        record.account = account
        record.holders -= 1
        record.released_at = now

    def covers(self, event_filter: EventFilter, number: int) -> bool:
        """Return whether all matching events after the one with this number were published."""
        same = self._records.get(event_filter)
        if same is not None and same.number <= number:
            return True
        return any(
            record.number <= number and each.covers(event_filter) for each, record in self._records.items()
        )

    def drop_expired(self, now: float) -> None:
        """Discard filters that were closed long ago, and the oldest ones beyond the limits."""
        released = [each for each, record in self._records.items() if not record.holders]
        released.sort(key=lambda each: self._records[each].released_at, reverse=True)
        filter_counts: Counter[tuple[str, str] | None] = Counter()
        named_counts: Counter[tuple[str, str] | None] = Counter()
        for event_filter in released:
            record = self._records[event_filter]
            for account in (record.account, None):  # None: all accounts
                filter_counts[account] += 1
                named_counts[account] += event_filter.named_count
            is_over_quota = any(
                filter_counts[account] > quota.filters or named_counts[account] > quota.named
                for account, quota in ((record.account, _ACCOUNT_QUOTA), (None, _TOTAL_QUOTA))
            )
            if is_over_quota or record.released_at < now - _RELEASED_SECONDS:
                filter_counts[None] -= 1
                named_counts[None] -= event_filter.named_count
                self._drop(event_filter)

    def _drop(self, event_filter: EventFilter) -> None:
        del self._records[event_filter]
        for interest in self._interests:
            interest.adjust(event_filter, -1)


_log = logging.getLogger(__name__)

_SLICE_SECONDS: Final = 0.002
"""Seconds of one slice of a replay, and of the pause after it."""

_EVENTS_PER_CHECK: Final = 64
"""Events between two checks of the clock."""

_CHUNK_BYTES: Final = 64 * 1024
"""Bytes of replayed events that are queued as one chunk."""


class Replay:
    """Events that one subscriber missed for one filter: those after one number, up to another."""

    def __init__(self, subscriber: LiveSubscriber, event_filter: EventFilter, after: int, until: int) -> None:
        self.subscriber = subscriber
        self.event_filter = event_filter
        self.after = after
        self.until = until
        self._scanned_to = after
        self._other_subscriptions: list[tuple[EventFilter, int]] | None = None
        """Other filters of the subscriber that are live, and since which event; None before the start."""
        self._found: dict[int, PublishedEvent] = {}
        """Matching events by number; of each device only the newest state, under a negative key."""
        self._size = 0

    @property
    def is_obsolete(self) -> bool:
        """Whether the subscriber closed, or canceled the subscription."""
        return (
            self.subscriber.close_reason is not None
            or self.subscriber.replays.get(self.event_filter) is not self
        )

    def start(self, coverage: CoverageTracker) -> bool:
        """Start or continue. Return False if not all matching events were published."""
        if self._other_subscriptions is None:
            subscriptions = self.subscriber.subscriptions.items()
            # Filters whose replay is pending skip what this replay sends, not the other way round.
            self._other_subscriptions = [
                subscription
                for subscription in subscriptions
                if subscription[0] not in self.subscriber.replays
            ]
            return coverage.covers(self.event_filter, self.after)
        return True

    def scan(self, buffer: ReplayBuffer, deadline: float, clock: Callable[[], float]) -> bool | None:
        """Scan the buffer until the deadline.

        Return True when done, False if there is more, and None if events are missing or exceed the backlog.
        """
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
        """Encode the found events in chunks."""
        chunks: list[bytes] = []
        chunk: list[bytes] = []
        size = 0
        for event in self._found.values():
            chunk.append(self.subscriber.encoder(event))
            size += len(chunk[-1])
            if size > _CHUNK_BYTES:
                chunks.append(b"".join(chunk))
                chunk, size = [], 0
        return [*chunks, b"".join(chunk)] if chunk else chunks

    def _collect(self, event: PublishedEvent) -> None:
        if not self.event_filter.matches(event) or self._is_delivered(event):
            return
        key = ~event.device if event.type == "device" and event.device is not None else event.number
        older = self._found.pop(key, None)
        self._found[key] = event
        self._size += len(event.body) - (0 if older is None else len(older.body))

    def _is_delivered(self, event: PublishedEvent) -> bool:
        """Return whether another filter of the subscriber, which was live before, has delivered the event."""
        return any(
            since < event.number and each.matches(event) for each, since in self._other_subscriptions or ()
        )


class ReplayScheduler:
    """Queue of replays. Accounts take turns, so that one with many replays does not delay the others."""

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
        """Queue a replay. Live events of the subscriber are held back until it ends."""
        replay.subscriber.replays[replay.event_filter] = replay
        self._queues.setdefault(replay.subscriber.account, deque()).append(replay)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="live.replays")

    def close(self) -> None:
        """Cancel all replays."""
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
                self._queues[account] = queue  # to the end of the queue
                self._run_slice(queue[0], clock)
                await asyncio.sleep(_SLICE_SECONDS)
        self._task = None

    def _run_slice(self, replay: Replay, clock: Callable[[], float]) -> None:
        subscriber = replay.subscriber
        try:
            is_covered = replay.start(self._coverage)
            is_complete = replay.scan(self._buffer, clock() + _SLICE_SECONDS, clock) if is_covered else None
        except Exception:  # noqa: BLE001 # the replays behind it must go on
            _log.exception("replay of missed events failed, subscriber gets a resync")
            is_complete = None
        if is_complete is None or (
            is_complete and not subscriber.finish_replay(replay.event_filter, replay.encode_chunks())
        ):
            self._on_failure(subscriber, replay.event_filter)
