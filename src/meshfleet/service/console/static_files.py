"""The files of the console as they were built, in memory: they are small, and never change while we run."""

from __future__ import annotations

import hashlib
import re
from http import HTTPStatus
from importlib.resources import files
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from litestar import Request
from litestar.enums import ScopeType
from litestar.exceptions import MethodNotAllowedException

from meshfleet.service.http.problems import build_problem_response

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from importlib.resources.abc import Traversable

    from litestar.types import ASGIApp, Receive, Scope, Send


INDEX_PATH: Final = "/index.html"
"""The page that every address of the console begins with."""

ASSETS_PREFIX: Final = "/assets/"
"""Names here hold a digest of what is inside."""

_GZIP_SUFFIX: Final = ".gz"

_MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".md": "text/markdown; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}
"""Ours, since those of a machine differ, and a browser runs no script that is said to be something else."""

_NOT_BUILT_PAGE: Final = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Meshfleet</title></head>
<body><h1>The console was not built</h1>
<p>This installation was made without it. Install the package again without MESHFLEET_CONSOLE=skip;
in a clone, run scripts/build_console.py with the Python of .venv, and start again.
The interface for programs works; its document:
<a href="/api/v1/openapi.json">/api/v1/openapi.json</a></p>
</body></html>
"""


class StaticFile(NamedTuple):
    """A file, and how it is sent."""

    body: bytes
    gzip_body: bytes | None
    """The same, compressed."""
    media_type: str
    is_immutable: bool
    """Whether another content would have another name."""
    etag: bytes
    """Another one for another content; weak, since compressed or not it is the same."""


def load_static_files(folder: Traversable | None = None) -> dict[str, StaticFile]:
    """All files by their path; if nothing was built, a page that says so."""
    folder = folder or files("meshfleet.service.console") / "site"
    found = dict(_read_folder(folder, "")) if folder.is_dir() else {}
    if INDEX_PATH not in found:
        found = {INDEX_PATH: _NOT_BUILT_PAGE}
    return {
        path: _build_static_file(path, body, found.get(path + _GZIP_SUFFIX))
        for path, body in found.items()
        if not path.endswith(_GZIP_SUFFIX)
    }


def _read_folder(folder: Traversable, above: str) -> Iterator[tuple[str, bytes]]:
    for each in folder.iterdir():
        path = f"{above}/{each.name}"
        if each.name.startswith("."):  # a note of who built it
            continue
        if each.is_dir():
            yield from _read_folder(each, path)
        else:
            yield path, each.read_bytes()


def _build_static_file(path: str, body: bytes, small: bytes | None) -> StaticFile:
    media_type = _MEDIA_TYPES.get(PurePosixPath(path).suffix, "application/octet-stream")
    tag = b'W/"' + hashlib.sha256(body).hexdigest()[:32].encode("ascii") + b'"'
    return StaticFile(body, small, media_type, path.startswith(ASSETS_PREFIX), tag)


# Serves the console beside the interface for programs.

_CONTENT_SECURITY_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    b"connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""Nothing comes from another host, and nothing is run that was not built."""

_API_PREFIXES: Final = ("/api", "/healthz", "/readyz", "/metrics")
_API_DOCS_PATH: Final = "/api/docs"
"""The page about the interface is beside it, and a page of the console."""
_CONSOLE_PATH: Final = re.compile(r"/(?:[a-z-]{1,32}(?:/.*)?)?", re.DOTALL)
"""Begins with a plain word, as all places in the console do; behind it are names, which may be anything."""
_NO_GZIP: Final = re.compile(rb"\s*q=0(?:\.0{0,3})?\s*")

_METRICS_ROUTE: Final = "console"
"""How it is called in the figures."""


class ConsoleMiddleware:
    """Answers what is of the console, and leaves everything else to what is inside."""

    def __init__(self, app: ASGIApp, static_files: Mapping[str, StaticFile]) -> None:
        self._app = app
        self._static_files = static_files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; what asks only for the head is a GET here, as everywhere behind the door."""
        if scope["type"] != ScopeType.HTTP or (page := self._find_file(scope["path"])) is None:
            await self._app(scope, receive, send)
            return
        scope["path_template"] = _METRICS_ROUTE
        if scope["method"] != "GET":
            await _reject_method(scope, receive, send)
            return
        status, headers, body = _build_response(page, scope)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    def _find_file(self, path: str) -> StaticFile | None:
        if path == _API_DOCS_PATH:
            return self._static_files[INDEX_PATH]
        if any(path == each or path.startswith(f"{each}/") for each in _API_PREFIXES):
            return None
        found = self._static_files.get(path)
        if found is None and _CONSOLE_PATH.fullmatch(path) and not path.startswith(ASSETS_PREFIX):
            return self._static_files[INDEX_PATH]
        return found


async def _reject_method(scope: Scope, receive: Receive, send: Send) -> None:
    """Say what can be done to a page: it can be read."""
    request: Request[Any, Any, Any] = Request(scope)
    problem = build_problem_response(request, MethodNotAllowedException(headers={"allow": "GET"}))
    await problem.to_asgi_response(None, request)(scope, receive, send)


def _build_response(page: StaticFile, scope: Scope) -> tuple[HTTPStatus, list[tuple[bytes, bytes]], bytes]:
    caching = b"public, max-age=31536000, immutable" if page.is_immutable else b"no-cache"
    headers = [
        (b"content-security-policy", _CONTENT_SECURITY_POLICY),
        (b"cache-control", caching),
        (b"etag", page.etag),
        (b"vary", b"accept-encoding"),
    ]
    if _matches_etag(page, _split_header(scope, b"if-none-match")):
        return HTTPStatus.NOT_MODIFIED, headers, b""
    body = page.body
    if page.gzip_body is not None and _accepts_gzip(_split_header(scope, b"accept-encoding")):
        body = page.gzip_body
        headers.append((b"content-encoding", b"gzip"))
    headers += [
        (b"content-type", page.media_type.encode("ascii")),
        (b"content-length", str(len(body)).encode("ascii")),
    ]
    return HTTPStatus.OK, headers, body


def _split_header(scope: Scope, wanted: bytes) -> list[bytes]:
    """What a header lists, however often it comes."""
    given = b",".join(value for name, value in scope["headers"] if name == wanted)
    return [word.strip() for word in given.split(b",")]


def _matches_etag(page: StaticFile, tags: list[bytes]) -> bool:
    """Whether who asks has it already (RFC 9110, 13.1.2)."""
    return any(tag == b"*" or tag.removeprefix(b"W/") == page.etag.removeprefix(b"W/") for tag in tags)


def _accepts_gzip(codings: list[bytes]) -> bool:
    """Whether gzip is among them, and not as one that must not be used."""
    for coding in codings:
        name, _, weight = coding.partition(b";")
        if name.strip().lower() == b"gzip":
            return _NO_GZIP.fullmatch(weight.lower()) is None
    return False
