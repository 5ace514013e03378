"""Live event, encoded once for all subscribers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable

RESYNC: Final = "resync"

NO_GATEWAY: Final = -1
"""Gateway of a device that is behind none."""

_LINE_SEPARATORS: Final = tuple(
    (each.encode(), f"\\u{ord(each):04x}".encode()) for each in "\u0085\u2028\u2029"
)

_TWO_BYTE_LENGTH, _EIGHT_BYTE_LENGTH = 126, 1 << 16
"""Payload lengths from which the length field of a WebSocket frame has two bytes, and eight."""


class PublishedEvent(Struct, frozen=True, gc=False, kw_only=True):
    """Encoded event with the values that filters match."""

    number: int
    """Counter of the events since the service started."""
    id: str
    type: str
    about: str
    """`type`, or for a `resync` the type of the events that were missed."""
    device: int | None = None
    gateway: int | None = None
    """`NO_GATEWAY` if it has none. None if unknown: the event then passes every filter on gateways."""
    former: int | None = None
    """Gateway with which the device was last published, if that is a different one."""
    job: int | None = None
    """Number of the job, if the event is about a job or one of its executions."""
    body: bytes
    """Whole event as JSON."""
    at: float
    """Time of publication, by the event loop's clock."""


def escape_line_separators(body: bytes) -> bytes:
    """Escape the characters in JSON text that some clients treat as the end of a line."""
    for character, escaped in _LINE_SEPARATORS:
        if character in body:
            body = body.replace(character, escaped)
    return body


def encode_sse(event: PublishedEvent) -> bytes:
    """Encode an event as a server-sent event (rest-148)."""
    body = event.body
    if b"\n" in body or b"\r" in body:  # whitespace between values of raw JSON that a device sent
        body = b"\ndata: ".join(body.splitlines())
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (event.id.encode(), event.type.encode(), body)


def encode_websocket_frame(event: PublishedEvent) -> bytes:
    """Encode an event as a WebSocket frame."""
    return build_text_frame(event.body)


def build_text_frame(text: bytes) -> bytes:
    """Build the text frame of a server. It is the same for all clients: neither masked nor compressed."""
    length = len(text)
    if length < _TWO_BYTE_LENGTH:
        return b"\x81%c%b" % (length, text)
    if length < _EIGHT_BYTE_LENGTH:
        return b"\x81\x7e%b%b" % (length.to_bytes(2, "big"), text)
    return b"\x81\x7f%b%b" % (length.to_bytes(8, "big"), text)


if TYPE_CHECKING:
    EventEncoder = Callable[[PublishedEvent], bytes]
