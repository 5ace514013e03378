"""Listeners that do not read, vanish, say half of something, or come in crowds."""

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
from tests.service.live.live_service import QUICK, run_live_service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.db import Database
    from tests.service.live.live_service import LiveService

LARGE = "x" * 60_000
MASK = b"\0\0\0\0"


@pytest.fixture
def hasty(sqlite_database: Database) -> Iterator[LiveService]:
    """A service that waits only for a moment until it is shown a token."""
    with run_live_service(sqlite_database, QUICK._replace(first_frame=0.25)) as stage:
        yield stage
    sqlite_database.close()


def _open_stream(stage: LiveService) -> socket.socket:
    connection = stage.open_tcp()
    connection.sendall(
        f"GET /api/v1/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {stage.key}\r\n\r\n".encode()
    )
    assert connection.recv(12) == b"HTTP/1.1 200"
    return connection


def _open_socket(stage: LiveService) -> socket.socket:
    connection = stage.open_tcp()
    key = base64.b64encode(b"0123456789abcdef").decode()
    connection.sendall(
        "GET /api/v1/live HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
    )
    assert connection.recv(12) == b"HTTP/1.1 101"
    return connection


def _text(said: bytes) -> bytes:
    return b"\x81" + bytes([0x80 | 126]) + struct.pack(">H", len(said)) + MASK + said


def _open_talk(stage: LiveService) -> socket.socket:
    connection = _open_socket(stage)
    connection.sendall(_text(b'{"token": "%b"}' % stage.key.encode()) + _text(b'{"subscribe": {}}'))
    return connection


def _listeners(stage: LiveService) -> int:
    return stage.call_in_loop(lambda: len(stage.api.live.hub.subscribers))


def _wait_for(stage: LiveService, count: int) -> None:
    """Wait until so many listen."""
    for _ in range(10_000):
        if _listeners(stage) == count:
            return
        stage.viewer.get("/healthz")
    raise AssertionError(f"{_listeners(stage)} listen")


@pytest.mark.rule("rest-156")
@pytest.mark.parametrize("opened", [_open_stream, _open_talk])
def test_one_who_never_reads_is_told_to_resync_and_others_and_ingest_do_not_notice(
    stage: LiveService, opened: object
) -> None:
    assert callable(opened)
    with opened(stage) as silent, stage.stream(Types="report") as stream:
        _wait_for(stage, 2)
        for first in range(0, 300, 10):
            batch = range(first, first + 10)
            stage.ingest(*(temperature(stage.clock() + each, f"{each} {LARGE}") for each in batch))
            for each in batch:
                assert stream.next()["data"]["value"].startswith(f"{each} ")
        assert stage.call_in_loop(lambda: stage.api.live.hub.resyncs) >= 1
        got = b""
        for _ in range(100_000):
            got = got[-100:] + silent.recv(1 << 16)
            if b'"type":"resync"' in got:
                break
        else:
            raise AssertionError("it is not told")


@pytest.mark.rule("rest-206")
def test_a_ping_of_one_who_did_not_keep_up_is_answered_all_the_same(stage: LiveService) -> None:
    with _open_talk(stage) as silent, stage.stream(Types="report") as stream:
        _wait_for(stage, 2)
        for number in range(0, 300, 10):
            now = stage.clock() + number
            stage.ingest(*(temperature(now + each, f"{number + each} {LARGE}") for each in range(10)))
            for _ in range(10):
                stream.next()
            if number == 150:
                silent.sendall(_text(b'{"ping": "still there?"}'))
        assert stage.call_in_loop(lambda: stage.api.live.hub.resyncs) >= 1
        got = b""
        while b'{"pong":"still there?"}' not in got:
            got = got[-100:] + silent.recv(1 << 16)
            assert len(got) > 100, "it is not answered"


@pytest.mark.parametrize("opened", [_open_stream, _open_socket, _open_talk])
def test_one_who_vanishes_leaves_nothing_behind_not_even_in_the_log(
    stage: LiveService, opened: object, caplog: pytest.LogCaptureFixture
) -> None:
    assert callable(opened)
    caplog.set_level(logging.INFO)
    connections = [opened(stage) for _ in range(20)]
    with stage.stream(Types="report") as stream:
        if opened is not _open_socket:
            _wait_for(stage, 21)
        for connection in connections:
            # Gone without a word, as if the cable was cut and plugged in again.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
            stage.ingest(temperature(stage.clock(), 1))
            stream.next()
        _wait_for(stage, 1)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING or record.exc_info]


