"""What routes share.

It comes along with each request: routes are made once in a process, which takes longer than all else at its
start, and answer for every service there.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from litestar.types import ASGIApp, Receive, Scope, Send

_shared: Final[ContextVar[object]] = ContextVar("shared")


class Sharing:
    """Gives the routes inside what they share."""

    def __init__(self, inside: ASGIApp, shared: object) -> None:
        self._inside = inside
        self._shared = shared

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        before = _shared.set(self._shared)
        try:
            await self._inside(scope, receive, send)
        finally:
            _shared.reset(before)


def giving(name: str) -> Callable[[], Any]:
    """What gives a route the part of it that has this name."""

    def give() -> Any:
        return getattr(_shared.get(), name)

    return give
