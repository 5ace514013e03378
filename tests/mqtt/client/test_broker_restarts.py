"""The broker goes away and comes back; the links come back by themselves, and nothing is lost."""

from __future__ import annotations

import asyncio
import logging
from signal import SIGKILL, SIGTERM
from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.client import MqttClient, Publish
from meshfleet.mqtt.codec.packets import Connack, Puback, Suback, Subscribe
from tests.mqtt.client.proxy import (
    FAST_RECONNECT,
    TIMEOUT,
    Proxy,
    receive_messages,
    receive_messages_until,
    to_address,
    unique_name,
)
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

    def __init__(self, link: MqttClient, topic: str) -> None:
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
        async with asyncio.timeout(TIMEOUT):
            for _ in range(times):
                self.progress.clear()
                await self.progress.wait()

    def stop(self) -> None:
        self._enough = True


async def test_nothing_that_was_published_is_lost_when_the_broker_restarts(lasting: Mosquitto) -> None:
    broker, topic = to_address(lasting.address), unique_name("numbers")
    async with (
        MqttClient(broker, unique_name("ear"), options=FAST_RECONNECT) as ear,
        MqttClient(broker, unique_name("mouth"), options=FAST_RECONNECT) as mouth,
    ):
        await ear.subscribe(topic)
        speaker = Speaker(mouth, topic)
        async with asyncio.TaskGroup() as tasks:
            listening = tasks.create_task(receive_messages_until(ear, b"end"))
            tasks.create_task(speaker.speak())
            for _ in range(3):
                await speaker.go_on()
                await restart(lasting)
            await speaker.go_on()
            speaker.stop()
    first_times = list(dict.fromkeys(message.payload for message in listening.result()))
    assert first_times == speaker.taken


async def test_a_repetition_after_a_restart_says_so(lasting: Mosquitto) -> None:
    broker, topic = to_address(lasting.address), unique_name("topic")
    async with (
        MqttClient(broker, unique_name("ear"), options=FAST_RECONNECT) as ear,
        MqttClient(broker, unique_name("mouth"), options=FAST_RECONNECT) as mouth,
    ):
        await ear.subscribe(topic)
        await mouth.publish(topic, b"unsettled")
        async with asyncio.timeout(TIMEOUT):
            assert [message.dup for message in (await ear.receive()).messages] == [False]
        await restart(lasting)
        [again] = await receive_messages(ear, 1)
    assert (again.payload, again.dup) == (b"unsettled", True)


async def test_a_session_that_the_broker_kept_is_not_subscribed_again(lasting: Mosquitto) -> None:
    topic = unique_name("topic")
    async with (
        Proxy(lasting.address) as proxy,
        MqttClient(proxy.address, unique_name("ear"), options=FAST_RECONNECT) as ear,
        MqttClient(to_address(lasting.address), unique_name("mouth"), options=FAST_RECONNECT) as mouth,
    ):
        await ear.subscribe(topic)
        await restart(lasting)
        await mouth.publish(topic, b"after")
        assert [message.payload for message in await receive_messages(ear, 1)] == [b"after"]
        await ear.publish(topic, b"behind everything that the link says by itself")
        assert proxy.connections[-1].broker_packets(Connack) == [Connack(session_present=True)]
        assert proxy.connections[-1].client_packets(Subscribe) == []


