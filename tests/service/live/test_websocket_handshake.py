"""Handshakes of a WebSocket, right and wrong ones, and what comes with them, before them and behind them."""

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
WISH = ("Connection: Upgrade", "Upgrade: websocket")
KEY = "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg=="
HANDSHAKE = (*WISH, "Sec-WebSocket-Version: 13", KEY)
MASK = b"\0\0\0\0"
PING = b"\x89\xfd" + MASK + b"x" * 125
PONG = len(PING) - len(MASK)
MEBIBYTE = 1024 * 1024


@pytest.fixture(autouse=True)
def nothing_to_complain_of(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever clients do, it is no error of ours."""
    yield
    assert [
        each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR or each.exc_info
    ] == []


@pytest.fixture
def on_either_loop(
    event_loop: str, sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LiveService]:
    """A service on the loop that Python has, and on the faster one, where connections end in another way."""
    loops = import_module(event_loop)
    monkeypatch.setattr("asyncio.new_event_loop", loops.new_event_loop)
    with run_live_service(sqlite_database) as stage:
        yield stage
    sqlite_database.close()


def _text(said: bytes) -> bytes:
    return b"\x81" + bytes([0x80 | 126]) + struct.pack(">H", len(said)) + MASK + said


def _read_until(connection: socket.socket, mark: bytes) -> bytes:
    """All until something comes; what comes behind it may be there, too."""
    got = b""
    for _ in range(100_000):
        if mark in got:
            return got
        part = connection.recv(1 << 16)
        assert part, got
        got += part
    raise AssertionError(got[-1000:])


# --- Wrong handshakes ---


@each_row(
    "wrong",
    [
        build_head(LIVE),
        build_head("GET /api/v1/live?x=y"),
        build_head(LIVE, *HANDSHAKE, "Content-Length: 9"),
        build_head(LIVE, *HANDSHAKE, "Transfer-Encoding: chunked") + b"5\r\nhello\r\n0\r\n\r\n",
        build_head(LIVE, *WISH, KEY),
        build_head(LIVE, *WISH, KEY, "Sec-WebSocket-Version: 12"),
        build_head(LIVE, *WISH, "Sec-WebSocket-Version: 13"),
        build_head(LIVE, *WISH, "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: short"),
        build_head(LIVE, *WISH, "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: \xe9"),
        build_head(LIVE, *HANDSHAKE, "Sec-WebSocket-Protocol: ;\xe9"),
        build_head(LIVE, *HANDSHAKE, "Origin: https://a", "Origin: https://b"),
        build_head(LIVE, *HANDSHAKE, *(f"X-{number}: x" for number in range(300))),
        build_head(LIVE, *HANDSHAKE, f"Cookie: {'x' * 20_000}"),
        build_head(LIVE, *HANDSHAKE).replace(b"HTTP/1.1", b"HTTP/1.0"),
    ],
)
def test_a_wrong_handshake_is_told_what_is_right(stage: LiveService, wrong: bytes) -> None:
    answer = exchange_raw(stage, wrong)
    assert answer is not None
    assert answer.status == 426
    assert answer.headers["upgrade"] == "websocket"
    assert answer.headers["connection"].lower().split(", ")[0] == "upgrade"
    assert answer.headers["sec-websocket-version"] == "13"
    assert answer.headers["content-type"] == "application/problem+json"
    assert {name: answer.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
    assert (answer.json()["code"], answer.json()["instance"]) == ("upgrade-required", "/api/v1/live")


def test_the_head_of_that_answer_comes_alone(stage: LiveService) -> None:
    for _ in range(3):
        answer = stage.anonymous.head("/api/v1/live")
        assert (answer.status_code, answer.headers["upgrade"], answer.content) == (426, "websocket", b"")


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
@each_row("wish", [pytest.param(HANDSHAKE, id="handshake"), pytest.param((), id="plain")])
def test_a_web_socket_is_opened_by_no_other_method(
    stage: LiveService, method: str, framing: tuple[str, ...], body: bytes, wish: tuple[str, ...]
) -> None:
    with connect_raw(stage) as connection:
        connection.send(
            build_head(f"{method} /api/v1/live", *wish, *framing) + body + build_head("GET /healthz")
        )
        refused, after = connection.read(), connection.read()
    assert refused is not None
    assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD")
    assert refused.json()["code"] == "method-not-allowed"
    assert after is not None
    assert after.status == 200, "the body is no request"


def test_a_handshake_behind_an_answer_that_is_under_way_is_not_taken_up(on_either_loop: LiveService) -> None:
    stage = on_either_loop
    with stage.open_tcp() as connection:
        connection.sendall(build_head("GET /api/v1/stream", f"Authorization: Bearer {stage.key}"))
        _read_until(connection, b": connected")
        connection.sendall(build_head(LIVE, *HANDSHAKE))
        stage.viewer.get("/healthz")
        stage.ingest(temperature(stage.clock(), 1))
        got = _read_until(connection, b"event: report")
    assert b"HTTP/1.1" not in got


def test_a_handshake_behind_an_answer_that_has_come_is_taken_up(stage: LiveService) -> None:
    with stage.open_tcp() as connection:
        connection.sendall(build_head("GET /healthz"))
        _read_until(connection, b'"status"')
        connection.sendall(build_head(LIVE, *HANDSHAKE) + PING)
        got = _read_until(connection, PING[6:])
    assert got.startswith(b"HTTP/1.1 101")


def test_one_who_vanishes_in_front_of_a_handshake_is_not_missed(on_either_loop: LiveService) -> None:
    stage = on_either_loop
    with stage.open_tcp() as connection:
        connection.sendall(build_head("GET /api/v1/stream", f"Authorization: Bearer {stage.key}"))
        _read_until(connection, b": connected")
        connection.sendall(build_head(LIVE, *HANDSHAKE))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    for _ in range(10_000):
        stage.ingest(temperature(stage.clock(), 1))
        if not stage.call_in_loop(lambda: len(stage.api.live.hub.subscribers)):
            return
    raise AssertionError("it is still told")


# --- What comes with a handshake ---


@each_row("cut", [None, 1, 20])
def test_what_comes_right_behind_a_handshake_is_heard(on_either_loop: LiveService, cut: int | None) -> None:
    stage = on_either_loop
    first = _text(b'{"token": "%b"}' % stage.key.encode())
    with stage.open_tcp() as connection:
        connection.sendall(build_head(LIVE, *HANDSHAKE) + first[:cut])
        if cut is not None:
            _read_until(connection, b"\r\n\r\n")
            connection.sendall(first[cut:])
        connection.sendall(_text(b'{"subscribe": {}, "lastEventId": ""}'))
        _read_until(connection, b'"type":"resync"')


def test_nothing_is_said_before_the_handshake_is_answered(on_either_loop: LiveService) -> None:
    stage = on_either_loop
    for _ in range(20):
        with stage.open_tcp() as connection:
            connection.sendall(build_head(LIVE, *HANDSHAKE) + PING * 10)
            got = _read_until(connection, PING[6:])
        assert got.startswith(b"HTTP/1.1 101")


def test_what_is_no_frame_behind_a_handshake_ends_it(stage: LiveService) -> None:
    with stage.open_tcp() as connection:
        connection.sendall(build_head(LIVE, *HANDSHAKE) + b"\xff" * 1000)
        assert struct.pack(">H", 1002) in _read_until(connection, b"\x88")


def test_a_text_that_is_none_and_a_goodbye_end_a_conversation_and_nothing_else(stage: LiveService) -> None:
    goodbye = b"\x88\x82" + MASK + struct.pack(">H", 1000)
    with stage.open_tcp() as connection:
        connection.sendall(build_head(LIVE, *HANDSHAKE))
        _read_until(connection, b"\r\n\r\n")
        connection.sendall(_text(b"\xff") * 2 + goodbye)
        while connection.recv(4096):
            pass


# --- Wishes that are not heard ---


@each_row("wish", ["h2c", "websocket", "h2c, websocket", "TLS/1.3"])
@each_row("at_once", [True, False])
@each_row("chunked", [True, False])
def test_a_request_that_would_like_another_protocol_is_answered_in_this_one(
    stage: LiveService, wish: str, *, at_once: bool, chunked: bool
) -> None:
    body = b'{"label": "cellar"}'
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
    sent = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body
    request = build_head(
        "POST /api/v1/labels", build_bearer_header(stage), "Connection: Upgrade", f"Upgrade: {wish}", framing
    )
    request += sent + build_head("GET /healthz", "Connection: Upgrade", f"Upgrade: {wish}")
    with connect_raw(stage) as connection:
        for part in [request] if at_once else [request[at : at + 1] for at in range(len(request))]:
            connection.send(part)
        answers = [connection.read(), connection.read()]
    assert [answer and answer.status for answer in answers] == [200, 200]
    assert answers[0] is not None
    assert answers[0].json()["label"] == "cellar"


def test_who_asks_for_other_protocols_without_end_does_not_get_far(stage: LiveService) -> None:
    with connect_raw(stage) as connection:
        connection.send(build_head("GET /healthz", "Connection: Upgrade", "Upgrade: h2c") * 1000)
        assert connection.is_cut_off()


# --- Too much, and too slow ---


def test_who_pings_and_does_not_read_is_not_heard_until_it_reads(on_either_loop: LiveService) -> None:
    stage = on_either_loop
    burst = PING * 500
    with stage.open_tcp() as connection:
        connection.sendall(build_head(LIVE, *HANDSHAKE) + _text(b'{"token": "%b"}' % stage.key.encode()))
        _read_until(connection, b"\r\n\r\n")
        connection.setblocking(False)  # noqa: FBT003 # no other way to say it
        sent = 0
        while select.select([], [connection], [], 2)[1]:
            sent += connection.send(burst[sent % len(burst) :])
            assert sent < 64 * MEBIBYTE, "it is heard all the while"
        _read_all_pongs(connection, burst, sent)


def _read_all_pongs(connection: socket.socket, burst: bytes, sent: int) -> None:
    """Read all that is owed, and send the rest of a burst meanwhile."""
    whole = -(-sent // len(burst)) * len(burst)
    owed = whole // len(PING) * PONG
    while owed > 0:
        readable, writable, _ = select.select(
            [connection], [connection] if sent < whole else [], [], PATIENCE
        )
        assert readable or writable, "it is not heard any more"
        if writable:
            sent += connection.send(burst[sent % len(burst) :])
        if readable:
            got = connection.recv(1 << 20)
            assert got
            owed -= len(got)


async def _never_answer(_scope: Any, _receive: Any, _send: Any) -> None:
    await asyncio.Event().wait()


class _Hasty(WebSocketConnection):
    """One that is not answered in time."""

    handshake_seconds = 0.1


@contextmanager
def _serving_nobody() -> Iterator[tuple[str, int]]:
    """A server with our connections, in front of an application that never answers."""
    config = uvicorn.Config(
        _never_answer,
        http=HttpConnection,
        ws=_Hasty,
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


def test_a_handshake_that_stays_without_an_answer_ends() -> None:
    with _serving_nobody() as address, socket.create_connection(address, PATIENCE) as connection:
        connection.sendall(build_head(LIVE, *HANDSHAKE))
        assert connection.recv(1) == b""
