"""A bell for who runs jobs: whoever has made or changed one rings it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Bell:
    """Nobody needs to hear it: whoever runs jobs also looks by itself, only later."""

    def __init__(self) -> None:
        self._hearers: list[Callable[[], None]] = []

    def hear(self, callback: Callable[[], None]) -> None:
        """Call this whenever it rings."""
        self._hearers.append(callback)

    def ring(self) -> None:
        """There is something to do."""
        for callback in self._hearers:
            callback()
