"""Decodes request paths, and parses request bodies strictly into typed values."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote_to_bytes

from litestar import Request
from litestar.datastructures import State

from meshfleet.errors import NotFound, UnsupportedMediaType
from meshfleet.rest.bodies import decode_body
from meshfleet.service.actor import Actor

# Paths are decoded segment by segment: an encoded slash in a label does not separate segments (rest-68).

_NUL: Final = "\0"
"""NUL character. It replaces path segments that are not UTF-8; `decode_segment` rejects segments with it."""


def decode_path(raw: bytes) -> str:
    """Percent-decode each segment of a request path.

    `/` and `%` within a segment stay encoded as `%2F` and `%25`, until `decode_segment` decodes them.
    """
    if b"%" not in raw:
        return raw.decode("ascii")
    return "/".join(_percent_decode(part).replace("%", "%25").replace("/", "%2F") for part in raw.split(b"/"))


def decode_segment(text: str) -> str:
    """Decode `%2F` and `%25` in one segment of a path that `decode_path` returned.

    Raise `NotFound` if the segment contains a NUL character or is not UTF-8.
    """
    decoded = text.replace("%2F", "/").replace("%25", "%")
    if _NUL in decoded:
        raise NotFound("there is no resource at this path")
    return decoded


def _percent_decode(part: bytes) -> str:
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        return _NUL


_JSON_MEDIA_TYPES = {"application/json", ""}
"""Accepted content types of a request body. A body without content type is parsed as JSON."""


class ApiRequest(Request[Actor, Any, State]):
    """HTTP request whose JSON body is parsed by `decode_body`, so that errors name the invalid field."""

    async def json(self) -> Any:
        """Return the JSON body as the type that the route declares (rest-1, rest-5)."""
        if self.content_type[0].lower() not in _JSON_MEDIA_TYPES:
            raise UnsupportedMediaType("the body must be application/json")
        field = self.route_handler.parsed_data_field
        assert field is not None  # noqa: S101 # only called for routes with a body
        return decode_body(field.annotation, await self.body())
