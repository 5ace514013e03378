"""Writes the device states that ingest keeps in memory when a request must not miss any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class StateWriter:
    """Access of routes to the flush of ingest, which is created later than they are."""

    def __init__(self) -> None:
        self._flush: Callable[[], Awaitable[None]] | None = None

    def attach(self, flush: Callable[[], Awaitable[None]]) -> None:
        """Set the function that writes all device states in memory."""
        self._flush = flush

    async def write(self) -> None:
        """Write what reports said that were acknowledged before, if ingest runs already."""
        if self._flush is not None:
            await self._flush()
