"""A live event, spelt out once for all who listen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable

RESYNC: Final = "resync"

NO_GATEWAY: Final = -1
"""The gateway of a device that is behind none."""

_LINE_SEPARATORS: Final = tuple(
    (each.encode(), f"\\u{ord(each):04x}".encode()) for each in "\u0085\u2028\u2029"
)

_TWO_BYTE_LENGTH, _EIGHT_BYTE_LENGTH = 126, 1 << 16
"""Lengths from which a WebSocket frame spells its own with two bytes, and with eight."""


class PublishedEvent(Struct, frozen=True, gc=False, kw_only=True):
    """What is told, and by what it is chosen."""

    number: int
    """Counts the events of a run of the service."""
    id: str
    type: str
    about: str
    """The same, or of a `resync` the type of what was missed."""
    device: int | None = None
    gateway: int | None = None
    """NOWHERE: it has none. None: nobody knows which, and so it passes every filter on gateways."""
    former: int | None = None
    """Of a device: the gateway with which it was told before, if that is another."""
    job: int | None = None
    """The number of the job, if it is about one or one of its executions."""
    body: bytes
    """All of it as JSON."""
    at: float
    """When it was published, by the clock of the event loop."""


def escape_line_separators(body: bytes) -> bytes:
    """JSON in which no text has a character that some clients take for the end of a line."""
    for character, escaped in _LINE_SEPARATORS:
        if character in body:
            body = body.replace(character, escaped)
    return body


def encode_sse(event: PublishedEvent) -> bytes:
    """Spell it as a server-sent event (rest-148)."""
    body = event.body
    if b"\n" in body or b"\r" in body:  # between two values, of which a device chose the spelling
        body = b"\ndata: ".join(body.splitlines())
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (event.id.encode(), event.type.encode(), body)


def encode_websocket_frame(event: PublishedEvent) -> bytes:
    """Spell it as a frame of a WebSocket."""
    return build_text_frame(event.body)


def build_text_frame(text: bytes) -> bytes:
    """A text as a frame from a server: the same for all clients, for it is neither masked nor packed."""
    length = len(text)
    if length < _TWO_BYTE_LENGTH:
        return b"\x81%c%b" % (length, text)
    if length < _EIGHT_BYTE_LENGTH:
        return b"\x81\x7e%b%b" % (length.to_bytes(2, "big"), text)
    return b"\x81\x7f%b%b" % (length.to_bytes(8, "big"), text)


if TYPE_CHECKING:
    EventEncoder = Callable[[PublishedEvent], bytes]
