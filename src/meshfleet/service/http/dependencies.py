"""Objects that routes share, such as the database, provided per request.

The Litestar application is built once per process, the slowest part of a start, and serves every service that
runs in the process. Each request therefore brings the objects of its service in a context variable.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from litestar.types import ASGIApp, Receive, Scope, Send

_current_dependencies: Final[ContextVar[object]] = ContextVar("shared")


class DependencyMiddleware:
    """ASGI middleware that provides the objects of one service to the routes inside."""

    def __init__(self, app: ASGIApp, dependencies: object) -> None:
        self._app = app
        self._dependencies = dependencies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request with the objects of this service."""
        token = _current_dependencies.set(self._dependencies)
        try:
            await self._app(scope, receive, send)
        finally:
            _current_dependencies.reset(token)


def build_provider(name: str) -> Callable[[], Any]:
    """Return a Litestar provider that returns the attribute `name` of the current service's objects."""

    def provide() -> Any:
        return getattr(_current_dependencies.get(), name)

    return provide
