"""When series with holes are to be looked at, and in whose turn.

Whoever has many holes waits for his own, and nobody else does: those who are due have their turns one after
the other, gateway by gateway.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from meshfleet.service.acks.series import Key

_AT_ONCE: Final = 2_000
"""Series whose time may come in one go; others of that moment have to wait for the next."""


class Agenda:
    """Knows who is due. A series that was put somewhere else since is passed over."""

    def __init__(self) -> None:
        self._due_at: dict[Key, int] = {}
        self._later: list[tuple[int, Key, int]] = []
        """A heap: when, what, and whose."""
        self._turns: dict[int, deque[Key]] = {}
        """What is due, by whose it is, in the order of their turns."""
        self._called_at = 0

    def __len__(self) -> int:
        """How many series are to be looked at."""
        return len(self._due_at)

    def put(self, key: Key, owner: int, at: int | None) -> None:
        """Look at a series at that moment, if not sooner; None: not at all."""
        if at is not None and at < self._due_at.get(key, at + 1):
            self._due_at[key] = at
            if at <= self._called_at:
                self._queue(key, owner)
            else:
                heappush(self._later, (at, key, owner))

    def drop(self, key: Key) -> None:
        """A series need not be looked at any more."""
        self._due_at.pop(key, None)

    def clear(self) -> None:
        """Look at nothing any more."""
        self._due_at.clear()
        self._later.clear()
        self._turns.clear()
        self._called_at = 0

    def call(self, now: int) -> None:
        """Let those whose time has come wait for their turn."""
        self._called_at = now
        for _ in range(_AT_ONCE):
            if not self._later or self._later[0][0] > now:
                return
            at, key, owner = heappop(self._later)
            if self._due_at.get(key) == at:
                self._queue(key, owner)

    def take(self) -> tuple[Key, int] | None:
        """Take out the next, and whose it is; None: nobody is due."""
        while self._turns:
            owner = next(iter(self._turns))
            keys = self._turns.pop(owner)
            key = keys.popleft()
            if keys:
                self._turns[owner] = keys  # behind all others
            if self._due_at.pop(key, None) is not None:
                return key, owner
        return None

    def _queue(self, key: Key, owner: int) -> None:
        self._turns.setdefault(owner, deque()).append(key)
