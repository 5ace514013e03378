"""Posting: what can leave at this moment leaves, and nobody waits for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from meshfleet.errors.protocol import MalformedPacket
from meshfleet.mqtt.codec.packets import Disconnect, Pingresp, Puback, Publish
from tests.mqtt.client.scripted_broker import ScriptedBroker, wait_until, wait_until_stable, with_timeout

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.anyio


def _numbered(count: int, prefix: str = "") -> list[Publish]:
    return [Publish("t", f"{prefix}{number}".encode(), qos=1) for number in range(count)]


def _payloads(messages: Sequence[Publish]) -> list[str]:
    return [message.payload.decode() for message in messages]


async def test_what_is_posted_leaves_in_order() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as link:
        peer = await broker.accept()
        assert link.try_publish(_numbered(3)) == 3
        assert link.try_publish(_numbered(2, "x")) == 2
        got = await peer.publishes(5)
        assert _payloads(got) == ["0", "1", "2", "x0", "x1"]
        assert len({message.packet_id for message in got}) == 5
        assert all(message.qos == 1 and not message.dup for message in got)
        peer.acknowledge(got)


async def test_no_more_is_posted_than_the_window_takes_and_none_until_it_opens_at_half() -> None:
    async with ScriptedBroker() as broker, broker.create_client(window=10) as link:
        peer = await broker.accept()
        assert link.try_publish(_numbered(25)) == 10
        assert link.try_publish(_numbered(1)) == 0
        got = await peer.publishes(10)
        peer.acknowledge(got[:4])
        assert await wait_until_stable(lambda: link.try_publish(_numbered(1))) == 0
        peer.acknowledge(got[4:5])
        await wait_until(lambda: link.try_publish(_numbered(1, "late")))
        (late,) = await peer.publishes(1)
        peer.acknowledge([*got[5:], late])


async def test_what_was_posted_goes_again_until_it_is_acknowledged() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as link:
        peer = await broker.accept()
        link.try_publish(_numbered(4))
        got = await peer.publishes(4)
        peer.acknowledge(got[1:2])
        peer.close()
        peer = await broker.accept()
        again = await peer.publishes(3)
        assert again == [replace(message, dup=True) for message in (got[0], *got[2:])]
        peer.acknowledge(again)
        await wait_until(lambda: link.connection_error is None)


async def test_leaving_waits_for_what_was_posted() -> None:
    async with ScriptedBroker() as broker:
        async with broker.create_client() as link:
            peer = await broker.accept()
            link.try_publish(_numbered(2))
            got = await peer.publishes(2)
            leaving = asyncio.create_task(link.close())
            peer.acknowledge(got[:1])
            assert await wait_until_stable(lambda: len(peer.unread)) == 0
            assert not leaving.done()
            peer.acknowledge(got[1:])
            await with_timeout(leaving)
        assert await peer.next() == Disconnect()


async def test_nothing_is_posted_without_a_connection() -> None:
    async with ScriptedBroker() as broker:
        link = broker.create_client()
        assert link.try_publish(_numbered(1)) == 0
        async with link:
            peer = await broker.accept()
            broker.refuse()
            peer.close()
            await wait_until(lambda: link.connection_error)
            assert link.try_publish(_numbered(1)) == 0
        assert link.try_publish(_numbered(1)) == 0


async def test_nothing_is_posted_past_somebody_who_publishes_in_order() -> None:
    async with ScriptedBroker() as broker, broker.create_client(window=4) as link:
        peer = await broker.accept()
        publishing = asyncio.create_task(link.publish_all(_numbered(6)))
        got = await peer.publishes(4)
        assert link.try_publish(_numbered(1, "posted")) == 0
        peer.acknowledge(got)
        got = await peer.publishes(2)
        assert link.try_publish(_numbered(1, "posted")) == 1
        got += await peer.publishes(1)
        assert _payloads(got) == ["4", "5", "posted0"]
        peer.acknowledge(got)
        await with_timeout(publishing)


async def test_acks_of_posted_messages_do_not_finish_what_is_published() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as link:
        peer = await broker.accept()
        link.try_publish(_numbered(3))
        publishing = asyncio.create_task(link.publish("t", b"published"))
        link.try_publish(_numbered(3, "x"))
        got = await peer.publishes(7)
        peer.acknowledge(message for message in got if message.payload != b"published")
        peer.send(Publish("sign", b""))
        await with_timeout(link.receive())
        assert not publishing.done()
        peer.acknowledge(message for message in got if message.payload == b"published")
        await with_timeout(publishing)


async def test_nothing_is_posted_into_a_network_that_takes_no_more() -> None:
    async with ScriptedBroker() as broker, broker.create_client(window=50_000) as link:
        peer = await broker.accept()
        peer.stall()
        large = [Publish("t", bytes(50_000), qos=1)]
        sent = 0
        async with asyncio.timeout(10):
            while posted := link.try_publish(large):
                sent += posted
                await asyncio.sleep(0)
        peer.resume()
        got = await peer.publishes(sent)
        await wait_until(lambda: link.try_publish(_numbered(1)))
        peer.acknowledge([*got, *await peer.publishes(1)])


async def test_many_bytes_leave_in_several_posts() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as link:
        peer = await broker.accept()
        large = [Publish("t", bytes(100_000), qos=1)] * 5
        first = link.try_publish(large)
        assert 0 < first < 5
        got = await peer.publishes(first)
        assert len(got) == first
        peer.acknowledge(got)


async def test_if_one_is_malformed_none_is_posted() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as link:
        peer = await broker.accept()
        with pytest.raises(MalformedPacket):
            link.try_publish([Publish("t", b"", qos=1), Publish("t/#", b"", qos=1)])
        assert link.try_publish(_numbered(1)) == 1
        got = await peer.publishes(1)
        assert _payloads(got) == ["0"]
        peer.acknowledge(got)


async def test_acks_beside_other_packets_and_acks_alone_count_alike() -> None:
    async with ScriptedBroker() as broker, broker.create_client(window=4) as link:
        peer = await broker.accept()
        link.try_publish(_numbered(4))
        first, second, third, fourth = await peer.publishes(4)
        peer.send(Puback(first.packet_id), Puback(second.packet_id))
        peer.send(Puback(third.packet_id), Publish("t", b"between"), Pingresp(), Puback(fourth.packet_id))
        batch = await with_timeout(link.receive())
        assert [message.payload for message in batch.messages] == [b"between"]
        await wait_until(lambda: link.try_publish(_numbered(1)))
        peer.acknowledge(await peer.publishes(1))


async def test_acks_before_the_broker_has_accepted_end_the_connection() -> None:
    async with ScriptedBroker(connack=None) as broker:
        entering = asyncio.create_task(broker.create_client().__aenter__())
        peer = await broker.accept()
        peer.send(Puback(1), Puback(2))
        with pytest.raises(Exception, match="PUBACK instead of CONNACK"):
            await with_timeout(entering)


async def test_who_has_to_wait_is_told_when_something_can_be_posted() -> None:
    async with ScriptedBroker() as broker, broker.create_client(window=2) as link:
        peer = await broker.accept()
        assert link.try_publish(_numbered(5)) == 2
        waiting = asyncio.ensure_future(link.wait_writable())
        assert not await wait_until_stable(waiting.done)
        peer.acknowledge(await peer.publishes(2))
        await with_timeout(waiting)
        assert link.try_publish(_numbered(1)) == 1
        peer.acknowledge(await peer.publishes(1))
