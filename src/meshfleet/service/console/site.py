"""The files of the console as they were built, in memory: they are small, and never change while we run."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

START: Final = "/index.html"
"""The page that every address of the console begins with."""

ASSETS: Final = "/assets/"
"""Names here hold a digest of what is inside."""

_SMALL: Final = ".gz"

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

_NOT_BUILT: Final = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Meshfleet</title></head>
<body><h1>The console was not built</h1>
<p>This installation was made without it. Install the package again without MESHFLEET_CONSOLE=skip;
in a clone, run scripts/build_console.py with the Python of .venv, and start again.
The interface for programs works; its document:
<a href="/api/v1/openapi.json">/api/v1/openapi.json</a></p>
</body></html>
"""


class Page(NamedTuple):
    """A file, and how it is sent."""

    body: bytes
    small: bytes | None
    """The same, compressed."""
    media_type: str
    is_immutable: bool
    """Whether another content would have another name."""
    tag: bytes
    """Another one for another content; weak, since compressed or not it is the same."""


def load(folder: Traversable | None = None) -> dict[str, Page]:
    """All files by their path; if nothing was built, a page that says so."""
    folder = folder or files("meshfleet.service.console") / "site"
    found = dict(_walk(folder, "")) if folder.is_dir() else {}
    if START not in found:
        found = {START: _NOT_BUILT}
    return {
        path: _page(path, body, found.get(path + _SMALL))
        for path, body in found.items()
        if not path.endswith(_SMALL)
    }


def _walk(folder: Traversable, above: str) -> Iterator[tuple[str, bytes]]:
    for each in folder.iterdir():
        path = f"{above}/{each.name}"
        if each.name.startswith("."):  # a note of who built it
            continue
        if each.is_dir():
            yield from _walk(each, path)
        else:
            yield path, each.read_bytes()


def _page(path: str, body: bytes, small: bytes | None) -> Page:
    media_type = _MEDIA_TYPES.get(PurePosixPath(path).suffix, "application/octet-stream")
    tag = b'W/"' + hashlib.sha256(body).hexdigest()[:32].encode("ascii") + b'"'
    return Page(body, small, media_type, path.startswith(ASSETS), tag)
