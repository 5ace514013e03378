"""Somebody who listens: what waits for them, and how they end."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from meshfleet.service.accounts.model import Actor
    from meshfleet.service.live.event import Form
    from meshfleet.service.live.replay import Replay
    from meshfleet.service.live.want import Want

BACKLOG: Final = 4 * 1024 * 1024
"""Bytes that may wait for a listener."""

_AT_ONCE: Final = 64 * 1024
"""Bytes that are written together; until the network has taken them, they wait too."""


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
        self.since: dict[Want, int] = {}
        """What it wants, each with the number of the event behind which it is told that."""
        self.replays: dict[Want, Replay] = {}
        """What is to be told to it before all that comes."""
        self.commented = 0.0
        self.ending: Ending | None = None
        self._abort = abort
        self._chunks: deque[bytes] = deque()
        self._late: list[bytes] = []
        """What waits behind replays."""
        self._size = 0
        self._ready = asyncio.Event()
        self._writing = 0

    @property
    def waiting(self) -> int:
        """Bytes that wait for it."""
        return self._size + self._writing

    @property
    def account(self) -> tuple[str, str]:
        """Whose it is."""
        return self.actor.kind, self.actor.name

    def give(self, chunk: bytes) -> bool:
        """Let this wait for it; False: too much would be waiting."""
        if not self.replays:
            return self.give_ahead(chunk)
        if self._size + len(chunk) > BACKLOG:
            return False
        self._late.append(chunk)
        self._size += len(chunk)
        return True

    def give_ahead(self, chunk: bytes) -> bool:
        """The same, and even while something is told again."""
        if self._size + len(chunk) > BACKLOG:
            return False
        self._chunks.append(chunk)
        self._size += len(chunk)
        self._ready.set()
        return True

    def catch_up(self, want: Want, missed: Sequence[bytes] = ()) -> bool:
        """Of this want all is told again, or need not be; False: too much would be waiting."""
        if self._size + sum(map(len, missed)) > BACKLOG:
            return False
        self.replays.pop(want, None)
        for chunk in missed:
            self.give_ahead(chunk)
        if self._late and not self.replays:
            self._chunks.extend(self._late)
            self._late.clear()
            self._ready.set()
        return True

    def drop(self) -> None:
        """Forget what waits, and what was to be told again."""
        self._chunks.clear()
        self._late.clear()
        self.replays.clear()
        self._size = 0

    async def take(self) -> bytes | None:
        """What waits, or the beginning of it; None: it is over."""
        self._writing = 0
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
        self._writing = size
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def end(self, ending: Ending) -> None:
        """It is over; the first reason counts."""
        if self.ending is None:
            self.ending = ending
            self.drop()
            self._ready.set()

    def cut(self) -> None:
        """End the connection, if the client takes nothing: nobody will wait for it."""
        if self._writing and self._abort is not None:
            self._abort()
