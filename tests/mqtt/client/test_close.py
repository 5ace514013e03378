"""Closing: messages in flight are delivered if possible, no caller waits forever, and no task is left."""

from __future__ import annotations

import asyncio
import gc
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from meshfleet.errors.mqtt import ConnectionClosed, MqttError, Undelivered
from meshfleet.mqtt.codec.packets import Connack, Disconnect, Puback, Publish
from tests.eventually import eventually_async
from tests.mqtt.client.scripted_broker import (
    NO_RECONNECT,
    ScriptedBroker,
    connect_with_short_timeout,
    wait_until,
    wait_until_stable,
    with_timeout,
)
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from meshfleet.mqtt.client import MqttClient
    from tests.mqtt.client.scripted_broker import Peer

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]


@pytest.fixture(autouse=True)
def _no_asyncio_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Check that asyncio logged no unretrieved exception and no failed callback."""
    yield
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


def _numbered(count: int) -> list[Publish]:
    return [Publish("t", f"{number}".encode(), qos=1) for number in range(count)]


async def test_close_waits_for_acknowledgements_and_then_sends_disconnect() -> None:
    async with ScriptedBroker() as broker:
        client = await broker.create_client().__aenter__()
        peer = await broker.accept()
        publishing = asyncio.create_task(client.publish_all(_numbered(3)))
        received = await peer.publishes(3)
        closing = asyncio.create_task(client.close())
        peer.acknowledge(received[:2])
        assert await wait_until_stable(lambda: len(peer.unread)) == 0
        assert not closing.done()
        peer.acknowledge(received[2:])
        await with_timeout(asyncio.gather(publishing, closing))
        assert await peer.next() == Disconnect()
        assert (peer.unread, peer.finished, peer.fault) == ([], True, None)


async def test_close_waits_until_the_broker_has_read_everything() -> None:
    async with ScriptedBroker() as broker:
        client = await broker.create_client(backlog=1000).__aenter__()
        peer = await broker.accept()
        peer.send(*[Publish("t", bytes(1000))] * 1000)  # a megabyte that is never received
        peer.stall()
        for number in range(300):
            await with_timeout(client.publish("t", f"{number}".encode() + bytes(1000), qos=0))
        closing = asyncio.create_task(client.close())
        assert await wait_until_stable(lambda: len(peer.unread)) == 0
        assert not closing.done()
        peer.resume()
        await with_timeout(closing)
        received = await peer.publishes(300)
        assert [message.payload.rstrip(b"\0") for message in received] == [
            f"{n}".encode() for n in range(300)
        ]
        assert await peer.next() == Disconnect()
        assert (peer.finished, peer.fault) == (True, None), "no reset"


async def test_close_lets_the_broker_close_the_connection_first() -> None:
    async with ScriptedBroker() as broker:
        client = await broker.create_client().__aenter__()
        peer = await broker.accept()
        peer.lingers = True
        closing = asyncio.create_task(client.close())
        await peer.expect(Disconnect)
        await wait_until(lambda: peer.finished)
        peer.send(*_with_ids(100))
        assert await wait_until_stable(lambda: peer.waiting) == 0
        assert not closing.done()
        peer.close()
        await with_timeout(closing)
        assert peer.fault is None


def _with_ids(count: int) -> list[Publish]:
    return [Publish("t", bytes(1000), qos=1, packet_id=number) for number in range(1, count + 1)]


async def test_close_does_not_wait_forever_for_a_broker_that_does_not_close() -> None:
    async with connect_with_short_timeout() as (_, client, peer):
        peer.stall()
        await with_timeout(client.close())
        peer.resume()
        await wait_until(lambda: peer.gone)


async def test_close_succeeds_if_the_broker_has_just_disconnected() -> None:
    async with ScriptedBroker() as broker:
        client = await broker.create_client(backlog=1).__aenter__()
        peer = await broker.accept()
        publishing = asyncio.create_task(client.publish("t", b"mark"))
        (mark,) = await peer.publishes(1)
        peer.send(Puback(mark.packet_id), Publish("t", b"more than the backlog"))
        await with_timeout(publishing)
        peer.close()
        await wait_until(lambda: peer.gone)  # the client cannot notice, since reading is held
        await with_timeout(client.close())


async def test_nothing_is_sent_after_disconnect() -> None:
    async with ScriptedBroker() as broker:
        client = await broker.create_client().__aenter__()
        peer = await broker.accept()
        peer.lingers = True
        peer.send(*_with_ids(2))
        batch = await with_timeout(client.receive())
        closing = asyncio.create_task(client.close())
        await peer.expect(Disconnect)
        batch.acknowledge()  # too late, but not an error
        assert await wait_until_stable(lambda: len(peer.unread)) == 0
        peer.close()
        await with_timeout(closing)


async def test_acknowledgements_before_close_are_sent_before_disconnect() -> None:
    async with ScriptedBroker() as broker:
        async with broker.create_client() as client:
            peer = await broker.accept()
            peer.send(*_with_ids(1))
            (await with_timeout(client.receive())).acknowledge()
        assert [await peer.next() for _ in range(2)] == [Puback(1), Disconnect()]


@pytest.mark.parametrize("window", [2, 1000])
async def test_unacknowledged_messages_are_undelivered_and_all_waiting_calls_fail(window: int) -> None:
    before = asyncio.all_tasks()
    async with connect_with_short_timeout(window=window) as (_, client, peer):
        publishers = [asyncio.create_task(client.publish_all(_numbered(4))) for _ in range(2)]
        receiver = asyncio.create_task(client.receive())
        received = await peer.publishes(min(window, 8))
        with pytest.raises(Undelivered, match=f"acknowledged {len(received)} messages") as caught:
            await with_timeout(client.close())
        assert caught.value.messages == len(received)
        errors = await with_timeout(asyncio.gather(*publishers, receiver, return_exceptions=True))
        assert all(isinstance(error, MqttError) for error in errors)
        assert asyncio.all_tasks() == before
        await wait_until(lambda: peer.gone)
        assert peer.received[-1] == Disconnect()


async def test_a_canceled_publish_does_not_disturb_close() -> None:
    async with connect_with_short_timeout(window=2) as (_, client, peer):
        publishing = asyncio.create_task(client.publish_all(_numbered(4)))
        await peer.publishes(2)
        publishing.cancel()
        with pytest.raises(Undelivered):
            await with_timeout(client.close())


async def test_publishers_that_wait_for_the_window_are_refused_and_sent_messages_still_arrive() -> None:
    async with ScriptedBroker() as broker:
        client = await broker.create_client(window=2).__aenter__()
        peer = await broker.accept()
        publishing = asyncio.create_task(client.publish_all(_numbered(4)))
        received = await peer.publishes(2)
        closing = asyncio.create_task(client.close())
        with pytest.raises(ConnectionClosed):
            await with_timeout(publishing)
        peer.acknowledge(received)
        await with_timeout(closing)
        assert await peer.next() == Disconnect()


async def test_close_in_an_outage_returns_at_once_if_nothing_is_in_flight() -> None:
    async with ScriptedBroker() as broker:
        before = asyncio.all_tasks()
        client = await broker.create_client(backoff=NO_RECONNECT).__aenter__()
        (await broker.accept()).close()
        await wait_until(lambda: client.connection_error)
        waiting = [asyncio.create_task(client.publish("t", b"")), asyncio.create_task(client.subscribe("a"))]
        await asyncio.sleep(0)
        await with_timeout(client.close())
        errors = await with_timeout(asyncio.gather(*waiting, return_exceptions=True))
        assert all(isinstance(error, ConnectionClosed) for error in errors)
        assert asyncio.all_tasks() == before


@pytest.mark.parametrize("is_back", [True, False], ids=["back in time", "not back"])
async def test_close_in_an_outage_waits_for_the_broker(*, is_back: bool) -> None:
    async with ScriptedBroker() as broker:
        before = asyncio.all_tasks()
        client = await broker.create_client(timeout=10 if is_back else 0.2).__aenter__()
        peer = await broker.accept()
        publishing = asyncio.create_task(client.publish("t", b"x"))
        await peer.publishes(1)
        broker.refuse()
        peer.close()
        await wait_until(lambda: broker.refused)
        closing = asyncio.create_task(client.close())
        if is_back:
            broker.connack = Connack()
            peer = await broker.accept()
            peer.acknowledge(await peer.publishes(1))
            await with_timeout(asyncio.gather(closing, publishing))
            assert await peer.next() == Disconnect()
        else:
            errors = await with_timeout(asyncio.gather(closing, publishing, return_exceptions=True))
            assert [type(error) for error in errors] == [Undelivered, Undelivered]
        assert asyncio.all_tasks() == before


async def test_closing_twice_has_the_same_effect_as_once() -> None:
    async with ScriptedBroker() as broker:
        async with broker.create_client() as client:
            peer = await broker.accept()
            await with_timeout(asyncio.gather(client.close(), client.close()))
        await with_timeout(client.close())
        await wait_until(lambda: peer.gone)
        assert peer.unread == [Disconnect()]


async def _wait_until_gone(peer: Peer) -> None:
    """Send messages until the client has disconnected."""

    def is_gone() -> bool:
        if not peer.gone:
            peer.send(Publish("t", b""))
        return peer.gone

    await eventually_async(is_gone)


@pytest.mark.parametrize("lingers", [True, False], ids=["canceled twice", "canceled"])
async def test_a_canceled_close_fails_waiting_calls_and_leaves_no_task(*, lingers: bool) -> None:
    async with ScriptedBroker() as broker:
        before = asyncio.all_tasks()
        client = await broker.create_client().__aenter__()
        peer = await broker.accept()
        peer.lingers = lingers
        publishing = asyncio.create_task(client.publish("t", b"x"))
        await peer.publishes(1)
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        closing.cancel()
        if lingers:
            await peer.expect(Disconnect)
            closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await with_timeout(closing)
        with pytest.raises(MqttError):
            await with_timeout(publishing)
        await with_timeout(_wait_until_gone(peer))
        assert asyncio.all_tasks() == before


async def test_canceling_while_entering_leaves_no_task() -> None:
    async with ScriptedBroker(connack=None) as broker:
        before = asyncio.all_tasks()
        entering = asyncio.create_task(broker.create_client().__aenter__())
        peer = await broker.accept()
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await with_timeout(entering)
        await wait_until(lambda: peer.gone)
        assert asyncio.all_tasks() == before


@each_row("iterations", range(8))
async def test_canceling_at_any_iteration_of_entering_leaves_no_task(iterations: int) -> None:
    async with ScriptedBroker() as broker:
        before = asyncio.all_tasks()
        client = broker.create_client(keep_alive=1)
        entering = asyncio.create_task(client.__aenter__())
        for _ in range(iterations):
            await asyncio.sleep(0)
        entering.cancel()
        await asyncio.wait((entering,))
        await with_timeout(client.close())
        await wait_until(lambda: all(peer.gone for peer in broker.peers))
        await wait_until(lambda: asyncio.all_tasks() == before)  # the accept task of the broker ends too


async def test_iterating_over_a_client_that_was_never_entered_is_an_error() -> None:
    async with ScriptedBroker() as broker:
        with pytest.raises(ConnectionClosed, match="async with"):
            await anext(broker.create_client())


async def test_an_error_in_the_block_is_not_replaced_by_undelivered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with connect_with_short_timeout() as (_, client, peer):
        publishing = asyncio.create_task(client.publish("t", b"x"))
        await peer.publishes(1)

        async def fail() -> None:
            async with AsyncExitStack() as stack:
                stack.push_async_exit(client)  # entered above
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await with_timeout(fail())
        with pytest.raises(Undelivered):
            await publishing
    assert "acknowledged one message" in caplog.text


async def test_an_error_in_the_block_is_raised_and_the_client_is_closed() -> None:
    async with ScriptedBroker() as broker:

        async def fail() -> None:
            async with broker.create_client():
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await with_timeout(fail())
        peer = await broker.accept()
        await wait_until(lambda: peer.gone)
        assert peer.unread == [Disconnect()]


async def test_received_messages_can_be_fetched_after_close() -> None:
    async with ScriptedBroker() as broker:
        async with broker.create_client() as client:
            peer = await broker.accept()
            peer.send(Publish("t", b"one"))
            await with_timeout(client.receive())
            publishing = asyncio.create_task(client.publish("t", b"mark"))
            (mark,) = await peer.publishes(1)
            peer.send(Publish("t", b"two"), Puback(mark.packet_id))
            await with_timeout(publishing)
        assert (await with_timeout(client.receive())).messages == [Publish("t", b"two")]
        with pytest.raises(ConnectionClosed):
            await with_timeout(client.receive())


CALLS: list[Callable[[MqttClient], Awaitable[object]]] = [
    lambda client: client.publish("t", b"x"),
    lambda client: client.publish("t", b"x", qos=0),
    lambda client: client.subscribe("a"),
    lambda client: client.unsubscribe("a"),
    lambda client: client.receive(),
]


@each_row("call", CALLS)
async def test_a_client_cannot_be_used_before_it_is_entered_and_after_it_is_closed(
    call: Callable[[MqttClient], Awaitable[object]],
) -> None:
    async with ScriptedBroker() as broker:
        client = broker.create_client()
        with pytest.raises(ConnectionClosed, match="async with"):
            await call(client)
        assert "async with" in str(client.connection_error)
        async with client:
            await broker.accept()
        with pytest.raises(ConnectionClosed, match="closed"):
            await call(client)
        with pytest.raises(ConnectionClosed, match="once"):
            await client.__aenter__()


async def test_connection_error_after_close_says_that_the_client_is_closed() -> None:
    async with ScriptedBroker() as broker:
        async with broker.create_client() as client:
            await broker.accept()
        assert isinstance(client.connection_error, ConnectionClosed)


async def test_iterating_over_a_client_ends_when_it_is_closed() -> None:
    async with ScriptedBroker() as broker:
        received: list[Publish] = []

        async def consume() -> None:
            async for batch in client:
                received.extend(batch.messages)

        async with broker.create_client() as client:
            peer = await broker.accept()
            consuming = asyncio.create_task(consume())
            peer.send(Publish("t", b"x"))
            await wait_until(lambda: received)
        await with_timeout(consuming)
        assert received == [Publish("t", b"x")]
