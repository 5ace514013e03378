"""Serves the console beside the interface for programs.

A path that no program uses is a file of the console, or a place in it: that begins with the same file as any
other, and finds out by itself what to show.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from litestar import Request
from litestar.enums import ScopeType
from litestar.exceptions import MethodNotAllowedException

from meshfleet.service.console import site
from meshfleet.service.http.problems import answer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from litestar.types import ASGIApp, Receive, Scope, Send

    from meshfleet.service.console.site import Page

_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    b"connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""Nothing comes from another host, and nothing is run that was not built."""

_OF_PROGRAMS: Final = ("/api", "/healthz", "/readyz", "/metrics")
_API_PAGE: Final = "/api/docs"
"""The page about the interface is beside it, and a page of the console."""
_PLACE: Final = re.compile(r"/(?:[a-z-]{1,32}(?:/.*)?)?", re.DOTALL)
"""Begins with a plain word, as all places in the console do; behind it are names, which may be anything."""
_NO_GZIP: Final = re.compile(rb"\s*q=0(?:\.0{0,3})?\s*")

_ROUTE: Final = "console"
"""How it is called in the figures."""


class Console:
    """Answers what is of the console, and leaves everything else to what is inside."""

    def __init__(self, inside: ASGIApp, pages: Mapping[str, Page]) -> None:
        self._inside = inside
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; what asks only for the head is a GET here, as everywhere behind the door."""
        if scope["type"] != ScopeType.HTTP or (page := self._page(scope["path"])) is None:
            await self._inside(scope, receive, send)
            return
        scope["path_template"] = _ROUTE
        if scope["method"] != "GET":
            await _refuse(scope, receive, send)
            return
        status, headers, body = _answer(page, scope)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    def _page(self, path: str) -> Page | None:
        if path == _API_PAGE:
            return self._pages[site.START]
        if any(path == each or path.startswith(f"{each}/") for each in _OF_PROGRAMS):
            return None
        found = self._pages.get(path)
        if found is None and _PLACE.fullmatch(path) and not path.startswith(site.ASSETS):
            return self._pages[site.START]
        return found


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    """Say what can be done to a page: it can be read."""
    request: Request[Any, Any, Any] = Request(scope)
    problem = answer(request, MethodNotAllowedException(headers={"allow": "GET"}))
    await problem.to_asgi_response(None, request)(scope, receive, send)


def _answer(page: Page, scope: Scope) -> tuple[HTTPStatus, list[tuple[bytes, bytes]], bytes]:
    caching = b"public, max-age=31536000, immutable" if page.is_immutable else b"no-cache"
    headers = [
        (b"content-security-policy", _POLICY),
        (b"cache-control", caching),
        (b"etag", page.tag),
        (b"vary", b"accept-encoding"),
    ]
    if _has(page, _words(scope, b"if-none-match")):
        return HTTPStatus.NOT_MODIFIED, headers, b""
    body = page.body
    if page.small is not None and _accepts_gzip(_words(scope, b"accept-encoding")):
        body = page.small
        headers.append((b"content-encoding", b"gzip"))
    headers += [
        (b"content-type", page.media_type.encode("ascii")),
        (b"content-length", str(len(body)).encode("ascii")),
    ]
    return HTTPStatus.OK, headers, body


def _words(scope: Scope, wanted: bytes) -> list[bytes]:
    """What a header lists, however often it comes."""
    given = b",".join(value for name, value in scope["headers"] if name == wanted)
    return [word.strip() for word in given.split(b",")]


def _has(page: Page, tags: list[bytes]) -> bool:
    """Whether who asks has it already (RFC 9110, 13.1.2)."""
    return any(tag == b"*" or tag.removeprefix(b"W/") == page.tag.removeprefix(b"W/") for tag in tags)


def _accepts_gzip(codings: list[bytes]) -> bool:
    """Whether gzip is among them, and not as one that must not be used."""
    for coding in codings:
        name, _, weight = coding.partition(b";")
        if name.strip().lower() == b"gzip":
            return _NO_GZIP.fullmatch(weight.lower()) is None
    return False
