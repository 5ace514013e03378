"""Back pressure: a slow consumer stops the broker, and a slow broker stops publishers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import Connack, Puback, Publish, Suback, Subscribe
from tests.eventually import eventually_async
from tests.mqtt.client.scripted_broker import (
    PING_INTERVALS,
    ScriptedBroker,
    answer_pings,
    wait_until,
    wait_until_stable,
    with_timeout,
)

if TYPE_CHECKING:
    from meshfleet.mqtt.client import MqttClient

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

MESSAGE_COUNT = 2400
PAYLOAD_BYTES = 10_000
"""Number of messages and bytes of each: more than the network buffers for a side that does not read."""

READ_BYTES = 300_000
"""Upper limit of the bytes of one read: they may arrive before reading can be paused."""


def _flood() -> bytes:
    return b"".join(
        encode_packet(Publish("t", number.to_bytes(4) + bytes(PAYLOAD_BYTES)))
        for number in range(MESSAGE_COUNT)
    )


async def _receive_flood(client: MqttClient, received: list[int], max_bytes: int) -> None:
    """Receive the flood to its end, in batches of at most `max_bytes`."""
    while len(received) < MESSAGE_COUNT:
        batch = await with_timeout(client.receive())
        assert batch.size <= max_bytes
        received += [int.from_bytes(message.payload[:4]) for message in batch.messages]


async def test_a_slow_consumer_makes_the_broker_wait_and_receives_everything() -> None:
    async with ScriptedBroker() as broker, broker.create_client(backlog=100_000) as client:
        peer = await broker.accept()
        peer.send(_flood())
        assert await wait_until_stable(lambda: peer.waiting) > 0
        received: list[int] = []
        await _receive_flood(client, received, 100_000 + READ_BYTES)
        assert received == list(range(MESSAGE_COUNT))


async def test_reading_continues_up_to_eight_times_the_limit_while_an_acknowledgement_is_expected() -> None:
    async with ScriptedBroker() as broker, broker.create_client(backlog=400_000) as client:
        peer = await broker.accept()
        publishing = asyncio.create_task(client.publish("t", b"x"))
        (message,) = await peer.publishes(1)
        peer.send(_flood(), Puback(message.packet_id))
        assert await wait_until_stable(lambda: peer.waiting) > 0
        first = await with_timeout(client.receive())
        assert 8 * 400_000 < first.size <= 8 * 400_000 + READ_BYTES
        assert not publishing.done()
        received = [int.from_bytes(message.payload[:4]) for message in first.messages]
        await _receive_flood(client, received, 8 * 400_000 + READ_BYTES)
        assert received == list(range(MESSAGE_COUNT))
        await with_timeout(publishing)


async def test_publishing_before_receiving_does_not_deadlock() -> None:
    async with ScriptedBroker() as broker, broker.create_client(backlog=4_000_000) as client:
        peer = await broker.accept()
        peer.send(_flood())
        assert await wait_until_stable(lambda: peer.waiting) > 0
        publishing = asyncio.create_task(client.publish("t", b"x"))
        peer.acknowledge(await peer.publishes(1))
        await with_timeout(publishing)
        received: list[int] = []
        await _receive_flood(client, received, 8 * 4_000_000)
        assert received == list(range(MESSAGE_COUNT))


async def test_subscribing_before_receiving_does_not_deadlock() -> None:
    async with ScriptedBroker() as broker, broker.create_client(backlog=4_000_000) as client:
        peer = await broker.accept()
        peer.send(_flood())
        assert await wait_until_stable(lambda: peer.waiting) > 0
        subscribing = asyncio.create_task(client.subscribe("a"))
        await peer.grant()
        await with_timeout(subscribing)
        assert len(broker.peers) == 1


async def _fill_inbox_and_reconnect(broker: ScriptedBroker, client: MqttClient) -> None:
    """Receive more than the backlog allows, and lose the connection of these messages."""
    peer = await broker.accept()
    publishing = asyncio.create_task(client.publish("t", b"mark"))
    (mark,) = await peer.publishes(1)
    peer.send(Puback(mark.packet_id), Publish("t", bytes(1000)))
    await with_timeout(publishing)
    peer.close()

    async def is_back() -> bool:
        await client.publish("t", b"", qos=0)  # a client that does not read notices the end when it writes
        return len(broker.peers) > 1

    await eventually_async(is_back)


async def test_messages_of_an_old_connection_do_not_block_the_new_one_forever() -> None:
    async with ScriptedBroker() as broker, broker.create_client(backlog=10) as client:
        await _fill_inbox_and_reconnect(broker, client)
        peer = await broker.accept()
        publishing = asyncio.create_task(client.publish("t", b"x"))
        while True:
            message = await peer.expect(Publish)
            if message.qos:
                break
        await with_timeout(client.receive())
        peer.acknowledge([message])
        await with_timeout(publishing)


async def test_messages_received_while_subscribing_again_do_not_block_reading_forever() -> None:
    async with ScriptedBroker() as broker, broker.create_client(backlog=1) as client:
        peer = await broker.accept()
        subscribing = asyncio.create_task(client.subscribe("a"))
        await peer.grant()
        await with_timeout(subscribing)
        receiving = asyncio.create_task(client.receive())
        peer.close()
        peer = await broker.accept()
        request = await peer.expect(Subscribe)
        peer.send(Suback(request.packet_id, (1,)), Publish("a", b"retained", retain=True))
        assert (await with_timeout(receiving)).messages == [Publish("a", b"retained", retain=True)]
        for number in range(3):
            peer.send(Publish("a", bytes((number,))))
            assert (await with_timeout(client.receive())).messages == [Publish("a", bytes((number,)))]
        assert len(broker.peers) == 2


async def test_messages_before_a_suback_do_not_hide_it() -> None:
    async with ScriptedBroker() as broker, broker.create_client(backlog=1) as client:
        peer = await broker.accept()
        subscribing = asyncio.create_task(client.subscribe("a"))
        request = await peer.expect(Subscribe)
        peer.send(Publish("a", b"x"))
        assert (await with_timeout(client.receive())).messages == [Publish("a", b"x")]
        peer.send(Suback(request.packet_id, (1,)))
        await with_timeout(subscribing)


async def test_the_size_of_a_batch_is_the_bytes_received_from_the_network() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as client:
        peer = await broker.accept()
        raw = encode_packet(Publish("t", bytes(900_000)))
        peer.send(raw)
        batch = await with_timeout(client.receive())
        assert len(batch.messages) == 1
        assert batch.size >= len(raw)


async def test_unanswered_pings_do_not_disconnect_while_reading_is_held() -> None:
    for interval in PING_INTERVALS:
        async with (
            ScriptedBroker() as broker,
            broker.create_client(backlog=1, ping_interval=interval) as client,
        ):
            peer = await broker.accept()
            peer.send(Publish("t", b"too much"))
            if not await answer_pings(peer, 4):
                continue
            await with_timeout(client.receive())
            peer.send(Publish("t", b"x"))
            receiving = asyncio.create_task(client.receive())
            await wait_until(lambda: receiving.done() or peer.gone)  # noqa: B023 # awaited in this iteration
            if not peer.gone:
                assert receiving.result().messages == [Publish("t", b"x")]
                return
            receiving.cancel()
    pytest.fail("the client ended a connection while reading was held")


async def test_a_broker_that_closed_while_reading_was_held_is_noticed_later() -> None:
    async with ScriptedBroker() as broker, broker.create_client(backlog=1) as client:
        peer = await broker.accept()
        peer.send(Publish("t", b"too much"))
        broker.connack = Connack(session_present=True)
        peer.close()
        await with_timeout(client.receive())
        peer = await broker.accept()
        peer.send(Publish("t", b"x"))
        assert (await with_timeout(client.receive())).messages == [Publish("t", b"x")]


async def _publish_flood(client: MqttClient, sent: list[int], *, yields: bool) -> None:
    for number in range(MESSAGE_COUNT):
        await client.publish("t", number.to_bytes(4) + bytes(PAYLOAD_BYTES), qos=0)
        sent.append(number)
        if yields:
            await asyncio.sleep(0)


@pytest.mark.parametrize("yields", [True, False], ids=["yielding", "in a tight loop"])
async def test_a_broker_that_does_not_read_makes_publishers_wait(*, yields: bool) -> None:
    async with ScriptedBroker() as broker, broker.create_client() as client:
        peer = await broker.accept()
        peer.stall()
        sent: list[int] = []
        publishing = asyncio.create_task(_publish_flood(client, sent, yields=yields))
        assert await wait_until_stable(lambda: len(sent)) < MESSAGE_COUNT
        peer.resume()
        await with_timeout(publishing)
        received = await peer.publishes(MESSAGE_COUNT)
        assert [int.from_bytes(message.payload[:4]) for message in received] == list(range(MESSAGE_COUNT))


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_list_larger_than_the_write_buffer_is_sent_in_parts(qos: int) -> None:
    async with ScriptedBroker() as broker, broker.create_client(window=60_000) as client:
        peer = await broker.accept()
        peer.stall()
        messages = [
            Publish("t", number.to_bytes(4) + bytes(PAYLOAD_BYTES), qos) for number in range(MESSAGE_COUNT)
        ]
        publishing = asyncio.create_task(client.publish_all(messages))
        late = asyncio.create_task(client.publish("t", b"last", qos=0))
        await wait_until_stable(lambda: len(peer.received))
        assert not publishing.done()
        assert not late.done()
        peer.resume()
        received = await peer.publishes(MESSAGE_COUNT + 1)
        if qos:
            peer.acknowledge(received[:-1])
        await with_timeout(asyncio.gather(publishing, late))
        assert [message.payload for message in received] == [
            *[message.payload for message in messages],
            b"last",
        ]


async def test_acknowledgements_reach_a_broker_that_reads_slowly() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as client:
        peer = await broker.accept()
        peer.stall()
        publishing = asyncio.create_task(_publish_flood(client, [], yields=True))
        peer.send(*[Publish("t", b"", qos=1, packet_id=number) for number in range(1, 101)])
        received = 0
        while received < 100:
            batch = await with_timeout(client.receive())
            received += len(batch.messages)
            batch.acknowledge()
        peer.resume()
        await with_timeout(publishing)
        await wait_until(lambda: len(peer.received) == 1 + MESSAGE_COUNT + 100)
        assert [each for each in peer.received if isinstance(each, Puback)] == [
            Puback(n) for n in range(1, 101)
        ]
