"""Requests: their bodies become typed values at the door, strictly."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote_to_bytes

from litestar import Request
from litestar.datastructures import State

from meshfleet import rest
from meshfleet.errors import NotFound, UnsupportedMediaType
from meshfleet.service.actor import Actor

# Paths as they were sent: a slash within a label is no slash between two parts (rest-68).

_NUL: Final = "\0"
"""Also in the place of what is not UTF-8."""


def decode_path(raw: bytes) -> str:
    """A path with each of its parts decoded, but for slashes, which would part it anew.

    A `%` that was meant stays `%25`; `segment` undoes both.
    """
    if b"%" not in raw:
        return raw.decode("ascii")
    return "/".join(_percent_decode(part).replace("%", "%25").replace("/", "%2F") for part in raw.split(b"/"))


def decode_segment(text: str) -> str:
    """A part of such a path as it was meant. Nothing here has a name with a NUL in it."""
    meant = text.replace("%2F", "/").replace("%25", "%")
    if _NUL in meant:
        raise NotFound("there is nothing here")
    return meant


def _percent_decode(part: bytes) -> str:
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        return _NUL


_JSON_MEDIA_TYPES = {"application/json", ""}
"""Who does not say what it is means JSON: there is nothing else."""


class ApiRequest(Request[Actor, Any, State]):
    """A request whose body is read by our own rules, which name the field of every mistake."""

    async def json(self) -> Any:
        """The body as the type that the route asks for (rest-1, rest-5)."""
        if self.content_type[0].lower() not in _JSON_MEDIA_TYPES:
            raise UnsupportedMediaType("the body must be application/json")
        field = self.route_handler.parsed_data_field
        assert field is not None  # noqa: S101 # only routes with a body ask for it
        return rest.decode_body(field.annotation, await self.body())
