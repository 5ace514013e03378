"""try_publish sends as many messages as possible at once, without waiting for anything."""

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


async def test_messages_are_sent_in_order() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as client:
        peer = await broker.accept()
        assert client.try_publish(_numbered(3)) == 3
        assert client.try_publish(_numbered(2, "x")) == 2
        received = await peer.publishes(5)
        assert _payloads(received) == ["0", "1", "2", "x0", "x1"]
        assert len({message.packet_id for message in received}) == 5
        assert all(message.qos == 1 and not message.dup for message in received)
        peer.acknowledge(received)


async def test_no_more_is_sent_than_the_window_allows_until_it_opens_again_at_half() -> None:
    async with ScriptedBroker() as broker, broker.create_client(window=10) as client:
        peer = await broker.accept()
        assert client.try_publish(_numbered(25)) == 10
        assert client.try_publish(_numbered(1)) == 0
        received = await peer.publishes(10)
        peer.acknowledge(received[:4])
        assert await wait_until_stable(lambda: client.try_publish(_numbered(1))) == 0
        peer.acknowledge(received[4:5])
        await wait_until(lambda: client.try_publish(_numbered(1, "late")))
        (late,) = await peer.publishes(1)
        peer.acknowledge([*received[5:], late])


async def test_sent_messages_are_resent_until_they_are_acknowledged() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as client:
        peer = await broker.accept()
        client.try_publish(_numbered(4))
        received = await peer.publishes(4)
        peer.acknowledge(received[1:2])
        peer.close()
        peer = await broker.accept()
        again = await peer.publishes(3)
        assert again == [replace(message, dup=True) for message in (received[0], *received[2:])]
        peer.acknowledge(again)
        await wait_until(lambda: client.connection_error is None)


async def test_close_waits_for_acknowledgements_of_sent_messages() -> None:
    async with ScriptedBroker() as broker:
        async with broker.create_client() as client:
            peer = await broker.accept()
            client.try_publish(_numbered(2))
            received = await peer.publishes(2)
            closing = asyncio.create_task(client.close())
            peer.acknowledge(received[:1])
            assert await wait_until_stable(lambda: len(peer.unread)) == 0
            assert not closing.done()
            peer.acknowledge(received[1:])
            await with_timeout(closing)
        assert await peer.next() == Disconnect()


async def test_nothing_is_sent_without_a_connection() -> None:
    async with ScriptedBroker() as broker:
        client = broker.create_client()
        assert client.try_publish(_numbered(1)) == 0
        async with client:
            peer = await broker.accept()
            broker.refuse()
            peer.close()
            await wait_until(lambda: client.connection_error)
            assert client.try_publish(_numbered(1)) == 0
        assert client.try_publish(_numbered(1)) == 0


async def test_nothing_is_sent_while_another_publish_is_in_progress() -> None:
    async with ScriptedBroker() as broker, broker.create_client(window=4) as client:
        peer = await broker.accept()
        publishing = asyncio.create_task(client.publish_all(_numbered(6)))
        received = await peer.publishes(4)
        assert client.try_publish(_numbered(1, "tried")) == 0
        peer.acknowledge(received)
        received = await peer.publishes(2)
        assert client.try_publish(_numbered(1, "tried")) == 1
        received += await peer.publishes(1)
        assert _payloads(received) == ["4", "5", "tried0"]
        peer.acknowledge(received)
        await with_timeout(publishing)


async def test_acknowledgements_of_other_messages_do_not_complete_a_publish() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as client:
        peer = await broker.accept()
        client.try_publish(_numbered(3))
        publishing = asyncio.create_task(client.publish("t", b"published"))
        client.try_publish(_numbered(3, "x"))
        received = await peer.publishes(7)
        peer.acknowledge(message for message in received if message.payload != b"published")
        peer.send(Publish("sign", b""))
        await with_timeout(client.receive())
        assert not publishing.done()
        peer.acknowledge(message for message in received if message.payload == b"published")
        await with_timeout(publishing)


async def test_nothing_is_sent_while_the_write_buffer_is_full() -> None:
    async with ScriptedBroker() as broker, broker.create_client(window=50_000) as client:
        peer = await broker.accept()
        peer.stall()
        large = [Publish("t", bytes(50_000), qos=1)]
        sent = 0
        async with asyncio.timeout(10):
            while count := client.try_publish(large):
                sent += count
                await asyncio.sleep(0)
        peer.resume()
        received = await peer.publishes(sent)
        await wait_until(lambda: client.try_publish(_numbered(1)))
        peer.acknowledge([*received, *await peer.publishes(1)])


async def test_many_bytes_are_sent_in_several_calls() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as client:
        peer = await broker.accept()
        large = [Publish("t", bytes(100_000), qos=1)] * 5
        first = client.try_publish(large)
        assert 0 < first < 5
        received = await peer.publishes(first)
        assert len(received) == first
        peer.acknowledge(received)


async def test_if_one_message_is_malformed_none_is_sent() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as client:
        peer = await broker.accept()
        with pytest.raises(MalformedPacket):
            client.try_publish([Publish("t", b"", qos=1), Publish("t/#", b"", qos=1)])
        assert client.try_publish(_numbered(1)) == 1
        received = await peer.publishes(1)
        assert _payloads(received) == ["0"]
        peer.acknowledge(received)


async def test_acknowledgements_between_other_packets_are_handled() -> None:
    async with ScriptedBroker() as broker, broker.create_client(window=4) as client:
        peer = await broker.accept()
        client.try_publish(_numbered(4))
        first, second, third, fourth = await peer.publishes(4)
        peer.send(Puback(first.packet_id), Puback(second.packet_id))
        peer.send(Puback(third.packet_id), Publish("t", b"between"), Pingresp(), Puback(fourth.packet_id))
        batch = await with_timeout(client.receive())
        assert [message.payload for message in batch.messages] == [b"between"]
        await wait_until(lambda: client.try_publish(_numbered(1)))
        peer.acknowledge(await peer.publishes(1))


async def test_an_acknowledgement_before_connack_ends_the_connection() -> None:
    async with ScriptedBroker(connack=None) as broker:
        entering = asyncio.create_task(broker.create_client().__aenter__())
        peer = await broker.accept()
        peer.send(Puback(1), Puback(2))
        with pytest.raises(Exception, match="PUBACK instead of CONNACK"):
            await with_timeout(entering)


async def test_wait_writable_returns_when_something_can_be_sent() -> None:
    async with ScriptedBroker() as broker, broker.create_client(window=2) as client:
        peer = await broker.accept()
        assert client.try_publish(_numbered(5)) == 2
        waiting = asyncio.ensure_future(client.wait_writable())
        assert not await wait_until_stable(waiting.done)
        peer.acknowledge(await peer.publishes(2))
        await with_timeout(waiting)
        assert client.try_publish(_numbered(1)) == 1
        peer.acknowledge(await peer.publishes(1))
