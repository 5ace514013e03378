"""Aborting a client: the connection ends without DISCONNECT, as when a program crashes."""

from __future__ import annotations

import asyncio

import pytest

from meshfleet.errors.mqtt import ConnectionClosed
from meshfleet.mqtt.codec.packets import Connect, Disconnect, Publish, Subscribe
from tests.mqtt.client.scripted_broker import NO_RECONNECT, ScriptedBroker, wait_until, with_timeout

pytestmark = pytest.mark.anyio


async def test_an_aborted_client_sends_no_disconnect() -> None:
    async with ScriptedBroker() as broker:
        client = await broker.create_client().__aenter__()
        peer = await broker.accept()
        await with_timeout(client.abort())
        await wait_until(lambda: peer.gone)
        assert [type(packet) for packet in peer.received] == [Connect]
        assert not any(isinstance(packet, Disconnect) for packet in peer.received)


async def test_abort_does_not_wait_for_published_messages() -> None:
    async with ScriptedBroker() as broker:
        client = await broker.create_client().__aenter__()
        peer = await broker.accept()
        client.try_publish([Publish("t", b"tried", qos=1)])
        publishing = asyncio.create_task(client.publish("t", b"published"))
        await peer.publishes(2)
        await with_timeout(client.abort())
        with pytest.raises(ConnectionClosed):
            await with_timeout(publishing)
        assert client.try_publish([Publish("t", b"", qos=1)]) == 0


async def test_abort_fails_a_publish_that_waits_for_the_window() -> None:
    async with ScriptedBroker() as broker:
        client = await broker.create_client(window=1).__aenter__()
        peer = await broker.accept()
        publishing = asyncio.create_task(client.publish_all([Publish("t", b"", qos=1)] * 3))
        await peer.publishes(1)
        await with_timeout(client.abort())
        with pytest.raises(ConnectionClosed):
            await with_timeout(publishing)


async def test_abort_ends_a_call_that_waits_for_messages() -> None:
    async with ScriptedBroker() as broker:
        client = await broker.create_client().__aenter__()
        await broker.accept()
        receiving = asyncio.create_task(client.receive())
        iterating = asyncio.create_task(anext(client))
        await asyncio.sleep(0)
        await with_timeout(client.abort())
        with pytest.raises(ConnectionClosed):
            await with_timeout(receiving)
        with pytest.raises(StopAsyncIteration):
            await with_timeout(iterating)


async def test_abort_fails_a_pending_subscribe_at_once() -> None:
    async with ScriptedBroker() as broker:
        client = await broker.create_client(timeout=3600).__aenter__()
        peer = await broker.accept()
        subscribing = asyncio.create_task(client.subscribe("a/#"))
        await peer.expect(Subscribe)
        await with_timeout(client.abort())
        with pytest.raises(ConnectionClosed):
            await with_timeout(subscribing)


async def test_a_client_that_is_reconnecting_can_be_aborted() -> None:
    async with ScriptedBroker() as broker:
        client = await broker.create_client(backoff=NO_RECONNECT).__aenter__()
        peer = await broker.accept()
        peer.close()
        await wait_until(lambda: client.connection_error)
        await with_timeout(client.abort())
        with pytest.raises(ConnectionClosed):
            await with_timeout(client.publish("t", b""))
        assert len(broker.peers) == 1


async def test_an_aborted_client_does_not_reconnect() -> None:
    async with ScriptedBroker() as broker:
        client = await broker.create_client().__aenter__()
        await broker.accept()
        await with_timeout(client.abort())
        async with broker.create_client() as other:  # gives the aborted client time to reconnect
            await broker.accept()
            await with_timeout(other.publish("t", b"", qos=0))
        assert len(broker.peers) == 2
        assert isinstance(client.connection_error, ConnectionClosed)


async def test_aborting_twice_and_closing_afterwards_do_nothing() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as client:
        await broker.accept()
        client.try_publish([Publish("t", b"", qos=1)])
        await with_timeout(client.abort())
        await with_timeout(client.abort())
        await with_timeout(client.close())
