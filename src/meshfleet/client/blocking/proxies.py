"""The methods of asynchronous objects as methods that wait.

A face stands in front of such an object. Each of its methods is a line, and keeps the signature of the one
behind it: `rename = Deed(Devices.rename)`.
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

from meshfleet.errors.mqtt import LinkClosed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from meshfleet.client.blocking.event_loop import EventLoopThread


# Items that come one after the other, for programs without an event loop.

Item = TypeVar("Item")

_END: Any = object()
"""Behind the last item."""


class BlockingIterator(Iterator[Item]):
    """One item after the other, each when it is wanted. It is for one thread at a time.

    `close`, or the end of a `with`, returns when nothing is left of it, such as its connection. After a mere
    `break` that happens a moment later.
    """

    def __init__(self, items: AsyncGenerator[Item, None], loop_thread: EventLoopThread) -> None:
        self._generator = _SerializedGenerator(items)
        self._loop_thread = loop_thread
        self._is_over = False
        self._busy = threading.Lock()

    def __next__(self) -> Item:
        """The next item; waits for it."""
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
        """Let go, and wait until that is done."""
        with self._exclusive():
            if not self._is_over:
                self._is_over = True
                with suppress(LinkClosed):  # then all is closed already
                    self._loop_thread.run(self._generator.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._close_in_background()

    def _close_in_background(self) -> None:
        """Let go without waiting: the garbage collector may be in any thread, that of the loop included."""
        if not self._is_over:
            self._is_over = True
            self._loop_thread.run_in_background(self._generator.close())

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise ValueError("another thread waits for the next item")
        try:
            yield
        finally:
            self._busy.release()


class _SerializedGenerator(Generic[Item]):
    """A generator that is closed only when its last step is over, which may take a while to be cancelled."""

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
    """What lasts as long as a block."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...


TargetT = TypeVar("TargetT")
AsyncContextT = TypeVar("AsyncContextT", bound=AsyncContext)
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
MethodT = TypeVar("MethodT", bound="Callable[..., object]")


class Proxy(Generic[TargetT]):
    """Stands in front of an object, and of the loop where that lives."""

    def __init__(self, target: TargetT, loop_thread: EventLoopThread) -> None:
        self._target = target
        self._loop_thread = loop_thread

    def __repr__(self) -> str:
        return repr(self._target)


class ContextProxy(Proxy[AsyncContextT]):
    """The face of what lasts as long as a `with` block, and its loop with it."""

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
    """A method that waits until the one behind it is done."""

    def __init__(
        self, method: Callable[Concatenate[TargetT, Parameters], Coroutine[Any, Any, Result]]
    ) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, face: None, owner: type) -> Self: ...

    @overload
    def __get__(self, face: Proxy[TargetT], owner: type) -> Callable[Parameters, Result]: ...

    def __get__(self, face: Proxy[TargetT] | None, owner: type) -> Self | Callable[Parameters, Result]:
        """The method of one face."""
        if face is None:
            return self
        behind, runner = face._target, face._loop_thread  # noqa: SLF001 # a part of it

        def do(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            return runner.run(self._method(behind, *args, **kwargs))

        return update_wrapper(do, MethodType(self._method, behind))


class IteratorMethod(Generic[TargetT, Parameters, Result]):
    """A method that gives one item after the other, and waits for each."""

    def __init__(
        self, method: Callable[Concatenate[TargetT, Parameters], AsyncGenerator[Result, None]]
    ) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, face: None, owner: type) -> Self: ...

    @overload
    def __get__(
        self, face: Proxy[TargetT], owner: type
    ) -> Callable[Parameters, BlockingIterator[Result]]: ...

    def __get__(
        self, face: Proxy[TargetT] | None, owner: type
    ) -> Self | Callable[Parameters, BlockingIterator[Result]]:
        """The method of one face."""
        if face is None:
            return self
        behind, runner = face._target, face._loop_thread  # noqa: SLF001 # a part of it

        def go(*args: Parameters.args, **kwargs: Parameters.kwargs) -> BlockingIterator[Result]:
            return BlockingIterator(self._method(behind, *args, **kwargs), runner)

        return _annotate_as_iterator(update_wrapper(go, MethodType(self._method, behind)))


def _annotate_as_iterator(method: MethodT) -> MethodT:
    """The same, which tells those who look at it that its iterator is a plain one."""
    shape = signature(method)
    told = str(shape.return_annotation).replace("AsyncGenerator[", "Items[").replace(", None]", "]")
    method.__annotations__ = {**method.__annotations__, "return": told}
    method.__signature__ = shape.replace(return_annotation=told)  # type: ignore[attr-defined] # inspect knows it
    return method
