"""Live events, from the lines of a stream to what they say (rest-146 to rest-148)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from msgspec import Struct

from meshfleet.errors import MalformedText, ServiceRefused
from meshfleet.wire import rest
from meshfleet.wire.rest import (
    DeletedJob,
    Device,
    ForgottenDevice,
    Job,
    LiveExecution,
    LiveGateway,
    LiveHeartbeat,
    LiveLink,
    LiveSample,
    ReleasedGateway,
    Resync,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

EventType = Literal["device", "report", "job", "execution", "gateway", "resync"]

EventData = (
    Device
    | ForgottenDevice
    | LiveSample
    | LiveHeartbeat
    | LiveLink
    | LiveGateway
    | ReleasedGateway
    | Job
    | DeletedJob
    | LiveExecution
    | Resync
    | dict[str, Any]
)
"""What an event tells. A dictionary only where the service is newer than this program."""


class Event(Struct, frozen=True, kw_only=True):
    """Something that happened a moment ago.

    `resync`: something was missed and cannot be told again, so read the state anew.
    """

    id: str
    type: str
    time: str
    data: EventData


_REPORTS: Final[Mapping[str, type[rest.Body]]] = {
    "heartbeat": LiveHeartbeat,
    "rssi": LiveLink,
    "dfu": LiveLink,
    "property": LiveSample,
    "measurement": LiveSample,
    "measurement-error": LiveSample,
    "event": LiveSample,
}


_BODIES: Final[Mapping[str, type[rest.Body]]] = {
    "execution": LiveExecution,
    "resync": Resync,
}

_LONGEST: Final = 4 * 1024 * 1024
"""Bytes of an event, with its lines; ours have not much more than 64 KiB."""

_ID: Final = re.compile(r"[!-~]{0,256}")
"""What can be said again in a header."""


class Frames:
    """Puts the lines of server-sent events together. Comments are left out."""

    def __init__(self) -> None:
        self._data: list[bytes] = []
        self._size = 0

    def add(self, line: bytes) -> bytes | None:
        """The whole event as JSON, if it ends here."""
        line = line.removesuffix(b"\r")
        if not line:
            data, self._data, self._size = self._data, [], 0
            return b"\n".join(data) if data else None
        name, _, value = line.partition(b":")
        if name == b"data":
            self._size += len(line)
            if self._size > _LONGEST:
                raise ServiceRefused("an event does not end: this is not a Meshfleet service")
            self._data.append(value.removeprefix(b" "))
        return None


class _Told(rest.Body, frozen=True, kw_only=True):
    """An event whose inside nobody has looked at."""

    id: str
    type: str
    time: str
    data: dict[str, Any]


def read_event(text: bytes) -> Event:
    """Read an event, or raise a `WireError`."""
    told = rest.decode(_Told, text)
    if not _ID.fullmatch(told.id):
        raise MalformedText("id", "cannot be said again in a header")
    kind = _kind(told.type, told.data)
    data: Any = told.data if kind is None else rest.decode(kind, msgspec.json.encode(told.data))
    return Event(id=told.id, type=told.type, time=told.time, data=data)


def _kind(about: str, data: dict[str, Any]) -> type[rest.Body] | None:
    match about:
        case "device":
            return ForgottenDevice if "forgotten" in data else Device
        case "gateway":
            return ReleasedGateway if "released" in data else LiveGateway
        case "job":
            return DeletedJob if "deleted" in data else Job
        case "report":
            return _REPORTS.get(str(data.get("kind")))
    return _BODIES.get(about)
