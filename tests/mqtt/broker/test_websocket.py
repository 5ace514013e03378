"""MQTT inside a WebSocket, the server's side: clients that behave, and those that are only mistaken."""

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
async def test_bytes_pass_both_ways(size: int) -> None:
    data = bytes(number * 7 % 251 for number in range(size))
    async with running_echo_server() as here, connect_websocket(here) as client:
        assert await receive_echo(client, data) == data
        assert here.echo.received == [data]


async def test_nothing_is_compressed_though_the_client_offers_it() -> None:
    async with running_echo_server() as here, connect_websocket(here, compression="deflate") as client:
        assert client.protocol.extensions == []
        assert await receive_echo(client, bytes(LARGEST)) == bytes(LARGEST)


@each_row("offers", [(), ("chat",), ("mqttv3.1", "MQTT")])
async def test_a_client_that_does_not_offer_mqtt_is_refused(offers: tuple[str, ...]) -> None:
    async with running_echo_server() as here:
        with pytest.raises(InvalidStatus) as refused:
            await connect_websocket(here, offers=offers)
        assert refused.value.response.status_code == 400
        assert b"does not offer the subprotocol mqtt" in refused.value.response.body
        assert here.echo.events == []


async def test_mqtt_is_chosen_among_other_offers() -> None:
    async with (
        running_echo_server() as here,
        connect_websocket(here, offers=("chat", "mqtt", "soap")) as client,
    ):
        assert client.subprotocol == "mqtt"


@each_row("path", ["/mqtt", "/", "", "/mqtt?from=here"])
async def test_mqtt_is_spoken_at_its_path(path: str) -> None:
    async with running_echo_server() as here, connect_websocket(here, path) as client:
        assert await receive_echo(client, b"hello") == b"hello"


@each_row("path", ["/mqtt/", "/MQTT", "/api", "//", "/mqtt%20"])
async def test_any_other_path_is_not_found(path: str) -> None:
    async with running_echo_server() as here:
        with pytest.raises(InvalidStatus) as refused:
            await connect_websocket(here, path)
        assert refused.value.response.status_code == 404
        assert here.echo.events == []


async def test_a_request_may_come_byte_by_byte() -> None:
    async with running_echo_server() as here, open_raw_socket(here) as client:
        for byte in REQUEST:
            await client.send(bytes([byte]))
        await wait_until(lambda: here.echoes)
        assert here.echo.events == []
        await client.send(b"\r\n")
        assert b"sec-websocket-protocol: mqtt\r\n" in (await client.read_head()).lower()
        await wait_until(lambda: here.echo.events == ["made"])


async def test_borders_of_frames_mean_nothing() -> None:
    async with running_echo_server() as here, open_raw_socket(here) as client:
        await client.upgrade()
        await client.send(b"".join(frame(Opcode.BINARY, bytes([number])) for number in range(100)))
        await wait_until(lambda: b"".join(here.echo.received) == bytes(range(100)))


async def test_a_message_in_many_frames_is_passed_on_piece_by_piece_and_has_no_limit() -> None:
    piece = bytes(LARGEST)
    answer = frame(Opcode.BINARY, piece, masked=False)
    async with running_echo_server() as here, open_raw_socket(here) as client:
        await client.upgrade()
        for number in range(20):
            await client.send(frame(Opcode.CONT if number else Opcode.BINARY, piece, fin=False))
            assert await client.read(len(answer)) == answer, "it waited for the rest"


async def test_pings_are_answered_and_pongs_nobody_asked_for_are_ignored() -> None:
    async with running_echo_server() as here, connect_websocket(here) as client, asyncio.timeout(TIMEOUT):
        await client.pong(b"unsolicited")
        await (await client.ping(b"there?"))
        assert await receive_echo(client, b"still") == b"still"
        assert here.echo.received == [b"still"]


async def test_text_ends_the_connection_and_nothing_behind_it_is_passed_on() -> None:
    async with running_echo_server() as here, open_raw_socket(here) as client:
        await client.upgrade()
        frames = (frame(Opcode.BINARY, b"before"), frame(Opcode.TEXT, b"x"), frame(Opcode.BINARY, b"behind"))
        await client.send(b"".join(frames))
        assert (await client.read_all())[-18:-16] == (1003).to_bytes(2)
        assert b"".join(here.echo.received) == b"before"
        assert here.echo.events == ["made", "lost"]
        assert "sent text" in str(here.echo.lost)


async def test_who_sends_too_large_a_frame_learns_why_though_it_was_still_sending() -> None:
    async with running_echo_server() as here, open_raw_socket(here) as client:
        await client.upgrade()
        await client.send(frame(Opcode.BINARY, bytes(1_000_000)))
        assert (await client.read_all())[2:4] == (1009).to_bytes(2)
        assert here.echo.events == ["made", "lost"]
        assert here.echo.received == []


async def test_a_close_is_answered_and_ends_the_connection_in_order() -> None:
    async with running_echo_server() as here, connect_websocket(here) as client:
        assert await receive_echo(client, b"hello") == b"hello"
        await client.close(1001, "leaving")
        assert client.protocol.close_rcvd == client.protocol.close_sent
        await wait_until(lambda: here.echo.events == ["made", "eof", "lost"])
        assert here.echo.lost is None


async def test_an_end_without_a_close_is_an_end() -> None:
    async with running_echo_server() as here, open_raw_socket(here) as client:
        await client.upgrade()
        client.socket.shutdown(socket.SHUT_WR)
        assert await client.read_all() == b""
        await wait_until(lambda: here.echo.events == ["made", "eof", "lost"])


