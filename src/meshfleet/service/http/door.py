"""The outermost layer around all routes: paths as they were sent, bodies in time, safe headers, figures."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from litestar.enums import ScopeType

from meshfleet.errors import TooSlow, WentAway
from meshfleet.service.http.headers import SAFE, TRANSPORT_SECURITY
from meshfleet.service.http.paths import canonical
from meshfleet.wire.rest import FIRMWARE

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Message, Receive, Scope, Send

    from meshfleet.service.http.limits import HttpLimits
    from meshfleet.service.operations.figures import Figures

_SAFE: Final = [(name.encode("ascii"), value.encode("ascii")) for name, value in SAFE.items()]
_SECURE: Final = [*_SAFE, (b"strict-transport-security", TRANSPORT_SECURITY.encode("ascii"))]
"""As they are sent."""

_UPLOADS: Final = {("POST", FIRMWARE)}
"""Nobody but an admin gets as far as to send the body."""


class Door:
    """Lets requests in to an application, and its answers out."""

    def __init__(self, inside: ASGIApp, figures: Figures, limits: HttpLimits) -> None:
        self._inside = inside
        self._figures = figures
        self._body_seconds = limits.body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != ScopeType.HTTP:
            await self._inside(scope, receive, send)
            return
        started = time.perf_counter()
        answer = _Answer(send, secure=scope["scheme"] == "https")
        # A copy: the server goes on with its own, and leaves out the body of the answer to a HEAD by it.
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        scope["state"]["only_head"] = scope["method"] == "HEAD"  # for answers that have no end
        scope = {**scope, "method": method, "path": canonical(scope["raw_path"])}
        is_upload = (method, scope["path"].rstrip("/")) in _UPLOADS
        try:
            await self._inside(scope, _in_time(receive, self._body_seconds, anew=is_upload), answer)
        finally:
            route = scope.get("path_template") or "none"
            self._figures.count_request(scope["method"], route, answer.status, time.perf_counter() - started)


class _Answer:
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
            always = _SECURE if self._secure else _SAFE
            message["headers"] = [*given, *(each for each in always if each[0] not in names)]
        await self._send(message)


def _in_time(receive: Receive, seconds: float, *, anew: bool) -> Receive:
    """Receive a body, or give up when it does not come; `anew`: its time begins anew with every piece."""
    clock = asyncio.get_running_loop().time
    until = clock() + seconds
    whole = False

    async def next_part() -> Any:
        nonlocal whole, until
        if anew:
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
