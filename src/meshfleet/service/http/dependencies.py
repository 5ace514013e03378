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

_current_dependencies: Final[ContextVar[object]] = ContextVar("shared")


class DependencyMiddleware:
    """Gives the routes inside what they share."""

    def __init__(self, app: ASGIApp, dependencies: object) -> None:
        self._app = app
        self._dependencies = dependencies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        before = _current_dependencies.set(self._dependencies)
        try:
            await self._app(scope, receive, send)
        finally:
            _current_dependencies.reset(before)


def build_provider(name: str) -> Callable[[], Any]:
    """What gives a route the part of it that has this name."""

    def give() -> Any:
        return getattr(_current_dependencies.get(), name)

    return give
