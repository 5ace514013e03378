"""The hub: events come in one by one and go out to all who want them, many at a time.

While nobody listens it costs a look. An event is spelt once for each of the two doors. What goes out is
collected for a moment, and listeners who want the same get the same bytes; who wants it is looked up, so
that listeners cost nothing while nothing of theirs happens. A listener that does not keep up loses what waits
for it and is told so (rest-156); nobody else waits for it.
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
from meshfleet.service.live.filters import FilterIndex, Interest
from meshfleet.service.live.replay import CoverageTracker, Replay, ReplayBuffer, ReplayScheduler
from meshfleet.service.live.subscriber import SERVICE_STOPPING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from meshfleet.service.clock import Now
    from meshfleet.service.live.event import EventEncoder
    from meshfleet.service.live.filters import EventFilter
    from meshfleet.service.live.subscriber import LiveSubscriber

_TICK_SECONDS: Final = 0.025
"""Seconds for which events are collected."""

_HOUSEKEEPING_SECONDS: Final = 1.0
COMMENT_SECONDS: Final = 15.0
"""Seconds between two comments (rest-150)."""

MAX_QUEUED_BYTES: Final = 64 * 1024 * 1024
MAX_QUEUED_BYTES_PER_ACCOUNT: Final = 16 * 1024 * 1024
"""Bytes that may wait for all listeners together, and for those of one account."""

_TOO_SLOW_TEXT: Final = "you did not keep up"
_UNKNOWN_EVENT_TEXT: Final = "what came since then is not known any more"

_log = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode


class EventHub:
    """Tells events to listeners. Lives in one event loop: nothing here may be called from another thread."""

    def __init__(self, now: Now, *, comment: float = COMMENT_SECONDS) -> None:
        """Begin without listeners. `comment` is how often a stream shows that it lives, in seconds."""
        self._now = now
        self._comment = comment - _HOUSEKEEPING_SECONDS / 2  # it comes with the nearest look
        self._run_id = f"{now():x}"
        self._number = 0
        self.interest = {about: Interest(about) for about in LIVE_EVENT_TYPES}
        """By type: whose events anybody wants. Look here before anything is made."""
        self.subscribers: set[LiveSubscriber] = set()
        self._coverage = CoverageTracker(self.interest.values())
        self.publishing_since: int | None = None
        """When events began to be published, in milliseconds; None: they are not."""
        self._buffer = ReplayBuffer()
        self._index = FilterIndex()
        self._replays = ReplayScheduler(self._buffer, self._coverage, self._fail_replay)
        self._fresh: list[PublishedEvent] = []
        self._sources: list[Callable[[], bool]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._ticked = 0.0
        self._is_closed = False
        self.published: Counter[str] = Counter()
        self.resyncs = 0

    # Events

    def add_source(self, source: Callable[[], bool]) -> None:
        """Let somebody publish when it is time; it tells whether there is more."""
        self._sources.append(source)

    def wake(self) -> None:
        """See to it that feeders are asked, and listeners are told, in a moment."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(self._ticked + _TICK_SECONDS, loop.time()), self._tick)

    def publish(self, about: str, data: Any, **whose: int | None) -> None:
        """Tell an event, if somebody wants it or may come back for it.

        `device`, `gateway`, `former` and `job` tell whose it is; see `Event`.
        """
        if self.interest[about]:
            self._add(self._build_event(about, about, data, **whose))

    def publish_loss(self, about: str, reason: str) -> None:
        """Tell that events of this type were not told."""
        if self.interest[about] or self.interest[RESYNC]:
            self._add(self._build_event(RESYNC, about, Resync(reason=reason)))

    def _add(self, event: PublishedEvent) -> None:
        self._buffer.add(event)
        self._fresh.append(event)
        self.published[event.type] += 1
        self.wake()

    def _build_event(self, kind: str, about: str, data: Any, **whose: int | None) -> PublishedEvent:
        self._number += 1
        name = f"{self._run_id}-{self._number}"
        told = LiveEvent(id=name, type=kind, time=format_millis(self._now()), data=data)  # type: ignore[arg-type] # one of LIVE_TYPES
        return PublishedEvent(
            number=self._number,
            id=name,
            type=kind,
            about=about,
            body=escape_line_separators(_encode(told)),
            at=asyncio.get_running_loop().time(),
            **whose,
        )

    # Listeners

    def add(self, subscriber: LiveSubscriber) -> None:
        """Somebody is here, and wants nothing yet."""
        subscriber.last_comment_at = asyncio.get_running_loop().time() - _HOUSEKEEPING_SECONDS / 2
        self.subscribers.add(subscriber)
        if self._is_closed:
            subscriber.close(SERVICE_STOPPING)

    def remove(self, subscriber: LiveSubscriber) -> None:
        """Somebody is gone."""
        self.subscribers.discard(subscriber)
        for want in list(subscriber.subscriptions):
            self._end_subscription(subscriber, want)
        subscriber.clear()

    def subscribe(
        self, subscriber: LiveSubscriber, event_filter: EventFilter, after: str | None = None
    ) -> None:
        """Tell a listener what it wants from now on; behind `after` what was told before, too (rest-149).

        May raise TooManySubscriptions.
        """
        self._deliver()  # what is on its way is not for this one
        is_new = event_filter not in subscriber.subscriptions
        if is_new:
            self._start_subscription(subscriber, event_filter)
        if after is None:
            return
        number = self._parse_event_id(after)
        if number is None:
            self._resync(subscriber, _UNKNOWN_EVENT_TEXT)
        elif is_new and subscriber.close_reason is None:
            subscriber.subscriptions[event_filter] = number
            self._replays.schedule(Replay(subscriber, event_filter, number, self._number))

    def unsubscribe(self, subscriber: LiveSubscriber, event_filter: EventFilter) -> bool:
        """Tell it no more; False: it was not told."""
        if event_filter not in subscriber.subscriptions:
            return False
        self._deliver()
        self._end_subscription(subscriber, event_filter)
        subscriber.finish_replay(event_filter)
        return True

    def _start_subscription(self, subscriber: LiveSubscriber, event_filter: EventFilter) -> None:
        self._index.add(subscriber, event_filter)
        if event_filter not in self._coverage:
            self._number += 1  # who heard the last event cannot know what nobody wanted since then
        self._coverage.add(event_filter, self._number)
        subscriber.subscriptions[event_filter] = self._number
        self.publishing_since = self._now() if self.publishing_since is None else self.publishing_since

    def _end_subscription(self, subscriber: LiveSubscriber, event_filter: EventFilter) -> None:
        del subscriber.subscriptions[event_filter]
        self._index.remove(subscriber, event_filter)
        self._coverage.release(event_filter, subscriber.account, asyncio.get_running_loop().time())

    def _parse_event_id(self, name: str) -> int | None:
        """The number of an event behind which all may be known; None: it is not."""
        run, _, text = name.partition("-")
        if (
            run != self._run_id
            or not text.isascii()
            or not text.isdecimal()
            or len(text) > len(str(self._number))
        ):
            return None
        number = int(text)
        return number if number <= self._number and self._buffer.covers(number) else None

    def _resync(self, subscriber: LiveSubscriber, reason: str) -> None:
        """Instead of all that waits for it, tell a listener that it missed something (rest-156)."""
        subscriber.clear()
        subscriber.enqueue(self._encode_resync(subscriber, reason))

    def _fail_replay(self, subscriber: LiveSubscriber, event_filter: EventFilter) -> None:
        """Instead of what cannot be told again tell that; what came meanwhile waits behind it."""
        if not subscriber.finish_replay(event_filter, [self._encode_resync(subscriber, _UNKNOWN_EVENT_TEXT)]):
            self._resync(subscriber, _UNKNOWN_EVENT_TEXT)

    def _encode_resync(self, subscriber: LiveSubscriber, reason: str) -> bytes:
        self.resyncs += 1
        return subscriber.encoder(self._build_event(RESYNC, RESYNC, Resync(reason=reason)))

    # Telling

    def _tick(self) -> None:
        self._timer = None
        self._ticked = asyncio.get_running_loop().time()
        more = [self._poll_source(feeder) for feeder in self._sources]
        self._deliver()
        if any(more):
            self.wake()

    def _poll_source(self, source: Callable[[], bool]) -> bool:
        try:
            return source()
        except Exception:  # noqa: BLE001 # whatever it is, others have something to tell
            _log.exception("events cannot be told")
            self.publish_loss("report", "something went wrong here")
            return True

    def _deliver(self) -> None:
        if not self._fresh:
            return
        fresh, self._fresh = self._fresh, []
        chosen: dict[EventFilter, list[int]] = {}
        for place, event in enumerate(fresh):
            for want in self._index.find_matches(event):
                chosen.setdefault(want, []).append(place)
        concerned: dict[LiveSubscriber, list[EventFilter]] = {}
        for want in chosen:
            for listener in self._index.get_subscribers(want):
                concerned.setdefault(listener, []).append(want)
        chunks: dict[tuple[Any, ...], bytes] = {}
        spelling = _EncodedBatch(fresh)
        for listener, wants in concerned.items():
            key = (listener.encoder, *wants)
            chunk = chunks.get(key)
            if chunk is None:
                chunk = chunks[key] = spelling.encode(listener.encoder, [chosen[want] for want in wants])
            if not listener.enqueue(chunk):
                self._resync(listener, _TOO_SLOW_TEXT)
        self._enforce_budgets()

    def _enforce_budgets(self) -> None:
        """If too much waits for all listeners, or for those of one account, those with the most lose it."""
        if sum(listener.queued_bytes for listener in self.subscribers) <= MAX_QUEUED_BYTES_PER_ACCOUNT:
            return
        accounts: dict[tuple[str, str], list[LiveSubscriber]] = {}
        for listener in self.subscribers:
            accounts.setdefault(listener.account, []).append(listener)
        for listeners in accounts.values():
            self._enforce_budget(listeners, MAX_QUEUED_BYTES_PER_ACCOUNT)
        self._enforce_budget(self.subscribers, MAX_QUEUED_BYTES)

    def _enforce_budget(self, subscribers: Collection[LiveSubscriber], budget: int) -> None:
        excess = sum(listener.queued_bytes for listener in subscribers) - budget
        if excess <= 0:
            return
        for listener in sorted(subscribers, key=lambda each: each.queued_bytes, reverse=True):
            before = listener.queued_bytes
            self._resync(listener, _TOO_SLOW_TEXT)
            excess -= before - listener.queued_bytes
            if excess <= 0:
                return

    # Time

    async def run(self) -> None:
        """Forget what is old, and show listeners that the connection lives, until cancelled."""
        while True:
            await asyncio.sleep(_HOUSEKEEPING_SECONDS)
            now = asyncio.get_running_loop().time()
            self._buffer.drop_expired(now)
            self._coverage.drop_expired(now)
            self.publishing_since = self.publishing_since if self._coverage else None
            for listener in self.subscribers:
                if listener.comment and now >= listener.last_comment_at + self._comment:
                    listener.last_comment_at = now
                    listener.enqueue_before_replays(listener.comment)

    def close(self) -> None:
        """Let all listeners go, and those who still come: the service stops."""
        self._is_closed = True
        self._replays.close()
        for listener in self.subscribers:
            listener.close(SERVICE_STOPPING)
            listener.abort_if_stalled()


class _EncodedBatch:
    """Some events, each spelt once for each door, and only if somebody there wants it."""

    def __init__(self, events: list[PublishedEvent]) -> None:
        self._events = events
        self._encoded: dict[tuple[EventEncoder, int], bytes] = {}

    def encode(self, encoder: EventEncoder, places: list[list[int]]) -> bytes:
        """Those at any of these places, in their order."""
        chosen = places[0] if len(places) == 1 else sorted(set().union(*places))
        return b"".join([self._at(encoder, place) for place in chosen])

    def _at(self, encoder: EventEncoder, place: int) -> bytes:
        text = self._encoded.get((encoder, place))
        if text is None:
            text = self._encoded[encoder, place] = encoder(self._events[place])
        return text
