"""Keep-alive: when to say something, and when the broker must be dead. The caller brings the clock."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

BEATS: Final = 3
"""How often to ask within a keep-alive interval, so that less than a whole one passes without a word."""


class Beat(Enum):
    """What to do now."""

    FINE = auto()
    PING = auto()
    DEAD = auto()


class Pulse:
    """Watches a connection: tell it what happens, and ask it at every beat."""

    __slots__ = ("_pinged", "heard", "spoken")

    def __init__(self) -> None:
        self.heard = False
        self.spoken = False
        self._pinged = False

    def beat(self) -> Beat:
        """Ping, unless something was said and heard since the last beat; dead, if a ping went unheard."""
        heard, spoken, pinged = self.heard, self.spoken, self._pinged
        self.heard = self.spoken = self._pinged = False
        if heard and spoken:
            return Beat.FINE
        if pinged and not heard:
            return Beat.DEAD
        self._pinged = True
        return Beat.PING
