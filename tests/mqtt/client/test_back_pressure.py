"""Too much: a slow consumer stops the broker, a slow broker stops publishers, and neither stops the other."""

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
    answered_pings,
    wait_until,
    wait_until_stable,
    with_timeout,
)

if TYPE_CHECKING:
    from meshfleet.mqtt.client import MqttClient

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

MANY = 2400
HEAVY = 10_000
"""Messages and bytes of each: more than the network keeps for those who do not read."""

ONE_READ = 300_000
"""Bytes, and some more, that a loop reads at once: what may arrive before anybody can say stop."""


def _flood() -> bytes:
    return b"".join(encode_packet(Publish("t", number.to_bytes(4) + bytes(HEAVY))) for number in range(MANY))


async def _received(link: MqttClient, got: list[int], most: int) -> None:
    """Receive the flood to its end, in batches that may not be larger."""
    while len(got) < MANY:
        batch = await with_timeout(link.receive())
        assert batch.size <= most
        got += [int.from_bytes(message.payload[:4]) for message in batch.messages]


async def test_a_slow_consumer_makes_the_broker_wait_and_gets_everything_in_the_end() -> None:
    async with ScriptedBroker() as broker, broker.create_client(backlog=100_000) as link:
        peer = await broker.accept()
        peer.send(_flood())
        assert await wait_until_stable(lambda: peer.waiting) > 0
        got: list[int] = []
        await _received(link, got, 100_000 + ONE_READ)
        assert got == list(range(MANY))


async def test_while_an_acknowledgement_is_expected_reading_goes_on_to_eight_times_the_limit() -> None:
    async with ScriptedBroker() as broker, broker.create_client(backlog=400_000) as link:
        peer = await broker.accept()
        publishing = asyncio.create_task(link.publish("t", b"x"))
        (message,) = await peer.publishes(1)
        peer.send(_flood(), Puback(message.packet_id))
        assert await wait_until_stable(lambda: peer.waiting) > 0
        first = await with_timeout(link.receive())
        assert 8 * 400_000 < first.size <= 8 * 400_000 + ONE_READ
        assert not publishing.done()
        got = [int.from_bytes(message.payload[:4]) for message in first.messages]
        await _received(link, got, 8 * 400_000 + ONE_READ)
        assert got == list(range(MANY))
        await with_timeout(publishing)


async def test_who_publishes_before_he_receives_does_not_wait_for_himself() -> None:
    async with ScriptedBroker() as broker, broker.create_client(backlog=4_000_000) as link:
        peer = await broker.accept()
        peer.send(_flood())
        assert await wait_until_stable(lambda: peer.waiting) > 0
        publishing = asyncio.create_task(link.publish("t", b"x"))
        peer.acknowledge(await peer.publishes(1))
        await with_timeout(publishing)
        got: list[int] = []
        await _received(link, got, 8 * 4_000_000)
        assert got == list(range(MANY))


async def test_who_subscribes_before_he_receives_does_not_wait_for_himself() -> None:
    async with ScriptedBroker() as broker, broker.create_client(backlog=4_000_000) as link:
        peer = await broker.accept()
        peer.send(_flood())
        assert await wait_until_stable(lambda: peer.waiting) > 0
        asking = asyncio.create_task(link.subscribe("a"))
        await peer.grant()
        await with_timeout(asking)
        assert len(broker.peers) == 1


async def _overfilled(broker: ScriptedBroker, link: MqttClient) -> None:
    """More messages than are read on for, and the connection that brought them is gone."""
    peer = await broker.accept()
    publishing = asyncio.create_task(link.publish("t", b"mark"))
    (mark,) = await peer.publishes(1)
    peer.send(Puback(mark.packet_id), Publish("t", bytes(1000)))
    await with_timeout(publishing)
    peer.close()

    async def is_back() -> bool:
        await link.publish("t", b"", qos=0)  # who does not read notices the end when he writes
        return len(broker.peers) > 1

    await eventually_async(is_back)


async def test_what_an_old_connection_brought_does_not_stop_the_new_one_for_good() -> None:
    async with ScriptedBroker() as broker, broker.create_client(backlog=10) as link:
        await _overfilled(broker, link)
        peer = await broker.accept()
        publishing = asyncio.create_task(link.publish("t", b"x"))
        while True:
            message = await peer.expect(Publish)
            if message.qos:
                break
        await with_timeout(link.receive())
        peer.acknowledge([message])
        await with_timeout(publishing)


async def test_what_comes_while_the_link_subscribes_again_does_not_stop_it_for_good() -> None:
    async with ScriptedBroker() as broker, broker.create_client(backlog=1) as link:
        peer = await broker.accept()
        asking = asyncio.create_task(link.subscribe("a"))
        await peer.grant()
        await with_timeout(asking)
        receiving = asyncio.create_task(link.receive())
        peer.close()
        peer = await broker.accept()
        asked = await peer.expect(Subscribe)
        peer.send(Suback(asked.packet_id, (1,)), Publish("a", b"retained", retain=True))
        assert (await with_timeout(receiving)).messages == [Publish("a", b"retained", retain=True)]
        for number in range(3):
            peer.send(Publish("a", bytes((number,))))
            assert (await with_timeout(link.receive())).messages == [Publish("a", bytes((number,)))]
        assert len(broker.peers) == 2


