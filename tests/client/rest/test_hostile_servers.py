"""Servers that are slow, send endless responses, or are not Meshfleet services."""

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

KEY = "mfk_not-a-key"
PATIENCE = 20.0
"""Seconds until something must have happened; only reached when it never does."""
STREAM = b"HTTP/1.1 200 x\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def build_event(event_id: str = "1") -> bytes:
    body = {"id": event_id, "type": "weather", "time": "2026-01-01T00:00:00.000Z", "data": {"rain": True}}
    return json.dumps(body).encode()


@asynccontextmanager
async def open_caller(url: str) -> AsyncIterator[HttpCaller]:
    """Open the HTTP caller below a fleet."""
    transport = HttpTransport(BaseUrl(url), tls_ca=None, timeout=PATIENCE)
    yield HttpCaller(transport, Credentials(transport, user=None, password=None, token=KEY))
    await transport.close()


# --- Live events ---


def test_an_endless_event_is_refused() -> None:
    parser = SseParser()
    line = b"data: " + b"x" * 1_000_000
    assert [parser.feed_line(line) for _ in range(4)] == [None] * 4
    with pytest.raises(ServiceRefused, match="does not end"):
        parser.feed_line(line)


def test_many_events_do_not_count_as_one_long_event() -> None:
    parser = SseParser()
    for _ in range(5):
        assert parser.feed_line(b"data: " + b"x" * 1_000_000) is None
        assert parser.feed_line(b"") == b"x" * 1_000_000


async def test_lines_may_end_with_carriage_returns() -> None:
    stream = STREAM + b": hello\r\n\r\nid: 1\r\ndata: " + build_event() + b"\r\n\r\n"
    async with (
        scripted_server(stream) as server,
        Fleet(server.url, token=KEY) as fleet,
        asyncio.timeout(PATIENCE),
        aclosing(fleet.live(types=None, ids=None)) as events,
    ):
        assert (await anext(events)).data == {"rain": True}
    assert server.requests[0].target == "/api/v1/stream"


@each_row("event_id", ["ä", "a\nb", "a b", "x" * 300])
async def test_an_event_id_that_cannot_be_sent_in_a_header_is_refused(event_id: str) -> None:
    stream = STREAM + b"data: " + build_event(event_id) + b"\n\n"
    async with (
        scripted_server(stream) as server,
        Fleet(server.url, token=KEY) as fleet,
        asyncio.timeout(PATIENCE),
    ):
        with pytest.raises(ServiceRefused, match="no valid id"):
            await anext(fleet.live())


async def test_the_backoff_grows_while_connections_deliver_no_event() -> None:
    failure_counts: list[int] = []

    def record_failures(failures: int) -> float:
        failure_counts.append(failures)
        return 0.0

    head = b"HTTP/1.1 200 x\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%b"
    comment, event = b": hello\n\n", b"data: " + build_event() + b"\n\n"
    script = [head % (len(each), each) for each in (comment, comment, event, comment, event)]
    async with (
        scripted_server(*script) as server,
        open_caller(server.url) as caller,
        asyncio.timeout(PATIENCE),
        aclosing(EventSubscription(caller, (), backoff=record_failures).events()) as events,
    ):
        for _ in range(2):
            await anext(events)
    assert failure_counts == [1, 2, 1, 2]


# --- Exports ---


_LINES_HEAD = b"HTTP/1.1 200 x\r\nContent-Type: application/x-ndjson\r\nContent-Length: %d\r\n\r\n"
_SAMPLE_LINE = (
    b'{"time":"2026-01-01T00:00:00.000Z","kind":"event","identifier":"8113","name":null,"seq":1,"value":1,'
    b'"raw":null,"ext":null,"error":null,"errorExt":null,"gateway":"c0ffee000001","clock":null,'
    b'"device":"c0ffee000002","deviceName":"Door"}\n'
)


