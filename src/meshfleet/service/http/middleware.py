"""HTTP middleware around all routes: path decoding, body timeouts, security headers, request metrics."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING, Any, Final

from litestar.enums import ScopeType

from meshfleet.errors import RequestAborted, RequestTimeout
from meshfleet.rest.firmware import FIRMWARE_PATH
from meshfleet.rest.paths import SITES_PATH
from meshfleet.service.http.request import decode_path

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Message, Receive, Scope, Send

    from meshfleet.service.http.limits import HttpLimits
    from meshfleet.service.metrics import Metrics


# Security headers for browsers.

SECURITY_HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Headers that are added to every HTTP response, unless the route sets them itself."""

STRICT_TRANSPORT_SECURITY: Final = "max-age=31536000"
"""Value of the header `Strict-Transport-Security`, for every response over TLS."""

_RAW_HEADERS: Final = [
    (name.encode("ascii"), value.encode("ascii")) for name, value in SECURITY_HEADERS.items()
]
_RAW_TLS_HEADERS: Final = [
    *_RAW_HEADERS,
    (b"strict-transport-security", STRICT_TRANSPORT_SECURITY.encode("ascii")),
]
"""Headers added to responses over TLS, as byte strings for ASGI."""

_UPLOADS: Final = re.compile(rf"POST {FIRMWARE_PATH}/?|PUT {SITES_PATH}/[^/]+/floors/[^/]+/plan/?")
"""Methods and paths of uploads, for which the body timeout applies to each chunk of the body."""


class MetricsAndLimitsMiddleware:
    """ASGI middleware around the whole application: metrics, body time limits and security headers."""

    def __init__(self, app: ASGIApp, metrics: Metrics, limits: HttpLimits) -> None:
        self._app = app
        self._metrics = metrics
        self._body_seconds = limits.body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request and count it in the metrics."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        started_at = time.perf_counter()
        response = _ResponseSender(send, secure=scope["scheme"] == "https")
        # A copy: the server keeps the original, whose method makes it omit the body of a HEAD response.
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        scope["state"]["only_head"] = scope["method"] == "HEAD"  # for endless responses
        scope = {**scope, "method": method, "path": decode_path(scope["raw_path"])}
        is_upload = _UPLOADS.fullmatch(f"{method} {scope['path']}") is not None
        try:
            await self._app(
                scope, _with_body_timeout(receive, self._body_seconds, per_chunk=is_upload), response
            )
        finally:
            route = scope.get("path_template") or "none"
            self._metrics.count_request(
                scope["method"], route, response.status, time.perf_counter() - started_at
            )


class _ResponseSender:
    """ASGI `send` function of one request that adds security headers and stores the response status."""

    def __init__(self, send: Send, *, secure: bool) -> None:
        self.status = 0
        self._send = send
        self._secure = secure

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message["headers"])
            names = {name.lower() for name, _ in headers}
            defaults = _RAW_TLS_HEADERS if self._secure else _RAW_HEADERS
            message["headers"] = [*headers, *(each for each in defaults if each[0] not in names)]
        await self._send(message)


def _with_body_timeout(receive: Receive, seconds: float, *, per_chunk: bool) -> Receive:
    """Return an ASGI `receive` that raises `RequestTimeout` if the body does not arrive within `seconds`.

    With `per_chunk`, the timeout applies to each chunk of the body instead of the whole body.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    is_complete = False

    async def receive_in_time() -> Any:
        nonlocal is_complete, deadline
        if per_chunk:
            deadline = clock() + seconds
        if is_complete:  # the next message is the disconnect, which may take any time
            return await receive()
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            raise RequestTimeout("the request body did not arrive in time") from None
        if message["type"] == "http.disconnect":
            raise RequestAborted("the client disconnected before its request was complete")
        is_complete = not message.get("more_body", False)
        return message

    return receive_in_time
