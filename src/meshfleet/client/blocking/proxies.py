"""Blocking proxies of the asynchronous SDK classes.

A proxy wraps one asynchronous object. Each method is defined by one line, such as
`rename = BlockingMethod(Devices.rename)`, and has the signature and docstring of the wrapped method.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import update_wrapper
from inspect import signature
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from meshfleet.errors.mqtt import ConnectionClosed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from meshfleet.client.blocking.event_loop import EventLoopThread


# Iteration over asynchronous generators without an event loop.

Item = TypeVar("Item")

_END: Any = object()
"""Returned instead of an item when the generator has ended."""


class BlockingIterator(Iterator[Item]):
    """Blocking iterator over an asynchronous generator. Only one thread at a time may use it.

    `close`, or leaving the `with` block of the iterator, waits until its connection is closed. After a
    `break` the connection is closed in the background.
    """

    def __init__(self, items: AsyncGenerator[Item, None], loop_thread: EventLoopThread) -> None:
        self._generator = _SerializedGenerator(items)
        self._loop_thread = loop_thread
        self._is_over = False
        self._busy = threading.Lock()

    def __next__(self) -> Item:
        """Wait for the next item and return it."""
        with self._exclusive():
            item: Item = _END if self._is_over else self._next_item()
        if item is _END:
            self._is_over = True
            raise StopIteration
        return item

    def _next_item(self) -> Item:
        try:
            return self._loop_thread.run(self._generator.next())
        except BaseException:
            self._close_in_background()
            raise

    def close(self) -> None:
        """Stop the iteration and wait until its resources are released."""
        with self._exclusive():
            if not self._is_over:
                self._is_over = True
                with suppress(ConnectionClosed):  # the Fleet or Mesh is closed, and the generator with it
                    self._loop_thread.run(self._generator.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._close_in_background()

    def _close_in_background(self) -> None:
        """Stop the iteration without waiting, as the garbage collector may call this in the loop's thread."""
        if not self._is_over:
            self._is_over = True
            self._loop_thread.run_in_background(self._generator.close())

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise ValueError("another thread is already waiting for the next item")
        try:
            yield
        finally:
            self._busy.release()


class _SerializedGenerator(Generic[Item]):
    """Wraps a generator so that `close` first waits until a running `next` has ended or was canceled."""

    def __init__(self, items: AsyncGenerator[Item, None]) -> None:
        self._items = items
        self._lock = asyncio.Lock()

    async def next(self) -> Item:
        async with self._lock:
            return await anext(self._items, _END)

    async def close(self) -> None:
        async with self._lock:
            await self._items.aclose()


class AsyncContext(Protocol):
    """Asynchronous context manager."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...


TargetT = TypeVar("TargetT")
AsyncContextT = TypeVar("AsyncContextT", bound=AsyncContext)
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
MethodT = TypeVar("MethodT", bound="Callable[..., object]")


class Proxy(Generic[TargetT]):
    """Base class of proxies: an asynchronous object, and the event loop thread that runs its methods."""

    def __init__(self, target: TargetT, loop_thread: EventLoopThread) -> None:
        self._target = target
        self._loop_thread = loop_thread

    def __repr__(self) -> str:
        return repr(self._target)


class ContextProxy(Proxy[AsyncContextT]):
    """Proxy of an asynchronous context manager. Entering starts the event loop thread, leaving stops it."""

    def __enter__(self) -> Self:
        self._loop_thread.start()
        try:
            self._loop_thread.run(self._target.__aenter__())
        except BaseException:
            self._loop_thread.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._loop_thread.run(self._target.__aexit__())
        finally:
            self._loop_thread.stop()


class BlockingMethod(Generic[TargetT, Parameters, Result]):
    """Descriptor that makes an asynchronous method of the wrapped object a blocking method of the proxy."""

    def __init__(
        self, method: Callable[Concatenate[TargetT, Parameters], Coroutine[Any, Any, Result]]
    ) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, proxy: None, owner: type) -> Self: ...

    @overload
    def __get__(self, proxy: Proxy[TargetT], owner: type) -> Callable[Parameters, Result]: ...

    def __get__(self, proxy: Proxy[TargetT] | None, owner: type) -> Self | Callable[Parameters, Result]:
        """Bind the method to one proxy."""
        if proxy is None:
            return self
        target, loop_thread = proxy._target, proxy._loop_thread  # noqa: SLF001 # part of the proxy

        def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            return loop_thread.run(self._method(target, *args, **kwargs))

        return update_wrapper(call, MethodType(self._method, target))


class IteratorMethod(Generic[TargetT, Parameters, Result]):
    """Descriptor that makes an asynchronous generator method a method that returns a blocking iterator."""

    def __init__(
        self, method: Callable[Concatenate[TargetT, Parameters], AsyncGenerator[Result, None]]
    ) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, proxy: None, owner: type) -> Self: ...

    @overload
    def __get__(
        self, proxy: Proxy[TargetT], owner: type
    ) -> Callable[Parameters, BlockingIterator[Result]]: ...

    def __get__(
        self, proxy: Proxy[TargetT] | None, owner: type
    ) -> Self | Callable[Parameters, BlockingIterator[Result]]:
        """Bind the method to one proxy."""
        if proxy is None:
            return self
        target, loop_thread = proxy._target, proxy._loop_thread  # noqa: SLF001 # part of the proxy

        def iterate(*args: Parameters.args, **kwargs: Parameters.kwargs) -> BlockingIterator[Result]:
            return BlockingIterator(self._method(target, *args, **kwargs), loop_thread)

        return _annotate_as_iterator(update_wrapper(iterate, MethodType(self._method, target)))


def _annotate_as_iterator(method: MethodT) -> MethodT:
    """Change the return annotation of a method to `BlockingIterator`, for `inspect.signature` and `help`."""
    original = signature(method)
    annotation = (
        str(original.return_annotation)
        .replace("AsyncGenerator[", "BlockingIterator[")
        .replace(", None]", "]")
    )
    method.__annotations__ = {**method.__annotations__, "return": annotation}
    method.__signature__ = original.replace(return_annotation=annotation)  # type: ignore[attr-defined] # read by inspect
    return method
