"""MQTT inside a WebSocket whose server is strange: other frames, other habits, or no broker at all."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, cast

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from meshfleet.errors.mqtt import BrokerUnreachable, LinkClosed
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
async def strange(
    talk: Callable[[ServerConnection], Awaitable[None]], protocol: str | None = "mqtt"
) -> AsyncIterator[BrokerAddress]:
    """A WebSocket server that talks to each client as a test tells it."""
    protocols = None if protocol is None else [Subprotocol(protocol)]
    async with serve(talk, "127.0.0.1", 0, subprotocols=protocols) as server:
        [door] = server.sockets
        yield BrokerAddress(host="127.0.0.1", port=door.getsockname()[1], path="/mqtt")


async def welcome(client: ServerConnection) -> None:
    """As a broker would, but in frames whose borders mean nothing."""
    await client.recv()
    await client.send([CONNACK[:1], CONNACK[1:3], CONNACK[3:]])


async def test_what_was_said_last_is_read_by_a_broker_that_talks_all_the_time() -> None:
    got: list[Packet] = []

    async def talk(client: ServerConnection) -> None:
        await welcome(client)
        parser, flood = PacketParser(FROM_CLIENTS), encode_packet(Publish("t", bytes(20_000)))
        talking = asyncio.create_task(talk_without_end(client, flood))
        with suppress(ConnectionClosed):
            while True:
                got.extend(parser.feed(cast("bytes", await client.recv())))
                await asyncio.sleep(0.001)  # a slow one, too
        talking.cancel()

    async with strange(talk) as there, asyncio.timeout(TIMEOUT):
        async with MqttClient(there, unique_name("web"), options=FAST_RECONNECT) as link:
            for number in range(100):
                await link.publish("x", b"%d" % number + bytes(2000), qos=0)
        await wait_until(lambda: Disconnect() in got)
    assert [int(each.payload.rstrip(b"\0")) for each in got if isinstance(each, Publish)] == list(range(100))


async def talk_without_end(client: ServerConnection, frame: bytes) -> None:
    with suppress(ConnectionClosed):
        while True:
            await client.send(frame)


async def test_a_message_too_large_is_passed_over_in_a_websocket_too() -> None:
    async def talk(client: ServerConnection) -> None:
        await welcome(client)
        await client.send(encode_packet(Publish("big", bytes(350_000), 1, packet_id=1)))
        await client.send(encode_packet(Publish("small", b"x")))
        await client.wait_closed()

    async with (
        strange(talk) as there,
        asyncio.timeout(TIMEOUT),
        MqttClient(there, unique_name("web"), options=MqttOptions(max_packet_bytes=100_000)) as link,
    ):
        got = await receive_messages(link, 2)
    assert got == [OversizedPublish("big", b"", 1, packet_id=1, size=350_000), Publish("small", b"x")]


@pytest.mark.parametrize("protocol", [None, "chat"])
async def test_a_websocket_for_something_else_is_no_broker(protocol: str | None) -> None:
    async with strange(ServerConnection.wait_closed, protocol) as there:
        with pytest.raises(BrokerUnreachable, match=f"^{there}: .+"):
            await MqttClient(there, unique_name("web")).__aenter__()


async def test_text_in_a_websocket_ends_it() -> None:
    async def talk(client: ServerConnection) -> None:
        await client.send("hello")
        await client.wait_closed()

    async with strange(talk) as there:
        with pytest.raises(BrokerUnreachable, match="sent text"):
            await MqttClient(there, unique_name("web")).__aenter__()


async def test_borders_of_frames_mean_nothing_and_pings_are_answered() -> None:
    answered = asyncio.Event()

    async def talk(client: ServerConnection) -> None:
        await welcome(client)
        packets = b"".join(encode_packet(Publish("a", b"%d" % number)) for number in range(3))
        await client.send(packets[:7])
        await client.send(packets[7:])
        await (await client.ping())
        answered.set()
        assert await client.recv() == DISCONNECT
        await client.wait_closed()

    async with (
        strange(talk) as there,
        asyncio.timeout(TIMEOUT),
        MqttClient(there, unique_name("web")) as link,
    ):
        assert [message.payload for message in await receive_messages(link, 3)] == [b"0", b"1", b"2"]
        await answered.wait()


async def test_a_close_by_the_broker_is_no_end_of_the_link() -> None:
    visits = 0

    async def talk(client: ServerConnection) -> None:
        nonlocal visits
        visits += 1
        await welcome(client)
        await client.send(encode_packet(Publish("a", b"%d" % visits)))
        if visits < 3:
            await client.close()
        await client.wait_closed()

    async with strange(talk) as there, MqttClient(there, unique_name("web"), options=FAST_RECONNECT) as link:
        assert [(await receive_messages(link, 1))[0].payload for _ in range(3)] == [b"1", b"2", b"3"]


async def test_a_link_that_closes_just_when_the_broker_does_is_closed() -> None:
    async def talk(client: ServerConnection) -> None:
        await welcome(client)
        client.protocol.send_binary(encode_packet(Publish("a", b"last words")))
        client.protocol.send_close()
        client.send_data()  # both in one piece
        await client.wait_closed()

    async with strange(talk) as there, asyncio.timeout(TIMEOUT):
        link = await MqttClient(there, unique_name("web"), options=FAST_RECONNECT).__aenter__()
        batch = await link.receive()
        await link.close()
        assert [message.payload for message in batch.messages] == [b"last words"]
        with pytest.raises(LinkClosed):
            await link.receive()
