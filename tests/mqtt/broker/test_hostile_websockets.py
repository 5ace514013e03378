"""MQTT inside a WebSocket, server side: hostile clients before authentication."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import struct
from typing import TYPE_CHECKING

import pytest
from websockets.frames import Opcode

from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import Connect
from tests.mqtt.broker.echo_server import (
    LARGEST,
    REQUEST,
    Echo,
    connect_websocket,
    frame,
    open_raw_socket,
    open_upgraded_socket,
    receive_echo,
    running_echo_server,
)
from tests.mqtt.client.scripted_broker import TIMEOUT, wait_until, wait_until_stable
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio

HEADER = b"X: " + b"y" * 1000 + b"\r\n"

GARBAGE = {
    "an empty line": b"\r\n",
    "a bare end of line": b"\n",
    "not HTTP": b"\xff\x00\xfe\r\n",
    "MQTT": encode_packet(Connect(client_id="x\ny")),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n",
    "an old version": b"GET /mqtt HTTP/1.0\r\n\r\n",
    "another method": b"POST /mqtt HTTP/1.1\r\n\r\n",
    "a header without a name": REQUEST + b": x\r\n\r\n",
    "an invalid header": REQUEST + b"x\r\n\r\n",
    "a body": REQUEST + b"Content-Length: 3\r\n\r\nabc",
    "an invalid length": REQUEST + b"Content-Length: x\r\n\r\n",
    "two lengths": REQUEST + b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "chunks": REQUEST + b"Transfer-Encoding: chunked\r\n\r\n",
    "an endless first line": b"GET /" + b"x" * 9000,
    "an endless header": REQUEST + b"X: " + b"y" * 9000,
    "many headers": REQUEST + b"X: y\r\n" * 200,
    "large headers": REQUEST + HEADER * 33,
}

INVALID_REQUESTS = {
    "a key": (b"AAAAAAAAAAAAAAAAAAAAAA==", b"\xff\xff", 400),
    "a short key": (b"AAAAAAAAAAAAAAAAAAAAAA==", b"AAAA", 400),
    "a version": (b"13", b"\xff", 400),
    "an old version": (b"13", b"8", 400),
    "an upgrade": (b"websocket", b"w\xe9bsocket", 426),
    "another upgrade": (b"websocket", b"h2c", 426),
    "a connection": (b"Connection: Upgrade", b"Connection: \xff", 426),
    "an empty connection header": (b"Connection: Upgrade", b"Connection: ,;,", 400),
    "a subprotocol": (b"mqtt\r\n", b"\xffmqtt\r\n", 400),
    "a path": (b"/mqtt", b"/\xff", 404),
}


@pytest.fixture(autouse=True)
def no_log_lines(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Check that unauthenticated clients cannot write into the log."""
    with caplog.at_level(logging.INFO):
        yield
    assert caplog.get_records("call") == []


@each_row("head", [pytest.param(row, id=name) for name, row in GARBAGE.items()])
async def test_bytes_that_are_no_http_request_are_closed_without_a_response(head: bytes) -> None:
    async with running_echo_server() as server, open_raw_socket(server) as client:
        await client.send(head)
        assert await client.read_all() == b""
        assert server.echo.events == []


@each_row(
    ("part", "replacement", "status"), [pytest.param(*row, id=name) for name, row in INVALID_REQUESTS.items()]
)
async def test_an_invalid_upgrade_request_is_refused_with_a_status(
    part: bytes, replacement: bytes, status: int
) -> None:
    async with running_echo_server() as server, open_raw_socket(server) as client:
        await client.send(REQUEST.replace(part, replacement) + b"\r\n")
        assert (await client.read_all()).startswith(b"HTTP/1.1 %d " % status)
        assert server.echo.events == []


async def test_an_unrelated_header_that_is_not_ascii_is_ignored() -> None:
    async with running_echo_server() as server, open_raw_socket(server) as client:
        await client.send(REQUEST + b"Cookie: caf\xc3\xa9\r\nCookie: \xff\r\n\r\n")
        assert (await client.read_head()).startswith(b"HTTP/1.1 101 ")
        await wait_until(lambda: server.echo.events == ["made"])


async def test_frames_sent_before_the_upgrade_response_are_handled_in_order() -> None:
    async with running_echo_server() as server, open_raw_socket(server) as client:
        await client.send(REQUEST + b"\r\n" + frame(Opcode.PING, b"?") + frame(Opcode.BINARY, b"!"))
        assert (await client.read_head()).startswith(b"HTTP/1.1 101 ")
        assert {await client.read(3), await client.read(3)} == {b"\x8a\x01?", b"\x82\x01!"}


@each_row("frames", [frame(Opcode.CLOSE), b"\xff\xff\xff", frame(Opcode.TEXT, b"x")])
@each_row(("path", "status"), [(b"/mqtt", 101), (b"/api", 404)])
async def test_frames_after_a_request_do_not_affect_its_response(
    path: bytes, status: int, frames: bytes
) -> None:
    async with running_echo_server() as server, open_raw_socket(server) as client:
        await client.send(REQUEST.replace(b"/mqtt", path) + b"\r\n" + frames)
        assert (await client.read_all()).startswith(b"HTTP/1.1 %d " % status)
        assert server.echo.received == []
        await wait_until(lambda: server.echo.events[-1:] == ["lost"] * (status == 101))


