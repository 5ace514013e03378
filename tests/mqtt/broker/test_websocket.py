"""MQTT inside a WebSocket, server side: clients that behave correctly or make simple mistakes."""

from __future__ import annotations

import asyncio
import socket
import ssl

import pytest
import trustme
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Opcode

from tests.mqtt.broker.echo_server import (
    LARGEST,
    REQUEST,
    Echo,
    connect_websocket,
    connect_websocket_in_time,
    frame,
    open_raw_socket,
    open_upgraded_socket,
    receive_echo,
    running_echo_server,
)
from tests.mqtt.client.scripted_broker import TIMEOUT, wait_until, wait_until_stable
from tests.row_tables import each_row

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]


@each_row("size", [1, 125, 126, LARGEST])
async def test_bytes_are_sent_in_both_directions(size: int) -> None:
    data = bytes(number * 7 % 251 for number in range(size))
    async with running_echo_server() as server, connect_websocket(server) as client:
        assert await receive_echo(client, data) == data
        assert server.echo.received == [data]


async def test_nothing_is_compressed_although_the_client_offers_it() -> None:
    async with running_echo_server() as server, connect_websocket(server, compression="deflate") as client:
        assert client.protocol.extensions == []
        assert await receive_echo(client, bytes(LARGEST)) == bytes(LARGEST)


@each_row("offers", [(), ("chat",), ("mqttv3.1", "MQTT")])
async def test_a_client_that_does_not_offer_mqtt_is_refused(offers: tuple[str, ...]) -> None:
    async with running_echo_server() as server:
        with pytest.raises(InvalidStatus) as refused:
            await connect_websocket(server, offers=offers)
        assert refused.value.response.status_code == 400
        assert b"does not offer the subprotocol mqtt" in refused.value.response.body
        assert server.echo.events == []


async def test_mqtt_is_chosen_among_other_offers() -> None:
    async with (
        running_echo_server() as server,
        connect_websocket(server, offers=("chat", "mqtt", "soap")) as client,
    ):
        assert client.subprotocol == "mqtt"


@each_row("path", ["/mqtt", "/", "", "/mqtt?from=here"])
async def test_the_paths_of_mqtt_are_accepted(path: str) -> None:
    async with running_echo_server() as server, connect_websocket(server, path) as client:
        assert await receive_echo(client, b"hello") == b"hello"


@each_row("path", ["/mqtt/", "/MQTT", "/api", "//", "/mqtt%20"])
async def test_any_other_path_is_not_found(path: str) -> None:
    async with running_echo_server() as server:
        with pytest.raises(InvalidStatus) as refused:
            await connect_websocket(server, path)
        assert refused.value.response.status_code == 404
        assert server.echo.events == []


async def test_a_request_may_arrive_byte_by_byte() -> None:
    async with running_echo_server() as server, open_raw_socket(server) as client:
        for byte in REQUEST:
            await client.send(bytes([byte]))
        await wait_until(lambda: server.echoes)
        assert server.echo.events == []
        await client.send(b"\r\n")
        assert b"sec-websocket-protocol: mqtt\r\n" in (await client.read_head()).lower()
        await wait_until(lambda: server.echo.events == ["made"])


async def test_frame_boundaries_have_no_meaning() -> None:
    async with running_echo_server() as server, open_raw_socket(server) as client:
        await client.upgrade()
        await client.send(b"".join(frame(Opcode.BINARY, bytes([number])) for number in range(100)))
        await wait_until(lambda: b"".join(server.echo.received) == bytes(range(100)))


async def test_a_message_in_many_frames_is_forwarded_frame_by_frame_without_a_limit() -> None:
    piece = bytes(LARGEST)
    response = frame(Opcode.BINARY, piece, masked=False)
    async with running_echo_server() as server, open_raw_socket(server) as client:
        await client.upgrade()
        for number in range(20):
            await client.send(frame(Opcode.CONT if number else Opcode.BINARY, piece, fin=False))
            assert await client.read(len(response)) == response, "the server waited for the rest"