async def test_what_comes_in_front_of_the_answer_to_a_subscription_does_not_hide_it() -> None:
    async with ScriptedBroker() as broker, broker.create_client(backlog=1) as link:
        peer = await broker.accept()
        asking = asyncio.create_task(link.subscribe("a"))
        asked = await peer.expect(Subscribe)
        peer.send(Publish("a", b"x"))
        assert (await with_timeout(link.receive())).messages == [Publish("a", b"x")]
        peer.send(Suback(asked.packet_id, (1,)))
        await with_timeout(asking)


async def test_a_batch_weighs_what_came_from_the_network_however_it_was_cut() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as link:
        peer = await broker.accept()
        raw = encode_packet(Publish("t", bytes(900_000)))
        peer.send(raw)
        batch = await with_timeout(link.receive())
        assert len(batch.messages) == 1
        assert batch.size >= len(raw)


async def test_pings_unanswered_while_we_do_not_read_are_not_taken_for_death() -> None:
    for interval in PING_INTERVALS:
        async with (
            ScriptedBroker() as broker,
            broker.create_client(backlog=1, ping_interval=interval) as link,
        ):
            peer = await broker.accept()
            peer.send(Publish("t", b"too much"))
            if not await answered_pings(peer, 4):
                continue
            await with_timeout(link.receive())
            peer.send(Publish("t", b"x"))
            receiving = asyncio.create_task(link.receive())
            await wait_until(lambda: receiving.done() or peer.gone)  # noqa: B023 # waited for in this round
            if not peer.gone:
                assert receiving.result().messages == [Publish("t", b"x")]
                return
            receiving.cancel()
    pytest.fail("the link ended a connection that it did not read")


async def test_a_broker_that_went_while_we_did_not_read_is_noticed_when_we_do() -> None:
    async with ScriptedBroker() as broker, broker.create_client(backlog=1) as link:
        peer = await broker.accept()
        peer.send(Publish("t", b"too much"))
        broker.connack = Connack(session_present=True)
        peer.close()
        await with_timeout(link.receive())
        peer = await broker.accept()
        peer.send(Publish("t", b"x"))
        assert (await with_timeout(link.receive())).messages == [Publish("t", b"x")]


async def _flooded(link: MqttClient, sent: list[int], *, turns: bool) -> None:
    for number in range(MANY):
        await link.publish("t", number.to_bytes(4) + bytes(HEAVY), qos=0)
        sent.append(number)
        if turns:
            await asyncio.sleep(0)


@pytest.mark.parametrize("turns", [True, False], ids=["giving turns", "in a tight loop"])
async def test_a_broker_that_does_not_read_makes_publishers_wait(*, turns: bool) -> None:
    async with ScriptedBroker() as broker, broker.create_client() as link:
        peer = await broker.accept()
        peer.stall()
        sent: list[int] = []
        publishing = asyncio.create_task(_flooded(link, sent, turns=turns))
        assert await wait_until_stable(lambda: len(sent)) < MANY
        peer.resume()
        await with_timeout(publishing)
        got = await peer.publishes(MANY)
        assert [int.from_bytes(message.payload[:4]) for message in got] == list(range(MANY))


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_list_too_heavy_for_the_network_leaves_in_pieces(qos: int) -> None:
    async with ScriptedBroker() as broker, broker.create_client(window=60_000) as link:
        peer = await broker.accept()
        peer.stall()
        messages = [Publish("t", number.to_bytes(4) + bytes(HEAVY), qos) for number in range(MANY)]
        publishing = asyncio.create_task(link.publish_all(messages))
        late = asyncio.create_task(link.publish("t", b"last", qos=0))
        await wait_until_stable(lambda: len(peer.received))
        assert not publishing.done()
        assert not late.done()
        peer.resume()
        got = await peer.publishes(MANY + 1)
        if qos:
            peer.acknowledge(got[:-1])
        await with_timeout(asyncio.gather(publishing, late))
        assert [message.payload for message in got] == [*[message.payload for message in messages], b"last"]


async def test_acknowledgements_get_through_to_a_broker_that_reads_slowly() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as link:
        peer = await broker.accept()
        peer.stall()
        publishing = asyncio.create_task(_flooded(link, [], turns=True))
        peer.send(*[Publish("t", b"", qos=1, packet_id=number) for number in range(1, 101)])
        got = 0
        while got < 100:
            batch = await with_timeout(link.receive())
            got += len(batch.messages)
            batch.acknowledge()
        peer.resume()
        await with_timeout(publishing)
        await wait_until(lambda: len(peer.received) == 1 + MANY + 100)
        assert [each for each in peer.received if isinstance(each, Puback)] == [
            Puback(n) for n in range(1, 101)
        ]
