"""Serves the built files of the browser console from memory."""

from __future__ import annotations

import hashlib
import re
from functools import cache
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
"""Path of the HTML file that is served for every page of the console; its script selects the page."""

ASSETS_PREFIX: Final = "/assets/"
"""Path prefix of files whose names contain a digest of their content, so that they never change."""

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
"""Media types by file suffix, equal on all operating systems. Browsers reject scripts of a wrong type."""

_NOT_BUILT_PAGE: Final = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Meshfleet</title></head>
<body><h1>The console was not built</h1>
<p>This installation does not include it. Install the package again without MESHFLEET_CONSOLE=skip;
in a clone, run scripts/build_console.py with the Python of .venv, and restart the service.
The REST interface works; its description:
<a href="/api/v1/openapi.json">/api/v1/openapi.json</a></p>
</body></html>
"""


class StaticFile(NamedTuple):
    """File of the browser console with the values of its response headers."""

    body: bytes
    gzip_body: bytes | None
    """File content compressed with gzip; None if there is only the uncompressed content."""
    media_type: str
    is_immutable: bool
    """Whether browsers may cache the file forever, because its name contains a digest of its content."""
    etag: bytes
    """Value of the header `ETag`; a weak tag, because compressed and uncompressed content share it."""


@cache
def load_static_files(folder: Traversable | None = None) -> Mapping[str, StaticFile]:
    """Load all files of the browser console by path, or only a hint page if the console was not built.

    Every service in this process shares them: reading and hashing all files takes longer than the rest of its
    start.
    """
    folder = folder or files("meshfleet.service.console") / "site"
    bodies = dict(_read_directory(folder, "")) if folder.is_dir() else {}
    if INDEX_PATH not in bodies:
        bodies = {INDEX_PATH: _NOT_BUILT_PAGE}
    return {
        path: _build_static_file(path, body, bodies.get(path + _GZIP_SUFFIX))
        for path, body in bodies.items()
        if not path.endswith(_GZIP_SUFFIX)
    }


def _read_directory(folder: Traversable, parent: str) -> Iterator[tuple[str, bytes]]:
    for each in folder.iterdir():
        path = f"{parent}/{each.name}"
        if each.name.startswith("."):  # build metadata
            continue
        if each.is_dir():
            yield from _read_directory(each, path)
        else:
            yield path, each.read_bytes()


def _build_static_file(path: str, body: bytes, gzip_body: bytes | None) -> StaticFile:
    media_type = _MEDIA_TYPES.get(PurePosixPath(path).suffix, "application/octet-stream")
    tag = b'W/"' + hashlib.sha256(body).hexdigest()[:32].encode("ascii") + b'"'
    return StaticFile(body, gzip_body, media_type, path.startswith(ASSETS_PREFIX), tag)


# Serving the console on the same port as the REST interface.

_CONTENT_SECURITY_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; "
    b"connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""Value of `Content-Security-Policy`: load nothing from other hosts, run only the built scripts.

Pictures from `blob:` are plans of floors: an address cannot carry the token that they need.
"""

_API_PREFIXES: Final = ("/api", "/healthz", "/readyz", "/metrics")
_API_DOCS_PATH: Final = "/api/docs"
"""Path of the console page with the API documentation, although it is below `/api`."""
_CONSOLE_PATH: Final = re.compile(r"/(?:[a-z-]{1,32}(?:/.*)?)?", re.DOTALL)
"""Pattern of page paths of the console: a lower-case first segment, then anything, such as device names."""
_NO_GZIP: Final = re.compile(rb"\s*q=0(?:\.0{0,3})?\s*")

_METRICS_ROUTE: Final = "console"
"""Value of the label `route` in the request metrics for all files of the console."""


class ConsoleMiddleware:
    """ASGI middleware that serves the browser console and passes all other requests on."""

    def __init__(self, app: ASGIApp, static_files: Mapping[str, StaticFile]) -> None:
        self._app = app
        self._static_files = static_files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a file of the console, or pass the request on if its path is not part of the console."""
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
        """Return the file at a path, or the index page for a page of the console; else None."""
        if path == _API_DOCS_PATH:
            return self._static_files[INDEX_PATH]
        if any(path == each or path.startswith(f"{each}/") for each in _API_PREFIXES):
            return None
        found = self._static_files.get(path)
        if found is None and _CONSOLE_PATH.fullmatch(path) and not path.startswith(ASSETS_PREFIX):
            return self._static_files[INDEX_PATH]
        return found


async def _reject_method(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request with a method other than GET with status 405."""
    request: Request[Any, Any, Any] = Request(scope)
    problem = build_problem_response(request, MethodNotAllowedException(headers={"allow": "GET"}))
    await problem.to_asgi_response(None, request)(scope, receive, send)


def _build_response(page: StaticFile, scope: Scope) -> tuple[HTTPStatus, list[tuple[bytes, bytes]], bytes]:
    cache_control = b"public, max-age=31536000, immutable" if page.is_immutable else b"no-cache"
    headers = [
        (b"content-security-policy", _CONTENT_SECURITY_POLICY),
        (b"cache-control", cache_control),
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


def _split_header(scope: Scope, name: bytes) -> list[bytes]:
    """Return the comma-separated values of an HTTP header, which may occur several times."""
    joined = b",".join(value for each, value in scope["headers"] if each == name)
    return [item.strip() for item in joined.split(b",")]


def _matches_etag(page: StaticFile, tags: list[bytes]) -> bool:
    """Return whether the browser already has this version of the file (RFC 9110, 13.1.2)."""
    return any(tag == b"*" or tag.removeprefix(b"W/") == page.etag.removeprefix(b"W/") for tag in tags)


def _accepts_gzip(codings: list[bytes]) -> bool:
    """Return whether `Accept-Encoding` lists gzip without the weight 0 (`q=0`)."""
    for coding in codings:
        name, _, weight = coding.partition(b";")
        if name.strip().lower() == b"gzip":
            return _NO_GZIP.fullmatch(weight.lower()) is None
    return False
