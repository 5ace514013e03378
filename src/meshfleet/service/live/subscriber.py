"""Subscribers to live events, each with a queue of events to send, and an index of their filters."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.errors import TooManySubscriptions
from meshfleet.rest.live import LIVE_EVENT_TYPES
from meshfleet.service.live.event import RESYNC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from meshfleet.service.actor import Actor
    from meshfleet.service.live.event import EventEncoder, PublishedEvent
    from meshfleet.service.live.filters import EventFilter

MAX_BACKLOG_BYTES: Final = 4 * 1024 * 1024
"""Maximum bytes of live events queued for one subscriber."""

_MAX_CHUNK_BYTES: Final = 64 * 1024
"""Queued chunks are joined into one write until the write has at least this many bytes."""


class CloseReason(NamedTuple):
    """Reason why a live-event subscriber was closed."""

    code: int
    """Close code of the WebSocket."""
    error_code: str
    reason: str


CLIENT_LEFT: Final = CloseReason(1000, "gone", "the client disconnected")
SERVICE_STOPPING: Final = CloseReason(1012, "stopped", "the service is stopping, reconnect later")


class SubscriberAccount(NamedTuple):
    """Account of a live-event subscriber: kind (such as `user` or `api-key`) and name of its actor."""

    kind: str
    name: str


class LiveSubscriber:
    """One event stream or WebSocket of live events, with a limited queue.

    A client that reads too slowly loses events.
    """

    def __init__(
        self,
        encoder: EventEncoder,
        actor: Actor,
        bearer: str,
        *,
        abort: Callable[[], None] | None = None,
        comment: bytes = b"",
    ) -> None:
        self.encoder = encoder
        self.actor = actor
        self.bearer = bearer
        self.comment = comment
        """Bytes that the hub sends periodically to keep the connection alive; nothing is sent if empty."""
        self.subscriptions: dict[EventFilter, int] = {}
        """Filters of subscriptions, each with the sequence number after which matching events are sent."""
        self.replays: dict[EventFilter, object] = {}
        """Pending `Replay` by filter; replayed events are sent before new live events."""
        self.last_comment_at = 0.0
        self.close_reason: CloseReason | None = None
        self._abort = abort
        self._chunks: deque[bytes] = deque()
        self._behind_replays: list[bytes] = []
        """Live events that are held back until all replays have ended."""
        self._size = 0
        self._ready = asyncio.Event()
        self._bytes_in_write = 0

    @property
    def queued_bytes(self) -> int:
        """Number of bytes of live events that are queued or being written."""
        return self._size + self._bytes_in_write

    @property
    def account(self) -> SubscriberAccount:
        """Account of the subscriber's actor."""
        return SubscriberAccount(self.actor.kind, self.actor.name)

    def enqueue(self, chunk: bytes) -> bool:
        """Queue encoded events, to send them after pending replays. Return False if the queue is full."""
        if not self.replays:
            return self.enqueue_before_replays(chunk)
        if self._size + len(chunk) > MAX_BACKLOG_BYTES:
            return False
        self._behind_replays.append(chunk)
        self._size += len(chunk)
        return True

    def enqueue_before_replays(self, chunk: bytes) -> bool:
        """Queue encoded events to send without waiting for replays. Return False if the queue is full."""
        if self._size + len(chunk) > MAX_BACKLOG_BYTES:
            return False
        self._chunks.append(chunk)
        self._size += len(chunk)
        self._ready.set()
        return True

    def finish_replay(self, event_filter: EventFilter, missed: Sequence[bytes] = ()) -> bool:
        """End the replay of a filter, and queue the missed events. Return False if the queue is full."""
        if self._size + sum(map(len, missed)) > MAX_BACKLOG_BYTES:
            return False
        self.replays.pop(event_filter, None)
        for chunk in missed:
            self.enqueue_before_replays(chunk)
        if self._behind_replays and not self.replays:
            self._chunks.extend(self._behind_replays)
            self._behind_replays.clear()
            self._ready.set()
        return True

    def clear(self) -> None:
        """Drop all queued events and pending replays."""
        self._chunks.clear()
        self._behind_replays.clear()
        self.replays.clear()
        self._size = 0

    async def next_chunk(self) -> bytes | None:
        """Wait for queued events. Return up to about 64 KiB of them; None if the subscriber is closed."""
        self._bytes_in_write = 0
        await self._ready.wait()
        if self.close_reason is not None:
            return None
        chunks = []
        size = 0
        while self._chunks and size < _MAX_CHUNK_BYTES:
            chunks.append(self._chunks.popleft())
            size += len(chunks[-1])
        self._size -= size
        if not self._chunks:
            self._ready.clear()
        self._bytes_in_write = size
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def close(self, reason: CloseReason) -> None:
        """Close the subscriber and drop its queue. A closed subscriber keeps its first close reason."""
        if self.close_reason is None:
            self.close_reason = reason
            self.clear()
            self._ready.set()

    def abort_if_stalled(self) -> None:
        """Abort the connection if the client does not read, so that the service can stop at once."""
        if self._bytes_in_write and self._abort is not None:
            self._abort()


