"""Series whose clock nobody believes: they are asked for what is missing, and not in the ledger.

Nobody knows when their samples were made, so nobody can say up to when they are complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from meshfleet.service.acks.series import CYCLE, PATIENCE, is_ahead

if TYPE_CHECKING:
    from meshfleet.service.acks.series import Key

_MOST: Final = 20_000
"""How many are remembered; beyond that, those that were not heard for the longest are forgotten."""


class _Stray(Struct, gc=False):
    seq: int
    asked_at: int = 0
    """When a backfill was last asked for; 0: never, so it is asked for what came before we knew of it."""
    is_holed: bool = False


class Strays:
    """Remembers how far they have counted."""

    def __init__(self) -> None:
        self._known: dict[Key, _Stray] = {}

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._known)

    def wants_backfill(self, key: Key, seq: int, outage: int, now: int) -> bool:
        """A sample came; tells whether to ask for what is missing before it (ack-11, ack-12)."""
        stray = self._known.pop(key, None)
        if stray is None:
            self._begin(key, seq)
            return False
        self._known[key] = stray  # as the one that was heard last
        if not is_ahead(seq, stray.seq):
            return False  # of a backfill, or once more (ack-21)
        stray.is_holed = stray.is_holed or (seq - stray.seq) % CYCLE != 1
        stray.seq = seq
        if now - stray.asked_at < PATIENCE or not (stray.is_holed or stray.asked_at < outage):
            return False
        stray.asked_at, stray.is_holed = now, False
        return True

    def go_back_to(self, now: int) -> None:
        """Take nothing for later than now: the clock of this machine was set back."""
        for stray in self._known.values():
            stray.asked_at = min(stray.asked_at, now)

    def _begin(self, key: Key, seq: int) -> None:
        if len(self._known) >= _MOST:
            del self._known[next(iter(self._known))]
        self._known[key] = _Stray(seq)
