"""A live event, spelt out once for all who listen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable

RESYNC: Final = "resync"

NOWHERE: Final = -1
"""The gateway of a device that is behind none."""

_ODD_ENDS: Final = tuple((each.encode(), f"\\u{ord(each):04x}".encode()) for each in "\u0085\u2028\u2029")

_SHORT, _LONG = 126, 1 << 16
"""Lengths from which a WebSocket frame spells its own with two bytes, and with eight."""


class Event(Struct, frozen=True, gc=False, kw_only=True):
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


def without_odd_ends(body: bytes) -> bytes:
    """JSON in which no text has a character that some clients take for the end of a line."""
    for character, escaped in _ODD_ENDS:
        if character in body:
            body = body.replace(character, escaped)
    return body


def as_server_sent(event: Event) -> bytes:
    """Spell it as a server-sent event (rest-148)."""
    body = event.body
    if b"\n" in body or b"\r" in body:  # between two values, of which a device chose the spelling
        body = b"\ndata: ".join(body.splitlines())
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (event.id.encode(), event.type.encode(), body)


def as_frame(event: Event) -> bytes:
    """Spell it as a frame of a WebSocket."""
    return framed(event.body)


def framed(text: bytes) -> bytes:
    """A text as a frame from a server: the same for all clients, for it is neither masked nor packed."""
    length = len(text)
    if length < _SHORT:
        return b"\x81%c%b" % (length, text)
    if length < _LONG:
        return b"\x81\x7e%b%b" % (length.to_bytes(2, "big"), text)
    return b"\x81\x7f%b%b" % (length.to_bytes(8, "big"), text)


if TYPE_CHECKING:
    Form = Callable[[Event], bytes]