def test_who_says_nothing_is_shown_out(hasty: LiveService) -> None:
    with hasty.open_websocket() as talk:
        code, last = talk.read_close()
    assert (code, last["error"]["code"]) == (4408, "too-slow")


def test_half_a_frame_is_no_first_frame(hasty: LiveService) -> None:
    with _open_socket(hasty) as connection:
        connection.sendall(_text(b'{"token": "%b"}' % hasty.key.encode())[:20])
        got = b""
        while struct.pack(">H", 4408) not in got:  # which closes it
            part = connection.recv(4096)
            assert part, got
            got += part
    assert b"too-slow" in got


def test_a_frame_that_is_too_long_is_not_taken(stage: LiveService) -> None:
    with stage.open_authenticated() as talk:
        talk.connection.send("x" * (64 * 1024 + 1))
        assert talk.read_close()[0] == 1009


def test_a_long_message_in_many_frames_is_not_taken_either(stage: LiveService) -> None:
    rest = bytes([0x80 | 126]) + struct.pack(">H", 1000) + MASK + b"x" * 1000
    with _open_talk(stage) as connection:
        # It ends in the middle of this, and what is sent then meets nobody.
        with suppress(OSError):
            connection.sendall(b"\x01" + rest + (b"\x00" + rest) * 99)
        got = b""
        with suppress(ConnectionResetError):
            while part := connection.recv(4096):
                got += part
    assert struct.pack(">H", 1009) in got


def test_a_text_that_is_none_ends_a_conversation_and_nothing_else(
    stage: LiveService, caplog: pytest.LogCaptureFixture
) -> None:
    with _open_socket(stage) as connection:
        connection.sendall(_text(b"\xff\xfe"))
        got = b""
        while part := connection.recv(4096):
            got += part
    assert got.endswith(struct.pack(">H", 1007))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING or record.exc_info]


def test_one_account_can_listen_only_so_often_and_is_told_so(stage: LiveService) -> None:
    with ExitStack() as stack:
        for _ in range(MAX_SUBSCRIBERS_PER_ACCOUNT):
            stack.enter_context(_open_stream(stage))
        _wait_for(stage, MAX_SUBSCRIBERS_PER_ACCOUNT)
        refused = stage.viewer.get("/api/v1/stream")
        assert (refused.status_code, refused.json()["code"]) == (429, "too-many-listeners")
        assert refused.headers["Retry-After"]
        with stage.open_authenticated() as talk:
            code, last = talk.read_close()
        assert (code, last["error"]["code"]) == (4429, "too-many-listeners")
        with stage.stream(stage.operator, Types="device"):
            pass


def test_elsewhere_who_asks_for_a_web_socket_gets_a_plain_answer(stage: LiveService) -> None:
    with stage.open_tcp() as connection:
        connection.sendall(
            b"GET /api/v1/devices HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
        )
        assert connection.recv(12) == b"HTTP/1.1 401"


@pytest.mark.rule("rest-150")
def test_a_stream_shows_every_quarter_of_a_minute_that_it_lives_and_asks_not_to_be_held_back(
    sqlite_database: Database,
) -> None:
    assert LIVE_TIMINGS == (15.0, 10.0, 1.0), "tests do not wait for that long"
    each_second = QUICK._replace(comment=1.0)
    with (
        run_live_service(sqlite_database, each_second) as stage,
        stage.open_authenticated() as idle,
        stage.stream() as stream,
    ):
        idle.subscribe()
        assert stream.answer.headers["content-type"].startswith("text/event-stream")
        assert stream.answer.headers["x-accel-buffering"] == "no"
        assert "no-store" in stream.answer.headers["cache-control"]
        assert "content-length" not in stream.answer.headers
        for _ in range(3):
            assert stream.next_comment().startswith(":")
        stage.ingest(temperature(stage.clock(), 1))
        assert idle.next() == stream.next(), "nobody who only waits is shown out"
    sqlite_database.close()


def test_the_head_of_a_stream_comes_alone_and_its_connection_goes_on(stage: LiveService) -> None:
    for _ in range(3):
        answer = stage.viewer.head("/api/v1/stream")
        assert (answer.status_code, answer.content) == (200, b"")
    assert _listeners(stage) == 0
