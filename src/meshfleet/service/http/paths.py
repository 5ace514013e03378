"""Paths as they were sent: a slash within a label is no slash between two parts (rest-68)."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote_to_bytes

from meshfleet.errors import NotFound

_NUL: Final = "\0"
"""Also in the place of what is not UTF-8."""


def canonical(raw: bytes) -> str:
    """A path with each of its parts decoded, but for slashes, which would part it anew.

    A `%` that was meant stays `%25`; `segment` undoes both.
    """
    if b"%" not in raw:
        return raw.decode("ascii")
    return "/".join(_decoded(part).replace("%", "%25").replace("/", "%2F") for part in raw.split(b"/"))


def segment(text: str) -> str:
    """A part of such a path as it was meant. Nothing here has a name with a NUL in it."""
    meant = text.replace("%2F", "/").replace("%25", "%")
    if _NUL in meant:
        raise NotFound("there is nothing here")
    return meant


def _decoded(part: bytes) -> str:
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        return _NUL
