"""The outermost layer around all routes: paths as they were sent, bodies in time, safe headers, figures."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from litestar.enums import ScopeType

from meshfleet.errors import TooSlow, WentAway
from meshfleet.rest import FIRMWARE_PATH
from meshfleet.service.http.request import decode_path

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Message, Receive, Scope, Send

    from meshfleet.service.http.limits import HttpLimits
    from meshfleet.service.metrics import Metrics


# Headers that keep browsers from doing what nobody wants.

SECURITY_HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""On every answer that does not say otherwise itself."""

STRICT_TRANSPORT_SECURITY: Final = "max-age=31536000"
"""On every answer over TLS."""


_RAW_HEADERS: Final = [
    (name.encode("ascii"), value.encode("ascii")) for name, value in SECURITY_HEADERS.items()
]
_RAW_TLS_HEADERS: Final = [
    *_RAW_HEADERS,
    (b"strict-transport-security", STRICT_TRANSPORT_SECURITY.encode("ascii")),
]
"""As they are sent."""

_UPLOADS: Final = {("POST", FIRMWARE_PATH)}
"""Nobody but an admin gets as far as to send the body."""


class OuterMiddleware:
    """Lets requests in to an application, and its answers out."""

    def __init__(self, app: ASGIApp, metrics: Metrics, limits: HttpLimits) -> None:
        self._app = app
        self._metrics = metrics
        self._body_seconds = limits.body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        answer = _ResponseSender(send, secure=scope["scheme"] == "https")
        # A copy: the server goes on with its own, and leaves out the body of the answer to a HEAD by it.
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        scope["state"]["only_head"] = scope["method"] == "HEAD"  # for answers that have no end
        scope = {**scope, "method": method, "path": decode_path(scope["raw_path"])}
        is_upload = (method, scope["path"].rstrip("/")) in _UPLOADS
        try:
            await self._app(
                scope, _with_body_timeout(receive, self._body_seconds, per_chunk=is_upload), answer
            )
        finally:
            route = scope.get("path_template") or "none"
            self._metrics.count_request(scope["method"], route, answer.status, time.perf_counter() - started)


class _ResponseSender:
    """Sends on, with the headers that every answer has."""

    def __init__(self, send: Send, *, secure: bool) -> None:
        self.status = 0
        self._send = send
        self._secure = secure

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            given = list(message["headers"])
            names = {name.lower() for name, _ in given}
            always = _RAW_TLS_HEADERS if self._secure else _RAW_HEADERS
            message["headers"] = [*given, *(each for each in always if each[0] not in names)]
        await self._send(message)


def _with_body_timeout(receive: Receive, seconds: float, *, per_chunk: bool) -> Receive:
    """Receive a body, or give up when it does not come; `anew`: its time begins anew with every piece."""
    clock = asyncio.get_running_loop().time
    until = clock() + seconds
    whole = False

    async def next_part() -> Any:
        nonlocal whole, until
        if per_chunk:
            until = clock() + seconds
        if whole:  # what comes now is that the client goes, and that may take as long as it likes
            return await receive()
        try:
            async with asyncio.timeout_at(until):
                message = await receive()
        except TimeoutError:
            raise TooSlow("the body did not arrive in time") from None
        if message["type"] == "http.disconnect":
            raise WentAway("the client went away in the middle of its request")
        whole = not message.get("more_body", False)
        return message

    return next_part
