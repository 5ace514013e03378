"""Clients that do not read, vanish, send partial frames, or connect too often."""

from __future__ import annotations

import base64
import logging
import socket
import struct
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest

from meshfleet.service.live.live_events import LIVE_TIMINGS, MAX_SUBSCRIBERS_PER_ACCOUNT
from tests.service.ingest.messages import temperature
from tests.service.live.live_service import QUICK, LiveService, run_live_service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.db import Database

LARGE = "x" * 60_000
MASK = b"\0\0\0\0"


@pytest.fixture
def impatient_service(sqlite_database: Database) -> Iterator[LiveService]:
    """Run a service that waits only briefly for the token."""
    with run_live_service(sqlite_database, QUICK._replace(first_frame=0.25)) as service:
        yield service


def _open_stream(service: LiveService) -> socket.socket:
    connection = service.open_tcp()
    connection.sendall(
        f"GET /api/v1/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {service.key}\r\n\r\n".encode()
    )
    assert connection.recv(12) == b"HTTP/1.1 200"
    return connection


def _open_socket(service: LiveService) -> socket.socket:
    connection = service.open_tcp()
    key = base64.b64encode(b"0123456789abcdef").decode()
    connection.sendall(
        "GET /api/v1/live HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
    )
    assert connection.recv(12) == b"HTTP/1.1 101"
    return connection


def _build_text_frame(payload: bytes) -> bytes:
    return b"\x81" + bytes([0x80 | 126]) + struct.pack(">H", len(payload)) + MASK + payload


def _open_subscribed_socket(service: LiveService) -> socket.socket:
    connection = _open_socket(service)
    connection.sendall(
        _build_text_frame(b'{"token": "%b"}' % service.key.encode()) + _build_text_frame(b'{"subscribe": {}}')
    )
    return connection


def _count_subscribers(service: LiveService) -> int:
    return service.call_in_loop(lambda: len(service.api.live.hub.subscribers))


def _wait_for_subscribers(service: LiveService, count: int) -> None:
    """Wait until there are this many subscribers."""
    for _ in range(10_000):
        if _count_subscribers(service) == count:
            return
        service.viewer.get("/healthz")
    raise AssertionError(f"{_count_subscribers(service)} subscribers")


@pytest.mark.rule("rest-156")
@pytest.mark.parametrize("open_client", [_open_stream, _open_subscribed_socket])
def test_a_client_that_never_reads_gets_a_resync_and_does_not_delay_others_or_ingest(
    service: LiveService, open_client: object
) -> None:
    assert callable(open_client)
    with open_client(service) as connection, service.stream(Types="report") as stream:
        _wait_for_subscribers(service, 2)
        for first in range(0, 300, 10):
            batch = range(first, first + 10)
            service.ingest(*(temperature(service.clock() + each, f"{each} {LARGE}") for each in batch))
            for each in batch:
                assert stream.next()["data"]["value"].startswith(f"{each} ")
        assert service.call_in_loop(lambda: service.api.live.hub.resyncs) >= 1
        received = b""
        for _ in range(100_000):
            received = received[-100:] + connection.recv(1 << 16)
            if b'"type":"resync"' in received:
                break
        else:
            raise AssertionError("no resync was sent")


@pytest.mark.rule("rest-206")
def test_a_ping_of_a_slow_client_is_answered(service: LiveService) -> None:
    with _open_subscribed_socket(service) as connection, service.stream(Types="report") as stream:
        _wait_for_subscribers(service, 2)
        for number in range(0, 300, 10):
            now = service.clock() + number
            service.ingest(*(temperature(now + each, f"{number + each} {LARGE}") for each in range(10)))
            for _ in range(10):
                stream.next()
            if number == 150:
                connection.sendall(_build_text_frame(b'{"ping": "still there?"}'))
        assert service.call_in_loop(lambda: service.api.live.hub.resyncs) >= 1
        received = b""
        while b'{"pong":"still there?"}' not in received:
            received = received[-100:] + connection.recv(1 << 16)
            assert len(received) > 100, "the ping is not answered"


@pytest.mark.parametrize("open_client", [_open_stream, _open_socket, _open_subscribed_socket])
def test_a_client_that_vanishes_is_removed_without_a_log_entry(
    service: LiveService, open_client: object, caplog: pytest.LogCaptureFixture
) -> None:
    assert callable(open_client)
    caplog.set_level(logging.INFO)
    connections = [open_client(service) for _ in range(20)]
    with service.stream(Types="report") as stream:
        if open_client is not _open_socket:
            _wait_for_subscribers(service, 21)
        for connection in connections:
            # Reset without a close, as if the cable was unplugged.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
            service.ingest(temperature(service.clock(), 1))
            stream.next()
        _wait_for_subscribers(service, 1)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING or record.exc_info]


