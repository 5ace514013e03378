"""The broker goes away and comes back; the links come back by themselves, and nothing is lost."""

from __future__ import annotations

import asyncio
import logging
from signal import SIGKILL, SIGTERM
from typing import TYPE_CHECKING

import pytest

from meshfleet.link import Link, Publish
from meshfleet.wire.mqtt.packets import Connack, Puback, Suback, Subscribe
from tests.link.proxy import EAGER, PATIENCE, Proxy, address, fetch, fetch_until, fresh
from tests.servers import Mosquitto

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from signal import Signals

pytestmark = pytest.mark.anyio

SETTINGS = ("max_queued_messages 0", "max_inflight_messages 0", "set_tcp_nodelay true")  # 0 is no limit


@pytest.fixture
def lasting(tmp_path: Path) -> Iterator[Mosquitto]:
    """Remembers sessions and messages when it is stopped properly."""
    with Mosquitto(tmp_path, "persistence true", *SETTINGS) as broker:
        yield broker


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path, "persistence false", *SETTINGS) as broker:
        yield broker


async def restart(broker: Mosquitto, how: Signals = SIGTERM) -> None:
    """Without holding up the links, which notice while it happens."""
    await asyncio.to_thread(broker.stop, how)
    await asyncio.to_thread(broker.start)


class Speaker:
    """Publishes numbers, a few at a time, and knows which of them the broker has taken."""

    def __init__(self, link: Link, topic: str) -> None:
        self._link = link
        self._topic = topic
        self._enough = False
        self.taken: list[bytes] = []
        self.progress = asyncio.Event()

    async def speak(self) -> None:
        while not self._enough:
            numbers = [b"%d" % (len(self.taken) + more) for more in range(7)]
            await self._link.publish_all([Publish(self._topic, number, 1) for number in numbers])
            self.taken += numbers
            self.progress.set()
        await self._link.publish(self._topic, b"end")

    async def go_on(self, times: int = 50) -> None:
        """Wait until so many publishes have returned from now on."""
        async with asyncio.timeout(PATIENCE):
            for _ in range(times):
                self.progress.clear()
                await self.progress.wait()

    def stop(self) -> None:
        self._enough = True


async def test_nothing_that_was_published_is_lost_when_the_broker_restarts(lasting: Mosquitto) -> None:
    broker, topic = address(lasting.address), fresh("numbers")
    async with (
        Link(broker, fresh("ear"), options=EAGER) as ear,
        Link(broker, fresh("mouth"), options=EAGER) as mouth,
    ):
        await ear.subscribe(topic)
        speaker = Speaker(mouth, topic)
        async with asyncio.TaskGroup() as tasks:
            listening = tasks.create_task(fetch_until(ear, b"end"))
            tasks.create_task(speaker.speak())
            for _ in range(3):
                await speaker.go_on()
                await restart(lasting)
            await speaker.go_on()
            speaker.stop()
    first_times = list(dict.fromkeys(message.payload for message in listening.result()))
    assert first_times == speaker.taken


async def test_a_repetition_after_a_restart_says_so(lasting: Mosquitto) -> None:
    broker, topic = address(lasting.address), fresh("topic")
    async with (
        Link(broker, fresh("ear"), options=EAGER) as ear,
        Link(broker, fresh("mouth"), options=EAGER) as mouth,
    ):
        await ear.subscribe(topic)
        await mouth.publish(topic, b"unsettled")
        async with asyncio.timeout(PATIENCE):
            assert [message.dup for message in (await ear.receive()).messages] == [False]
        await restart(lasting)
        [again] = await fetch(ear, 1)
    assert (again.payload, again.dup) == (b"unsettled", True)


async def test_a_session_that_the_broker_kept_is_not_subscribed_again(lasting: Mosquitto) -> None:
    topic = fresh("topic")
    async with (
        Proxy(lasting.address) as proxy,
        Link(proxy.address, fresh("ear"), options=EAGER) as ear,
        Link(address(lasting.address), fresh("mouth"), options=EAGER) as mouth,
    ):
        await ear.subscribe(topic)
        await restart(lasting)
        await mouth.publish(topic, b"after")
        assert [message.payload for message in await fetch(ear, 1)] == [b"after"]
        await ear.publish(topic, b"behind everything that the link says by itself")
        assert proxy.passages[-1].heard(Connack) == [Connack(session_present=True)]
        assert proxy.passages[-1].said(Subscribe) == []


