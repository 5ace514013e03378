"""The methods of asynchronous objects as methods that wait.

A face stands in front of such an object. Each of its methods is a line, and keeps the signature of the one
behind it: `rename = Deed(Devices.rename)`.
"""

from __future__ import annotations

from functools import update_wrapper
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator

    from meshfleet.client.blocking.running import Runner

Behind = TypeVar("Behind")
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Face(Generic[Behind]):
    """Stands in front of an object, and of the loop where that lives."""

    def __init__(self, behind: Behind, runner: Runner) -> None:
        self._behind = behind
        self._runner = runner

    def __repr__(self) -> str:
        return repr(self._behind)


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
    def __get__(
        self, face: Face[Behind], owner: type
    ) -> Callable[Parameters, Generator[Result, None, None]]: ...

    def __get__(
        self, face: Face[Behind] | None, owner: type
    ) -> Self | Callable[Parameters, Generator[Result, None, None]]:
        """The method of one face."""
        if face is None:
            return self
        behind, runner = face._behind, face._runner  # noqa: SLF001 # a part of it

        def go(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Generator[Result, None, None]:
            return runner.walk(self._method(behind, *args, **kwargs))

        return update_wrapper(go, MethodType(self._method, behind))
