"""Live event that is encoded once for all subscribers, and its encodings as SSE and WebSocket frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable

RESYNC: Final = "resync"

NO_GATEWAY: Final = -1
"""Value of `PublishedEvent.gateway` for a device or job without a gateway."""

_LINE_SEPARATORS: Final = tuple(
    (each.encode(), f"\\u{ord(each):04x}".encode()) for each in "\u0085\u2028\u2029"
)

_TWO_BYTE_LENGTH: Final = 126
"""Smallest payload length in bytes for which a WebSocket frame has a length field of two bytes."""
_EIGHT_BYTE_LENGTH: Final = 1 << 16
"""Smallest payload length in bytes for which a WebSocket frame has a length field of eight bytes."""


class PublishedEvent(Struct, frozen=True, gc=False, kw_only=True):
    """Live event encoded as JSON, with the fields that filters check."""

    number: int
    """Sequence number of the event since the service started."""
    id: str
    type: str
    about: str
    """Event type as in `type`; for a `resync`, the type of the events that were missed."""
    device: int | None = None
    gateway: int | None = None
    """Gateway of the device; `NO_GATEWAY` if there is none; None (matches all filters) if unknown."""
    former: int | None = None
    """Gateway of the device in its last published event, if the gateway has changed since."""
    job: int | None = None
    """Row id of the job, if the event is about a job or one of its executions."""
    body: bytes
    """Whole event as JSON."""
    at: float
    """Time of publication in seconds of the event loop's monotonic clock."""


def escape_line_separators(body: bytes) -> bytes:
    """Escape characters in JSON that some live event clients treat as line ends, such as U+2028."""
    for character, escaped in _LINE_SEPARATORS:
        if character in body:
            body = body.replace(character, escaped)
    return body


def encode_sse(event: PublishedEvent) -> bytes:
    """Encode a live event as a server-sent event (rest-148)."""
    body = event.body
    if b"\n" in body or b"\r" in body:  # whitespace between values of raw JSON that a device sent
        body = b"\ndata: ".join(body.splitlines())
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (event.id.encode(), event.type.encode(), body)


def encode_websocket_frame(event: PublishedEvent) -> bytes:
    """Encode a live event as a WebSocket text frame."""
    return build_text_frame(event.body)


def build_text_frame(text: bytes) -> bytes:
    """Build a WebSocket text frame that every client can read: neither masked nor compressed."""
    length = len(text)
    if length < _TWO_BYTE_LENGTH:
        return b"\x81%c%b" % (length, text)
    if length < _EIGHT_BYTE_LENGTH:
        return b"\x81\x7e%b%b" % (length.to_bytes(2, "big"), text)
    return b"\x81\x7f%b%b" % (length.to_bytes(8, "big"), text)


if TYPE_CHECKING:
    EventEncoder = Callable[[PublishedEvent], bytes]
