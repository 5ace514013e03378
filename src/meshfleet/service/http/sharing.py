"""What routes share.

It comes along with each request: routes are made once in a process, which takes longer than all else at its
start, and answer for every service there.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from litestar.types import ASGIApp, Receive, Scope, Send

_things: Final[ContextVar[Mapping[str, object]]] = ContextVar("things")


class Sharing:
    """Gives the routes inside what they share, each thing by its name."""

    def __init__(self, inside: ASGIApp, things: Mapping[str, object]) -> None:
        self._inside = inside
        self._things = things

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        before = _things.set(self._things)
        try:
            await self._inside(scope, receive, send)
        finally:
            _things.reset(before)


def giving(name: str) -> Callable[[], Any]:
    """What gives a route the thing of this name."""

    def give() -> Any:
        return _things.get()[name]

    return give
