"""Servers that are slow, endless, or say what no service of ours says."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from meshfleet.client import Fleet
from meshfleet.client.rest.http_caller import HttpCaller
from meshfleet.client.rest.http_messages import BaseUrl
from meshfleet.client.rest.live_events import EventSubscription, SseParser
from meshfleet.client.rest.session import Credentials
from meshfleet.client.rest.transport import HttpTransport
from meshfleet.errors import NotFound, ServiceRefused, ServiceUnreachable
from tests.client.rest.scripted_server import build_response, scripted_server
from tests.eventually import RETRY_TIMEOUTS
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.anyio

KEY = "mfk_of-nobody"
PATIENCE = 20.0
"""Seconds until something must have happened; reached only when it never does."""
STREAM = b"HTTP/1.1 200 x\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def event(name: str = "1") -> bytes:
    told = {"id": name, "type": "weather", "time": "2026-01-01T00:00:00.000Z", "data": {"rain": True}}
    return json.dumps(told).encode()


@asynccontextmanager
async def desk_at(url: str) -> AsyncIterator[HttpCaller]:
    """What is below a fleet."""
    transport = HttpTransport(BaseUrl(url), tls_ca=None, timeout=PATIENCE)
    yield HttpCaller(transport, Credentials(transport, user=None, password=None, token=KEY))
    await transport.close()


# --- Live events ---


def test_an_event_that_does_not_end_is_refused() -> None:
    frames = SseParser()
    line = b"data: " + b"x" * 1_000_000
    assert [frames.feed_line(line) for _ in range(4)] == [None] * 4
    with pytest.raises(ServiceRefused, match="does not end"):
        frames.feed_line(line)


def test_many_events_are_not_taken_for_a_long_one() -> None:
    frames = SseParser()
    for _ in range(5):
        assert frames.feed_line(b"data: " + b"x" * 1_000_000) is None
        assert frames.feed_line(b"") == b"x" * 1_000_000


async def test_lines_may_end_as_they_do_on_other_systems() -> None:
    said = STREAM + b": hello\r\n\r\nid: 1\r\ndata: " + event() + b"\r\n\r\n"
    async with (
        scripted_server(said) as server,
        Fleet(server.url, token=KEY) as fleet,
        asyncio.timeout(PATIENCE),
        aclosing(fleet.live(types=None, ids=None)) as events,
    ):
        assert (await anext(events)).data == {"rain": True}
    assert server.requests[0].target == "/api/v1/stream"


@each_row("name", ["ä", "a\nb", "a b", "x" * 300])
async def test_an_id_that_cannot_be_said_again_is_refused(name: str) -> None:
    said = STREAM + b"data: " + event(name) + b"\n\n"
    async with (
        scripted_server(said) as server,
        Fleet(server.url, token=KEY) as fleet,
        asyncio.timeout(PATIENCE),
    ):
        with pytest.raises(ServiceRefused, match="no proper id"):
            await anext(fleet.live())


async def test_pauses_grow_while_connections_bring_no_event() -> None:
    pauses: list[int] = []

    def no_time(losses: int) -> float:
        pauses.append(losses)
        return 0.0

    head = b"HTTP/1.1 200 x\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%b"
    comment, told = b": hello\n\n", b"data: " + event() + b"\n\n"
    script = [head % (len(each), each) for each in (comment, comment, told, comment, told)]
    async with (
        scripted_server(*script) as server,
        desk_at(server.url) as desk,
        asyncio.timeout(PATIENCE),
        aclosing(EventSubscription(desk, (), backoff=no_time).events()) as events,
    ):
        for _ in range(2):
            await anext(events)
    assert pauses == [1, 2, 1, 2]


# --- Time ---


STREAMS: list[Callable[[Fleet], AsyncIterator[object]]] = [
    lambda fleet: fleet.live(),
    lambda fleet: fleet.samples.csv("c0ffee000001"),
]


@pytest.mark.parametrize(
    "reply",
    [b"HTTP/1.1 200 OK\r\nContent-Type: ", b"HTTP/1.1 400 x\r\nContent-Length: 100\r\n\r\n{"],
    ids=["head", "problem"],
)
@each_row("stream", STREAMS)
async def test_who_opens_a_stream_waits_no_longer_than_for_any_answer(
    stream: Callable[[Fleet], AsyncIterator[object]], reply: bytes
) -> None:
    asked = 0
    for limit in RETRY_TIMEOUTS:
        async with scripted_server(reply) as server, Fleet(server.url, token=KEY, timeout=limit) as fleet:
            with pytest.raises(ServiceUnreachable, match="in time"):
                async with asyncio.timeout(PATIENCE):
                    await anext(stream(fleet))
            asked = len(server.requests)
        if asked:
            break
    assert asked == 1


async def test_a_service_that_is_not_reached_in_time_is_tried_once_more_and_got_nothing() -> None:
    reached = 0

    async def be_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal reached
        reached += 1
        await reader.read()  # to the end of the connection, which never comes to HTTP
        writer.close()

    async with await asyncio.start_server(be_silent, "127.0.0.1", 0) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with Fleet(url, token=KEY, timeout=1.0) as fleet:
            with pytest.raises(ServiceUnreachable, match="cannot be reached in time") as lost:
                await fleet.labels.add("x")
    assert (reached, lost.value.was_sent) == (2, False)


# --- Answers ---


async def test_a_list_of_nothing_but_empty_pages_is_refused() -> None:
    pages = [build_response(200, {"items": [], "nextToken": str(number)}) for number in range(1000)]
    async with scripted_server(*pages) as server, Fleet(server.url, token=KEY) as fleet:
        with pytest.raises(ServiceRefused, match="no end"):
            assert [each async for each in fleet.labels.list()]
        assert len(server.requests) < 200


@each_row(
    ("body", "words"),
    [
        ({"code": "not-found", "detail": "there is none"}, "there is none"),
        ({"code": "not-found", "detail": "there is none", "type": "https://example.org/x"}, "there is none"),
        ({"code": "not-found", "title": "Nothing", "status": "404"}, "Nothing"),
        ({"code": "not-found"}, "not-found"),
    ],
)
async def test_a_problem_that_tells_less_is_understood(body: dict[str, str], words: str) -> None:
    reply = build_response(404, body, Content_Type="application/problem+json")
    async with scripted_server(reply) as server, Fleet(server.url, token=KEY) as fleet:
        with pytest.raises(NotFound, match=words):
            await fleet.me()
