"""WebSocket handshakes, valid and invalid, and the data before and after them."""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import struct
import threading
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn

from meshfleet.service.http.connection import HttpConnection
from meshfleet.service.http.middleware import SECURITY_HEADERS
from meshfleet.service.http.websocket_connection import WebSocketConnection
from tests.row_tables import each_row
from tests.service.http.raw_http import build_bearer_header, build_head, connect_raw, exchange_raw
from tests.service.ingest.messages import temperature
from tests.service.live.live_service import PATIENCE, LiveService, run_live_service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.db import Database

pytestmark = pytest.mark.both_loops

LIVE = "GET /api/v1/live"
UPGRADE_HEADERS = ("Connection: Upgrade", "Upgrade: websocket")
KEY = "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg=="
HANDSHAKE = (*UPGRADE_HEADERS, "Sec-WebSocket-Version: 13", KEY)
MASK = b"\0\0\0\0"
PING = b"\x89\xfd" + MASK + b"x" * 125
PONG_BYTES = len(PING) - len(MASK)
MEBIBYTE = 1024 * 1024


@pytest.fixture(autouse=True)
def check_no_errors_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Check that no client behavior is logged as an error of the service."""
    yield
    assert [
        each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR or each.exc_info
    ] == []


@pytest.fixture
def service_on_each_loop(
    event_loop: str, sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LiveService]:
    """Run a service on asyncio and on uvloop, where connections end differently."""
    loops = import_module(event_loop)
    monkeypatch.setattr("asyncio.new_event_loop", loops.new_event_loop)
    with run_live_service(sqlite_database) as service:
        yield service


def _build_text_frame(payload: bytes) -> bytes:
    return b"\x81" + bytes([0x80 | 126]) + struct.pack(">H", len(payload)) + MASK + payload


def _read_until(connection: socket.socket, mark: bytes) -> bytes:
    """Return the bytes received until a mark, possibly with some after it."""
    received = b""
    for _ in range(100_000):
        if mark in received:
            return received
        chunk = connection.recv(1 << 16)
        assert chunk, received
        received += chunk
    raise AssertionError(received[-1000:])


# --- Invalid handshakes ---


@each_row(
    "handshake",
    [
        build_head(LIVE),
        build_head("GET /api/v1/live?x=y"),
        build_head(LIVE, *HANDSHAKE, "Content-Length: 9"),
        build_head(LIVE, *HANDSHAKE, "Transfer-Encoding: chunked") + b"5\r\nhello\r\n0\r\n\r\n",
        build_head(LIVE, *UPGRADE_HEADERS, KEY),
        build_head(LIVE, *UPGRADE_HEADERS, KEY, "Sec-WebSocket-Version: 12"),
        build_head(LIVE, *UPGRADE_HEADERS, "Sec-WebSocket-Version: 13"),
        build_head(LIVE, *UPGRADE_HEADERS, "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: short"),
        build_head(LIVE, *UPGRADE_HEADERS, "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: \xe9"),
        build_head(LIVE, *HANDSHAKE, "Sec-WebSocket-Protocol: ;\xe9"),
        build_head(LIVE, *HANDSHAKE, "Origin: https://a", "Origin: https://b"),
        build_head(LIVE, *HANDSHAKE, *(f"X-{number}: x" for number in range(300))),
        build_head(LIVE, *HANDSHAKE, f"Cookie: {'x' * 20_000}"),
        build_head(LIVE, *HANDSHAKE).replace(b"HTTP/1.1", b"HTTP/1.0"),
    ],
)
def test_an_invalid_handshake_is_answered_with_the_upgrade_requirements(
    service: LiveService, handshake: bytes
) -> None:
    response = exchange_raw(service, handshake)
    assert response is not None
    assert response.status == 426
    assert response.headers["upgrade"] == "websocket"
    assert response.headers["connection"].lower().split(", ")[0] == "upgrade"
    assert response.headers["sec-websocket-version"] == "13"
    assert response.headers["content-type"] == "application/problem+json"
    assert {name: response.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
    assert (response.json()["code"], response.json()["instance"]) == ("upgrade-required", "/api/v1/live")


def test_a_head_request_gets_the_same_status_without_a_body(service: LiveService) -> None:
    for _ in range(3):
        response = service.anonymous.head("/api/v1/live")
        assert (response.status_code, response.headers["upgrade"], response.content) == (
            426,
            "websocket",
            b"",
        )


@each_row(
    ("method", "framing", "body"),
    [
        ("POST", (), b""),
        ("POST", ("Content-Length: 5",), b"hello"),
        ("PUT", ("Transfer-Encoding: chunked",), b"5\r\nhello\r\n0\r\n\r\n"),
        ("DELETE", (), b""),
        ("OPTIONS", (), b""),
    ],
)
@each_row("headers", [pytest.param(HANDSHAKE, id="handshake"), pytest.param((), id="plain")])
def test_a_websocket_cannot_be_opened_with_other_methods(
    service: LiveService, method: str, framing: tuple[str, ...], body: bytes, headers: tuple[str, ...]
) -> None:
    with connect_raw(service) as connection:
        connection.send(
            build_head(f"{method} /api/v1/live", *headers, *framing) + body + build_head("GET /healthz")
        )
        refusal, next_response = connection.read(), connection.read()
    assert refusal is not None
    assert (refusal.status, refusal.headers["allow"]) == (405, "GET, HEAD")
    assert refusal.json()["code"] == "method-not-allowed"
    assert next_response is not None
    assert next_response.status == 200, "the body was parsed as a request"


def test_a_handshake_during_a_response_is_ignored(service_on_each_loop: LiveService) -> None:
    service = service_on_each_loop
    with service.open_tcp() as connection:
        connection.sendall(build_head("GET /api/v1/stream", f"Authorization: Bearer {service.key}"))
        _read_until(connection, b": connected")
        connection.sendall(build_head(LIVE, *HANDSHAKE))
        service.viewer.get("/healthz")
        service.ingest(temperature(service.clock(), 1))
        received = _read_until(connection, b"event: report")
    assert b"HTTP/1.1" not in received


def test_a_handshake_after_a_response_is_accepted(service: LiveService) -> None:
    with service.open_tcp() as connection:
        connection.sendall(build_head("GET /healthz"))
        _read_until(connection, b'"status"')
        connection.sendall(build_head(LIVE, *HANDSHAKE) + PING)
        received = _read_until(connection, PING[6:])
    assert received.startswith(b"HTTP/1.1 101")


def test_a_client_that_aborts_before_its_handshake_is_removed(service_on_each_loop: LiveService) -> None:
    service = service_on_each_loop
    with service.open_tcp() as connection:
        connection.sendall(build_head("GET /api/v1/stream", f"Authorization: Bearer {service.key}"))
        _read_until(connection, b": connected")
        connection.sendall(build_head(LIVE, *HANDSHAKE))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    for _ in range(10_000):
        service.ingest(temperature(service.clock(), 1))
        if not service.call_in_loop(lambda: len(service.api.live.hub.subscribers)):
            return
    raise AssertionError("the subscriber is not removed")


# --- Data after a handshake ---


@each_row("cut", [None, 1, 20])
def test_frames_sent_with_the_handshake_are_received(
    service_on_each_loop: LiveService, cut: int | None
) -> None:
    service = service_on_each_loop
    first_frame = _build_text_frame(b'{"token": "%b"}' % service.key.encode())
    with service.open_tcp() as connection:
        connection.sendall(build_head(LIVE, *HANDSHAKE) + first_frame[:cut])
        if cut is not None:
            _read_until(connection, b"\r\n\r\n")
            connection.sendall(first_frame[cut:])
        connection.sendall(_build_text_frame(b'{"subscribe": {}, "lastEventId": ""}'))
        _read_until(connection, b'"type":"resync"')


def test_the_handshake_response_precedes_all_frames(service_on_each_loop: LiveService) -> None:
    service = service_on_each_loop
    for _ in range(20):
        with service.open_tcp() as connection:
            connection.sendall(build_head(LIVE, *HANDSHAKE) + PING * 10)
            received = _read_until(connection, PING[6:])
        assert received.startswith(b"HTTP/1.1 101")


def test_invalid_data_after_a_handshake_closes_the_websocket(service: LiveService) -> None:
    with service.open_tcp() as connection:
        connection.sendall(build_head(LIVE, *HANDSHAKE) + b"\xff" * 1000)
        assert struct.pack(">H", 1002) in _read_until(connection, b"\x88")


def test_invalid_text_and_a_close_frame_close_only_the_websocket(service: LiveService) -> None:
    close_frame = b"\x88\x82" + MASK + struct.pack(">H", 1000)
    with service.open_tcp() as connection:
        connection.sendall(build_head(LIVE, *HANDSHAKE))
        _read_until(connection, b"\r\n\r\n")
        connection.sendall(_build_text_frame(b"\xff") * 2 + close_frame)
        while connection.recv(4096):
            pass


# --- Unsupported upgrades ---


@each_row("protocol", ["h2c", "websocket", "h2c, websocket", "TLS/1.3"])
@each_row("in_one_piece", [True, False])
@each_row("chunked", [True, False])
def test_a_request_for_another_protocol_is_answered_with_http_1_1(
    service: LiveService, protocol: str, *, in_one_piece: bool, chunked: bool
) -> None:
    body = b'{"label": "cellar"}'
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
    encoded_body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body
    request = build_head(
        "POST /api/v1/labels",
        build_bearer_header(service),
        "Connection: Upgrade",
        f"Upgrade: {protocol}",
        framing,
    )
    request += encoded_body + build_head("GET /healthz", "Connection: Upgrade", f"Upgrade: {protocol}")
    with connect_raw(service) as connection:
        for part in (
            [request] if in_one_piece else [request[offset : offset + 1] for offset in range(len(request))]
        ):
            connection.send(part)
        responses = [connection.read(), connection.read()]
    assert [response and response.status for response in responses] == [200, 200]
    assert responses[0] is not None
    assert responses[0].json()["label"] == "cellar"


def test_a_client_that_keeps_requesting_other_protocols_is_disconnected(service: LiveService) -> None:
    with connect_raw(service) as connection:
        connection.send(build_head("GET /healthz", "Connection: Upgrade", "Upgrade: h2c") * 1000)
        assert connection.is_cut_off()


# --- Slow clients ---


def test_a_client_that_pings_without_reading_is_not_read_until_it_reads(
    service_on_each_loop: LiveService,
) -> None:
    service = service_on_each_loop
    burst = PING * 500
    with service.open_tcp() as connection:
        connection.sendall(
            build_head(LIVE, *HANDSHAKE) + _build_text_frame(b'{"token": "%b"}' % service.key.encode())
        )
        _read_until(connection, b"\r\n\r\n")
        connection.setblocking(False)  # noqa: FBT003 # the socket API takes it positionally
        sent_bytes = 0
        while select.select([], [connection], [], 2)[1]:
            sent_bytes += connection.send(burst[sent_bytes % len(burst) :])
            assert sent_bytes < 64 * MEBIBYTE, "the service never stops reading"
        _read_all_pongs(connection, burst, sent_bytes)


def _read_all_pongs(connection: socket.socket, burst: bytes, sent_bytes: int) -> None:
    """Read all pongs that are due, and send the rest of a burst meanwhile."""
    total_bytes = -(-sent_bytes // len(burst)) * len(burst)
    due_bytes = total_bytes // len(PING) * PONG_BYTES
    while due_bytes > 0:
        readable, writable, _ = select.select(
            [connection], [connection] if sent_bytes < total_bytes else [], [], PATIENCE
        )
        assert readable or writable, "the service stopped responding"
        if writable:
            sent_bytes += connection.send(burst[sent_bytes % len(burst) :])
        if readable:
            received = connection.recv(1 << 20)
            assert received
            due_bytes -= len(received)


async def _never_respond(_scope: Any, _receive: Any, _send: Any) -> None:
    await asyncio.Event().wait()


class _ShortHandshakeTimeout(WebSocketConnection):
    """WebSocket connection with a short handshake timeout."""

    handshake_seconds = 0.1


@contextmanager
def _run_silent_server() -> Iterator[tuple[str, int]]:
    """Run a server with the service's connection classes and an application that never responds."""
    config = uvicorn.Config(
        _never_respond,
        http=HttpConnection,
        ws=_ShortHandshakeTimeout,
        lifespan="off",
        log_config=None,
        timeout_graceful_shutdown=0,
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            server.should_exit = True
            thread.join()


def test_a_handshake_without_a_response_times_out() -> None:
    with _run_silent_server() as address, socket.create_connection(address, PATIENCE) as connection:
        connection.sendall(build_head(LIVE, *HANDSHAKE))
        assert connection.recv(1) == b""
