"""Somebody who listens: what waits for them, and how they end."""

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
"""Bytes that may wait for a listener."""

_MAX_CHUNK_BYTES: Final = 64 * 1024
"""Bytes that are written together; until the network has taken them, they wait too."""


class CloseReason(NamedTuple):
    """Why it is over."""

    code: int
    """The close code of a WebSocket."""
    error_code: str
    reason: str


CLIENT_LEFT: Final = CloseReason(1000, "gone", "the client left")
SERVICE_STOPPING: Final = CloseReason(1012, "stopped", "the service stops; come again")


class LiveSubscriber:
    """A stream or a WebSocket, seen from inside. What it does not take in time is not kept for it."""

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
        """What is said now and then so that nobody thinks the connection is dead."""
        self.subscriptions: dict[EventFilter, int] = {}
        """What it wants, each with the number of the event behind which it is told that."""
        self.replays: dict[EventFilter, Replay] = {}
        """What is to be told to it before all that comes."""
        self.last_comment_at = 0.0
        self.close_reason: CloseReason | None = None
        self._abort = abort
        self._chunks: deque[bytes] = deque()
        self._behind_replays: list[bytes] = []
        """What waits behind replays."""
        self._size = 0
        self._ready = asyncio.Event()
        self._bytes_in_write = 0

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait for it."""
        return self._size + self._bytes_in_write

    @property
    def account(self) -> tuple[str, str]:
        """Whose it is."""
        return self.actor.kind, self.actor.name

    def enqueue(self, chunk: bytes) -> bool:
        """Let this wait for it; False: too much would be waiting."""
        if not self.replays:
            return self.enqueue_before_replays(chunk)
        if self._size + len(chunk) > MAX_BACKLOG_BYTES:
            return False
        self._behind_replays.append(chunk)
        self._size += len(chunk)
        return True

    def enqueue_before_replays(self, chunk: bytes) -> bool:
        """The same, and even while something is told again."""
        if self._size + len(chunk) > MAX_BACKLOG_BYTES:
            return False
        self._chunks.append(chunk)
        self._size += len(chunk)
        self._ready.set()
        return True

    def finish_replay(self, event_filter: EventFilter, missed: Sequence[bytes] = ()) -> bool:
        """Of this want all is told again, or need not be; False: too much would be waiting."""
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
        """Forget what waits, and what was to be told again."""
        self._chunks.clear()
        self._behind_replays.clear()
        self.replays.clear()
        self._size = 0

    async def next_chunk(self) -> bytes | None:
        """What waits, or the beginning of it; None: it is over."""
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
        """It is over; the first reason counts."""
        if self.close_reason is None:
            self.close_reason = reason
            self.clear()
            self._ready.set()

    def abort_if_stalled(self) -> None:
        """End the connection, if the client takes nothing: nobody will wait for it."""
        if self._bytes_in_write and self._abort is not None:
            self._abort()
