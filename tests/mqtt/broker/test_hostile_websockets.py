"""MQTT inside a WebSocket, the server's side: whoever comes in means no good, and is still a stranger."""

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
    "no HTTP": b"\xff\x00\xfe\r\n",
    "MQTT": encode_packet(Connect(client_id="x\ny")),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n",
    "an old version": b"GET /mqtt HTTP/1.0\r\n\r\n",
    "another method": b"POST /mqtt HTTP/1.1\r\n\r\n",
    "a header without a name": REQUEST + b": x\r\n\r\n",
    "a header that is none": REQUEST + b"x\r\n\r\n",
    "a body": REQUEST + b"Content-Length: 3\r\n\r\nabc",
    "a length that is none": REQUEST + b"Content-Length: x\r\n\r\n",
    "two lengths": REQUEST + b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "chunks": REQUEST + b"Transfer-Encoding: chunked\r\n\r\n",
    "an endless first line": b"GET /" + b"x" * 9000,
    "an endless header": REQUEST + b"X: " + b"y" * 9000,
    "many headers": REQUEST + b"X: y\r\n" * 200,
    "large headers": REQUEST + HEADER * 33,
}

STRANGE = {
    "a key": (b"AAAAAAAAAAAAAAAAAAAAAA==", b"\xff\xff", 400),
    "a short key": (b"AAAAAAAAAAAAAAAAAAAAAA==", b"AAAA", 400),
    "a version": (b"13", b"\xff", 400),
    "an old version": (b"13", b"8", 400),
    "an upgrade": (b"websocket", b"w\xe9bsocket", 426),
    "another upgrade": (b"websocket", b"h2c", 426),
    "a connection": (b"Connection: Upgrade", b"Connection: \xff", 426),
    "no words": (b"Connection: Upgrade", b"Connection: ,;,", 400),
    "a subprotocol": (b"mqtt\r\n", b"\xffmqtt\r\n", 400),
    "a path": (b"/mqtt", b"/\xff", 404),
}


