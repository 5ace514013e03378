"""Replays missed live events to subscribers that reconnect and resume after their last received event.

Accounts take turns and each replay runs in short slices, so that new live events are not delayed.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import Counter, deque
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from meshfleet.service.live.subscriber import MAX_BACKLOG_BYTES, LiveSubscriber, SubscriberAccount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from meshfleet.service.live.event import PublishedEvent
    from meshfleet.service.live.filters import EventFilter, Interest


# Buffer with the events of the last minutes, and the filters for which it is complete (rest-149).


class RetentionQuota(NamedTuple):
    """Maximum number of filters to keep, and of devices, gateways and jobs that these filters name."""

    filters: int
    named: int


_MAX_EVENTS: Final = 100_000
"""Maximum number of live events in the replay buffer."""
_MAX_BYTES: Final = 32 * 1024 * 1024
"""Maximum size of the live events in the replay buffer in bytes."""
_MAX_AGE_SECONDS: Final = 300.0
"""Maximum age of live events in the replay buffer in seconds."""

_RELEASED_SECONDS: Final = 120.0
"""Seconds for which matching events are still published after the last subscription to a filter ended.

A subscriber that reconnects in this time can resume.
"""

_ACCOUNT_QUOTA: Final = RetentionQuota(200, 20_000)
"""Limits for the filters of ended subscriptions of one account."""

_TOTAL_QUOTA: Final = RetentionQuota(2000, 100_000)
"""Limits for the filters of ended subscriptions of all accounts together."""

_COMPACT_FRACTION: Final = 8
"""Dropped events are deleted from the event list when they are more than 1/8 of the list."""

_number = attrgetter("number")


class ReplayBuffer:
    """Keeps the most recent live events for replays, the oldest first."""

    def __init__(self) -> None:
        self._events: list[PublishedEvent] = []
        self._first = 0
        """Index of the oldest event that is kept; dropped events before it are deleted in bulk later."""
        self._bytes = 0
        self._last_dropped = 0
        """Sequence number of the last event that was dropped."""

    def add(self, event: PublishedEvent) -> None:
        """Append a live event, and drop the oldest events while the buffer exceeds its limits."""
        self._events.append(event)
        self._bytes += len(event.body)
        while len(self._events) - self._first > _MAX_EVENTS or self._bytes > _MAX_BYTES:
            self._drop()

    def drop_expired(self, now: float) -> None:
        """Drop live events that are more than five minutes old."""
        while self._first < len(self._events) and self._events[self._first].at < now - _MAX_AGE_SECONDS:
            self._drop()

    def covers(self, number: int) -> bool:
        """Return whether the buffer still has all events with a higher sequence number than `number`."""
        return number >= self._last_dropped

    def list_events_after(self, number: int, count: int) -> list[PublishedEvent]:
        """Return the first `count` events with a higher sequence number than `number`."""
        start = bisect_right(self._events, number, lo=self._first, key=_number)
        return self._events[start : start + count]

    def _drop(self) -> None:
        """Drop the oldest live event."""
        event = self._events[self._first]
        self._bytes -= len(event.body)
        self._last_dropped = event.number
        self._first += 1
        if self._first * _COMPACT_FRACTION > len(self._events):
            del self._events[: self._first]
            self._first = 0


class _CoverageRecord(Struct):
    """Usage of a filter: since which event all matching events are published, and number of subscribers."""

    number: int
    """Sequence number of the event after which all matching events were published."""
    holders: int = 0
    """Number of subscribers that use the filter."""
    released_at: float = 0.0
    """Time when a subscriber last stopped using the filter, in seconds of the event loop's clock."""
    account: SubscriberAccount = SubscriberAccount("", "")
    """Account of the subscriber that last stopped using the filter."""


class CoverageTracker:
    """Tracks for which filters all matching events are published, so that they can be replayed.

    These are the filters that are in use, or were in use in the last two minutes. Events that match none of
    these filters are not published.
    """

    def __init__(self, interests: Iterable[Interest]) -> None:
        self._interests = tuple(interests)
        self._records: dict[EventFilter, _CoverageRecord] = {}

    def __bool__(self) -> bool:
        return bool(self._records)

    def __contains__(self, event_filter: EventFilter) -> bool:
        """Return whether all events that match this filter are published."""
        return event_filter in self._records

    def add(self, event_filter: EventFilter, number: int) -> None:
        """Count a subscriber that starts using a filter. `number` is the number of the last event."""
        record = self._records.get(event_filter)
        if record is None:
            record = self._records[event_filter] = _CoverageRecord(number)
            for interest in self._interests:
                interest.adjust(event_filter, 1)
        record.holders += 1

    def release(self, event_filter: EventFilter, account: SubscriberAccount, now: float) -> None:
        """Count a subscriber that stops using a filter. `account` is the account of the subscriber."""
        record = self._records[event_filter]
        record.account = account
        record.holders -= 1
        record.released_at = now

    def covers(self, event_filter: EventFilter, number: int) -> bool:
        """Return whether all events after the sequence number `number` that match a filter were published."""
        same = self._records.get(event_filter)
        if same is not None and same.number <= number:
            return True
        return any(
            record.number <= number and each.covers(event_filter) for each, record in self._records.items()
        )

    def drop_expired(self, now: float) -> None:
        """Discard filters not used for two minutes, and the longest unused filters above the quotas."""
        released = [each for each, record in self._records.items() if not record.holders]
        released.sort(key=lambda each: self._records[each].released_at, reverse=True)
        filter_counts: Counter[SubscriberAccount | None] = Counter()
        named_counts: Counter[SubscriberAccount | None] = Counter()
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
        """Stop publishing the events that match a filter."""
        del self._records[event_filter]
        for interest in self._interests:
            interest.adjust(event_filter, -1)


