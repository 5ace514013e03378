"""MQTT inside a WebSocket with unusual servers: other frames, other behavior, or no broker at all."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, cast

import pytest
from msgspec.structs import replace
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed as WebSocketClosed
from websockets.typing import Subprotocol

from meshfleet.errors.mqtt import BrokerUnreachable, ConnectionClosed
from meshfleet.mqtt.client import BrokerAddress, MqttClient, MqttOptions, Publish
from meshfleet.mqtt.codec.decoder import FROM_CLIENTS
from meshfleet.mqtt.codec.encoder import DISCONNECT, encode_packet
from meshfleet.mqtt.codec.packets import Connack, Disconnect, OversizedPublish, Packet
from meshfleet.mqtt.codec.parser import PacketParser
from tests.mqtt.client.proxy import FAST_RECONNECT, TIMEOUT, receive_messages, unique_name
from tests.mqtt.client.scripted_broker import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

CONNACK = encode_packet(Connack())


@asynccontextmanager
async def websocket_server(
    handle: Callable[[ServerConnection], Awaitable[None]], protocol: str | None = "mqtt"
) -> AsyncIterator[BrokerAddress]:
    """Run a WebSocket server that handles each connection with this function."""
    protocols = None if protocol is None else [Subprotocol(protocol)]
    async with serve(handle, "127.0.0.1", 0, subprotocols=protocols) as server:
        [listener] = server.sockets
        yield BrokerAddress(host="127.0.0.1", port=listener.getsockname()[1], path="/mqtt")


async def accept_connect(connection: ServerConnection) -> None:
    """Respond to CONNECT, in fragments of a message."""
    await connection.recv()
    await connection.send([CONNACK[:1], CONNACK[1:3], CONNACK[3:]])


async def test_the_last_messages_reach_a_broker_that_sends_all_the_time() -> None:
    received: list[Packet] = []

    async def handle(connection: ServerConnection) -> None:
        await accept_connect(connection)
        parser, flood = PacketParser(FROM_CLIENTS), encode_packet(Publish("t", bytes(20_000)))
        sending = asyncio.create_task(send_forever(connection, flood))
        with suppress(WebSocketClosed):
            while True:
                received.extend(parser.feed(cast("bytes", await connection.recv())))
                await asyncio.sleep(0.001)  # it reads slowly, too
        sending.cancel()

    patient = replace(FAST_RECONNECT, timeout=TIMEOUT)  # a busy machine takes long to read it all
    async with websocket_server(handle) as address:
        async with MqttClient(address, unique_name("web"), options=patient) as client:
            for number in range(100):
                await client.publish("x", b"%d" % number + bytes(2000), qos=0)
        await wait_until(lambda: Disconnect() in received)
    assert [int(each.payload.rstrip(b"\0")) for each in received if isinstance(each, Publish)] == list(
        range(100)
    )


async def send_forever(connection: ServerConnection, frame: bytes) -> None:
    with suppress(WebSocketClosed):
        while True:
            await connection.send(frame)


async def test_the_payload_of_an_oversized_message_is_skipped_in_a_websocket() -> None:
    async def handle(connection: ServerConnection) -> None:
        await accept_connect(connection)
        await connection.send(encode_packet(Publish("big", bytes(350_000), 1, packet_id=1)))
        await connection.send(encode_packet(Publish("small", b"x")))
        await connection.wait_closed()

    async with (
        websocket_server(handle) as address,
        asyncio.timeout(TIMEOUT),
        MqttClient(address, unique_name("web"), options=MqttOptions(max_packet_bytes=100_000)) as client,
    ):
        received = await receive_messages(client, 2)
    assert received == [OversizedPublish("big", b"", 1, packet_id=1, size=350_000), Publish("small", b"x")]


@pytest.mark.parametrize("protocol", [None, "chat"])
async def test_a_websocket_with_another_subprotocol_is_unreachable(protocol: str | None) -> None:
    async with websocket_server(ServerConnection.wait_closed, protocol) as address:
        with pytest.raises(BrokerUnreachable, match=f"^{address}: .+"):
            await MqttClient(address, unique_name("web")).__aenter__()


async def test_a_text_frame_ends_the_connection() -> None:
    async def handle(connection: ServerConnection) -> None:
        await connection.send("hello")
        await connection.wait_closed()

    async with websocket_server(handle) as address:
        with pytest.raises(BrokerUnreachable, match="sent a text frame"):
            await MqttClient(address, unique_name("web")).__aenter__()


async def test_frame_boundaries_have_no_meaning_and_pings_get_responses() -> None:
    answered = asyncio.Event()

    async def handle(connection: ServerConnection) -> None:
        await accept_connect(connection)
        packets = b"".join(encode_packet(Publish("a", b"%d" % number)) for number in range(3))
        await connection.send(packets[:7])
        await connection.send(packets[7:])
        await (await connection.ping())
        answered.set()
        assert await connection.recv() == DISCONNECT
        await connection.wait_closed()

    async with (
        websocket_server(handle) as address,
        asyncio.timeout(TIMEOUT),
        MqttClient(address, unique_name("web")) as client,
    ):
        assert [message.payload for message in await receive_messages(client, 3)] == [b"0", b"1", b"2"]
        await answered.wait()


async def test_the_client_reconnects_after_a_close_of_the_broker() -> None:
    connections = 0

    async def handle(connection: ServerConnection) -> None:
        nonlocal connections
        connections += 1
        await accept_connect(connection)
        await connection.send(encode_packet(Publish("a", b"%d" % connections)))
        if connections < 3:
            await connection.close()
        await connection.wait_closed()

    async with (
        websocket_server(handle) as address,
        MqttClient(address, unique_name("web"), options=FAST_RECONNECT) as client,
    ):
        assert [(await receive_messages(client, 1))[0].payload for _ in range(3)] == [b"1", b"2", b"3"]


async def test_a_client_may_close_at_the_same_time_as_the_broker() -> None:
    async def handle(connection: ServerConnection) -> None:
        await accept_connect(connection)
        connection.protocol.send_binary(encode_packet(Publish("a", b"last words")))
        connection.protocol.send_close()
        connection.send_data()  # both in one write
        await connection.wait_closed()

    async with websocket_server(handle) as address, asyncio.timeout(TIMEOUT):
        client = await MqttClient(address, unique_name("web"), options=FAST_RECONNECT).__aenter__()
        batch = await client.receive()
        await client.close()
        assert [message.payload for message in batch.messages] == [b"last words"]
        with pytest.raises(ConnectionClosed):
            await client.receive()
