"""Running service with ingest, and clients of its event stream and its WebSocket."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import httpx
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from meshfleet.db.samples import open_sample_store
from meshfleet.service.api import RestApi
from meshfleet.service.app import serve_api
from meshfleet.service.ingest.pipeline import IngestPipeline
from meshfleet.service.live.live_events import LiveTimings
from meshfleet.service.positions.reading_log import ReadingLog
from meshfleet.settings import Settings
from tests.mqtt.broker.running_broker import Clock
from tests.service.http.running_service import QUICK_HASHER, RunningService, run_in_thread
from tests.service.ingest.ingest_harness import build_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from websockets.sync.connection import Connection

    from meshfleet.db import Database
    from meshfleet.mqtt.codec.packets import Publish
    from meshfleet.rest.accounts import Role
    from meshfleet.service.live.subscriber import LiveSubscriber

PATIENCE = 30.0
"""Seconds until something must have happened; reached only on failure."""

_MAX_COMMENTS = 4
"""Number of comments before which an event must arrive: one is sent every 15 seconds."""

QUICK = LiveTimings(poll=0.1)
"""Timings with ten times as many polls as usual, so that tests wait less."""

STREAM = "/api/v1/stream"

Result = TypeVar("Result")
Event = dict[str, Any]


class SseClient:
    """Minimal client that follows only the rules of server-sent events."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.iter_lines()
        self.comments = 0

    def next(self) -> Event:
        """Return the next event, which must be complete and consistent with its SSE fields."""
        fields: dict[str, list[str]] = {}
        for line in self._lines:
            if line.startswith(":"):
                self.comments += 1
                assert self.comments < _MAX_COMMENTS, "no event arrived"
            elif line:
                name, _, value = line.partition(": ")
                fields.setdefault(name, []).append(value)
            elif fields:
                event: Event = json.loads("\n".join(fields["data"]))
                assert (fields["id"], fields["event"]) == ([event["id"]], [event["type"]])
                return event
        raise EOFError

    def next_comment(self) -> str:
        """Return the next comment; no event may precede it."""
        for line in self._lines:
            assert not line or line.startswith(":"), line
            if line:
                return line
        raise EOFError

    def rest(self) -> list[str]:
        """Return all lines until the stream ends."""
        return [line for line in self._lines if line]


class WebSocketClient:
    """Client of the `websockets` library."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def send(self, **frame: Any) -> None:
        self.connection.send(json.dumps(frame))

    def subscribe(self, **filters: list[str]) -> None:
        """Subscribe, and wait until that is done: an unknown id causes an immediate resync."""
        self.send(subscribe=filters, lastEventId="")
        assert self.next()["type"] == "resync"

    def next(self) -> Event:
        event: Event = json.loads(self.connection.recv(timeout=PATIENCE))
        return event

    def read_close(self) -> tuple[int, Event]:
        """Return the close code and the last frame."""
        last_frame: Event = {}
        for _ in range(100_000):
            try:
                last_frame = self.next()
            except ConnectionClosed as exc:
                return (0 if exc.rcvd is None else exc.rcvd.code), last_frame
        raise AssertionError("the WebSocket is not closed")


class LiveService(RunningService):
    """Running service that also ingests reports."""

    def __init__(  # noqa: PLR0913, PLR0917 # all parts of a service
        self,
        url: str,
        database: Database,
        samples: Any,
        clock: Clock,
        api: RestApi,
        ingest: IngestPipeline,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(url, database, samples, clock)
        self.api = api
        self.ingest_pipeline = ingest
        self._loop = loop

    def _key(self, role: Role) -> str:
        """Create a key with a unique name: a database may be used by several services."""
        return self.new_key(role, f"{role} {uuid4()}")

    @property
    def key(self) -> str:
        """API key of a viewer."""
        return str(self.viewer.headers["Authorization"].split()[1])

    def ingest(self, *messages: Publish) -> None:
        """Ingest reports as one batch."""
        self.run_in_loop(self.ingest_pipeline.commit(build_batch(messages)))

    def ingest_and_flush(self, *messages: Publish) -> None:
        """Ingest reports, and store the states of their devices."""
        self.ingest(*messages)
        self.run_in_loop(self.ingest_pipeline.flush())

    def run_in_loop(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the event loop of the service."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE)

    def call_in_loop(self, function: Callable[[], Result]) -> Result:
        """Call a function in the event loop of the service."""

        async def work() -> Result:
            return function()

        return self.run_in_loop(work())

    def subscribers(self) -> set[LiveSubscriber]:
        """Return the current subscribers.

        Some may be about to disconnect: look for new ones, do not count.
        """
        return self.call_in_loop(lambda: set(self.api.live.hub.subscribers))

    @contextmanager
    def stream(
        self, client: httpx.Client | None = None, after: str | None = None, **filters: Any
    ) -> Iterator[SseClient]:
        """Open an event stream. When the block starts, no later event is missed."""
        headers = {} if after is None else {"Last-Event-ID": after}
        request = (client or self.viewer).stream("GET", STREAM, params=filters, headers=headers)
        with request as response:
            assert response.status_code == 200, response.read()
            yield SseClient(response)

    @contextmanager
    def open_authenticated(self, token: str | None = None) -> Iterator[WebSocketClient]:
        """Open a WebSocket and send a token."""
        with self.open_websocket() as websocket:
            websocket.send(token=self.key if token is None else token)
            yield websocket

    @contextmanager
    def open_websocket(self, path: str = "/api/v1/live") -> Iterator[WebSocketClient]:
        """Open a WebSocket without sending anything."""
        with connect(f"ws{self.url.removeprefix('http')}{path}", open_timeout=PATIENCE) as connection:
            yield WebSocketClient(connection)

    def open_tcp(self) -> socket.socket:
        """Open a TCP connection."""
        address = httpx.URL(self.url)
        return socket.create_connection((address.host, address.port or 0), PATIENCE)


@contextmanager
def run_live_service(
    database: Database, timings: LiveTimings = QUICK, *, clock: Clock | None = None
) -> Iterator[LiveService]:
    """Run a service on a database, in a thread of its own."""
    clock = clock or Clock()
    with (
        TemporaryDirectory(prefix="meshfleet-samples-") as directory,
        closing(open_sample_store(database, Path(directory), {}, now=clock())) as samples,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        api = RestApi(
            database,
            Settings(data=Path(directory)),
            samples,
            live_timings=timings,
            now=clock,
            monotonic=clock.monotonic,
            hasher=QUICK_HASHER,
        )
        with run_in_thread(lambda started: serve_api(api, Settings(), listener, started=started)) as loop:
            ingest = IngestPipeline(
                database, samples, prefix="", admission=None, rollups=api.rollups, now=clock
            )
            api.state_writer.attach(ingest.flush)
            readings = ReadingLog(api.positions.readings)
            for subscriber in (api.live.reports, api.traffic, readings, api.parent_tracker):
                ingest.subscribe(subscriber)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            service = LiveService(url, database, samples, clock, api, ingest, loop)
            try:
                yield service
            finally:
                service.close()