_log = logging.getLogger(__name__)

_SLICE_SECONDS: Final = 0.002
"""Duration in seconds of one slice of a replay, and of the pause after the slice."""

_EVENTS_PER_CHECK: Final = 64
"""Number of events that a replay reads from the buffer between two checks of its deadline."""

_CHUNK_BYTES: Final = 64 * 1024
"""A chunk of replayed events is full when it has more than this many bytes."""


class Replay:
    """Collects the live events that one subscriber missed for one filter.

    These are the matching events with a sequence number above `after`, up to and including `until`.
    """

    def __init__(self, subscriber: LiveSubscriber, event_filter: EventFilter, after: int, until: int) -> None:
        self.subscriber = subscriber
        self.event_filter = event_filter
        self.after = after
        self.until = until
        self._scanned_to = after
        self._other_subscriptions: list[tuple[EventFilter, int]] | None = None
        """Other filters of the subscriber without a pending replay, to skip events delivered through them.

        Each has the sequence number after which it delivers events. None before the start of the replay.
        """
        self._found: dict[int, PublishedEvent] = {}
        """Matching events by sequence number. Of each device, only the newest `device` event is kept.

        The key of a `device` event is `~device`, which is negative and so differs from sequence numbers.
        """
        self._size = 0

    @property
    def is_obsolete(self) -> bool:
        """Whether the subscriber was closed, or has ended the subscription."""
        return (
            self.subscriber.close_reason is not None
            or self.subscriber.replays.get(self.event_filter) is not self
        )

    def start(self, coverage: CoverageTracker) -> bool:
        """Start the replay, or continue it. Return False if some matching events were never published."""
        if self._other_subscriptions is None:
            subscriptions = self.subscriber.subscriptions.items()
            # Filters whose replay is pending later skip the events that this replay sends.
            self._other_subscriptions = [
                subscription
                for subscription in subscriptions
                if subscription[0] not in self.subscriber.replays
            ]
            return coverage.covers(self.event_filter, self.after)
        return True

    def scan(self, buffer: ReplayBuffer, deadline: float, clock: Callable[[], float]) -> bool | None:
        """Collect matching events from the buffer until the deadline, in seconds of `clock`.

        Return True if all events are collected, and False if there are more. Return None if the replay
        failed: events were dropped, or the matching events exceed the maximum queue of the subscriber.
        """
        while clock() < deadline:
            if not buffer.covers(self._scanned_to):
                return None
            events = buffer.list_events_after(self._scanned_to, _EVENTS_PER_CHECK)
            for event in events:
                if event.number > self.until:
                    return True
                self._collect_event(event)
                if self._size > MAX_BACKLOG_BYTES:
                    return None
            if not events:
                return True
            self._scanned_to = events[-1].number
        return False

    def encode_chunks(self) -> list[bytes]:
        """Encode the collected events, in chunks of about 64 KiB."""
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

    def _collect_event(self, event: PublishedEvent) -> None:
        """Add an event to the replay if it matches and the subscriber has not received it."""
        if not self.event_filter.matches(event) or self._is_delivered(event):
            return
        key = ~event.device if event.type == "device" and event.device is not None else event.number
        older = self._found.pop(key, None)
        self._found[key] = event
        self._size += len(event.body) - (0 if older is None else len(older.body))

    def _is_delivered(self, event: PublishedEvent) -> bool:
        """Return whether the subscriber has already received an event through another of its filters."""
        return any(
            since < event.number and each.matches(event) for each, since in self._other_subscriptions or ()
        )


class ReplayScheduler:
    """Runs replays one by one. Accounts take turns, so that many replays of one do not delay the others."""

    def __init__(
        self,
        buffer: ReplayBuffer,
        coverage: CoverageTracker,
        on_failure: Callable[[LiveSubscriber, EventFilter], None],
    ) -> None:
        self._buffer = buffer
        self._coverage = coverage
        self._on_failure = on_failure
        self._queues: dict[SubscriberAccount, deque[Replay]] = {}
        self._task: asyncio.Task[None] | None = None

    def schedule(self, replay: Replay) -> None:
        """Queue a replay. New live events of the subscriber are held back until the replay ends."""
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
        """Run the queued replays in slices, the accounts in turn, until none is left."""
        clock = asyncio.get_running_loop().time
        while self._queues:
            account = next(iter(self._queues))
            queue = self._queues.pop(account)
            while queue and queue[0].is_obsolete:
                queue.popleft()
            if queue:
                self._queues[account] = queue  # the account goes to the end of the queue
                self._run_slice(queue[0], clock)
                await asyncio.sleep(_SLICE_SECONDS)
        self._task = None

    def _run_slice(self, replay: Replay, clock: Callable[[], float]) -> None:
        """Run one slice of a replay. Pass its events to the subscriber at the end, or report its failure."""
        subscriber = replay.subscriber
        try:
            is_covered = replay.start(self._coverage)
            is_complete = replay.scan(self._buffer, clock() + _SLICE_SECONDS, clock) if is_covered else None
        except Exception:  # noqa: BLE001 # the replays behind it must go on
            _log.exception("replay of missed events failed; the subscriber is told to resynchronize")
            is_complete = None
        if is_complete is None or (
            is_complete and not subscriber.finish_replay(replay.event_filter, replay.encode_chunks())
        ):
            self._on_failure(subscriber, replay.event_filter)
