"""An event loop in a thread of its own, for programs that have none."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, TypeVar

from meshfleet.errors.mqtt import LinkClosed

if TYPE_CHECKING:
    from collections.abc import Coroutine

Result = TypeVar("Result")


class EventLoopThread:
    """Runs what is asynchronous, and lets any thread wait for it. It lasts from `start` to `stop`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._background_tasks: set[asyncio.Task[None]] = set()
        # Nothing gets in behind the end, where nobody would see to it. The garbage collector may come in the
        # middle, and must not wait for itself.
        self._lock = threading.RLock()

    def start(self) -> None:
        """Begin."""
        if self._thread is not None:
            raise LinkClosed(f"the {self._name} is in use already")
        started = threading.Event()
        # A daemon: a program that ends in the middle of everything must not wait for us.
        self._thread = threading.Thread(target=self._run_loop, args=(started,), name=self._name, daemon=True)
        self._thread.start()
        started.wait()

    def stop(self) -> None:
        """End, with all that is still under way."""
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is not None:
                loop.call_soon_threadsafe(loop.stop)
        if self._thread is not None:
            self._thread.join()
        self._thread = None

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Wait for some work. Who stops waiting, as by Ctrl-C, stops the work."""
        with self._lock:
            if self._loop is None:
                coroutine.close()
                raise LinkClosed(f"the {self._name} is not open: use it inside of its `with` block")
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise LinkClosed(f"the {self._name} was closed meanwhile") from None
        except BaseException:
            future.cancel()
            raise

    def run_in_background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Have some last work done without waiting: the garbage collector may ask, in any thread."""
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
            # Leaving cancels what is under way, closes generators, and closes the loop.
