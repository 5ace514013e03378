"""Runs an async context manager in a thread of its own, where it continues while the test blocks."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from meshfleet.mqtt.client import run_program

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

_Running = TypeVar("_Running")


class BackgroundContext(Generic[_Running]):
    """Runs an async context manager in a thread for the duration of a `with` or `async with` block.

    An error during the start of the context manager is raised at the beginning of the block. A later error
    is raised at the end of the block, unless the block itself failed. An instance can be used only once.
    """

    def __init__(self, name: str, open_context: Callable[[], AbstractAsyncContextManager[_Running]]) -> None:
        self._open_context = open_context
        self._entered: Future[_Running] = Future()
        self._cancel_main: Future[Callable[[], object]] = Future()
        """Function that cancels the context manager; set as soon as the thread runs the context manager."""
        self._is_ending = False
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> _Running:
        self._thread.start()
        try:
            return self._entered.result()
        except BaseException:
            self._stop()
            raise

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        self._stop()
        if self._problem is not None and problem is None:
            raise self._problem

    async def __aenter__(self) -> _Running:
        entering = asyncio.ensure_future(asyncio.to_thread(self.__enter__))
        try:
            return await asyncio.shield(entering)
        except asyncio.CancelledError:
            await asyncio.to_thread(self._stop)
            await asyncio.gather(entering, return_exceptions=True)
            raise

    async def __aexit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        await asyncio.to_thread(self.__exit__, kind, problem, trace)

    def _run(self) -> None:
        try:
            run_program(self._run_until_stopped())
        except BaseException as problem:  # noqa: BLE001 # raised again in the waiting thread
            if not self._entered.done():
                self._entered.set_exception(_unwrap_group(problem))
            else:
                self._problem = _unwrap_group(problem)

    async def _run_until_stopped(self) -> None:
        loop, main = asyncio.get_running_loop(), asyncio.current_task()
        assert main is not None  # noqa: S101 # a coroutine of run_program is a task
        self._cancel_main.set_result(lambda: loop.call_soon_threadsafe(main.cancel))
        async with self._open_context() as running:
            self._entered.set_result(running)
            try:
                await loop.create_future()
            except asyncio.CancelledError:
                if not self._is_ending:
                    raise
                main.uncancel()

    def _stop(self) -> None:
        """Cancel the context manager, unless it is already canceled, and wait until the thread has ended."""
        if not self._is_ending and self._thread.is_alive():
            self._is_ending = True
            with suppress(RuntimeError):  # the loop has just closed by itself
                self._cancel_main.result()()
        self._thread.join()


def _unwrap_group(error: BaseException) -> BaseException:
    """Return the only error inside nested exception groups, or the group if it contains several errors."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