async def test_pings_get_pongs_and_unsolicited_pongs_are_ignored() -> None:
    async with running_echo_server() as server, connect_websocket(server) as client, asyncio.timeout(TIMEOUT):
        await client.pong(b"unsolicited")
        await (await client.ping(b"there?"))
        assert await receive_echo(client, b"still") == b"still"
        assert server.echo.received == [b"still"]


async def test_a_text_frame_closes_the_connection_and_later_frames_are_ignored() -> None:
    async with running_echo_server() as server, open_raw_socket(server) as client:
        await client.upgrade()
        frames = (frame(Opcode.BINARY, b"before"), frame(Opcode.TEXT, b"x"), frame(Opcode.BINARY, b"behind"))
        await client.send(b"".join(frames))
        assert (await client.read_all())[-26:-24] == (1003).to_bytes(2)
        assert b"".join(server.echo.received) == b"before"
        assert server.echo.events == ["made", "lost"]
        assert "sent a text frame" in str(server.echo.lost)


async def test_a_client_that_is_still_sending_a_too_large_frame_gets_the_close_code() -> None:
    async with running_echo_server() as server, open_raw_socket(server) as client:
        await client.upgrade()
        await client.send(frame(Opcode.BINARY, bytes(1_000_000)))
        assert (await client.read_all())[2:4] == (1009).to_bytes(2)
        assert server.echo.events == ["made", "lost"]
        assert server.echo.received == []


async def test_a_close_frame_gets_a_response_and_ends_the_connection() -> None:
    async with running_echo_server() as server, connect_websocket(server) as client:
        assert await receive_echo(client, b"hello") == b"hello"
        await client.close(1001, "leaving")
        assert client.protocol.close_rcvd == client.protocol.close_sent
        await wait_until(lambda: server.echo.events == ["made", "eof", "lost"])
        assert server.echo.lost is None


async def test_an_end_of_file_without_a_close_frame_ends_the_connection() -> None:
    async with running_echo_server() as server, open_raw_socket(server) as client:
        await client.upgrade()
        client.socket.shutdown(socket.SHUT_WR)
        assert await client.read_all() == b""
        await wait_until(lambda: server.echo.events == ["made", "eof", "lost"])


async def test_a_close_frame_is_sent_after_the_last_bytes() -> None:
    async with running_echo_server() as server, connect_websocket(server) as client, asyncio.timeout(TIMEOUT):
        server.echo.wire.writelines([b"last ", b"words"])
        server.echo.wire.close()
        server.echo.wire.write(b"too late")
        assert await client.recv() == b"last words"
        with pytest.raises(ConnectionClosed) as closed:
            await client.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1000
        await wait_until(lambda: server.echo.events == ["made", "lost"])


async def test_a_connection_still_reads_after_its_own_close_frame() -> None:
    async with running_echo_server() as server, open_raw_socket(server) as client:
        await client.upgrade()
        assert server.echo.wire.can_write_eof()
        server.echo.wire.write_eof()
        close = frame(Opcode.CLOSE, (1000).to_bytes(2), masked=False)
        assert await client.read(len(close)) == close
        await client.send(frame(Opcode.BINARY, b"under way"))
        await wait_until(lambda: server.echo.received == [b"under way"])
        await client.send(frame(Opcode.CLOSE, (1000).to_bytes(2)))
        assert await client.read_all() == b""
        await wait_until(lambda: server.echo.events == ["made", "eof", "lost"])


async def test_a_lost_connection_can_be_closed_again() -> None:
    async with running_echo_server() as server, open_raw_socket(server) as client:
        await client.upgrade()
        while "full" not in server.echo.events:
            server.echo.wire.write(bytes(100_000))
        server.echo.wire.close()
        await client.read_all()
        await wait_until(lambda: server.echo.events[-1] == "lost")
        server.echo.wire.abort()
        server.echo.wire.close()