@pytest.fixture(autouse=True)
def no_complaint(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Strangers cannot write into the log."""
    with caplog.at_level(logging.INFO):
        yield
    assert caplog.get_records("call") == []


@each_row("head", [pytest.param(row, id=name) for name, row in GARBAGE.items()])
async def test_what_is_no_request_is_not_answered_and_closed(head: bytes) -> None:
    async with running_echo_server() as here, open_raw_socket(here) as client:
        await client.send(head)
        assert await client.read_all() == b""
        assert here.echo.events == []


@each_row(("part", "strange", "status"), [pytest.param(*row, id=name) for name, row in STRANGE.items()])
async def test_a_strange_request_is_refused_with_a_status(part: bytes, strange: bytes, status: int) -> None:
    async with running_echo_server() as here, open_raw_socket(here) as client:
        await client.send(REQUEST.replace(part, strange) + b"\r\n")
        assert (await client.read_all()).startswith(b"HTTP/1.1 %d " % status)
        assert here.echo.events == []


async def test_a_strange_header_that_is_not_for_us_does_no_harm() -> None:
    async with running_echo_server() as here, open_raw_socket(here) as client:
        await client.send(REQUEST + b"Cookie: caf\xc3\xa9\r\nCookie: \xff\r\n\r\n")
        assert (await client.read_head()).startswith(b"HTTP/1.1 101 ")
        await wait_until(lambda: here.echo.events == ["made"])


async def test_who_cannot_wait_for_the_answer_is_answered_in_order() -> None:
    async with running_echo_server() as here, open_raw_socket(here) as client:
        await client.send(REQUEST + b"\r\n" + frame(Opcode.PING, b"?") + frame(Opcode.BINARY, b"!"))
        assert (await client.read_head()).startswith(b"HTTP/1.1 101 ")
        assert {await client.read(3), await client.read(3)} == {b"\x8a\x01?", b"\x82\x01!"}


@each_row("behind", [frame(Opcode.CLOSE), b"\xff\xff\xff", frame(Opcode.TEXT, b"x")])
@each_row(("path", "status"), [(b"/mqtt", 101), (b"/api", 404)])
async def test_frames_behind_a_request_do_not_come_before_its_answer(
    path: bytes, status: int, behind: bytes
) -> None:
    async with running_echo_server() as here, open_raw_socket(here) as client:
        await client.send(REQUEST.replace(b"/mqtt", path) + b"\r\n" + behind)
        assert (await client.read_all()).startswith(b"HTTP/1.1 %d " % status)
        assert here.echo.received == []
        await wait_until(lambda: here.echo.events[-1:] == ["lost"] * (status == 101))


@each_row("opcode", [Opcode.BINARY, Opcode.TEXT, Opcode.PING])
async def test_a_frame_too_large_is_refused_before_it_comes(opcode: Opcode) -> None:
    head = bytes((0x80 | opcode, 0xFF)) + (LARGEST + 1).to_bytes(8)
    async with running_echo_server() as here, open_raw_socket(here) as client:
        await client.upgrade()
        await client.send(head)
        answer = await client.read_all()
        assert answer[:1] + answer[2:4] == b"\x88" + (1009).to_bytes(2)
        assert here.echo.events == ["made", "lost"]
        assert here.echo.received == []


WRONG = {
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


@each_row("wrong", [pytest.param(row, id=name) for name, row in WRONG.items()])
async def test_a_wrong_frame_ends_the_connection(wrong: bytes) -> None:
    async with running_echo_server() as here, open_raw_socket(here) as client:
        await client.upgrade()
        await client.send(wrong)
        answer = await client.read_all()
        assert answer[:1] + answer[2:4] == b"\x88" + (1002).to_bytes(2)
        await wait_until(lambda: here.echo.events[-1] == "lost")


async def test_who_was_refused_and_stays_is_cut_off() -> None:
    async with running_echo_server(timeout=0.05) as here, open_upgraded_socket(here) as client:
        await client.send(WRONG["not masked"])
        await client.read_all()
        async with asyncio.timeout(TIMEOUT):
            with pytest.raises(OSError, match=r"reset|pipe"):
                await client.flood(bytes(1000), times=1_000_000)
        assert here.sockets[-1].is_closing()


class Reluctant(Echo):
    """Reads nothing after the first bytes."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.wire.pause_reading()


async def test_who_was_refused_may_leave_though_the_connection_had_paused() -> None:
    async with running_echo_server(echo=Reluctant, timeout=3600) as here, open_raw_socket(here) as client:
        await client.upgrade()
        await client.send(frame(Opcode.BINARY, b"x") + WRONG["not masked"])
        await client.read_all()
        client.socket.close()
        await wait_until(here.sockets[0].is_closing)


async def test_who_pings_and_never_reads_is_not_read_either() -> None:
    ping, pong = frame(Opcode.PING, bytes(125)), frame(Opcode.PONG, bytes(125), masked=False)
    async with running_echo_server() as here, open_raw_socket(here) as client:
        await client.upgrade()
        flood = asyncio.create_task(client.flood(ping * 100, times=200))
        stuck = await wait_until_stable(lambda: client.sent)
        assert not flood.done()
        assert here.echo.wire.get_write_buffer_size() < 1_000_000
        here.echo.wire.pause_reading()
        here.echo.wire.resume_reading()
        assert await wait_until_stable(lambda: client.sent) == stuck, "the connection cannot read on"
        answers = await client.read(20_000 * len(pong))
        assert answers == pong * 20_000
        await flood


@each_row("useless", [frame(Opcode.CONT, fin=False), frame(Opcode.PONG)])
async def test_a_flood_of_frames_with_nothing_in_them_is_nothing(useless: bytes) -> None:
    async with running_echo_server() as here, open_raw_socket(here) as client:
        await client.upgrade()
        await client.send(frame(Opcode.BINARY, fin=False) + useless * 20_000)
        await client.send(frame(Opcode.CONT, b"at last"))
        await wait_until(lambda: here.echo.received)
        assert here.echo.received == [b"at last"]


@each_row("last", [frame(Opcode.CLOSE), frame(Opcode.TEXT, b"x"), b"\xff\xff", b""])
async def test_a_client_that_resets_the_connection_is_lost(last: bytes) -> None:
    async with running_echo_server() as here:
        for _ in range(20):
            async with open_raw_socket(here) as client:
                await client.upgrade()
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                await client.send(last)
        await wait_until(lambda: all(each.events[-1:] == ["lost"] for each in here.echoes))


@each_row("seed", range(5))
async def test_noise_harms_nobody(seed: int) -> None:
    noise = random.Random(seed)  # noqa: S311 # the same every time
    frames = b"".join(frame(opcode, b"\x03\xe8noise") for opcode in Opcode) * 3
    async with running_echo_server() as here:
        for _ in range(50):
            said = bytearray(REQUEST + b"\r\n" + frames)
            for _ in range(noise.randrange(1, 4)):
                said[noise.randrange(len(said))] ^= 1 << noise.randrange(8)
            async with open_raw_socket(here) as client:
                await client.send(bytes(said))
                client.socket.shutdown(socket.SHUT_WR)
                await client.read_all()
        async with connect_websocket(here) as sober:
            assert await receive_echo(sober, b"hello") == b"hello"
