"""`fleet.live`: what happens in the fleet, as it happens."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from msgspec import Struct

from meshfleet import rest
from meshfleet.client.arguments import normalize_device_id, normalize_mac, to_tuple
from meshfleet.client.rest.http_messages import HttpRequest, build_query
from meshfleet.client.rest.retries import compute_backoff
from meshfleet.client.rest.transport import LineSplitter
from meshfleet.errors import ServiceRefused, ServiceUnreachable, TooManyAttempts, Unavailable
from meshfleet.errors.protocol import MalformedText, WireError
from meshfleet.rest import (
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
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping

    from meshfleet.client.rest.http_caller import HttpCaller
    from meshfleet.client.rest.transport import ResponseStream


# Live events, from the lines of a stream to what they say (rest-146 to rest-148).

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


_REPORT_BODIES: Final[Mapping[str, type[rest.ResponseBody]]] = {
    "heartbeat": LiveHeartbeat,
    "rssi": LiveLink,
    "dfu": LiveLink,
    "property": LiveSample,
    "measurement": LiveSample,
    "measurement-error": LiveSample,
    "event": LiveSample,
}


_EVENT_BODIES: Final[Mapping[str, type[rest.ResponseBody]]] = {
    "execution": LiveExecution,
    "resync": Resync,
}

_MAX_EVENT_BYTES: Final = 4 * 1024 * 1024
"""Bytes of an event, with its lines; ours have not much more than 64 KiB."""

_EVENT_ID: Final = re.compile(r"[!-~]{0,256}")
"""What can be said again in a header."""


class SseParser:
    """Puts the lines of server-sent events together. Comments are left out."""

    def __init__(self) -> None:
        self._data: list[bytes] = []
        self._size = 0

    def feed_line(self, line: bytes) -> bytes | None:
        """The whole event as JSON, if it ends here."""
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


class _UndecodedEvent(rest.ResponseBody, frozen=True, kw_only=True):
    """An event whose inside nobody has looked at."""

    id: str
    type: str
    time: str
    data: dict[str, Any]


def decode_event(text: bytes) -> Event:
    """Read an event, or raise a `WireError`."""
    told = rest.decode_body(_UndecodedEvent, text)
    if not _EVENT_ID.fullmatch(told.id):
        raise MalformedText("id", "cannot be said again in a header")
    kind = _select_body_type(told.type, told.data)
    data: Any = told.data if kind is None else rest.decode_body(kind, msgspec.json.encode(told.data))
    return Event(id=told.id, type=told.type, time=told.time, data=data)


def _select_body_type(event_type: str, data: dict[str, Any]) -> type[rest.ResponseBody] | None:
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
"""Seconds. There is a comment every 15 s, so after four of them nobody is there any more (rest-150)."""

_STABLE_AFTER: Final = 30.0
"""Seconds after which a connection counts as a good one, although nothing happened."""


class EventSubscription:
    """One listener: a stream, and another one behind the last event when it ends."""

    def __init__(
        self,
        caller: HttpCaller,
        filters: tuple[tuple[str, str], ...],
        *,
        backoff: Callable[[int], float] = compute_backoff,
    ) -> None:
        """`pause` tells how many seconds to wait after so many losses."""
        self._caller = caller
        self._filters = filters
        self._backoff = backoff
        self._last_event_id: str | None = None
        self._failures = 0
        """Connections that ended one after the other and brought nothing."""
        self._connected_at = 0.0
        self._is_disconnected = False

    async def events(self) -> AsyncGenerator[Event, None]:
        """Event after event, without end."""
        while True:
            stream = await self._open()
            lines, frames = LineSplitter(b"\n"), SseParser()
            try:
                while (piece := await self._read_chunk(stream)) is not None:
                    for line in lines.feed(piece):
                        if (text := frames.feed_line(line)) is not None:
                            event = self._decode(text)
                            self._failures = 1
                            yield event
                            self._last_event_id = event.id
            finally:
                await stream.close()

    async def _open(self) -> ResponseStream:
        """Get in. Who was in before tries for as long as it takes."""
        while True:
            if self._failures:
                await asyncio.sleep(self._backoff(self._failures))
            self._failures += 1
            self._connected_at = asyncio.get_running_loop().time()
            try:
                stream = await self._caller.open_stream(self._build_request(), idle_timeout=_IDLE_TIMEOUT)
            except (ServiceUnreachable, Unavailable, TooManyAttempts) as trouble:
                if self._last_event_id is None:
                    raise
                self._log_disconnect(str(trouble))
            else:
                if self._is_disconnected:
                    _log.info("live events have a connection again")
                self._is_disconnected = False
                self._last_event_id = self._last_event_id or ""
                return stream

    def _build_request(self) -> HttpRequest:
        # Who was in and heard nothing says so with an id that nobody knows, and is told what that means.
        resumed = () if self._last_event_id is None else (("Last-Event-ID", self._last_event_id),)
        return HttpRequest(
            method="GET",
            path=rest.STREAM_PATH,
            query=self._filters,
            headers=resumed,
            accept="text/event-stream",
            is_repeatable=True,
        )

    async def _read_chunk(self, stream: ResponseStream) -> bytes | None:
        """The next piece; None: come back, for the stream is over, or its token is about to be."""
        left = self._caller.credentials.seconds_until_renewal
        try:
            async with asyncio.timeout(None if left == float("inf") else left):
                piece = await stream.read()
        except TimeoutError:
            return None
        except ServiceUnreachable as trouble:
            self._log_disconnect(str(trouble))
            return None
        if piece is None:
            self._log_disconnect("the service has ended the stream")
        elif asyncio.get_running_loop().time() - self._connected_at > _STABLE_AFTER:
            self._failures = 1
        return piece

    def _log_disconnect(self, reason: str) -> None:
        """Say once that nothing comes for a while."""
        if not self._is_disconnected:
            _log.warning("live events have no connection: %s", reason)
        self._is_disconnected = True

    def _decode(self, text: bytes) -> Event:
        try:
            return decode_event(text)
        except WireError as exc:
            field = exc.field
        raise self._caller.build_refusal(f"a live event has no proper {field}")


def subscribe_to_events(
    caller: HttpCaller,
    types: EventType | Iterable[EventType] | None,
    ids: str | Iterable[str] | None = None,
    gateway: str | Iterable[str] | None = None,
    jobs: str | Iterable[str] | None = None,
) -> AsyncGenerator[Event, None]:
    """Live events that meet all filters."""
    filters = build_query(
        {},
        {
            "Types": to_tuple(types or ()),
            "Ids": [normalize_device_id(each, "ids") for each in to_tuple(ids or ())],
            "Gateway": [normalize_mac(each) for each in to_tuple(gateway or ())],
            "Jobs": to_tuple(jobs or ()),
        },
    )
    return EventSubscription(caller, filters).events()