async def export_all(body: bytes) -> list[str]:
    """Export from a server that sends this body. Return the names of the devices."""
    async with (
        scripted_server(_LINES_HEAD % len(body) + body) as server,
        Fleet(server.url, token=KEY) as fleet,
        asyncio.timeout(PATIENCE),
    ):
        return [sample.device_name async for sample in fleet.samples.export()]


@pytest.mark.rule("rest-235")
async def test_an_export_without_its_last_line_is_refused() -> None:
    assert await export_all(2 * _SAMPLE_LINE + b'{"end":true,"samples":2}\n') == ["Door", "Door"]
    for incomplete in (b"", _SAMPLE_LINE, _SAMPLE_LINE + b'{"end":true,"samples":1}', _SAMPLE_LINE[:-50]):
        with pytest.raises(ServiceUnreachable, match="before it was complete"):
            await export_all(incomplete)
    with pytest.raises(ServiceRefused, match="1 samples instead of 2"):
        await export_all(_SAMPLE_LINE + b'{"end":true,"samples":2}\n')
    with pytest.raises(ServiceRefused, match="neither a sample nor the end"):
        await export_all(b"<html>\n")


# --- Time ---


STREAMS: list[Callable[[Fleet], AsyncIterator[object]]] = [
    lambda fleet: fleet.live(),
    lambda fleet: fleet.samples.csv("c0ffee000001"),
    lambda fleet: fleet.samples.export(),
]


@pytest.mark.parametrize(
    "reply",
    [b"HTTP/1.1 200 OK\r\nContent-Type: ", b"HTTP/1.1 400 x\r\nContent-Length: 100\r\n\r\n{"],
    ids=["head", "problem"],
)
@each_row("stream", STREAMS)
async def test_opening_a_stream_uses_the_timeout_of_any_response(
    stream: Callable[[Fleet], AsyncIterator[object]], reply: bytes
) -> None:
    request_count = 0
    for limit in RETRY_TIMEOUTS:
        async with scripted_server(reply) as server, Fleet(server.url, token=KEY, timeout=limit) as fleet:
            with pytest.raises(ServiceUnreachable, match="in time"):
                async with asyncio.timeout(PATIENCE):
                    await anext(stream(fleet))
            request_count = len(server.requests)
        if request_count:
            break
    assert request_count == 1


async def test_a_connect_timeout_is_retried_once_and_nothing_was_sent() -> None:
    connections = 0

    async def accept_silently(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.read()  # until the client disconnects; the TLS handshake never ends
        writer.close()

    async with await asyncio.start_server(accept_silently, "127.0.0.1", 0) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with Fleet(url, token=KEY, timeout=1.0) as fleet:
            with pytest.raises(ServiceUnreachable, match="cannot be reached in time") as lost:
                await fleet.labels.add("x")
    assert (connections, lost.value.was_sent) == (2, False)


# --- Responses ---


async def test_a_list_of_only_empty_pages_is_refused() -> None:
    pages = [build_response(200, {"items": [], "nextToken": str(number)}) for number in range(1000)]
    async with scripted_server(*pages) as server, Fleet(server.url, token=KEY) as fleet:
        with pytest.raises(ServiceRefused, match="does not end"):
            assert [each async for each in fleet.labels.list()]
        assert len(server.requests) < 200


@each_row(
    ("body", "message"),
    [
        ({"code": "not-found", "detail": "there is none"}, "there is none"),
        ({"code": "not-found", "detail": "there is none", "type": "https://example.org/x"}, "there is none"),
        ({"code": "not-found", "title": "Nothing", "status": "404"}, "Nothing"),
        ({"code": "not-found"}, "not-found"),
    ],
)
async def test_a_problem_with_missing_fields_is_decoded(body: dict[str, str], message: str) -> None:
    reply = build_response(404, body, Content_Type="application/problem+json")
    async with scripted_server(reply) as server, Fleet(server.url, token=KEY) as fleet:
        with pytest.raises(NotFound, match=message):
            await fleet.me()
