"""The end: nothing is lost that could arrive, nobody waits for ever, and nothing stays behind."""

from __future__ import annotations

import asyncio
import gc
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from meshfleet.errors.mqtt import LinkClosed, LinkError, Undelivered
from meshfleet.mqtt.codec.packets import Connack, Disconnect, Puback, Publish
from tests.eventually import eventually_async
from tests.mqtt.client.scripted_broker import (
    NO_RECONNECT,
    ScriptedBroker,
    impatient_link,
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
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing fails where nobody looks: no error that was never retrieved, no callback that raised."""
    yield
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


def _numbered(count: int) -> list[Publish]:
    return [Publish("t", f"{number}".encode(), qos=1) for number in range(count)]


async def test_close_waits_for_acknowledgements_and_then_says_good_bye() -> None:
    async with ScriptedBroker() as broker:
        link = await broker.create_client().__aenter__()
        peer = await broker.accept()
        publishing = asyncio.create_task(link.publish_all(_numbered(3)))
        got = await peer.publishes(3)
        closing = asyncio.create_task(link.close())
        peer.acknowledge(got[:2])
        assert await wait_until_stable(lambda: len(peer.unread)) == 0
        assert not closing.done()
        peer.acknowledge(got[2:])
        await with_timeout(asyncio.gather(publishing, closing))
        assert await peer.next() == Disconnect()
        assert (peer.unread, peer.finished, peer.fault) == ([], True, None)


async def test_close_waits_until_the_broker_has_read_everything() -> None:
    async with ScriptedBroker() as broker:
        link = await broker.create_client(backlog=1000).__aenter__()
        peer = await broker.accept()
        peer.send(*[Publish("t", bytes(1000))] * 1000)  # a megabyte that is never received
        peer.stall()
        for number in range(300):
            await with_timeout(link.publish("t", f"{number}".encode() + bytes(1000), qos=0))
        closing = asyncio.create_task(link.close())
        assert await wait_until_stable(lambda: len(peer.unread)) == 0
        assert not closing.done()
        peer.resume()
        await with_timeout(closing)
        got = await peer.publishes(300)
        assert [message.payload.rstrip(b"\0") for message in got] == [f"{n}".encode() for n in range(300)]
        assert await peer.next() == Disconnect()
        assert (peer.finished, peer.fault) == (True, None), "no reset"


async def test_close_leaves_the_closing_to_the_broker() -> None:
    async with ScriptedBroker() as broker:
        link = await broker.create_client().__aenter__()
        peer = await broker.accept()
        peer.lingers = True
        closing = asyncio.create_task(link.close())
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


async def test_close_does_not_wait_for_ever_for_a_broker_that_does_not_close() -> None:
    async with impatient_link() as (_, link, peer):
        peer.stall()
        await with_timeout(link.close())
        peer.resume()
        await wait_until(lambda: peer.gone)


async def test_close_is_at_peace_with_a_broker_that_has_just_gone() -> None:
    async with ScriptedBroker() as broker:
        link = await broker.create_client(backlog=1).__aenter__()
        peer = await broker.accept()
        publishing = asyncio.create_task(link.publish("t", b"mark"))
        (mark,) = await peer.publishes(1)
        peer.send(Puback(mark.packet_id), Publish("t", b"too much to read on"))
        await with_timeout(publishing)
        peer.close()
        await wait_until(lambda: peer.gone)  # which the link cannot see, since it does not read
        await with_timeout(link.close())


async def test_nothing_follows_the_good_bye() -> None:
    async with ScriptedBroker() as broker:
        link = await broker.create_client().__aenter__()
        peer = await broker.accept()
        peer.lingers = True
        peer.send(*_with_ids(2))
        batch = await with_timeout(link.receive())
        closing = asyncio.create_task(link.close())
        await peer.expect(Disconnect)
        batch.acknowledge()  # too late, and no reason to complain
        assert await wait_until_stable(lambda: len(peer.unread)) == 0
        peer.close()
        await with_timeout(closing)


async def test_what_was_acknowledged_in_front_of_the_close_is_told_in_front_of_the_good_bye() -> None:
    async with ScriptedBroker() as broker:
        async with broker.create_client() as link:
            peer = await broker.accept()
            peer.send(*_with_ids(1))
            (await with_timeout(link.receive())).acknowledge()
        assert [await peer.next() for _ in range(2)] == [Puback(1), Disconnect()]


@pytest.mark.parametrize("window", [2, 1000])
async def test_what_is_never_acknowledged_is_undelivered_and_everybody_hears(window: int) -> None:
    before = asyncio.all_tasks()
    async with impatient_link(window=window) as (_, link, peer):
        publishers = [asyncio.create_task(link.publish_all(_numbered(4))) for _ in range(2)]
        receiver = asyncio.create_task(link.receive())
        got = await peer.publishes(min(window, 8))
        with pytest.raises(Undelivered, match=f"acknowledged {len(got)} messages") as caught:
            await with_timeout(link.close())
        assert caught.value.messages == len(got)
        ends = await with_timeout(asyncio.gather(*publishers, receiver, return_exceptions=True))
        assert all(isinstance(end, LinkError) for end in ends)
        assert asyncio.all_tasks() == before
        await wait_until(lambda: peer.gone)
        assert peer.received[-1] == Disconnect()


async def test_a_publisher_who_went_away_half_way_is_not_missed() -> None:
    async with impatient_link(window=2) as (_, link, peer):
        publishing = asyncio.create_task(link.publish_all(_numbered(4)))
        await peer.publishes(2)
        publishing.cancel()
        with pytest.raises(Undelivered):
            await with_timeout(link.close())


async def test_publishers_who_wait_for_room_are_refused_and_what_has_left_still_arrives() -> None:
    async with ScriptedBroker() as broker:
        link = await broker.create_client(window=2).__aenter__()
        peer = await broker.accept()
        publishing = asyncio.create_task(link.publish_all(_numbered(4)))
        got = await peer.publishes(2)
        closing = asyncio.create_task(link.close())
        with pytest.raises(LinkClosed):
            await with_timeout(publishing)
        peer.acknowledge(got)
        await with_timeout(closing)
        assert await peer.next() == Disconnect()


async def test_close_in_an_outage_ends_at_once_when_nothing_is_on_its_way() -> None:
    async with ScriptedBroker() as broker:
        before = asyncio.all_tasks()
        link = await broker.create_client(backoff=NO_RECONNECT).__aenter__()
        (await broker.accept()).close()
        await wait_until(lambda: link.connection_error)
        waiting = [asyncio.create_task(link.publish("t", b"")), asyncio.create_task(link.subscribe("a"))]
        await asyncio.sleep(0)
        await with_timeout(link.close())
        ends = await with_timeout(asyncio.gather(*waiting, return_exceptions=True))
        assert all(isinstance(end, LinkClosed) for end in ends)
        assert asyncio.all_tasks() == before


@pytest.mark.parametrize("back", [True, False], ids=["back in time", "not back"])
async def test_close_in_an_outage_hopes_for_the_broker(*, back: bool) -> None:
    async with ScriptedBroker() as broker:
        before = asyncio.all_tasks()
        link = await broker.create_client(timeout=10 if back else 0.2).__aenter__()
        peer = await broker.accept()
        publishing = asyncio.create_task(link.publish("t", b"x"))
        await peer.publishes(1)
        broker.refuse()
        peer.close()
        await wait_until(lambda: broker.refused)
        closing = asyncio.create_task(link.close())
        if back:
            broker.connack = Connack()
            peer = await broker.accept()
            peer.acknowledge(await peer.publishes(1))
            await with_timeout(asyncio.gather(closing, publishing))
            assert await peer.next() == Disconnect()
        else:
            ends = await with_timeout(asyncio.gather(closing, publishing, return_exceptions=True))
            assert [type(end) for end in ends] == [Undelivered, Undelivered]
        assert asyncio.all_tasks() == before


async def test_to_close_twice_is_to_close_once() -> None:
    async with ScriptedBroker() as broker:
        async with broker.create_client() as link:
            peer = await broker.accept()
            await with_timeout(asyncio.gather(link.close(), link.close()))
        await with_timeout(link.close())
        await wait_until(lambda: peer.gone)
        assert peer.unread == [Disconnect()]


async def _knocked(peer: Peer) -> None:
    """Write until there is nobody any more to read it."""

    def is_gone() -> bool:
        if not peer.gone:
            peer.send(Publish("t", b""))
        return peer.gone

    await eventually_async(is_gone)


@pytest.mark.parametrize("lingers", [True, False], ids=["cancelled twice", "cancelled"])
async def test_a_cancelled_close_leaves_nobody_waiting_and_nothing_behind(*, lingers: bool) -> None:
    async with ScriptedBroker() as broker:
        before = asyncio.all_tasks()
        link = await broker.create_client().__aenter__()
        peer = await broker.accept()
        peer.lingers = lingers
        publishing = asyncio.create_task(link.publish("t", b"x"))
        await peer.publishes(1)
        closing = asyncio.create_task(link.close())
        await asyncio.sleep(0)
        closing.cancel()
        if lingers:
            await peer.expect(Disconnect)
            closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await with_timeout(closing)
        with pytest.raises(LinkError):
            await with_timeout(publishing)
        await with_timeout(_knocked(peer))
        assert asyncio.all_tasks() == before


async def test_cancelled_while_entering_it_leaves_nothing_behind() -> None:
    async with ScriptedBroker(connack=None) as broker:
        before = asyncio.all_tasks()
        entering = asyncio.create_task(broker.create_client().__aenter__())
        peer = await broker.accept()
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await with_timeout(entering)
        await wait_until(lambda: peer.gone)
        assert asyncio.all_tasks() == before


@each_row("turns", range(8))
async def test_cancelled_at_any_turn_of_entering_it_leaves_nothing_behind(turns: int) -> None:
    async with ScriptedBroker() as broker:
        before = asyncio.all_tasks()
        link = broker.create_client(keep_alive=1)
        entering = asyncio.create_task(link.__aenter__())
        for _ in range(turns):
            await asyncio.sleep(0)
        entering.cancel()
        await asyncio.wait((entering,))
        await with_timeout(link.close())
        await wait_until(lambda: all(peer.gone for peer in broker.peers))
        await wait_until(lambda: asyncio.all_tasks() == before)  # the broker's own accepting ends too


async def test_a_loop_over_a_link_that_was_never_entered_is_an_error() -> None:
    async with ScriptedBroker() as broker:
        with pytest.raises(LinkClosed, match="async with"):
            await anext(broker.create_client())


async def test_an_error_inside_is_not_hidden_by_what_was_undelivered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with impatient_link() as (_, link, peer):
        publishing = asyncio.create_task(link.publish("t", b"x"))
        await peer.publishes(1)

        async def fail() -> None:
            async with AsyncExitStack() as leaving:
                leaving.push_async_exit(link)  # it was entered above
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await with_timeout(fail())
        with pytest.raises(Undelivered):
            await publishing
    assert "acknowledged one message" in caplog.text


async def test_an_error_inside_passes_and_the_link_is_closed() -> None:
    async with ScriptedBroker() as broker:

        async def fail() -> None:
            async with broker.create_client():
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await with_timeout(fail())
        peer = await broker.accept()
        await wait_until(lambda: peer.gone)
        assert peer.unread == [Disconnect()]


async def test_what_arrived_can_be_fetched_after_the_end() -> None:
    async with ScriptedBroker() as broker:
        async with broker.create_client() as link:
            peer = await broker.accept()
            peer.send(Publish("t", b"one"))
            await with_timeout(link.receive())
            publishing = asyncio.create_task(link.publish("t", b"mark"))
            (mark,) = await peer.publishes(1)
            peer.send(Publish("t", b"two"), Puback(mark.packet_id))
            await with_timeout(publishing)
        assert (await with_timeout(link.receive())).messages == [Publish("t", b"two")]
        with pytest.raises(LinkClosed):
            await with_timeout(link.receive())


USES: list[Callable[[MqttClient], Awaitable[object]]] = [
    lambda link: link.publish("t", b"x"),
    lambda link: link.publish("t", b"x", qos=0),
    lambda link: link.subscribe("a"),
    lambda link: link.unsubscribe("a"),
    lambda link: link.receive(),
]


@each_row("use", USES)
async def test_a_link_is_of_no_use_before_it_is_entered_and_after_it_is_closed(
    use: Callable[[MqttClient], Awaitable[object]],
) -> None:
    async with ScriptedBroker() as broker:
        link = broker.create_client()
        with pytest.raises(LinkClosed, match="async with"):
            await use(link)
        assert "async with" in str(link.connection_error)
        async with link:
            await broker.accept()
        with pytest.raises(LinkClosed, match="closed"):
            await use(link)
        with pytest.raises(LinkClosed, match="once"):
            await link.__aenter__()


async def test_trouble_after_the_end_is_that_the_link_is_closed() -> None:
    async with ScriptedBroker() as broker:
        async with broker.create_client() as link:
            await broker.accept()
        assert isinstance(link.connection_error, LinkClosed)


async def test_a_loop_over_the_link_ends_when_it_is_closed() -> None:
    async with ScriptedBroker() as broker:
        got: list[Publish] = []

        async def consume() -> None:
            async for batch in link:
                got.extend(batch.messages)

        async with broker.create_client() as link:
            peer = await broker.accept()
            consuming = asyncio.create_task(consume())
            peer.send(Publish("t", b"x"))
            await wait_until(lambda: got)
        await with_timeout(consuming)
        assert got == [Publish("t", b"x")]
