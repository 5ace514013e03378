"""Subscriber to live events, with the queue of events to send."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from meshfleet.service.actor import Actor
    from meshfleet.service.live.event import EventEncoder
    from meshfleet.service.live.filters import EventFilter
    from meshfleet.service.live.replay import Replay

MAX_BACKLOG_BYTES: Final = 4 * 1024 * 1024
"""Maximum bytes queued for a subscriber."""

_MAX_CHUNK_BYTES: Final = 64 * 1024
"""Number of bytes from which queued chunks are not joined further into one write."""


class CloseReason(NamedTuple):
    """Reason why a subscriber was closed."""

    code: int
    """Close code of the WebSocket."""
    error_code: str
    reason: str


CLIENT_LEFT: Final = CloseReason(1000, "gone", "the client disconnected")
SERVICE_STOPPING: Final = CloseReason(1012, "stopped", "the service is stopping, reconnect later")


class LiveSubscriber:
    """One stream or WebSocket with a limited queue: a client that reads too slowly loses events."""

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
        """Bytes that the hub sends periodically to keep the connection alive; empty: none are sent."""
        self.subscriptions: dict[EventFilter, int] = {}
        """Filters, each with the sequence number of the event after which matching events are sent."""
        self.replays: dict[EventFilter, Replay] = {}
        """Pending replays by filter; replayed events are sent before live ones."""
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
        """Number of bytes that are queued or being written."""
        return self._size + self._bytes_in_write

    @property
    def account(self) -> tuple[str, str]:
        """Account of the subscriber: kind and name of its actor."""
        return self.actor.kind, self.actor.name

    def enqueue(self, chunk: bytes) -> bool:
        """Queue a chunk, to be sent after pending replays. Return False if the queue is full."""
        if not self.replays:
            return self.enqueue_before_replays(chunk)
        if self._size + len(chunk) > MAX_BACKLOG_BYTES:
            return False
        self._behind_replays.append(chunk)
        self._size += len(chunk)
        return True

    def enqueue_before_replays(self, chunk: bytes) -> bool:
        """Queue a chunk, to be sent even while replays are pending. Return False if the queue is full."""
        if self._size + len(chunk) > MAX_BACKLOG_BYTES:
            return False
        self._chunks.append(chunk)
        self._size += len(chunk)
        self._ready.set()
        return True

    def finish_replay(self, event_filter: EventFilter, missed: Sequence[bytes] = ()) -> bool:
        """Queue the missed events of a filter and end its replay. Return False if the queue is full."""
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
        """Drop all queued chunks and pending replays."""
        self._chunks.clear()
        self._behind_replays.clear()
        self.replays.clear()
        self._size = 0

    async def next_chunk(self) -> bytes | None:
        """Wait for queued chunks and return some of them, joined. Return None if the subscriber is closed."""
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
        """Close the subscriber and drop its queue. If it is closed already, the first reason is kept."""
        if self.close_reason is None:
            self.close_reason = reason
            self.clear()
            self._ready.set()

    def abort_if_stalled(self) -> None:
        """Abort the connection if the client does not read, so that the service can stop without waiting."""
        if self._bytes_in_write and self._abort is not None:
            self._abort()