@pytest.mark.parametrize("how", [SIGTERM, SIGKILL], ids=["stopped", "killed"])
async def test_what_the_broker_forgot_is_subscribed_again(
    forgetful: Mosquitto, how: Signals, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "meshfleet")
    topic, name = unique_name("topic"), unique_name("ear")
    async with (
        Proxy(forgetful.address) as proxy,
        MqttClient(proxy.address, name, options=FAST_RECONNECT) as ear,
        MqttClient(to_address(forgetful.address), unique_name("mouth"), options=FAST_RECONNECT) as mouth,
    ):
        await ear.subscribe(f"{topic}/+")
        await ear.subscribe(f"{topic}/+/low", qos=0)
        await ear.subscribe(f"{topic}/dropped")
        await ear.unsubscribe(f"{topic}/dropped")
        await restart(forgetful, how)
        await proxy.until(lambda: any(passage.broker_packets(Suback) for passage in proxy.connections[1:]))
        await mouth.publish(f"{topic}/a/low", b"low")
        await mouth.publish(f"{topic}/a", b"after")
        came = await receive_messages(ear, 2)
        [asked] = proxy.connections[-1].client_packets(Subscribe)
    assert [(message.payload, message.qos) for message in came] == [(b"low", 0), (b"after", 1)]
    assert asked.filters == ((f"{topic}/+", 1), (f"{topic}/+/low", 0))
    assert f"{proxy.address} has lost the session of {name}" in caplog.text
    assert f"{name} to {proxy.address} has a connection again" in caplog.text


async def test_what_a_killed_broker_did_not_acknowledge_is_sent_again(forgetful: Mosquitto) -> None:
    topic = unique_name("topic")
    numbers = [b"%d" % number for number in range(50)]
    async with (
        Proxy(forgetful.address) as proxy,
        MqttClient(proxy.address, unique_name("mouth"), options=FAST_RECONNECT) as mouth,
        asyncio.TaskGroup() as tasks,
    ):
        proxy.stall(up=False)  # the broker's acknowledgements never reach us
        pending = [tasks.create_task(mouth.publish(topic, number)) for number in numbers]
        first = proxy.connections[0]
        await proxy.until(lambda: len(first.client_packets(Publish)) == 50)
        proxy.stall()
        await asyncio.to_thread(forgetful.stop, SIGKILL)
        await proxy.cut()
        await asyncio.to_thread(forgetful.start)
        assert not any(task.done() for task in pending)
        async with MqttClient(to_address(forgetful.address), unique_name("ear"), clean=True) as ear:
            await ear.subscribe(topic)
            proxy.resume()
            async with asyncio.timeout(TIMEOUT):
                await asyncio.gather(*pending)
            assert [message.payload for message in await receive_messages(ear, 50)] == numbers
        sent, again = first.client_packets(Publish), proxy.connections[-1].client_packets(Publish)
    assert not any(packet.dup for packet in sent)
    assert all(packet.dup for packet in again)
    assert [packet.packet_id for packet in again] == [packet.packet_id for packet in sent]
    assert len({packet.packet_id for packet in sent}) == 50


async def test_what_was_acknowledged_is_not_sent_again(lasting: Mosquitto) -> None:
    topic = unique_name("topic")
    async with (
        Proxy(lasting.address) as proxy,
        MqttClient(proxy.address, unique_name("mouth"), options=FAST_RECONNECT) as mouth,
    ):
        await mouth.publish_all([Publish(topic, b"before", 1)] * 10)
        await restart(lasting)
        await mouth.publish(topic, b"after")
        assert [packet.payload for packet in proxy.connections[-1].client_packets(Publish)] == [b"after"]
        assert len(proxy.connections[0].broker_packets(Puback)) == 10


async def test_a_publish_that_finds_no_broker_waits_for_it(lasting: Mosquitto) -> None:
    broker, topic = to_address(lasting.address), unique_name("topic")
    async with (
        MqttClient(broker, unique_name("ear"), options=FAST_RECONNECT) as ear,
        asyncio.TaskGroup() as tasks,
    ):
        await ear.subscribe(topic)
        await asyncio.to_thread(lasting.stop)
        waiting = [tasks.create_task(ear.publish(topic, b"%d" % number)) for number in range(10)]
        asking = tasks.create_task(ear.subscribe(f"{topic}/more"))
        await asyncio.to_thread(lasting.start)
        async with asyncio.timeout(TIMEOUT):
            await asyncio.gather(asking, *waiting)
        assert {message.payload for message in await receive_messages(ear, 10)} == {
            b"%d" % number for number in range(10)
        }
