"""A service with an ingest that runs, and listeners at both its doors."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import httpx
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from meshfleet.db.samples import open_sample_store
from meshfleet.service.accounts import api_key_store
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.api import RestApi
from meshfleet.service.app import serve_api
from meshfleet.service.ingest.pipeline import IngestPipeline
from meshfleet.service.live.live_events import LiveTimings
from meshfleet.settings import Settings
from tests.mqtt.broker.running_broker import Clock
from tests.service.http.running_service import QUICK_HASHER, RunningService
from tests.service.ingest.ingest_harness import build_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from websockets.sync.connection import Connection

    from meshfleet.db import Database
    from meshfleet.mqtt.codec.packets import Publish
    from meshfleet.rest import Role
    from meshfleet.service.live.subscriber import LiveSubscriber

PATIENCE = 30.0
"""Seconds until something must have happened; reached only when it never does."""

_COMMENTS = 4
"""Comments until an event must have come: there is one every 15 seconds."""

QUICK = LiveTimings(poll=0.1)
"""Changes are looked for ten times as often as usual, so that tests need not wait."""

STREAM = "/api/v1/stream"

Result = TypeVar("Result")
Event = dict[str, Any]


class SseClient:
    """A stream, as a client reads it that knows nothing but the rules of server-sent events."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self._lines = answer.iter_lines()
        self.comments = 0

    def next(self) -> Event:
        """The next event; an event must be whole, and its fields must say the same as its body."""
        fields: dict[str, list[str]] = {}
        for line in self._lines:
            if line.startswith(":"):
                self.comments += 1
                assert self.comments < _COMMENTS, "nothing is told"
            elif line:
                name, _, value = line.partition(": ")
                fields.setdefault(name, []).append(value)
            elif fields:
                event: Event = json.loads("\n".join(fields["data"]))
                assert (fields["id"], fields["event"]) == ([event["id"]], [event["type"]])
                return event
        raise EOFError

    def next_comment(self) -> str:
        """The next comment; no event may come before it."""
        for line in self._lines:
            assert not line or line.startswith(":"), line
            if line:
                return line
        raise EOFError

    def rest(self) -> list[str]:
        """All lines until it ends."""
        return [line for line in self._lines if line]


class WebSocketClient:
    """A WebSocket, by a client that others wrote."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def send(self, **frame: Any) -> None:
        self.connection.send(json.dumps(frame))

    def subscribe(self, **filters: list[str]) -> None:
        """Subscribe, and know that it is done: an id that nobody knows is answered at once."""
        self.send(subscribe=filters, lastEventId="")
        assert self.next()["type"] == "resync"

    def next(self) -> Event:
        event: Event = json.loads(self.connection.recv(timeout=PATIENCE))
        return event

    def read_close(self) -> tuple[int, Event]:
        """How it ended: the code, and what was said last."""
        last: Event = {}
        for _ in range(100_000):
            try:
                last = self.next()
            except ConnectionClosed as exc:
                return (0 if exc.rcvd is None else exc.rcvd.code), last
        raise AssertionError("it does not end")


class LiveService(RunningService):
    """A running service that also takes reports."""

    def __init__(  # noqa: PLR0913, PLR0917 # all that there is
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
        self._ingest = ingest
        self._loop = loop

    def _key(self, role: Role) -> str:
        """A key of its own: a database may have several stages, one after the other or at once."""
        issued = self.database.write_now(
            api_key_store.insert_api_key,
            f"{role} {uuid4()}",
            role=role,
            expires_at=None,
            by=COMMAND_LINE,
            now=self.clock(),
        )
        return issued.key

    @property
    def key(self) -> str:
        """The API key of a viewer."""
        return str(self.viewer.headers["Authorization"].split()[1])

    def ingest(self, *messages: Publish) -> None:
        """Let reports come, as one batch."""
        self.run_in_loop(self._ingest.commit(build_batch(messages)))

    def ingest_and_flush(self, *messages: Publish) -> None:
        """The same, and write down what they say of devices."""
        self.ingest(*messages)
        self.run_in_loop(self._ingest.flush())

    def run_in_loop(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do something where the service runs."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def call_in_loop(self, deed: Callable[[], Result]) -> Result:
        """Do something there that takes no time."""

        async def work() -> Result:
            return deed()

        return self.run_in_loop(work())

    def subscribers(self) -> set[LiveSubscriber]:
        """Who listens now. Some may be about to leave: look for new ones, not for how many there are."""
        return self.call_in_loop(lambda: set(self.api.live.hub.subscribers))

    @contextmanager
    def stream(
        self, client: httpx.Client | None = None, after: str | None = None, **filters: Any
    ) -> Iterator[SseClient]:
        """Listen by server-sent events; when this begins, nothing is missed any more."""
        headers = {} if after is None else {"Last-Event-ID": after}
        asked = (client or self.viewer).stream("GET", STREAM, params=filters, headers=headers)
        with asked as answer:
            assert answer.status_code == 200, answer.read()
            yield SseClient(answer)

    @contextmanager
    def open_authenticated(self, token: str | None = None) -> Iterator[WebSocketClient]:
        """Listen by WebSocket, with a token that is shown already."""
        with self.open_websocket() as talk:
            talk.send(token=self.key if token is None else token)
            yield talk

    @contextmanager
    def open_websocket(self, path: str = "/api/v1/live") -> Iterator[WebSocketClient]:
        """Open a WebSocket, and say nothing."""
        with connect(f"ws{self.url.removeprefix('http')}{path}", open_timeout=PATIENCE) as connection:
            yield WebSocketClient(connection)

    def open_tcp(self) -> socket.socket:
        """A connection of bytes."""
        address = httpx.URL(self.url)
        return socket.create_connection((address.host, address.port or 0), PATIENCE)


@contextmanager
def run_live_service(database: Database, pace: LiveTimings = QUICK) -> Iterator[LiveService]:
    """Run all of it on a database, in a thread of its own."""
    clock = Clock()
    with (
        TemporaryDirectory(prefix="meshfleet-samples-") as folder,
        closing(open_sample_store(database, Path(folder), {}, now=clock())) as samples,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        api = RestApi(
            database,
            Settings(data=Path(folder)),
            samples,
            live_timings=pace,
            now=clock,
            steady=clock.steady,
            hasher=QUICK_HASHER,
        )
        with _serving(api, listener) as loop:
            ingest = IngestPipeline(database, samples, prefix="", admission=None, now=clock)
            for follower in (api.live.reports, api.traffic):
                ingest.subscribe(follower)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            stage = LiveService(url, database, samples, clock, api, ingest, loop)
            try:
                yield stage
            finally:
                stage.close()


@contextmanager
def _serving(api: RestApi, listener: socket.socket) -> Iterator[asyncio.AbstractEventLoop]:
    started = threading.Event()
    loop = asyncio.new_event_loop()
    serving = loop.create_task(serve_api(api, Settings(), listener, started=started.set))
    thread = threading.Thread(target=_run, args=(loop, serving), name="service")
    thread.start()
    try:
        assert started.wait(PATIENCE), "the service did not start"
        yield loop
    finally:
        loop.call_soon_threadsafe(serving.cancel)
        thread.join()
        loop.close()
        with suppress(asyncio.CancelledError):
            serving.result()


def _run(loop: asyncio.AbstractEventLoop, serving: asyncio.Task[None]) -> None:
    asyncio.set_event_loop(loop)
    loop.run_until_complete(asyncio.wait([serving]))
    loop.run_until_complete(loop.shutdown_default_executor())