def test_a_client_that_sends_no_token_is_disconnected(impatient_service: LiveService) -> None:
    with impatient_service.open_websocket() as websocket:
        code, last_frame = websocket.read_close()
    assert (code, last_frame["error"]["code"]) == (4408, "too-slow")


def test_a_partial_first_frame_times_out(impatient_service: LiveService) -> None:
    with _open_socket(impatient_service) as connection:
        connection.sendall(_build_text_frame(b'{"token": "%b"}' % impatient_service.key.encode())[:20])
        received = b""
        while struct.pack(">H", 4408) not in received:  # the close code
            chunk = connection.recv(4096)
            assert chunk, received
            received += chunk
    assert b"too-slow" in received


def test_a_frame_that_is_too_long_is_refused(service: LiveService) -> None:
    with service.open_authenticated() as websocket:
        websocket.connection.send("x" * (64 * 1024 + 1))
        assert websocket.read_close()[0] == 1009


def test_a_message_that_is_too_long_in_many_frames_is_refused(service: LiveService) -> None:
    fragment = bytes([0x80 | 126]) + struct.pack(">H", 1000) + MASK + b"x" * 1000
    with _open_subscribed_socket(service) as connection:
        # The service closes the connection meanwhile, and the rest cannot be sent.
        with suppress(OSError):
            connection.sendall(b"\x01" + fragment + (b"\x00" + fragment) * 99)
        received = b""
        with suppress(ConnectionResetError):
            while chunk := connection.recv(4096):
                received += chunk
    assert struct.pack(">H", 1009) in received


def test_invalid_text_closes_only_the_websocket(
    service: LiveService, caplog: pytest.LogCaptureFixture
) -> None:
    with _open_socket(service) as connection:
        connection.sendall(_build_text_frame(b"\xff\xfe"))
        received = b""
        while chunk := connection.recv(4096):
            received += chunk
    assert received.endswith(struct.pack(">H", 1007))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING or record.exc_info]


def test_the_number_of_subscribers_per_account_is_limited(service: LiveService) -> None:
    with ExitStack() as stack:
        for _ in range(MAX_SUBSCRIBERS_PER_ACCOUNT):
            stack.enter_context(_open_stream(service))
        _wait_for_subscribers(service, MAX_SUBSCRIBERS_PER_ACCOUNT)
        refusal = service.viewer.get("/api/v1/stream")
        assert (refusal.status_code, refusal.json()["code"]) == (429, "too-many-listeners")
        assert refusal.headers["Retry-After"]
        with service.open_authenticated() as websocket:
            code, last_frame = websocket.read_close()
        assert (code, last_frame["error"]["code"]) == (4429, "too-many-listeners")
        with service.stream(service.operator, Types="device"):
            pass


def test_a_websocket_request_to_another_path_gets_a_plain_response(service: LiveService) -> None:
    with service.open_tcp() as connection:
        connection.sendall(
            b"GET /api/v1/devices HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
        )
        assert connection.recv(12) == b"HTTP/1.1 401"


@pytest.mark.rule("rest-150")
def test_a_stream_sends_comments_and_disables_buffering(
    sqlite_database: Database,
) -> None:
    assert LIVE_TIMINGS == (15.0, 10.0, 1.0), "the production timings, too long for tests"
    timings = QUICK._replace(comment=1.0)
    with (
        run_live_service(sqlite_database, timings) as service,
        service.open_authenticated() as idle,
        service.stream() as stream,
    ):
        idle.subscribe()
        assert stream.response.headers["content-type"].startswith("text/event-stream")
        assert stream.response.headers["x-accel-buffering"] == "no"
        assert "no-store" in stream.response.headers["cache-control"]
        assert "content-length" not in stream.response.headers
        for _ in range(3):
            assert stream.next_comment().startswith(":")
        service.ingest(temperature(service.clock(), 1))
        assert idle.next() == stream.next(), "the idle websocket was closed"


def test_a_head_request_for_a_stream_has_no_body_and_keeps_the_connection(service: LiveService) -> None:
    for _ in range(3):
        response = service.viewer.head("/api/v1/stream")
        assert (response.status_code, response.content) == (200, b"")
    assert _count_subscribers(service) == 0
