"""What survives a connection: publishes on their way, subscriptions, and what was not acknowledged."""

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
    impatient_link,
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
    async with ScriptedBroker() as broker, broker.create_client() as link:
        peer = await broker.accept()
        publishing = asyncio.create_task(link.publish("t/é", b"\x00x", retain=True))
        (message,) = await peer.publishes(1)
        assert message == Publish("t/é", b"\x00x", qos=1, retain=True, packet_id=message.packet_id)
        peer.send(Puback(message.packet_id + 1), Publish("t", b""))
        await with_timeout(link.receive())
        assert not publishing.done()
        peer.acknowledge([message])
        await with_timeout(publishing)


async def test_a_publish_at_qos_0_waits_for_nobody() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as link:
        peer = await broker.accept()
        await with_timeout(link.publish("t", b"x", qos=0))
        assert await peer.publishes(1) == [Publish("t", b"x")]


async def test_many_publishes_leave_in_order_and_never_more_than_the_window() -> None:
    async with ScriptedBroker() as broker, broker.create_client(window=10) as link:
        peer = await broker.accept()
        publishing = asyncio.create_task(link.publish_all(_numbered(37)))
        got: list[Publish] = []
        acknowledged = 0
        while len(got) < 37:
            got += await peer.publishes(1)
            got += await peer.publishes(len(peer.unread))
            assert len(got) - acknowledged <= 10
            if len(got) - acknowledged == 10 or len(got) == 37:
                peer.acknowledge(got[acknowledged : acknowledged + 5])
                acknowledged += 5
        peer.acknowledge(got[acknowledged:-1])
        assert not publishing.done()
        peer.acknowledge(got[-1:])
        await with_timeout(publishing)
        assert _payloads(got) == [str(number) for number in range(37)]
        assert not any(message.dup for message in got)


async def test_a_full_window_opens_again_at_half() -> None:
    async with ScriptedBroker() as broker, broker.create_client(window=10) as link:
        peer = await broker.accept()
        publishing = asyncio.create_task(link.publish_all(_numbered(15)))
        got = await peer.publishes(10)
        peer.acknowledge(got[:4])
        assert await wait_until_stable(lambda: len(peer.unread)) == 0
        peer.acknowledge(got[4:5])
        got += await peer.publishes(5)
        peer.acknowledge(got)
        await with_timeout(publishing)


async def test_what_is_on_its_way_goes_again_with_its_id_in_its_order_and_marked() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as link:
        peer = await broker.accept()
        publishing = asyncio.create_task(
            link.publish_all([*_numbered(5), Publish("t", b"once"), *_numbered(2, "x")])
        )
        got = await peer.publishes(8)
        peer.acknowledge([got[1]])
        peer.close()
        left = [message for message in got if message.qos and message is not got[1]]
        for _ in range(2):
            peer = await broker.accept()
            repeated = await peer.publishes(6)
            assert repeated == [replace(message, dup=True) for message in left]
            peer.reset()
        peer = await broker.accept()
        peer.acknowledge(await peer.publishes(6))
        await with_timeout(publishing)
        assert peer.unread == []


async def test_what_is_published_in_an_outage_waits_and_leaves_behind_what_goes_again() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as link:
        peer = await broker.accept()
        first = asyncio.create_task(link.publish("t", b"first"))
        await peer.publishes(1)
        broker.refuse()
        peer.close()
        await wait_until(lambda: broker.refused)
        second = asyncio.create_task(link.publish("t", b"second"))
        without = asyncio.create_task(link.publish("t", b"third", qos=0))
        broker.connack = Connack()
        peer = await broker.accept()
        got = await peer.publishes(3)
        assert [(message.payload, message.dup) for message in got] == [
            (b"first", True),
            (b"second", False),
            (b"third", False),
        ]
        peer.acknowledge(got[:2])
        await with_timeout(asyncio.gather(first, second, without))


async def test_a_cancelled_publish_that_has_left_goes_again_until_it_is_acknowledged() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as link:
        peer = await broker.accept()
        publishing = asyncio.create_task(link.publish("t", b"x"))
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
    async with ScriptedBroker() as broker, broker.create_client() as link:
        old = await broker.accept()
        old.send(Publish("t", b"x", qos=1, packet_id=1), Publish("t", b"y", qos=1, packet_id=2))
        held = await with_timeout(link.receive())
        broker.connack = Connack(session_present=True)
        old.close()
        new = await broker.accept()
        new.send(Publish("t", b"another", qos=1, packet_id=1))
        fresh = await with_timeout(link.receive())
        held.acknowledge()
        await with_timeout(link.publish("t", b"mark", qos=0))
        assert await new.next() == Publish("t", b"mark")
        fresh.acknowledge()
        assert await new.next() == Puback(1)
    assert Puback(1) not in old.received


async def test_batches_are_acknowledged_in_the_order_of_arrival() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as link:
        peer = await broker.accept()
        batches = []
        for number in (1, 2, 3):
            peer.send(Publish("t", b"x", qos=1, packet_id=number))
            batches.append(await with_timeout(link.receive()))
        for batch in (batches[2], batches[0], batches[1]):
            batch.acknowledge()
        assert [await peer.next() for _ in range(3)] == [Puback(1), Puback(2), Puback(3)]


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "forgotten"])
async def test_the_link_subscribes_again_when_the_broker_has_forgotten_and_only_then(*, kept: bool) -> None:
    async with ScriptedBroker() as broker, broker.create_client() as link:
        peer = await broker.accept()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(link.subscribe("a", "b"))
            await peer.grant()
            tasks.create_task(link.subscribe("c", qos=0))
            await peer.grant()
            tasks.create_task(link.unsubscribe("b"))
            peer.send(Unsuback((await peer.expect(Unsubscribe)).packet_id))
        broker.connack = Connack(session_present=kept)
        peer.close()
        peer = await broker.accept()
        if not kept:
            assert (await peer.grant()).filters == (("a", 1), ("c", 0))
        await with_timeout(link.publish("t", b"mark", qos=0))
        assert await peer.next() == Publish("t", b"mark")


