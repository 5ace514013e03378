"""Wakes those who wait for a change."""

from __future__ import annotations

from asyncio import Future, get_running_loop


class ChangeSignal:
    """Rings for everybody who waits; costs next to nothing while nobody does.

    A ring says that something changed, not what: wait in a loop that looks.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[Future[None]] = []

    async def wait(self) -> None:
        """Sleep until the next ring."""
        woken = get_running_loop().create_future()
        self._waiting.append(woken)
        try:
            await woken
        finally:
            if woken in self._waiting:
                self._waiting.remove(woken)

    def notify(self) -> None:
        """Wake everybody who waits now."""
        waiting, self._waiting = self._waiting, []
        for woken in waiting:
            if not woken.done():
                woken.set_result(None)