async def test_a_connection_that_closes_says_so_behind_its_last_words() -> None:
    async with running_echo_server() as here, connect_websocket(here) as client, asyncio.timeout(TIMEOUT):
        here.echo.wire.writelines([b"last ", b"words"])
        here.echo.wire.close()
        here.echo.wire.write(b"too late")
        assert await client.recv() == b"last words"
        with pytest.raises(ConnectionClosed) as closed:
            await client.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1000
        await wait_until(lambda: here.echo.events == ["made", "lost"])


async def test_a_connection_that_says_the_end_still_reads_what_was_under_way() -> None:
    async with running_echo_server() as here, open_raw_socket(here) as client:
        await client.upgrade()
        assert here.echo.wire.can_write_eof()
        here.echo.wire.write_eof()
        close = frame(Opcode.CLOSE, (1000).to_bytes(2), masked=False)
        assert await client.read(len(close)) == close
        await client.send(frame(Opcode.BINARY, b"under way"))
        await wait_until(lambda: here.echo.received == [b"under way"])
        await client.send(frame(Opcode.CLOSE, (1000).to_bytes(2)))
        assert await client.read_all() == b""
        await wait_until(lambda: here.echo.events == ["made", "eof", "lost"])


async def test_a_connection_that_is_over_can_be_ended_again() -> None:
    async with running_echo_server() as here, open_raw_socket(here) as client:
        await client.upgrade()
        while "full" not in here.echo.events:
            here.echo.wire.write(bytes(100_000))
        here.echo.wire.close()
        await client.read_all()
        await wait_until(lambda: here.echo.events[-1] == "lost")
        here.echo.wire.abort()
        here.echo.wire.close()


async def test_a_connection_that_aborts_is_lost_at_once() -> None:
    async with running_echo_server() as here, connect_websocket(here):
        assert not here.echo.wire.is_closing()
        here.echo.wire.abort()
        assert here.echo.wire.is_closing()
        here.echo.wire.pause_reading()
        here.echo.wire.resume_reading()
        await wait_until(lambda: here.echo.events == ["made", "lost"])


async def test_the_peer_has_a_name() -> None:
    async with running_echo_server() as here, open_raw_socket(here) as client:
        await client.upgrade()
        assert here.echo.wire.get_extra_info("peername") == client.socket.getsockname()
        assert here.echo.wire.get_extra_info("no such thing", 7) == 7


async def test_a_connection_is_told_when_the_network_takes_no_more_and_when_it_does_again() -> None:
    async with running_echo_server() as here, open_raw_socket(here) as client:
        await client.upgrade()
        here.echo.wire.set_write_buffer_limits(high=1000, low=100)
        while "full" not in here.echo.events:
            here.echo.wire.write(bytes(100_000))
        assert here.echo.wire.get_write_buffer_size() > 1000
        while "room" not in here.echo.events:
            await client.read(10_000)
        assert here.echo.wire.get_write_buffer_size() <= 100


async def test_a_connection_that_pauses_gets_nothing_until_it_resumes() -> None:
    async with running_echo_server() as here, connect_websocket(here) as client:
        here.echo.wire.pause_reading()
        await client.send(b"patience")
        assert await wait_until_stable(lambda: len(here.echo.received)) == 0
        here.echo.wire.resume_reading()
        async with asyncio.timeout(TIMEOUT):
            assert await client.recv() == b"patience"


class Hasty(Echo):
    """Ends the connection as soon as it begins."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.wire.write(b"no")
        self.wire.close()


async def test_who_is_sent_away_at_once_has_sent_nothing() -> None:
    async with running_echo_server(echo=Hasty) as here, open_raw_socket(here) as client:
        await client.send(REQUEST + b"\r\n" + frame(Opcode.BINARY, b"unheard"))
        assert (await client.read_head()).startswith(b"HTTP/1.1 101 ")
        await wait_until(lambda: here.echo.events == ["made", "lost"])
        assert here.echo.received == []


async def test_it_is_all_the_same_behind_tls() -> None:
    authority = trustme.CA()
    shown, trusting = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(shown)
    authority.configure_trust(trusting)
    async with running_echo_server(tls=shown) as here, asyncio.timeout(TIMEOUT):
        async with connect_websocket(here, ssl=trusting) as client:
            assert await receive_echo(client, b"hello") == b"hello"
            await client.send("text")
            with pytest.raises(ConnectionClosed, match="1003"):
                await client.recv()
        with pytest.raises(InvalidStatus, match="404"):
            await connect_websocket(here, "/api", ssl=trusting)


async def test_a_client_that_never_asks_to_the_end_is_cut_off_and_the_others_stay() -> None:
    async with running_echo_server(timeout=0.05) as here, connect_websocket_in_time(here) as client:
        async with open_raw_socket(here) as idle:  # comes later, so its time is up later
            await idle.send(REQUEST)
            assert await idle.read_all() == b""
        assert await receive_echo(client, b"hello") == b"hello"
        assert [each.events for each in here.echoes[-2:]] == [["made"], []]


async def test_who_does_not_take_the_rest_in_time_is_cut_off() -> None:
    async with running_echo_server(timeout=0.05) as here, open_upgraded_socket(here):
        echo = here.echoes[-1]
        while "full" not in echo.events:
            echo.wire.write(bytes(1_000_000))
        echo.wire.close()
        await wait_until(lambda: echo.events[-1] == "lost")
