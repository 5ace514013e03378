"""Event loop in a background thread, for the blocking classes of the SDK."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, TypeVar

from meshfleet.errors.mqtt import ConnectionClosed

if TYPE_CHECKING:
    from collections.abc import Coroutine

Result = TypeVar("Result")


class EventLoopThread:
    """Runs an event loop in a background thread, in which other threads can run coroutines."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._background_tasks: set[asyncio.Task[None]] = set()
        # Prevents that coroutines are submitted after the loop has stopped: they would never finish.
        # Reentrant: the garbage collector may call run_in_background in a thread that holds the lock.
        self._lock = threading.RLock()

    def start(self) -> None:
        """Start the background thread, and wait until its event loop is running.

        Raise `ConnectionClosed` if the thread is already running.
        """
        if self._thread is not None:
            raise ConnectionClosed(f"the {self._name} is already open")
        started = threading.Event()
        # A daemon thread, so that a program that exits without closing does not hang.
        self._thread = threading.Thread(target=self._run_loop, args=(started,), name=self._name, daemon=True)
        self._thread.start()
        started.wait()

    def stop(self) -> None:
        """Cancel all running coroutines, stop the event loop, and wait until the thread has ended."""
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is not None:
                loop.call_soon_threadsafe(loop.stop)
        if self._thread is not None:
            self._thread.join()
        self._thread = None

    def run_coroutine(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the background thread and return its result. Ctrl-C cancels the coroutine."""
        with self._lock:
            if self._loop is None:
                coroutine.close()
                raise ConnectionClosed(f"the {self._name} is not open: use it inside its `with` block")
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise ConnectionClosed(f"the {self._name} was closed while a call was waiting") from None
        except BaseException:
            future.cancel()
            raise

    def run_in_background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Start a clean-up coroutine without waiting for its end. Do nothing if the event loop has stopped.

        The garbage collector may call this method in any thread.
        """
        with self._lock:
            if self._loop is None:
                coroutine.close()
            else:
                self._loop.call_soon_threadsafe(self._start_background, coroutine)

    def _start_background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)

    def _run_loop(self, started: threading.Event) -> None:
        with asyncio.Runner() as runner:
            self._loop = loop = runner.get_loop()
            loop.call_soon(started.set)
            loop.run_forever()
            # The runner cancels the running tasks, closes generators, and closes the loop.
