"""Abandoning a link: gone without a word, as a program that crashes."""

from __future__ import annotations

import asyncio

import pytest

from meshfleet.errors.mqtt import LinkClosed
from meshfleet.mqtt.codec.packets import Connect, Disconnect, Publish, Subscribe
from tests.mqtt.client.scripted_broker import NO_RECONNECT, ScriptedBroker, wait_until, with_timeout

pytestmark = pytest.mark.anyio


async def test_an_abandoned_link_says_no_good_bye() -> None:
    async with ScriptedBroker() as broker:
        link = await broker.create_client().__aenter__()
        peer = await broker.accept()
        await with_timeout(link.abort())
        await wait_until(lambda: peer.gone)
        assert [type(packet) for packet in peer.received] == [Connect]
        assert not any(isinstance(packet, Disconnect) for packet in peer.received)


async def test_an_abandoned_link_does_not_wait_for_what_it_published() -> None:
    async with ScriptedBroker() as broker:
        link = await broker.create_client().__aenter__()
        peer = await broker.accept()
        link.try_publish([Publish("t", b"posted", qos=1)])
        publishing = asyncio.create_task(link.publish("t", b"published"))
        await peer.publishes(2)
        await with_timeout(link.abort())
        with pytest.raises(LinkClosed):
            await with_timeout(publishing)
        assert link.try_publish([Publish("t", b"", qos=1)]) == 0


async def test_who_waits_for_room_is_refused() -> None:
    async with ScriptedBroker() as broker:
        link = await broker.create_client(window=1).__aenter__()
        peer = await broker.accept()
        publishing = asyncio.create_task(link.publish_all([Publish("t", b"", qos=1)] * 3))
        await peer.publishes(1)
        await with_timeout(link.abort())
        with pytest.raises(LinkClosed):
            await with_timeout(publishing)


async def test_who_waits_for_messages_is_told() -> None:
    async with ScriptedBroker() as broker:
        link = await broker.create_client().__aenter__()
        await broker.accept()
        receiving = asyncio.create_task(link.receive())
        listening = asyncio.create_task(anext(link))
        await asyncio.sleep(0)
        await with_timeout(link.abort())
        with pytest.raises(LinkClosed):
            await with_timeout(receiving)
        with pytest.raises(StopAsyncIteration):
            await with_timeout(listening)


async def test_who_waits_for_a_subscription_is_told_at_once() -> None:
    async with ScriptedBroker() as broker:
        link = await broker.create_client(timeout=3600).__aenter__()
        peer = await broker.accept()
        subscribing = asyncio.create_task(link.subscribe("a/#"))
        await peer.expect(Subscribe)
        await with_timeout(link.abort())
        with pytest.raises(LinkClosed):
            await with_timeout(subscribing)


async def test_a_link_that_is_coming_back_can_be_abandoned() -> None:
    async with ScriptedBroker() as broker:
        link = await broker.create_client(backoff=NO_RECONNECT).__aenter__()
        peer = await broker.accept()
        peer.close()
        await wait_until(lambda: link.connection_error)
        await with_timeout(link.abort())
        with pytest.raises(LinkClosed):
            await with_timeout(link.publish("t", b""))
        assert len(broker.peers) == 1


async def test_an_abandoned_link_does_not_come_back() -> None:
    async with ScriptedBroker() as broker:
        link = await broker.create_client().__aenter__()
        await broker.accept()
        await with_timeout(link.abort())
        async with broker.create_client() as other:  # it has come and gone by then
            await broker.accept()
            await with_timeout(other.publish("t", b"", qos=0))
        assert len(broker.peers) == 2
        assert isinstance(link.connection_error, LinkClosed)


async def test_abandoning_twice_and_closing_after_it_are_nothing() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as link:
        await broker.accept()
        link.try_publish([Publish("t", b"", qos=1)])
        await with_timeout(link.abort())
        await with_timeout(link.abort())
        await with_timeout(link.close())
