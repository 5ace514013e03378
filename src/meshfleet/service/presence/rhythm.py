"""The rhythm of a device: how often it is heard, and so from when on it is silent (rest-51, rest-52)."""

from __future__ import annotations

from struct import Struct as Form
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Container

_GAPS: Final = 8
_ENOUGH: Final = 3
"""Gaps between heartbeats: how many are remembered, and how many make a rhythm."""

_FORMS: Final = tuple(Form(f"={count}I") for count in range(_GAPS + 1))
"""So many gaps as bytes: small, and quick to take apart, for a million devices have eight each."""
pack_gap: Final = _FORMS[1].pack
OTHERS: Final = _FORMS[_GAPS - 1].size
"""Bytes of the gaps that stay when another one comes."""
WIDEST: Final = 2**32 - 1

UNKNOWN: Final = 20 * 60_000
"""Milliseconds between two heartbeats of a device that is not known well."""

_SHORTEST: Final = 60_000
PATIENCE: Final = 3
"""A device may miss so many heartbeats."""

_BACK: Final = 60_000
"""Milliseconds by which a heartbeat may come out of order; further back it is the clock that was set."""


class Rhythm(Struct, gc=False):
    """What is remembered of a device that is heard. Times are milliseconds, by our own clock if not said."""

    # What every heartbeat touches comes first: of a million devices nearly none is in the processor's memory.
    at: int
    """When it was last heard."""
    gateway: int
    """Through whom."""
    connected: bool
    beat_at: int = 0
    """When its last heartbeat was."""
    beat_gateway: int = 0
    """Through whom."""
    gaps: bytes = b""
    """The last ones in milliseconds, the newest first."""
    due: int = 0
    """When it is to be looked at again, as the wheel counts."""
    usual: int = UNKNOWN
    """Milliseconds between its heartbeats as known before."""
    other: int = 0
    other_at: int = 0
    """Through whom else it was heard before, and when."""

    def hear(self, gateway: int, at: int) -> None:
        """It was heard."""
        if gateway != self.gateway:
            self.other, self.other_at = self.gateway, self.at
            self.gateway = gateway
        self.at = max(self.at, at)

    def beat(self, gateway: int, time: int) -> None:
        """It sent a heartbeat. Another gateway may hear the same one a little earlier or later."""
        gap = time - self.beat_at
        if 0 < gap <= WIDEST:
            if gateway != self.beat_gateway:
                if 2 * gap < self.interval:
                    return
                self.beat_gateway = gateway
            self.gaps = pack_gap(gap) + self.gaps[:OTHERS]
            self.beat_at = time
        elif gap < -_BACK or gap > WIDEST:
            self.beat_gateway, self.beat_at = gateway, time

    @property
    def interval(self) -> int:
        """Milliseconds that usually pass between two heartbeats."""
        count = len(self.gaps) // _FORMS[1].size
        if count < _ENOUGH:
            return self.usual
        gaps: list[int] = sorted(_FORMS[count].unpack(self.gaps))
        return max((gaps[(count - 1) // 2] + gaps[count // 2]) // 2, _SHORTEST)

    @property
    def patience(self) -> int:
        """Milliseconds without a word after which it is silent."""
        return PATIENCE * self.interval

    def fall_back(self, present: Container[int], now: int) -> bool:
        """Its gateway has gone: whether another one that is there hears it."""
        if self.other not in present or now - self.other_at >= self.patience:
            return False
        self.gateway, self.other = self.other, 0
        return True
