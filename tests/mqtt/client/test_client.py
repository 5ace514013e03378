"""State that survives a connection: messages in flight, subscriptions, and unacknowledged messages."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from meshfleet.errors.mqtt import SubscriptionRefused
from meshfleet.errors.protocol import MalformedPacket
from meshfleet.mqtt.codec.packets import (
    SUBACK_FAILURE,
    Connack,
    Disconnect,
    Puback,
    Publish,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from tests.mqtt.client.scripted_broker import (
    NO_RECONNECT,
    ScriptedBroker,
    connect_with_short_timeout,
    wait_until,
    wait_until_stable,
    with_timeout,
)

pytestmark = pytest.mark.anyio


def _numbered(count: int, prefix: str = "") -> list[Publish]:
    return [Publish("t", f"{prefix}{number}".encode(), qos=1) for number in range(count)]


def _payloads(messages: list[Publish]) -> list[str]:
    return [message.payload.decode() for message in messages]


async def test_a_publish_returns_when_it_is_acknowledged_and_not_before() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as client:
        peer = await broker.accept()
        publishing = asyncio.create_task(client.publish("t/é", b"\x00x", retain=True))
        (message,) = await peer.publishes(1)
        assert message == Publish("t/é", b"\x00x", qos=1, retain=True, packet_id=message.packet_id)
        peer.send(Puback(message.packet_id + 1), Publish("t", b""))
        await with_timeout(client.receive())
        assert not publishing.done()
        peer.acknowledge([message])
        await with_timeout(publishing)


async def test_a_publish_at_qos_0_does_not_wait_for_an_acknowledgement() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as client:
        peer = await broker.accept()
        await with_timeout(client.publish("t", b"x", qos=0))
        assert await peer.publishes(1) == [Publish("t", b"x")]


async def test_many_publishes_are_sent_in_order_and_never_more_than_the_window() -> None:
    async with ScriptedBroker() as broker, broker.create_client(window=10) as client:
        peer = await broker.accept()
        publishing = asyncio.create_task(client.publish_all(_numbered(37)))
        received: list[Publish] = []
        acknowledged = 0
        while len(received) < 37:
            received += await peer.publishes(1)
            received += await peer.publishes(len(peer.unread))
            assert len(received) - acknowledged <= 10
            if len(received) - acknowledged == 10 or len(received) == 37:
                peer.acknowledge(received[acknowledged : acknowledged + 5])
                acknowledged += 5
        peer.acknowledge(received[acknowledged:-1])
        assert not publishing.done()
        peer.acknowledge(received[-1:])
        await with_timeout(publishing)
        assert _payloads(received) == [str(number) for number in range(37)]
        assert not any(message.dup for message in received)


async def test_a_full_window_opens_again_at_half() -> None:
    async with ScriptedBroker() as broker, broker.create_client(window=10) as client:
        peer = await broker.accept()
        publishing = asyncio.create_task(client.publish_all(_numbered(15)))
        received = await peer.publishes(10)
        peer.acknowledge(received[:4])
        assert await wait_until_stable(lambda: len(peer.unread)) == 0
        peer.acknowledge(received[4:5])
        received += await peer.publishes(5)
        peer.acknowledge(received)
        await with_timeout(publishing)


async def test_messages_in_flight_are_resent_in_order_with_their_packet_ids_and_dup_flag() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as client:
        peer = await broker.accept()
        publishing = asyncio.create_task(
            client.publish_all([*_numbered(5), Publish("t", b"once"), *_numbered(2, "x")])
        )
        received = await peer.publishes(8)
        peer.acknowledge([received[1]])
        peer.close()
        unacknowledged = [message for message in received if message.qos and message is not received[1]]
        for _ in range(2):
            peer = await broker.accept()
            resent = await peer.publishes(6)
            assert resent == [replace(message, dup=True) for message in unacknowledged]
            peer.reset()
        peer = await broker.accept()
        peer.acknowledge(await peer.publishes(6))
        await with_timeout(publishing)
        assert peer.unread == []


async def test_messages_published_in_an_outage_are_sent_after_resent_ones() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as client:
        peer = await broker.accept()
        first = asyncio.create_task(client.publish("t", b"first"))
        await peer.publishes(1)
        broker.refuse()
        peer.close()
        await wait_until(lambda: broker.refused)
        second = asyncio.create_task(client.publish("t", b"second"))
        without = asyncio.create_task(client.publish("t", b"third", qos=0))
        broker.connack = Connack()
        peer = await broker.accept()
        received = await peer.publishes(3)
        assert [(message.payload, message.dup) for message in received] == [
            (b"first", True),
            (b"second", False),
            (b"third", False),
        ]
        peer.acknowledge(received[:2])
        await with_timeout(asyncio.gather(first, second, without))


async def test_a_canceled_publish_that_was_sent_is_resent_until_it_is_acknowledged() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as client:
        peer = await broker.accept()
        publishing = asyncio.create_task(client.publish("t", b"x"))
        (message,) = await peer.publishes(1)
        publishing.cancel()
        peer.close()
        for _ in range(2):
            peer = await broker.accept()
            assert await peer.publishes(1) == [replace(message, dup=True)]
            peer.close()
        peer = await broker.accept()
        peer.acknowledge(await peer.publishes(1))
    assert await peer.next() == Disconnect()


async def test_a_batch_of_an_old_connection_is_never_acknowledged_on_the_new_one() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as client:
        old = await broker.accept()
        old.send(Publish("t", b"x", qos=1, packet_id=1), Publish("t", b"y", qos=1, packet_id=2))
        old_batch = await with_timeout(client.receive())
        broker.connack = Connack(session_present=True)
        old.close()
        new = await broker.accept()
        new.send(Publish("t", b"another", qos=1, packet_id=1))
        new_batch = await with_timeout(client.receive())
        old_batch.acknowledge()
        await with_timeout(client.publish("t", b"mark", qos=0))
        assert await new.next() == Publish("t", b"mark")
        new_batch.acknowledge()
        assert await new.next() == Puback(1)
    assert Puback(1) not in old.received


async def test_batches_are_acknowledged_in_the_order_of_arrival() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as client:
        peer = await broker.accept()
        batches = []
        for number in (1, 2, 3):
            peer.send(Publish("t", b"x", qos=1, packet_id=number))
            batches.append(await with_timeout(client.receive()))
        for batch in (batches[2], batches[0], batches[1]):
            batch.acknowledge()
        assert [await peer.next() for _ in range(3)] == [Puback(1), Puback(2), Puback(3)]


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "lost"])
async def test_the_client_subscribes_again_only_if_the_broker_has_lost_the_session(*, kept: bool) -> None:
    async with ScriptedBroker() as broker, broker.create_client() as client:
        peer = await broker.accept()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.subscribe("a", "b"))
            await peer.grant()
            tasks.create_task(client.subscribe("c", qos=0))
            await peer.grant()
            tasks.create_task(client.unsubscribe("b"))
            peer.send(Unsuback((await peer.expect(Unsubscribe)).packet_id))
        broker.connack = Connack(session_present=kept)
        peer.close()
        peer = await broker.accept()
        if not kept:
            assert (await peer.grant()).filters == (("a", 1), ("c", 0))
        await with_timeout(client.publish("t", b"mark", qos=0))
        assert await peer.next() == Publish("t", b"mark")


async def test_messages_are_resent_after_the_subscriptions() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as client:
        peer = await broker.accept()
        subscribing = asyncio.create_task(client.subscribe("a"))
        await peer.grant()
        await subscribing
        publishing = asyncio.create_task(client.publish("t", b"x"))
        await peer.publishes(1)
        peer.close()
        peer = await broker.accept()
        await peer.grant()
        peer.acknowledge(await peer.publishes(1))
        await with_timeout(publishing)


@pytest.mark.parametrize("answered", [True, False], ids=["refused", "cut off"])
async def test_a_new_session_is_subscribed_until_the_broker_has_granted_it(*, answered: bool) -> None:
    async with ScriptedBroker() as broker, broker.create_client() as client:
        peer = await broker.accept()
        subscribing = asyncio.create_task(client.subscribe("a"))
        await peer.grant()
        await subscribing
        peer.close()
        peer = await broker.accept()  # the session was lost; from now on the broker has a new one
        broker.connack = Connack(session_present=True)
        if answered:
            await peer.grant(SUBACK_FAILURE)
        else:
            await peer.expect(Subscribe)
            peer.close()
        peer = await broker.accept()
        assert (await peer.grant()).filters == (("a", 1),)
        await wait_until(lambda: client.connection_error is None)
        peer.close()
        peer = await broker.accept()
        await with_timeout(client.publish("t", b"mark", qos=0))
        assert await peer.next() == Publish("t", b"mark")


async def test_a_subscription_refused_after_a_reconnect_is_an_error_and_retried() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as client:
        peer = await broker.accept()
        subscribing = asyncio.create_task(client.subscribe("a", "b"))
        await peer.grant()
        await subscribing
        peer.close()
        for _ in range(2):
            peer = await broker.accept()
            await peer.grant(1, SUBACK_FAILURE)
            await wait_until(lambda: isinstance(client.connection_error, SubscriptionRefused))
            assert "'b'" in str(client.connection_error)
        peer = await broker.accept()
        await peer.grant()
        await wait_until(lambda: client.connection_error is None)


async def test_a_refused_filter_is_named_and_the_others_are_subscribed() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as client:
        peer = await broker.accept()
        subscribing = asyncio.create_task(client.subscribe("a", "b", "c"))
        await peer.grant(1, SUBACK_FAILURE, 0)
        with pytest.raises(SubscriptionRefused, match="'b', 'c'") as caught:
            await subscribing
        assert caught.value.filters == ("b", "c")
        peer.close()
        peer = await broker.accept()
        assert (await peer.grant()).filters == (("a", 1),)


async def test_subscribing_in_an_outage_waits_for_the_broker() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as client:
        peer = await broker.accept()
        broker.refuse()
        peer.close()
        await wait_until(lambda: broker.refused)
        subscribing = asyncio.create_task(client.subscribe("a"))
        broker.connack = Connack()
        peer = await broker.accept()
        await peer.expect(Subscribe)
        peer.close()  # the client sends it once more
        peer = await broker.accept()
        await peer.grant()
        await with_timeout(subscribing)


async def test_a_connection_without_a_suback_is_ended_with_that_reason() -> None:
    async with connect_with_short_timeout(backoff=NO_RECONNECT) as (_, client, peer):
        subscribing = asyncio.create_task(client.subscribe("a"))
        await wait_until(lambda: client.connection_error)
        assert "did not respond to a subscription" in str(client.connection_error)
        await wait_until(lambda: peer.gone)
        subscribing.cancel()
        await with_timeout(client.close())


async def test_qos_2_and_malformed_topics_are_refused() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as client:
        peer = await broker.accept()
        with pytest.raises(MalformedPacket, match="must be 0 or 1"):
            await client.publish("t", b"x", qos=2)
        with pytest.raises(MalformedPacket, match="must be 0 or 1, not 2"):
            await client.subscribe("a", qos=2)
        with pytest.raises(MalformedPacket):
            await client.publish_all([*_numbered(2), Publish("a/#", b"", qos=1)])
        with pytest.raises(MalformedPacket):
            await client.subscribe("a#")
        await with_timeout(client.publish("t", b"mark", qos=0))
        assert await peer.next() == Publish("t", b"mark")


async def test_concurrent_publishers_keep_their_order() -> None:
    async with ScriptedBroker() as broker, broker.create_client(window=4) as client:
        peer = await broker.accept()
        one = asyncio.create_task(client.publish_all(_numbered(30, "a")))
        other = asyncio.create_task(client.publish_all(_numbered(30, "b")))
        late = [asyncio.create_task(client.publish("t", f"c{number}".encode())) for number in range(3)]
        received: list[Publish] = []
        while len(received) < 63:
            message = await peer.publishes(1)
            peer.acknowledge(message)
            received += message
        await with_timeout(asyncio.gather(one, other, *late))
        for name, count in (("a", 30), ("b", 30), ("c", 3)):
            payloads = [payload for payload in _payloads(received) if payload[0] == name]
            assert payloads == [f"{name}{number}" for number in range(count)]
