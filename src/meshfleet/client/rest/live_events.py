"""`fleet.live`: live events of the fleet, received as server-sent events."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from msgspec import Struct

from meshfleet.client.arguments import normalize_device_id, normalize_mac, to_tuple
from meshfleet.client.rest.http_messages import HttpRequest, build_query
from meshfleet.client.rest.retries import compute_backoff
from meshfleet.client.rest.transport import LineSplitter
from meshfleet.errors import ServiceRefused, ServiceUnreachable, TooManyAttempts, Unavailable
from meshfleet.errors.protocol import MalformedInput, MalformedText
from meshfleet.rest.alarms import Alarm
from meshfleet.rest.bodies import ResponseBody, decode_body
from meshfleet.rest.devices import Device
from meshfleet.rest.jobs import Job
from meshfleet.rest.live import (
    STREAM_PATH,
    DeletedJob,
    ForgottenDevice,
    LiveExecution,
    LiveGateway,
    LiveHeartbeat,
    LiveLink,
    LiveParentChange,
    LivePosition,
    LiveSample,
    LiveZoneChange,
    ReleasedGateway,
    Resync,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping

    from meshfleet.client.rest.http_caller import HttpCaller
    from meshfleet.client.rest.http_messages import QueryParams
    from meshfleet.client.rest.transport import ResponseStream


# Decoding of server-sent events (rest-146 to rest-148).

EventType = Literal[
    "device", "report", "job", "execution", "gateway", "topology", "position", "zone", "alarm", "resync"
]

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
    | LiveParentChange
    | LivePosition
    | LiveZoneChange
    | Alarm
    | Resync
    | dict[str, Any]
)
"""Content of a live event; a dictionary only if a newer service sends an unknown type of event."""


class Event(Struct, frozen=True, kw_only=True):
    """Live event of the fleet. After a `resync` event, events were missed: read the state again."""

    id: str
    """Opaque id of the live event."""
    type: str
    """Type of the event: one of `EventType`, or another type if the service is newer than this SDK."""
    time: str
    """Time of the event in UTC, as an ISO 8601 string."""
    data: EventData


_REPORT_BODIES: Final[Mapping[str, type[ResponseBody]]] = {
    "heartbeat": LiveHeartbeat,
    "rssi": LiveLink,
    "dfu": LiveLink,
    "property": LiveSample,
    "measurement": LiveSample,
    "measurement-error": LiveSample,
    "event": LiveSample,
}

_EVENT_BODIES: Final[Mapping[str, type[ResponseBody]]] = {
    "execution": LiveExecution,
    "topology": LiveParentChange,
    "position": LivePosition,
    "zone": LiveZoneChange,
    "alarm": Alarm,
    "resync": Resync,
}

_MAX_EVENT_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of a live event in bytes. Events of a service are not much larger than 64 KiB."""

_EVENT_ID: Final = re.compile(r"[!-~]{0,256}")
"""Pattern of event ids that are valid in a `Last-Event-ID` header."""


class SseParser:
    """Parses a stream of server-sent events, and ignores comments in the stream."""

    def __init__(self) -> None:
        self._data: list[bytes] = []
        self._size = 0

    def feed_line(self, line: bytes) -> bytes | None:
        """Parse the next line of the stream. Return the JSON of an event that the line ends, else None."""
        line = line.removesuffix(b"\r")
        if not line:
            data, self._data, self._size = self._data, [], 0
            return b"\n".join(data) if data else None
        name, _, value = line.partition(b":")
        if name == b"data":
            self._size += len(line)
            if self._size > _MAX_EVENT_BYTES:
                raise ServiceRefused("an event does not end: this is not a Meshfleet service")
            self._data.append(value.removeprefix(b" "))
        return None


class _UndecodedEvent(ResponseBody, frozen=True, kw_only=True):
    """Live event whose field `data` is not yet decoded to a body type."""

    id: str
    type: str
    time: str
    data: dict[str, Any]


def decode_event(text: bytes) -> Event:
    """Decode a live event from JSON. Raise `MalformedInput` if the event is invalid."""
    undecoded = decode_body(_UndecodedEvent, text)
    if not _EVENT_ID.fullmatch(undecoded.id):
        raise MalformedText("id", "cannot be sent in a header")
    kind = _select_body_type(undecoded.type, undecoded.data)
    data: Any = undecoded.data if kind is None else decode_body(kind, msgspec.json.encode(undecoded.data))
    return Event(id=undecoded.id, type=undecoded.type, time=undecoded.time, data=data)


def _select_body_type(event_type: str, data: dict[str, Any]) -> type[ResponseBody] | None:
    match event_type:
        case "device":
            return ForgottenDevice if "forgotten" in data else Device
        case "gateway":
            return ReleasedGateway if "released" in data else LiveGateway
        case "job":
            return DeletedJob if "deleted" in data else Job
        case "report":
            return _REPORT_BODIES.get(str(data.get("kind")))
    return _EVENT_BODIES.get(event_type)


