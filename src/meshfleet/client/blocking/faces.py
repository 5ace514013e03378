"""The methods of asynchronous objects as methods that wait.

A face stands in front of such an object. Each of its methods is a line, and keeps the signature of the one
behind it: `rename = Deed(Devices.rename)`.
"""

from __future__ import annotations

from functools import update_wrapper
from inspect import signature
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from meshfleet.client.blocking.walking import Items

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from meshfleet.client.blocking.running import Runner


class Openable(Protocol):
    """What lasts as long as a block."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...


Behind = TypeVar("Behind")
OpenableT = TypeVar("OpenableT", bound=Openable)
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Walker = TypeVar("Walker", bound="Callable[..., object]")


class Face(Generic[Behind]):
    """Stands in front of an object, and of the loop where that lives."""

    def __init__(self, behind: Behind, runner: Runner) -> None:
        self._behind = behind
        self._runner = runner

    def __repr__(self) -> str:
        return repr(self._behind)


class Door(Face[OpenableT]):
    """The face of what lasts as long as a `with` block, and its loop with it."""

    def __enter__(self) -> Self:
        self._runner.start()
        try:
            self._runner.run(self._behind.__aenter__())
        except BaseException:
            self._runner.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._runner.run(self._behind.__aexit__())
        finally:
            self._runner.stop()


class Deed(Generic[Behind, Parameters, Result]):
    """A method that waits until the one behind it is done."""

    def __init__(
        self, method: Callable[Concatenate[Behind, Parameters], Coroutine[Any, Any, Result]]
    ) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, face: None, owner: type) -> Self: ...

    @overload
    def __get__(self, face: Face[Behind], owner: type) -> Callable[Parameters, Result]: ...

    def __get__(self, face: Face[Behind] | None, owner: type) -> Self | Callable[Parameters, Result]:
        """The method of one face."""
        if face is None:
            return self
        behind, runner = face._behind, face._runner  # noqa: SLF001 # a part of it

        def do(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            return runner.run(self._method(behind, *args, **kwargs))

        return update_wrapper(do, MethodType(self._method, behind))


class Walk(Generic[Behind, Parameters, Result]):
    """A method that gives one item after the other, and waits for each."""

    def __init__(
        self, method: Callable[Concatenate[Behind, Parameters], AsyncGenerator[Result, None]]
    ) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, face: None, owner: type) -> Self: ...

    @overload
    def __get__(self, face: Face[Behind], owner: type) -> Callable[Parameters, Items[Result]]: ...

    def __get__(self, face: Face[Behind] | None, owner: type) -> Self | Callable[Parameters, Items[Result]]:
        """The method of one face."""
        if face is None:
            return self
        behind, runner = face._behind, face._runner  # noqa: SLF001 # a part of it

        def go(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Items[Result]:
            return Items(self._method(behind, *args, **kwargs), runner)

        return _plain(update_wrapper(go, MethodType(self._method, behind)))


def _plain(go: Walker) -> Walker:
    """The same, which tells those who look at it that its iterator is a plain one."""
    shape = signature(go)
    told = str(shape.return_annotation).replace("AsyncGenerator[", "Items[").replace(", None]", "]")
    go.__annotations__ = {**go.__annotations__, "return": told}
    go.__signature__ = shape.replace(return_annotation=told)  # type: ignore[attr-defined] # inspect knows it
    return go
