"""Blocking proxies of the asynchronous SDK classes.

A proxy wraps one asynchronous object. Each method is defined by one line, such as
`rename = wrap_method(Devices.rename)`, and has the signature and docstring of the wrapped method.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from meshfleet.errors.mqtt import ConnectionClosed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine
    from contextlib import AbstractAsyncContextManager

    from meshfleet.client.blocking.event_loop import EventLoopThread


# Iteration over asynchronous generators without an event loop.

Item = TypeVar("Item")

_END: Any = object()
"""Marker that is returned instead of an item when the asynchronous generator has ended."""


class BlockingIterator(Iterator[Item]):
    """Blocking iterator over an asynchronous generator. Only one thread at a time may use the iterator.

    `close`, or the end of a `with` block of the iterator, waits until the iterator's connection is closed.
    After a `break`, the connection is closed in the background.
    """

    def __init__(self, items: AsyncGenerator[Item, None], loop_thread: EventLoopThread) -> None:
        self._generator = _SerializedGenerator(items)
        self._loop_thread = loop_thread
        self._is_over = False
        self._busy = threading.Lock()

    def __next__(self) -> Item:
        """Wait for the next item of the generator, and return the item."""
        with self._exclusive():
            item: Item = _END if self._is_over else self._next_item()
        if item is _END:
            self._is_over = True
            raise StopIteration
        return item

    def _next_item(self) -> Item:
        try:
            return self._loop_thread.run_coroutine(self._generator.next())
        except BaseException:
            self._close_in_background()
            raise

    def close(self) -> None:
        """Stop the iteration, and wait until the asynchronous generator is closed."""
        with self._exclusive():
            if not self._is_over:
                self._is_over = True
                with suppress(ConnectionClosed):  # the Fleet or Mesh is closed, and the generator with it
                    self._loop_thread.run_coroutine(self._generator.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._close_in_background()

    def _close_in_background(self) -> None:
        """Stop the iteration without waiting, since the garbage collector may call this in the event loop."""
        if not self._is_over:
            self._is_over = True
            self._loop_thread.run_in_background(self._generator.close())

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Raise `ValueError` if another thread is using the iterator."""
        if not self._busy.acquire(blocking=False):
            raise ValueError("another thread is already waiting for the next item")
        try:
            yield
        finally:
            self._busy.release()


class _SerializedGenerator(Generic[Item]):
    """Asynchronous generator whose `close` first waits until a running `next` has ended."""

    def __init__(self, items: AsyncGenerator[Item, None]) -> None:
        self._items = items
        self._lock = asyncio.Lock()

    async def next(self) -> Item:
        async with self._lock:
            return await anext(self._items, _END)

    async def close(self) -> None:
        async with self._lock:
            await self._items.aclose()


TargetT = TypeVar("TargetT")
AsyncContextT = TypeVar("AsyncContextT", bound="AbstractAsyncContextManager[Any]")
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Proxy(Generic[TargetT]):
    """Base class of blocking proxies: an asynchronous object, and the thread that runs its coroutines."""

    def __init__(self, target: TargetT, loop_thread: EventLoopThread) -> None:
        self._target = target
        self._loop_thread = loop_thread

    def __repr__(self) -> str:
        return repr(self._target)


class ContextProxy(Proxy[AsyncContextT]):
    """Blocking proxy of an async context manager. Its `with` block starts and stops the event loop thread."""

    def __enter__(self) -> Self:
        self._loop_thread.start()
        try:
            self._loop_thread.run_coroutine(self._target.__aenter__())
        except BaseException:
            self._loop_thread.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._loop_thread.run_coroutine(self._target.__aexit__(None, None, None))
        finally:
            self._loop_thread.stop()


def wrap_method(
    method: Callable[Concatenate[TargetT, Parameters], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Proxy[TargetT], Parameters], Result]:
    """Return a method of a proxy that calls an asynchronous method, and blocks until the result arrives."""

    @wraps(method)
    def call(self: Proxy[TargetT], /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        return self._loop_thread.run_coroutine(method(self._target, *args, **kwargs))

    return call


def wrap_generator(
    method: Callable[Concatenate[TargetT, Parameters], AsyncGenerator[Result, None]],
) -> Callable[Concatenate[Proxy[TargetT], Parameters], BlockingIterator[Result]]:
    """Return a method of a proxy that calls an async generator method, and returns a blocking iterator."""

    @wraps(method)
    def iterate(
        self: Proxy[TargetT], /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> BlockingIterator[Result]:
        return BlockingIterator(method(self._target, *args, **kwargs), self._loop_thread)

    # For `inspect.signature` and `help`, which would show the annotation of the wrapped method.
    original = signature(method)
    annotation = (
        str(original.return_annotation)
        .replace("AsyncGenerator[", "BlockingIterator[")
        .replace(", None]", "]")
    )
    iterate.__annotations__ = {**iterate.__annotations__, "return": annotation}
    iterate.__signature__ = original.replace(return_annotation=annotation)  # type: ignore[attr-defined] # read by inspect
    return iterate
