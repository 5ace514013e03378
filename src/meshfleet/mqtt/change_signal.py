"""Signal that wakes coroutines waiting for a change."""

from __future__ import annotations

from asyncio import Future, get_running_loop


class ChangeSignal:
    """Wakes all coroutines that wait for a change. `notify` is cheap while no coroutine waits.

    The signal does not say what changed: wait in a loop that checks the condition.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[Future[None]] = []

    async def wait(self) -> None:
        """Wait until `notify` is called."""
        waiter = get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    def notify(self) -> None:
        """Wake all coroutines that are waiting in `wait`."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
