"""Paths as they were sent: a slash within a label is no slash between two parts (rest-68)."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from meshfleet.errors import NotFound


def canonical(raw: bytes) -> str:
    """A path with each of its parts decoded, but for slashes, which would part it anew.

    A `%` that was meant stays `%25`; `segment` undoes both.
    """
    if b"%" not in raw:
        return raw.decode("ascii")
    parts = (unquote_to_bytes(part).decode("utf-8", "surrogateescape") for part in raw.split(b"/"))
    return "/".join(part.replace("%", "%25").replace("/", "%2F") for part in parts)


def segment(text: str) -> str:
    """A part of such a path as it was meant. Nothing here has a name with NUL or without UTF-8 in it."""
    meant = text.replace("%2F", "/").replace("%25", "%")
    if "\0" in meant or any("\ud800" <= char <= "\udfff" for char in meant):
        raise NotFound("there is nothing here")
    return meant
