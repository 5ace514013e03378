"""Distributes live events to all subscribers whose filters match.

Without subscribers, an event costs one check. An event is encoded once for server-sent events and once for
WebSockets. Events are collected for 25 ms and delivered together; subscribers with the same filters get the
same bytes. An index finds the matching filters, so that a subscriber costs nothing until an event matches. A
subscriber that reads too slowly loses its queue and gets a `resync` instead (rest-156); other subscribers do
not wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from meshfleet.protocol.times import format_millis
from meshfleet.rest.live import LIVE_EVENT_TYPES, LiveEvent, Resync
from meshfleet.service.live.event import RESYNC, PublishedEvent, escape_line_separators
from meshfleet.service.live.filters import EventFilter, Interest
from meshfleet.service.live.replay import CoverageTracker, Replay, ReplayBuffer, ReplayScheduler
from meshfleet.service.live.subscriber import SERVICE_STOPPING, FilterIndex, LiveSubscriber, SubscriberAccount

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from meshfleet.service.clock import Now
    from meshfleet.service.live.event import EventEncoder

_TICK_SECONDS: Final = 0.025
"""Seconds for which live events are collected before they are delivered."""

_HOUSEKEEPING_SECONDS: Final = 1.0
"""Seconds between two runs that discard expired events and send keep-alive comments."""
COMMENT_SECONDS: Final = 15.0
"""Seconds between two keep-alive comments in a stream of server-sent events (rest-150)."""

MAX_QUEUED_BYTES: Final = 64 * 1024 * 1024
"""Maximum bytes of live events queued for all subscribers together."""
MAX_QUEUED_BYTES_PER_ACCOUNT: Final = 16 * 1024 * 1024
"""Maximum bytes of live events queued for all subscribers of one account."""

_TOO_SLOW_TEXT: Final = "the client reads too slowly"
_UNKNOWN_EVENT_TEXT: Final = "the events since then are no longer available"

_log = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode


class EventHub:
    """Distributes live events to subscribers. Not thread-safe: call all methods in one event loop."""

    def __init__(self, now: Now, *, comment: float = COMMENT_SECONDS) -> None:
        """Create a hub without subscribers.

        `comment` is the interval in seconds of keep-alive comments in a stream of server-sent events.
        """
        self._now = now
        self._comment_interval = comment - _HOUSEKEEPING_SECONDS / 2  # sent with the nearest housekeeping
        self._run_id = f"{now():x}"
        self._number = 0
        self.interest = {about: Interest(about) for about in LIVE_EVENT_TYPES}
        """Summary of the filters in use, by event type; sources check it before they build an event."""
        self.subscribers: set[LiveSubscriber] = set()
        self._coverage = CoverageTracker(self.interest.values())
        self.publishing_since: int | None = None
        """Unix time in milliseconds since when events are published; None while no filter is in use."""
        self._buffer = ReplayBuffer()
        self._index = FilterIndex()
        self._replays = ReplayScheduler(self._buffer, self._coverage, self._fail_replay)
        self._undelivered: list[PublishedEvent] = []
        self._sources: list[Callable[[], bool]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._ticked_at = 0.0
        self._is_closed = False
        self.published: Counter[str] = Counter()
        self.resyncs = 0

    # Events

    def add_source(self, source: Callable[[], bool]) -> None:
        """Add a function that is called before each delivery of live events.

        The function publishes some events and returns whether it has more.
        """
        self._sources.append(source)

    def schedule_delivery(self) -> None:
        """Schedule a delivery of live events, unless one is scheduled already."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(self._ticked_at + _TICK_SECONDS, loop.time()), self._run_delivery)

    def publish(self, about: str, data: Any, **scope: int | None) -> None:
        """Publish a live event of the type `about` if a filter for this type is in use.

        `scope` contains the fields `device`, `gateway`, `former` and `job` of `PublishedEvent`.
        """
        if self.interest[about]:
            self._queue_event(self._build_event(about, about, data, **scope))

    def publish_loss(self, about: str, reason: str) -> None:
        """Publish a `resync` to tell subscribers that events of the type `about` were lost."""
        if self.interest[about] or self.interest[RESYNC]:
            self._queue_event(self._build_event(RESYNC, about, Resync(reason=reason)))

    def _queue_event(self, event: PublishedEvent) -> None:
        """Add a live event to the replay buffer, and queue it for the next delivery to subscribers."""
        self._buffer.add(event)
        self._undelivered.append(event)
        self.published[event.type] += 1
        self.schedule_delivery()

    def _build_event(self, kind: str, about: str, data: Any, **scope: int | None) -> PublishedEvent:
        """Build a live event with the next sequence number, and encode it as JSON."""
        self._number += 1
        event_id = f"{self._run_id}-{self._number}"
        event = LiveEvent(id=event_id, type=kind, time=format_millis(self._now()), data=data)  # type: ignore[arg-type] # one of LIVE_EVENT_TYPES
        return PublishedEvent(
            number=self._number,
            id=event_id,
            type=kind,
            about=about,
            body=escape_line_separators(_encode(event)),
            at=asyncio.get_running_loop().time(),
            **scope,
        )

    # Subscribers

    def add(self, subscriber: LiveSubscriber) -> None:
        """Register a subscriber without subscriptions; close the subscriber if the service is stopping."""
        subscriber.last_comment_at = asyncio.get_running_loop().time() - _HOUSEKEEPING_SECONDS / 2
        self.subscribers.add(subscriber)
        if self._is_closed:
            subscriber.close(SERVICE_STOPPING)

    def remove(self, subscriber: LiveSubscriber) -> None:
        """Remove a subscriber with its subscriptions."""
        self.subscribers.discard(subscriber)
        for event_filter in list(subscriber.subscriptions):
            self._end_subscription(subscriber, event_filter)
        subscriber.clear()

    def subscribe(
        self, subscriber: LiveSubscriber, event_filter: EventFilter, after: str | None = None
    ) -> None:
        """Start a subscription to the live events that match a filter.

        If the event id `after` is given, begin with a replay of the events that came after it (rest-149).
        Raise `TooManySubscriptions` if the filters of the account name too many devices, gateways and jobs.
        """
        self._deliver()  # events that wait for delivery are older than this subscription
        is_new = event_filter not in subscriber.subscriptions
        if is_new:
            self._start_subscription(subscriber, event_filter)
        if after is None:
            return
        number = self._parse_event_id(after)
        if number is None:
            self._replace_queue_by_resync(subscriber, _UNKNOWN_EVENT_TEXT)
        elif is_new and subscriber.close_reason is None:
            subscriber.subscriptions[event_filter] = number
            self._replays.schedule(Replay(subscriber, event_filter, number, self._number))

    def unsubscribe(self, subscriber: LiveSubscriber, event_filter: EventFilter) -> bool:
        """End a subscription. Return False if the subscriber has no subscription with this filter."""
        if event_filter not in subscriber.subscriptions:
            return False
        self._deliver()
        self._end_subscription(subscriber, event_filter)
        subscriber.finish_replay(event_filter)
        return True

    def _start_subscription(self, subscriber: LiveSubscriber, event_filter: EventFilter) -> None:
        """Add a filter of a subscriber to the index, and publish matching events from now on."""
        self._index.add(subscriber, event_filter)
        if event_filter not in self._coverage:
            self._number += 1  # events that match only this filter were not published before
        self._coverage.add(event_filter, self._number)
        subscriber.subscriptions[event_filter] = self._number
        self.publishing_since = self._now() if self.publishing_since is None else self.publishing_since

    def _end_subscription(self, subscriber: LiveSubscriber, event_filter: EventFilter) -> None:
        """Remove a filter of a subscriber from the index. Matching events are still published for a while."""
        del subscriber.subscriptions[event_filter]
        self._index.remove(subscriber, event_filter)
        self._coverage.release(event_filter, subscriber.account, asyncio.get_running_loop().time())

    def _parse_event_id(self, event_id: str) -> int | None:
        """Return the sequence number in an event id.

        Return None if the id is unknown, or if later events are no longer in the replay buffer.
        """
        run_id, _, text = event_id.partition("-")
        if (
            run_id != self._run_id
            or not text.isascii()
            or not text.isdecimal()
            or len(text) > len(str(self._number))
        ):
            return None
        number = int(text)
        return number if number <= self._number and self._buffer.covers(number) else None

    def _replace_queue_by_resync(self, subscriber: LiveSubscriber, reason: str) -> None:
        """Replace the subscriber's queue with a `resync` (rest-156)."""
        subscriber.clear()
        subscriber.enqueue(self._encode_resync(subscriber, reason))

    def _fail_replay(self, subscriber: LiveSubscriber, event_filter: EventFilter) -> None:
        """Queue a `resync` instead of a failed replay, before the live events that were held back."""
        if not subscriber.finish_replay(event_filter, [self._encode_resync(subscriber, _UNKNOWN_EVENT_TEXT)]):
            self._replace_queue_by_resync(subscriber, _UNKNOWN_EVENT_TEXT)

    def _encode_resync(self, subscriber: LiveSubscriber, reason: str) -> bytes:
        """Build a `resync` event, and encode the event for a subscriber."""
        self.resyncs += 1
        return subscriber.encoder(self._build_event(RESYNC, RESYNC, Resync(reason=reason)))

    # Delivery

    def _run_delivery(self) -> None:
        """Let all sources publish events, and deliver the queued events. Continue later if there are more."""
        self._timer = None
        self._ticked_at = asyncio.get_running_loop().time()
        has_more = [self._poll_source(source) for source in self._sources]
        self._deliver()
        if any(has_more):
            self.schedule_delivery()

    def _poll_source(self, source: Callable[[], bool]) -> bool:
        """Let a source publish events. Return whether the source has more; if it fails, publish a loss."""
        try:
            return source()
        except Exception:  # noqa: BLE001 # the other sources must go on
            _log.exception("live events could not be built; subscribers are told to resynchronize")
            self.publish_loss("report", "unexpected error in the service")
            return True

    def _deliver(self) -> None:
        """Put the queued events into the queues of all subscribers whose filters match."""
        if not self._undelivered:
            return
        events, self._undelivered = self._undelivered, []
        matches: dict[EventFilter, list[int]] = {}
        for index, event in enumerate(events):
            for event_filter in self._index.find_matches(event):
                matches.setdefault(event_filter, []).append(index)
        filters_by_subscriber: dict[LiveSubscriber, list[EventFilter]] = {}
        for event_filter in matches:
            for subscriber in self._index.get_subscribers(event_filter):
                filters_by_subscriber.setdefault(subscriber, []).append(event_filter)
        chunks: dict[tuple[Any, ...], bytes] = {}
        batch = _EncodedBatch(events)
        for subscriber, filters in filters_by_subscriber.items():
            key = (subscriber.encoder, *filters)
            chunk = chunks.get(key)
            if chunk is None:
                chunk = chunks[key] = batch.encode(
                    subscriber.encoder, [matches[event_filter] for event_filter in filters]
                )
            if not subscriber.enqueue(chunk):
                self._replace_queue_by_resync(subscriber, _TOO_SLOW_TEXT)
        self._enforce_budgets()

    def _enforce_budgets(self) -> None:
        """Drop the longest subscriber queues if too many bytes are queued in total, or for one account."""
        if sum(subscriber.queued_bytes for subscriber in self.subscribers) <= MAX_QUEUED_BYTES_PER_ACCOUNT:
            return
        accounts: dict[SubscriberAccount, list[LiveSubscriber]] = {}
        for subscriber in self.subscribers:
            accounts.setdefault(subscriber.account, []).append(subscriber)
        for subscribers in accounts.values():
            self._enforce_budget(subscribers, MAX_QUEUED_BYTES_PER_ACCOUNT)
        self._enforce_budget(self.subscribers, MAX_QUEUED_BYTES)

    def _enforce_budget(self, subscribers: Collection[LiveSubscriber], budget: int) -> None:
        """Replace the longest queues by a `resync` until the `subscribers` fit into `budget` bytes."""
        excess = sum(subscriber.queued_bytes for subscriber in subscribers) - budget
        if excess <= 0:
            return
        for subscriber in sorted(subscribers, key=lambda each: each.queued_bytes, reverse=True):
            before = subscriber.queued_bytes
            self._replace_queue_by_resync(subscriber, _TOO_SLOW_TEXT)
            excess -= before - subscriber.queued_bytes
            if excess <= 0:
                return

    # Housekeeping

    async def run(self) -> None:
        """Discard expired live events and filters, and send keep-alive comments, until canceled."""
        while True:
            await asyncio.sleep(_HOUSEKEEPING_SECONDS)
            now = asyncio.get_running_loop().time()
            self._buffer.drop_expired(now)
            self._coverage.drop_expired(now)
            self.publishing_since = self.publishing_since if self._coverage else None
            for subscriber in self.subscribers:
                if subscriber.comment and now >= subscriber.last_comment_at + self._comment_interval:
                    subscriber.last_comment_at = now
                    subscriber.enqueue_before_replays(subscriber.comment)

    def close(self) -> None:
        """Close all subscribers because the service is stopping; later subscribers are closed at once."""
        self._is_closed = True
        self._replays.close()
        for subscriber in self.subscribers:
            subscriber.close(SERVICE_STOPPING)
            subscriber.abort_if_stalled()


class _EncodedBatch:
    """Live events of one delivery. An event is encoded when needed, and only once per transport."""

    def __init__(self, events: list[PublishedEvent]) -> None:
        self._events = events
        self._encoded: dict[tuple[EventEncoder, int], bytes] = {}

    def encode(self, encoder: EventEncoder, index_lists: list[list[int]]) -> bytes:
        """Encode the events whose indexes are in `index_lists`, each event once, in ascending order."""
        indexes = index_lists[0] if len(index_lists) == 1 else sorted(set().union(*index_lists))
        return b"".join([self._encode_one(encoder, index) for index in indexes])

    def _encode_one(self, encoder: EventEncoder, index: int) -> bytes:
        """Return the event with an index as encoded for a transport, from the cache if possible."""
        text = self._encoded.get((encoder, index))
        if text is None:
            text = self._encoded[encoder, index] = encoder(self._events[index])
        return text