_log = logging.getLogger(__name__)

_IDLE_TIMEOUT: Final = 60.0
"""Seconds without data after which a connection for live events counts as lost.

The service sends a comment every 15 s (rest-150).
"""

_STABLE_AFTER: Final = 30.0
"""Seconds after which a connection for live events counts as stable, even if no event arrived."""


class EventSubscription:
    """Subscription to live events that reconnects when the stream ends, and continues with the next event."""

    def __init__(
        self,
        caller: HttpCaller,
        filters: QueryParams,
        *,
        backoff: Callable[[int], float] = compute_backoff,
    ) -> None:
        """Create a subscription. `backoff` returns the seconds to wait, given the number of failures."""
        self._caller = caller
        self._filters = filters
        self._backoff = backoff
        self._last_event_id: str | None = None
        self._failures = 0
        """Number of successive attempts to connect; an event or a stable connection resets it to 1."""
        self._connected_at = 0.0
        self._is_disconnected = False

    async def events(self) -> AsyncGenerator[Event, None]:
        """Iterate over live events. The iteration never ends by itself."""
        while True:
            stream = await self._open_stream()
            lines, parser = LineSplitter(b"\n"), SseParser()
            try:
                while (chunk := await self._read_chunk(stream)) is not None:
                    for line in lines.feed(chunk):
                        if (text := parser.feed_line(line)) is not None:
                            event = self._decode_event(text)
                            self._failures = 1
                            yield event
                            self._last_event_id = event.id
            finally:
                await stream.close()

    async def _open_stream(self) -> ResponseStream:
        """Open a stream of live events. Raise the error of the first stream; later, retry until connected."""
        while True:
            if self._failures:
                await asyncio.sleep(self._backoff(self._failures))
            self._failures += 1
            self._connected_at = asyncio.get_running_loop().time()
            try:
                stream = await self._caller.open_stream(self._build_request(), idle_timeout=_IDLE_TIMEOUT)
            except (ServiceUnreachable, Unavailable, TooManyAttempts) as problem:
                if self._last_event_id is None:
                    raise
                self._log_disconnect(str(problem))
            else:
                if self._is_disconnected:
                    _log.info("live events are connected again")
                self._is_disconnected = False
                self._last_event_id = self._last_event_id or ""
                return stream

    def _build_request(self) -> HttpRequest:
        # A client that reconnects and has received no event yet sends an empty id, which no event has: the
        # service sends a resync event if events were missed.
        resumed = () if self._last_event_id is None else (("Last-Event-ID", self._last_event_id),)
        return HttpRequest(
            method="GET",
            path=STREAM_PATH,
            query=self._filters,
            headers=resumed,
            accept="text/event-stream",
            is_repeatable=True,
        )

    async def _read_chunk(self, stream: ResponseStream) -> bytes | None:
        """Read the next chunk of a stream of events.

        Return None if a new stream is needed: the stream has ended, or the access token expires soon.
        """
        seconds_left = self._caller.credentials.seconds_until_renewal
        try:
            async with asyncio.timeout(None if seconds_left == float("inf") else seconds_left):
                chunk = await stream.read()
        except TimeoutError:
            return None
        except ServiceUnreachable as problem:
            self._log_disconnect(str(problem))
            return None
        if chunk is None:
            self._log_disconnect("the service ended the stream")
        elif asyncio.get_running_loop().time() - self._connected_at > _STABLE_AFTER:
            self._failures = 1
        return chunk

    def _log_disconnect(self, reason: str) -> None:
        """Log that live events are disconnected, but only once until the connection is restored."""
        if not self._is_disconnected:
            _log.warning("live events are disconnected, reconnecting: %s", reason)
        self._is_disconnected = True

    def _decode_event(self, text: bytes) -> Event:
        try:
            return decode_event(text)
        except MalformedInput as exc:
            field = exc.field
        raise self._caller.build_refusal(f"a live event has no valid {field}")


def subscribe_to_events(
    caller: HttpCaller,
    types: EventType | Iterable[EventType] | None,
    ids: str | Iterable[str] | None = None,
    gateway: str | Iterable[str] | None = None,
    jobs: str | Iterable[str] | None = None,
) -> AsyncGenerator[Event, None]:
    """Iterate over the live events that match all given filters, and reconnect after a lost connection."""
    filters = build_query(
        {},
        {
            "Types": to_tuple(types or ()),
            "Ids": [normalize_device_id(device, "ids") for device in to_tuple(ids or ())],
            "Gateway": [normalize_mac(mac) for mac in to_tuple(gateway or ())],
            "Jobs": to_tuple(jobs or ()),
        },
    )
    return EventSubscription(caller, filters).events()
