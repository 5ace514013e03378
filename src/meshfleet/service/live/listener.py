"""Somebody who listens: what waits for them, and how they end."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.service.accounts.model import Actor
    from meshfleet.service.live.event import Form
    from meshfleet.service.live.want import Want

_BACKLOG: Final = 4 * 1024 * 1024
"""Bytes that may wait for a listener."""

_AT_ONCE: Final = 256 * 1024
"""Bytes that are written together; the network may hold them, so they do not count as waiting."""


class Ending(NamedTuple):
    """Why it is over."""

    code: int
    """The close code of a WebSocket."""
    word: str
    reason: str


GONE: Final = Ending(1000, "gone", "the client left")
STOPPED: Final = Ending(1012, "stopped", "the service stops; come again")


class Listener:
    """A stream or a WebSocket, seen from inside. What it does not take in time is not kept for it."""

    def __init__(
        self,
        form: Form,
        actor: Actor,
        bearer: str,
        *,
        abort: Callable[[], None] | None = None,
        comment: bytes = b"",
    ) -> None:
        self.form = form
        self.actor = actor
        self.bearer = bearer
        self.comment = comment
        """What is said now and then so that nobody thinks the connection is dead."""
        self.wants: frozenset[Want] = frozenset()
        self.commented = 0.0
        self.ending: Ending | None = None
        self._abort = abort
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._ready = asyncio.Event()
        self._is_writing = False

    @property
    def account(self) -> tuple[str, str]:
        """Whose it is."""
        return self.actor.kind, self.actor.name

    def give(self, chunk: bytes) -> bool:
        """Let this wait for it; False: too much would be waiting."""
        if self._size + len(chunk) > _BACKLOG:
            return False
        self._chunks.append(chunk)
        self._size += len(chunk)
        self._ready.set()
        return True

    def drop(self) -> None:
        """Forget what waits."""
        self._chunks.clear()
        self._size = 0

    async def take(self) -> bytes | None:
        """What waits, or the beginning of it; None: it is over."""
        self._is_writing = False
        await self._ready.wait()
        if self.ending is not None:
            return None
        chunks = []
        size = 0
        while self._chunks and size < _AT_ONCE:
            chunks.append(self._chunks.popleft())
            size += len(chunks[-1])
        self._size -= size
        if not self._chunks:
            self._ready.clear()
        self._is_writing = True
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def end(self, ending: Ending) -> None:
        """It is over; the first reason counts."""
        if self.ending is None:
            self.ending = ending
            self.drop()
            self._ready.set()

    def cut(self) -> None:
        """End the connection, if the client takes nothing: nobody will wait for it."""
        if self._is_writing and self._abort is not None:
            self._abort()