@each_row("opcode", [Opcode.BINARY, Opcode.TEXT, Opcode.PING])
async def test_a_frame_too_large_is_refused_before_its_payload_arrives(opcode: Opcode) -> None:
    head = bytes((0x80 | opcode, 0xFF)) + (LARGEST + 1).to_bytes(8)
    async with running_echo_server() as server, open_raw_socket(server) as client:
        await client.upgrade()
        await client.send(head)
        response = await client.read_all()
        assert response[:1] + response[2:4] == b"\x88" + (1009).to_bytes(2)
        assert server.echo.events == ["made", "lost"]
        assert server.echo.received == []


INVALID_FRAMES = {
    "not masked": frame(Opcode.BINARY, b"x", masked=False),
    "no such opcode": b"\x83\x80abcd",
    "reserved bits": b"\xc2\x80abcd",
    "a continuation of nothing": frame(Opcode.CONT, b"x"),
    "a message within a message": frame(Opcode.BINARY, fin=False) * 2,
    "half a ping": b"\x09\x80abcd",
    "a long ping": b"\x89\xfe\x00\x80abcd" + bytes(128),
    "a close within a message": frame(Opcode.BINARY, fin=False) + frame(Opcode.CLOSE),
    "a close with half a code": frame(Opcode.CLOSE, b"\x03"),
    "a close with a forbidden code": frame(Opcode.CLOSE, (1005).to_bytes(2)),
}


@each_row("invalid", [pytest.param(row, id=name) for name, row in INVALID_FRAMES.items()])
async def test_an_invalid_frame_closes_the_connection(invalid: bytes) -> None:
    async with running_echo_server() as server, open_raw_socket(server) as client:
        await client.upgrade()
        await client.send(invalid)
        response = await client.read_all()
        assert response[:1] + response[2:4] == b"\x88" + (1002).to_bytes(2)
        await wait_until(lambda: server.echo.events[-1] == "lost")


async def test_a_refused_client_that_does_not_close_is_aborted() -> None:
    async with running_echo_server(timeout=0.05) as server, open_upgraded_socket(server) as client:
        await client.send(INVALID_FRAMES["not masked"])
        await client.read_all()
        async with asyncio.timeout(TIMEOUT):
            with pytest.raises(OSError, match=r"reset|pipe"):
                await client.flood(bytes(1000), times=1_000_000)
        assert server.sockets[-1].is_closing()


class ReadingOnce(Echo):
    """Protocol that reads nothing after the first bytes."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.wire.pause_reading()


async def test_a_refused_client_may_close_although_the_connection_had_paused_reading() -> None:
    async with (
        running_echo_server(echo=ReadingOnce, timeout=3600) as server,
        open_raw_socket(server) as client,
    ):
        await client.upgrade()
        await client.send(frame(Opcode.BINARY, b"x") + INVALID_FRAMES["not masked"])
        await client.read_all()
        client.socket.close()
        await wait_until(server.sockets[0].is_closing)


async def test_a_client_that_pings_and_does_not_read_is_not_read() -> None:
    ping, pong = frame(Opcode.PING, bytes(125)), frame(Opcode.PONG, bytes(125), masked=False)
    async with running_echo_server() as server, open_raw_socket(server) as client:
        await client.upgrade()
        flood = asyncio.create_task(client.flood(ping * 100, times=200))
        stuck = await wait_until_stable(lambda: client.sent)
        assert not flood.done()
        assert server.echo.wire.get_write_buffer_size() < 1_000_000
        server.echo.wire.pause_reading()
        server.echo.wire.resume_reading()
        assert await wait_until_stable(lambda: client.sent) == stuck, "the connection must not resume reading"
        responses = await client.read(20_000 * len(pong))
        assert responses == pong * 20_000
        await flood


@each_row("empty_frame", [frame(Opcode.CONT, fin=False), frame(Opcode.PONG)])
async def test_a_flood_of_empty_frames_is_ignored(empty_frame: bytes) -> None:
    async with running_echo_server() as server, open_raw_socket(server) as client:
        await client.upgrade()
        await client.send(frame(Opcode.BINARY, fin=False) + empty_frame * 20_000)
        await client.send(frame(Opcode.CONT, b"at last"))
        await wait_until(lambda: server.echo.received)
        assert server.echo.received == [b"at last"]


@each_row("last", [frame(Opcode.CLOSE), frame(Opcode.TEXT, b"x"), b"\xff\xff", b""])
async def test_a_reset_of_the_connection_is_reported(last: bytes) -> None:
    async with running_echo_server() as server:
        for _ in range(20):
            async with open_raw_socket(server) as client:
                await client.upgrade()
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                await client.send(last)
        await wait_until(lambda: all(each.events[-1:] == ["lost"] for each in server.echoes))


@each_row("seed", range(5))
async def test_random_bit_errors_do_not_affect_other_clients(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 # a fixed seed
    frames = b"".join(frame(opcode, b"\x03\xe8noise") for opcode in Opcode) * 3
    async with running_echo_server() as server:
        for _ in range(50):
            stream = bytearray(REQUEST + b"\r\n" + frames)
            for _ in range(rng.randrange(1, 4)):
                stream[rng.randrange(len(stream))] ^= 1 << rng.randrange(8)
            async with open_raw_socket(server) as client:
                await client.send(bytes(stream))
                client.socket.shutdown(socket.SHUT_WR)
                await client.read_all()
        async with connect_websocket(server) as client:
            assert await receive_echo(client, b"hello") == b"hello"
