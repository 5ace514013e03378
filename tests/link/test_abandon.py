"""Abandoning a link: gone without a word, as a program that crashes."""

from __future__ import annotations

import asyncio

import pytest

from meshfleet.errors import LinkClosed
from meshfleet.wire.mqtt.packets import Connect, Disconnect, Publish, Subscribe
from tests.link.scripted import NEVER, Broker, soon, until

pytestmark = pytest.mark.anyio


async def test_an_abandoned_link_says_no_good_bye() -> None:
    async with Broker() as broker:
        link = await broker.link().__aenter__()
        peer = await broker.accept()
        await soon(link.abandon())
        await until(lambda: peer.gone)
        assert [type(packet) for packet in peer.received] == [Connect]
        assert not any(isinstance(packet, Disconnect) for packet in peer.received)


async def test_an_abandoned_link_does_not_wait_for_what_it_published() -> None:
    async with Broker() as broker:
        link = await broker.link().__aenter__()
        peer = await broker.accept()
        link.post([Publish("t", b"posted", qos=1)])
        publishing = asyncio.create_task(link.publish("t", b"published"))
        await peer.publishes(2)
        await soon(link.abandon())
        with pytest.raises(LinkClosed):
            await soon(publishing)
        assert link.post([Publish("t", b"", qos=1)]) == 0


async def test_who_waits_for_room_is_refused() -> None:
    async with Broker() as broker:
        link = await broker.link(window=1).__aenter__()
        peer = await broker.accept()
        publishing = asyncio.create_task(link.publish_all([Publish("t", b"", qos=1)] * 3))
        await peer.publishes(1)
        await soon(link.abandon())
        with pytest.raises(LinkClosed):
            await soon(publishing)


async def test_who_waits_for_messages_is_told() -> None:
    async with Broker() as broker:
        link = await broker.link().__aenter__()
        await broker.accept()
        receiving = asyncio.create_task(link.receive())
        listening = asyncio.create_task(anext(link))
        await asyncio.sleep(0)
        await soon(link.abandon())
        with pytest.raises(LinkClosed):
            await soon(receiving)
        with pytest.raises(StopAsyncIteration):
            await soon(listening)


async def test_who_waits_for_a_subscription_is_told_at_once() -> None:
    async with Broker() as broker:
        link = await broker.link(patience=3600).__aenter__()
        peer = await broker.accept()
        subscribing = asyncio.create_task(link.subscribe("a/#"))
        await peer.expect(Subscribe)
        await soon(link.abandon())
        with pytest.raises(LinkClosed):
            await soon(subscribing)


async def test_a_link_that_is_coming_back_can_be_abandoned() -> None:
    async with Broker() as broker:
        link = await broker.link(delays=NEVER).__aenter__()
        peer = await broker.accept()
        peer.close()
        await until(lambda: link.trouble)
        await soon(link.abandon())
        with pytest.raises(LinkClosed):
            await soon(link.publish("t", b""))
        assert len(broker.peers) == 1


async def test_an_abandoned_link_does_not_come_back() -> None:
    async with Broker() as broker:
        link = await broker.link().__aenter__()
        await broker.accept()
        await soon(link.abandon())
        async with broker.link() as other:  # it has come and gone by then
            await broker.accept()
            await soon(other.publish("t", b"", qos=0))
        assert len(broker.peers) == 2
        assert isinstance(link.trouble, LinkClosed)


async def test_abandoning_twice_and_closing_after_it_are_nothing() -> None:
    async with Broker() as broker, broker.link() as link:
        await broker.accept()
        link.post([Publish("t", b"", qos=1)])
        await soon(link.abandon())
        await soon(link.abandon())
        await soon(link.close())