async def test_an_aborted_connection_is_lost_at_once() -> None:
    async with running_echo_server() as server, connect_websocket(server):
        assert not server.echo.wire.is_closing()
        server.echo.wire.abort()
        assert server.echo.wire.is_closing()
        server.echo.wire.pause_reading()
        server.echo.wire.resume_reading()
        await wait_until(lambda: server.echo.events == ["made", "lost"])


async def test_the_peer_name_is_that_of_the_client() -> None:
    async with running_echo_server() as server, open_raw_socket(server) as client:
        await client.upgrade()
        assert server.echo.wire.get_extra_info("peername") == client.socket.getsockname()
        assert server.echo.wire.get_extra_info("no such thing", 7) == 7


async def test_writing_is_paused_and_resumed_with_the_write_buffer() -> None:
    async with running_echo_server() as server, open_raw_socket(server) as client:
        await client.upgrade()
        server.echo.wire.set_write_buffer_limits(high=1000, low=100)
        while "full" not in server.echo.events:
            server.echo.wire.write(bytes(100_000))
        assert server.echo.wire.get_write_buffer_size() > 1000
        while "room" not in server.echo.events:
            await client.read(10_000)
        assert server.echo.wire.get_write_buffer_size() <= 100


async def test_a_connection_that_pauses_reading_gets_nothing_until_it_resumes() -> None:
    async with running_echo_server() as server, connect_websocket(server) as client:
        server.echo.wire.pause_reading()
        await client.send(b"patience")
        assert await wait_until_stable(lambda: len(server.echo.received)) == 0
        server.echo.wire.resume_reading()
        async with asyncio.timeout(TIMEOUT):
            assert await client.recv() == b"patience"


class ClosingAtOnce(Echo):
    """Protocol that closes the connection as soon as it is made."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.wire.write(b"no")
        self.wire.close()


async def test_bytes_of_a_client_that_is_closed_at_once_are_ignored() -> None:
    async with running_echo_server(echo=ClosingAtOnce) as server, open_raw_socket(server) as client:
        await client.send(REQUEST + b"\r\n" + frame(Opcode.BINARY, b"unheard"))
        assert (await client.read_head()).startswith(b"HTTP/1.1 101 ")
        await wait_until(lambda: server.echo.events == ["made", "lost"])
        assert server.echo.received == []


async def test_websockets_work_over_tls() -> None:
    authority = trustme.CA()
    server_context, client_context = (
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH),
        ssl.create_default_context(),
    )
    authority.issue_cert("127.0.0.1").configure_cert(server_context)
    authority.configure_trust(client_context)
    async with running_echo_server(tls=server_context) as server, asyncio.timeout(TIMEOUT):
        async with connect_websocket(server, ssl=client_context) as client:
            assert await receive_echo(client, b"hello") == b"hello"
            await client.send("text")
            with pytest.raises(ConnectionClosed, match="1003"):
                await client.recv()
        with pytest.raises(InvalidStatus, match="404"):
            await connect_websocket(server, "/api", ssl=client_context)


async def test_a_client_that_does_not_complete_its_request_is_aborted_and_others_stay() -> None:
    async with running_echo_server(timeout=0.05) as server, connect_websocket_in_time(server) as client:
        async with open_raw_socket(server) as idle:  # connected later, so its timeout is later
            await idle.send(REQUEST)
            assert await idle.read_all() == b""
        assert await receive_echo(client, b"hello") == b"hello"
        assert [each.events for each in server.echoes[-2:]] == [["made"], []]


async def test_a_client_that_does_not_read_the_rest_in_time_is_aborted() -> None:
    async with running_echo_server(timeout=0.05) as server, open_upgraded_socket(server):
        echo = server.echoes[-1]
        while "full" not in echo.events:
            echo.wire.write(bytes(1_000_000))
        echo.wire.close()
        await wait_until(lambda: echo.events[-1] == "lost")
