"""Short rests between reads under load.

A broker sends message by message, and a reader that is always ready wakes for each of them: waking then
costs ten times what the message does. A reader that lets the socket collect for some milliseconds gets
hundreds at once. When little arrives there is nothing to gain, so an idle connection answers without delay.
"""

from __future__ import annotations

from typing import Final

REST: Final = 0.005
"""Seconds of a rest."""

_BUSY: Final = 32
"""Packets within `REST` that make a connection busy. Fewer cost less to read one by one than a rest does."""

_LARGE: Final = 0x1_0000
"""Bytes of one read that need no rest: waking is a small part of their cost, and more may be waiting."""


class Pace:
    """Decides after every read whether a rest is due."""

    __slots__ = ("_packets", "_since")

    def __init__(self) -> None:
        self._since = 0.0
        self._packets = 0

    def rest_is_due(self, packets: int, size: int, now: float) -> bool:
        """Take note of a read: so many packets, so many bytes, at this time."""
        if now - self._since > REST:
            self._since = now
            self._packets = 0
        self._packets += packets
        return self._packets >= _BUSY and size < _LARGE