@pytest.mark.parametrize("how", [SIGTERM, SIGKILL], ids=["stopped", "killed"])
async def test_what_the_broker_forgot_is_subscribed_again(
    forgetful: Mosquitto, how: Signals, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "meshfleet")
    topic, name = fresh("topic"), fresh("ear")
    async with (
        Proxy(forgetful.address) as proxy,
        Link(proxy.address, name, options=EAGER) as ear,
        Link(address(forgetful.address), fresh("mouth"), options=EAGER) as mouth,
    ):
        await ear.subscribe(f"{topic}/+")
        await ear.subscribe(f"{topic}/+/low", qos=0)
        await ear.subscribe(f"{topic}/dropped")
        await ear.unsubscribe(f"{topic}/dropped")
        await restart(forgetful, how)
        await proxy.until(lambda: any(passage.heard(Suback) for passage in proxy.passages[1:]))
        await mouth.publish(f"{topic}/a/low", b"low")
        await mouth.publish(f"{topic}/a", b"after")
        came = await fetch(ear, 2)
        [asked] = proxy.passages[-1].said(Subscribe)
    assert [(message.payload, message.qos) for message in came] == [(b"low", 0), (b"after", 1)]
    assert asked.filters == ((f"{topic}/+", 1), (f"{topic}/+/low", 0))
    assert f"{proxy.address} has forgotten the session of {name}" in caplog.text
    assert f"{name} to {proxy.address} has a connection again" in caplog.text


async def test_what_a_killed_broker_did_not_acknowledge_is_sent_again(forgetful: Mosquitto) -> None:
    topic = fresh("topic")
    numbers = [b"%d" % number for number in range(50)]
    async with (
        Proxy(forgetful.address) as proxy,
        Link(proxy.address, fresh("mouth"), options=EAGER) as mouth,
        asyncio.TaskGroup() as tasks,
    ):
        proxy.stall(up=False)  # the broker's acknowledgements never reach us
        pending = [tasks.create_task(mouth.publish(topic, number)) for number in numbers]
        first = proxy.passages[0]
        await proxy.until(lambda: len(first.said(Publish)) == 50)
        proxy.stall()
        await asyncio.to_thread(forgetful.stop, SIGKILL)
        await proxy.cut()
        await asyncio.to_thread(forgetful.start)
        assert not any(task.done() for task in pending)
        async with Link(address(forgetful.address), fresh("ear"), clean=True) as ear:
            await ear.subscribe(topic)
            proxy.flow()
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*pending)
            assert [message.payload for message in await fetch(ear, 50)] == numbers
        sent, again = first.said(Publish), proxy.passages[-1].said(Publish)
    assert not any(packet.dup for packet in sent)
    assert all(packet.dup for packet in again)
    assert [packet.packet_id for packet in again] == [packet.packet_id for packet in sent]
    assert len({packet.packet_id for packet in sent}) == 50


async def test_what_was_acknowledged_is_not_sent_again(lasting: Mosquitto) -> None:
    topic = fresh("topic")
    async with (
        Proxy(lasting.address) as proxy,
        Link(proxy.address, fresh("mouth"), options=EAGER) as mouth,
    ):
        await mouth.publish_all([Publish(topic, b"before", 1)] * 10)
        await restart(lasting)
        await mouth.publish(topic, b"after")
        assert [packet.payload for packet in proxy.passages[-1].said(Publish)] == [b"after"]
        assert len(proxy.passages[0].heard(Puback)) == 10


async def test_a_publish_that_finds_no_broker_waits_for_it(lasting: Mosquitto) -> None:
    broker, topic = address(lasting.address), fresh("topic")
    async with Link(broker, fresh("ear"), options=EAGER) as ear, asyncio.TaskGroup() as tasks:
        await ear.subscribe(topic)
        await asyncio.to_thread(lasting.stop)
        waiting = [tasks.create_task(ear.publish(topic, b"%d" % number)) for number in range(10)]
        asking = tasks.create_task(ear.subscribe(f"{topic}/more"))
        await asyncio.to_thread(lasting.start)
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(asking, *waiting)
        assert {message.payload for message in await fetch(ear, 10)} == {
            b"%d" % number for number in range(10)
        }
