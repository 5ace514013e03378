"""Provides objects such as the database to the routes, per request.

Building the Litestar application is the slowest part of a start, so one application is built per process and
serves all services in the process. For each request, a context variable holds the objects of its service.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from litestar.types import ASGIApp, Receive, Scope, Send

_current_dependencies: Final[ContextVar[object]] = ContextVar("shared")


class RouteDependencyMiddleware:
    """ASGI middleware that provides the objects of one service, such as its database, to the routes."""

    def __init__(self, app: ASGIApp, dependencies: object) -> None:
        self._app = app
        self._dependencies = dependencies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request with the objects of this service."""
        token = _current_dependencies.set(self._dependencies)
        try:
            await self._app(scope, receive, send)
        finally:
            _current_dependencies.reset(token)


def build_provider(name: str) -> Callable[[], Any]:
    """Return a function that Litestar calls to get an object, such as `database`, for a route argument.

    The object is the one of this name in the service that handles the current request.
    """

    def provide() -> Any:
        return getattr(_current_dependencies.get(), name)

    return provide