async def test_publishes_go_again_after_the_subscriptions() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as link:
        peer = await broker.accept()
        asking = asyncio.create_task(link.subscribe("a"))
        await peer.grant()
        await asking
        publishing = asyncio.create_task(link.publish("t", b"x"))
        await peer.publishes(1)
        peer.close()
        peer = await broker.accept()
        await peer.grant()
        peer.acknowledge(await peer.publishes(1))
        await with_timeout(publishing)


@pytest.mark.parametrize("answered", [True, False], ids=["refused", "cut off"])
async def test_a_session_that_was_made_anew_is_not_trusted_before_it_has_the_subscriptions(
    *, answered: bool
) -> None:
    async with ScriptedBroker() as broker, broker.create_client() as link:
        peer = await broker.accept()
        asking = asyncio.create_task(link.subscribe("a"))
        await peer.grant()
        await asking
        peer.close()
        peer = await broker.accept()  # it has forgotten us, and has a session of ours from now on
        broker.connack = Connack(session_present=True)
        if answered:
            await peer.grant(SUBACK_FAILURE)
        else:
            await peer.expect(Subscribe)
            peer.close()
        peer = await broker.accept()
        assert (await peer.grant()).filters == (("a", 1),)
        await wait_until(lambda: link.connection_error is None)
        peer.close()
        peer = await broker.accept()
        await with_timeout(link.publish("t", b"mark", qos=0))
        assert await peer.next() == Publish("t", b"mark")


async def test_a_subscription_that_is_refused_later_is_trouble_and_tried_again() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as link:
        peer = await broker.accept()
        asking = asyncio.create_task(link.subscribe("a", "b"))
        await peer.grant()
        await asking
        peer.close()
        for _ in range(2):
            peer = await broker.accept()
            await peer.grant(1, SUBACK_FAILURE)
            await wait_until(lambda: isinstance(link.connection_error, SubscriptionRefused))
            assert "'b'" in str(link.connection_error)
        peer = await broker.accept()
        await peer.grant()
        await wait_until(lambda: link.connection_error is None)


async def test_a_refused_filter_is_named_and_the_others_hold() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as link:
        peer = await broker.accept()
        asking = asyncio.create_task(link.subscribe("a", "b", "c"))
        await peer.grant(1, SUBACK_FAILURE, 0)
        with pytest.raises(SubscriptionRefused, match="'b', 'c'") as caught:
            await asking
        assert caught.value.filters == ("b", "c")
        peer.close()
        peer = await broker.accept()
        assert (await peer.grant()).filters == (("a", 1),)


async def test_to_subscribe_in_an_outage_waits_and_works() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as link:
        peer = await broker.accept()
        broker.refuse()
        peer.close()
        await wait_until(lambda: broker.refused)
        asking = asyncio.create_task(link.subscribe("a"))
        broker.connack = Connack()
        peer = await broker.accept()
        await peer.expect(Subscribe)
        peer.close()  # and asks once more
        peer = await broker.accept()
        await peer.grant()
        await with_timeout(asking)


async def test_a_broker_that_does_not_answer_a_subscription_is_left_and_blamed_for_that() -> None:
    async with impatient_link(backoff=NO_RECONNECT) as (_, link, peer):
        asking = asyncio.create_task(link.subscribe("a"))
        await wait_until(lambda: link.connection_error)
        assert "did not respond to a subscription" in str(link.connection_error)
        await wait_until(lambda: peer.gone)
        asking.cancel()
        await with_timeout(link.close())


async def test_qos_2_is_refused_in_words() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as link:
        peer = await broker.accept()
        with pytest.raises(MalformedPacket, match="must be 0 or 1"):
            await link.publish("t", b"x", qos=2)
        with pytest.raises(MalformedPacket, match="must be 0 or 1, not 2"):
            await link.subscribe("a", qos=2)
        with pytest.raises(MalformedPacket):
            await link.publish_all([*_numbered(2), Publish("a/#", b"", qos=1)])
        with pytest.raises(MalformedPacket):
            await link.subscribe("a#")
        await with_timeout(link.publish("t", b"mark", qos=0))
        assert await peer.next() == Publish("t", b"mark")


async def test_publishers_take_turns_and_each_keeps_its_order() -> None:
    async with ScriptedBroker() as broker, broker.create_client(window=4) as link:
        peer = await broker.accept()
        one = asyncio.create_task(link.publish_all(_numbered(30, "a")))
        other = asyncio.create_task(link.publish_all(_numbered(30, "b")))
        late = [asyncio.create_task(link.publish("t", f"c{number}".encode())) for number in range(3)]
        got: list[Publish] = []
        while len(got) < 63:
            message = await peer.publishes(1)
            peer.acknowledge(message)
            got += message
        await with_timeout(asyncio.gather(one, other, *late))
        for name, count in (("a", 30), ("b", 30), ("c", 3)):
            ours = [payload for payload in _payloads(got) if payload[0] == name]
            assert ours == [f"{name}{number}" for number in range(count)]