# Index of filters: the cost of an event depends on the matching filters, not on the number of subscribers.

_MAX_NAMED_PER_ACCOUNT: Final = 50_000
"""Maximum number of devices, gateways and jobs named in the filters of one account."""


class FilterIndex:
    """Index of all live-event filters in use, each with its subscribers."""

    def __init__(self) -> None:
        self._subscribers: dict[EventFilter, set[LiveSubscriber]] = {}
        self._by_device: dict[int, set[EventFilter]] = {}
        self._by_gateway: dict[int, set[EventFilter]] = {}
        self._by_job: dict[int, set[EventFilter]] = {}
        self._by_type: dict[str, set[EventFilter]] = {about: set() for about in LIVE_EVENT_TYPES}
        """Filters that name neither devices nor gateways nor jobs, by event type."""
        self._named_counts: Counter[SubscriberAccount] = Counter()

    def add(self, subscriber: LiveSubscriber, event_filter: EventFilter) -> None:
        """Add a filter of a subscriber to the index.

        Raise `TooManySubscriptions` if filters of the account name too many devices, gateways and jobs.
        """
        if (
            event_filter.named_count
            and self._named_counts[subscriber.account] + event_filter.named_count > _MAX_NAMED_PER_ACCOUNT
        ):
            raise TooManySubscriptions(
                f"the subscriptions of {subscriber.actor.display_name} name more than "
                f"{_MAX_NAMED_PER_ACCOUNT} devices, gateways and jobs"
            )
        self._named_counts[subscriber.account] += event_filter.named_count
        subscribers = self._subscribers.get(event_filter)
        if subscribers is None:
            subscribers = self._subscribers[event_filter] = set()
            self._index_filter(event_filter)
        subscribers.add(subscriber)

    def remove(self, subscriber: LiveSubscriber, event_filter: EventFilter) -> None:
        """Remove a filter of a subscriber from the index."""
        self._named_counts[subscriber.account] -= event_filter.named_count
        if not self._named_counts[subscriber.account]:
            del self._named_counts[subscriber.account]
        subscribers = self._subscribers[event_filter]
        subscribers.discard(subscriber)
        if not subscribers:
            del self._subscribers[event_filter]
            self._unindex_filter(event_filter)

    def get_subscribers(self, event_filter: EventFilter) -> set[LiveSubscriber]:
        """Return the subscribers that use a filter."""
        return self._subscribers[event_filter]

    def find_matches(self, event: PublishedEvent) -> Iterator[EventFilter]:
        """Yield the filters that match a live event."""
        return (event_filter for event_filter in self._find_candidates(event) if event_filter.matches(event))

    def _find_candidates(self, event: PublishedEvent) -> Iterable[EventFilter]:
        """Return the filters that may match an event, by its job, device, gateway or type."""
        if event.type == RESYNC:
            return self._subscribers
        candidates: list[Iterable[EventFilter]] = [self._by_type[event.about]]
        if event.job is not None:
            candidates.append(self._by_job.get(event.job, ()))
        if event.device is not None:
            candidates.append(self._by_device.get(event.device, ()))
        if event.gateway is None:
            candidates.append(set().union(*self._by_gateway.values()))
        elif event.former is None:
            candidates.append(self._by_gateway.get(event.gateway, ()))
        else:
            old_and_new = (self._by_gateway.get(each, ()) for each in (event.gateway, event.former))
            candidates.append(set().union(*old_and_new))
        return chain.from_iterable(candidates)

    def _index_filter(self, event_filter: EventFilter) -> None:
        """Add a filter to the index by job, device, gateway or type."""
        for entries, key in self._list_index_entries(event_filter):
            entries.setdefault(key, set()).add(event_filter)

    def _unindex_filter(self, event_filter: EventFilter) -> None:
        """Remove a filter from the index by job, device, gateway or type."""
        for entries, key in self._list_index_entries(event_filter):
            entries[key].discard(event_filter)
            if not entries[key] and entries is not self._by_type:
                del entries[key]

    def _list_index_entries(
        self, event_filter: EventFilter
    ) -> Iterator[tuple[dict[object, set[EventFilter]], object]]:
        """Yield the index and key of each entry of a filter: by job, device or gateway, or by event type."""
        entries: object
        keys: Iterable[object]
        if event_filter.jobs is not None:
            entries, keys = self._by_job, event_filter.jobs
        elif event_filter.devices is not None:
            entries, keys = self._by_device, event_filter.devices
        elif event_filter.gateways is not None:
            entries, keys = self._by_gateway, event_filter.gateways
        else:
            entries = self._by_type
            keys = LIVE_EVENT_TYPES if event_filter.types is None else event_filter.types
        for key in keys:
            yield entries, key  # type: ignore[misc] # the keys have the type of the chosen index
