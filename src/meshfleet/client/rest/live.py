"""`fleet.live`: what happens in the fleet, as it happens."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from meshfleet.client.names import id_of, mac_of, several
from meshfleet.client.rest.calls import Call, query
from meshfleet.client.rest.events import Frames, read_event
from meshfleet.client.rest.lines import Lines
from meshfleet.client.rest.retries import delay
from meshfleet.errors import ServiceUnreachable, TooManyAttempts, Unavailable, WireError
from meshfleet.wire import rest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from meshfleet.client.rest.desk import Desk
    from meshfleet.client.rest.events import Event, EventType
    from meshfleet.client.rest.transport import Stream

_log = logging.getLogger(__name__)

_SILENCE: Final = 60.0
"""Seconds. There is a comment every 15 s, so after four of them nobody is there any more (rest-150)."""

_LASTING: Final = 30.0
"""Seconds after which a connection counts as a good one, although nothing happened."""


class Listening:
    """One listener: a stream, and another one behind the last event when it ends."""

    def __init__(
        self, desk: Desk, filters: tuple[tuple[str, str], ...], *, pause: Callable[[int], float] = delay
    ) -> None:
        """`pause` tells how many seconds to wait after so many losses."""
        self._desk = desk
        self._filters = filters
        self._pause = pause
        self._last: str | None = None
        self._losses = 0
        """Connections that ended one after the other and brought nothing."""
        self._since = 0.0
        self._is_away = False

    async def events(self) -> AsyncGenerator[Event, None]:
        """Event after event, without end."""
        while True:
            stream = await self._open()
            lines, frames = Lines(b"\n"), Frames()
            try:
                while (piece := await self._next(stream)) is not None:
                    for line in lines.feed(piece):
                        if (text := frames.add(line)) is not None:
                            event = self._read(text)
                            self._losses = 1
                            yield event
                            self._last = event.id
            finally:
                await stream.close()

    async def _open(self) -> Stream:
        """Get in. Who was in before tries for as long as it takes."""
        while True:
            if self._losses:
                await asyncio.sleep(self._pause(self._losses))
            self._losses += 1
            self._since = asyncio.get_running_loop().time()
            try:
                stream = await self._desk.open(self._call(), silence=_SILENCE)
            except (ServiceUnreachable, Unavailable, TooManyAttempts) as trouble:
                if self._last is None:
                    raise
                self._miss(str(trouble))
            else:
                if self._is_away:
                    _log.info("live events have a connection again")
                self._is_away = False
                self._last = self._last or ""
                return stream

    def _call(self) -> Call:
        # Who was in and heard nothing says so with an id that nobody knows, and is told what that means.
        resumed = () if self._last is None else (("Last-Event-ID", self._last),)
        return Call(
            method="GET",
            path=rest.STREAM,
            query=self._filters,
            headers=resumed,
            accept="text/event-stream",
            is_repeatable=True,
        )

    async def _next(self, stream: Stream) -> bytes | None:
        """The next piece; None: come back, for the stream is over, or its token is about to be."""
        left = self._desk.credentials.renew_in
        try:
            async with asyncio.timeout(None if left == float("inf") else left):
                piece = await stream.next()
        except TimeoutError:
            return None
        except ServiceUnreachable as trouble:
            self._miss(str(trouble))
            return None
        if piece is None:
            self._miss("the service has ended the stream")
        elif asyncio.get_running_loop().time() - self._since > _LASTING:
            self._losses = 1
        return piece

    def _miss(self, why: str) -> None:
        """Say once that nothing comes for a while."""
        if not self._is_away:
            _log.warning("live events have no connection: %s", why)
        self._is_away = True

    def _read(self, text: bytes) -> Event:
        try:
            return read_event(text)
        except WireError as exc:
            field = exc.field
        raise self._desk.refusal(f"a live event has no proper {field}")


def listen(
    desk: Desk,
    types: EventType | Iterable[EventType] | None,
    ids: str | Iterable[str] | None = None,
    gateway: str | Iterable[str] | None = None,
    jobs: str | Iterable[str] | None = None,
) -> AsyncGenerator[Event, None]:
    """Live events that meet all filters."""
    filters = query(
        {},
        {
            "Types": several(types or ()),
            "Ids": [id_of(each, "ids") for each in several(ids or ())],
            "Gateway": [mac_of(each) for each in several(gateway or ())],
            "Jobs": several(jobs or ()),
        },
    )
    return Listening(desk, filters).events()
