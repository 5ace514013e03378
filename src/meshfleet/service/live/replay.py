"""What was missed is told again: account by account, a moment at a time, so that nobody waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from meshfleet.service.live.listener import BACKLOG

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.service.live.event import Event
    from meshfleet.service.live.listener import Listener
    from meshfleet.service.live.ring import Coverage, Ring
    from meshfleet.service.live.want import Want

_log = logging.getLogger(__name__)

_SLICE: Final = 0.002
"""Seconds for which events are looked through at once; then for as long others have their turn."""

_PORTION: Final = 64
"""Events between two looks at the clock."""

_PIECE: Final = 64 * 1024
"""Bytes of what is told again that wait as one."""


class Replay:
    """What one listener missed of one want: the events behind one number, up to another."""

    def __init__(self, listener: Listener, want: Want, after: int, until: int) -> None:
        self.listener = listener
        self.want = want
        self.after = after
        self.until = until
        self._place = after
        self._others: list[tuple[Want, int]] | None = None
        """What else is told to the listener, and from where on; None: nobody looked yet."""
        self._found: dict[int, Event] = {}
        """Of each device only its newest state, by a number below zero."""
        self._size = 0

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.listener.ending is not None or self.listener.replays.get(self.want) is not self

    def begin(self, coverage: Coverage) -> bool:
        """Begin, or go on; False: not all was published that it is about."""
        if self._others is None:
            told = self.listener.since.items()
            # Those that are still to be told again leave out what this one tells, not the other way round.
            self._others = [each for each in told if each[0] not in self.listener.replays]
            return coverage.reaches(self.want, self.after)
        return True

    def go_on(self, ring: Ring, deadline: float, clock: Callable[[], float]) -> bool | None:
        """Look for a while; True: all is found; None: it is not known any more, or too much."""
        while clock() < deadline:
            if not ring.reaches(self._place):
                return None
            events = ring.behind(self._place, _PORTION)
            for event in events:
                if event.number > self.until:
                    return True
                self._consider(event)
                if self._size > BACKLOG:
                    return None
            if not events:
                return True
            self._place = events[-1].number
        return False

    def pieces(self) -> list[bytes]:
        """What is to be told."""
        pieces: list[bytes] = []
        piece: list[bytes] = []
        size = 0
        for event in self._found.values():
            piece.append(self.listener.form(event))
            size += len(piece[-1])
            if size > _PIECE:
                pieces.append(b"".join(piece))
                piece, size = [], 0
        return [*pieces, b"".join(piece)] if piece else pieces

    def _consider(self, event: Event) -> None:
        if not self.want.takes(event) or self._is_told(event):
            return
        key = ~event.device if event.type == "device" and event.device is not None else event.number
        older = self._found.pop(key, None)
        self._found[key] = event
        self._size += len(event.body) - (0 if older is None else len(older.body))

    def _is_told(self, event: Event) -> bool:
        """Whether another want of the listener, which had it first, takes care of it."""
        return any(since < event.number and each.takes(event) for each, since in self._others or ())


class Replays:
    """All that are under way. Accounts take turns, so nobody waits for one that asks for many."""

    def __init__(self, ring: Ring, coverage: Coverage, miss: Callable[[Listener, Want], None]) -> None:
        self._ring = ring
        self._coverage = coverage
        self._miss = miss
        self._queues: dict[tuple[str, str], deque[Replay]] = {}
        self._task: asyncio.Task[None] | None = None

    def begin(self, replay: Replay) -> None:
        """Tell it when its turn comes; what comes meanwhile waits behind it."""
        replay.listener.replays[replay.want] = replay
        self._queues.setdefault(replay.listener.account, deque()).append(replay)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="live.replays")

    def end(self) -> None:
        """Tell nothing any more."""
        self._queues.clear()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        while self._queues:
            account = next(iter(self._queues))
            queue = self._queues.pop(account)
            while queue and queue[0].is_over:
                queue.popleft()
            if queue:
                self._queues[account] = queue  # behind all others
                self._go_on(queue[0], clock)
                await asyncio.sleep(_SLICE)
        self._task = None

    def _go_on(self, replay: Replay, clock: Callable[[], float]) -> None:
        listener = replay.listener
        try:
            is_known = replay.begin(self._coverage)
            is_found = replay.go_on(self._ring, clock() + _SLICE, clock) if is_known else None
        except Exception:  # noqa: BLE001 # whatever it is, others wait behind it
            _log.exception("what was missed cannot be told")
            is_found = None
        if is_found is None or (is_found and not listener.catch_up(replay.want, replay.pieces())):
            self._miss(listener, replay.want)
