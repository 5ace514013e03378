"""Items that come one after the other, for programs without an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from meshfleet.errors import LinkClosed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from meshfleet.client.blocking.running import Runner

Item = TypeVar("Item")

_END: Any = object()
"""Behind the last item."""


class Items(Iterator[Item]):
    """One item after the other, each when it is wanted. It is for one thread at a time.

    `close`, or the end of a `with`, returns when nothing is left of it, such as its connection. After a mere
    `break` that happens a moment later.
    """

    def __init__(self, items: AsyncGenerator[Item, None], runner: Runner) -> None:
        self._steps = _Steps(items)
        self._runner = runner
        self._is_over = False
        self._busy = threading.Lock()

    def __next__(self) -> Item:
        """The next item; waits for it."""
        with self._alone():
            item: Item = _END if self._is_over else self._step()
        if item is _END:
            self._is_over = True
            raise StopIteration
        return item

    def _step(self) -> Item:
        try:
            return self._runner.run(self._steps.next())
        except BaseException:
            self._leave()
            raise

    def close(self) -> None:
        """Let go, and wait until that is done."""
        with self._alone():
            if not self._is_over:
                self._is_over = True
                with suppress(LinkClosed):  # then all is closed already
                    self._runner.run(self._steps.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._leave()

    def _leave(self) -> None:
        """Let go without waiting: the garbage collector may be in any thread, that of the loop included."""
        if not self._is_over:
            self._is_over = True
            self._runner.leave(self._steps.close())

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise ValueError("another thread waits for the next item")
        try:
            yield
        finally:
            self._busy.release()


class _Steps(Generic[Item]):
    """A generator that is closed only when its last step is over, which may take a while to be cancelled."""

    def __init__(self, items: AsyncGenerator[Item, None]) -> None:
        self._items = items
        self._turn = asyncio.Lock()

    async def next(self) -> Item:
        async with self._turn:
            return await anext(self._items, _END)

    async def close(self) -> None:
        async with self._turn:
            await self._items.aclose()
