"""Bytes that come in pieces, line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.errors import ServiceRefused

if TYPE_CHECKING:
    from collections.abc import Iterator

_LONGEST: Final = 4 * 1024 * 1024
"""Bytes; a sample has up to 64 KiB, and a live event not much more."""


class Lines:
    """Cuts a stream into lines. What comes behind the last end of a line is none."""

    def __init__(self, end: bytes) -> None:
        self._end = end
        self._begun = bytearray()

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The lines that end in this piece, without their ends."""
        looked_at = max(0, len(self._begun) - len(self._end) + 1)
        self._begun += piece
        begin = 0
        while (found := self._begun.find(self._end, max(begin, looked_at))) >= 0:
            yield bytes(self._begun[begin:found])
            begin = found + len(self._end)
        del self._begun[:begin]
        if len(self._begun) > _LONGEST:
            raise ServiceRefused("a line of the answer does not end: this is not a Meshfleet service")
