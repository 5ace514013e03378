"""The broker restarts; clients reconnect by themselves, and no message is lost."""

from __future__ import annotations

import asyncio
import logging
from signal import SIGKILL, SIGTERM, Signals
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

pytestmark = pytest.mark.anyio

SETTINGS = ("max_queued_messages 0", "max_inflight_messages 0", "set_tcp_nodelay true")  # 0: unlimited


@pytest.fixture
def persistent_broker(tmp_path: Path) -> Iterator[Mosquitto]:
    """Run a broker that keeps sessions and messages when it is stopped properly."""
    with Mosquitto(tmp_path, "persistence true", *SETTINGS) as broker:
        yield broker


@pytest.fixture
def volatile_broker(tmp_path: Path) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path, "persistence false", *SETTINGS) as broker:
        yield broker


async def restart(broker: Mosquitto, how: Signals = SIGTERM) -> None:
    """Restart the broker in a thread, so that clients notice it meanwhile."""
    await asyncio.to_thread(broker.stop, how)
    await asyncio.to_thread(broker.start)


class NumberPublisher:
    """Publisher of numbers, a few at a time, which records those that the broker acknowledged."""

    def __init__(self, client: MqttClient, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._is_stopping = False
        self.acknowledged: list[bytes] = []
        self.progress = asyncio.Event()

    async def run(self) -> None:
        while not self._is_stopping:
            numbers = [b"%d" % (len(self.acknowledged) + index) for index in range(7)]
            await self._client.publish_all([Publish(self._topic, number, 1) for number in numbers])
            self.acknowledged += numbers
            self.progress.set()
        await self._client.publish(self._topic, b"end")

    async def wait_for_publishes(self, times: int = 50) -> None:
        """Wait until this many publishes have returned from now on."""
        async with asyncio.timeout(TIMEOUT):
            for _ in range(times):
                self.progress.clear()
                await self.progress.wait()

    def stop(self) -> None:
        self._is_stopping = True


async def test_no_published_message_is_lost_when_the_broker_restarts(persistent_broker: Mosquitto) -> None:
    broker, topic = to_address(persistent_broker.address), unique_name("numbers")
    async with (
        MqttClient(broker, unique_name("subscriber"), options=FAST_RECONNECT) as subscriber,
        MqttClient(broker, unique_name("publisher"), options=FAST_RECONNECT) as publisher,
    ):
        await subscriber.subscribe(topic)
        numbers_publisher = NumberPublisher(publisher, topic)
        async with asyncio.TaskGroup() as tasks:
            receiving = tasks.create_task(receive_messages_until(subscriber, b"end"))
            tasks.create_task(numbers_publisher.run())
            for _ in range(3):
                await numbers_publisher.wait_for_publishes()
                await restart(persistent_broker)
            await numbers_publisher.wait_for_publishes()
            numbers_publisher.stop()
    distinct = list(dict.fromkeys(message.payload for message in receiving.result()))
    assert distinct == numbers_publisher.acknowledged


async def test_a_message_repeated_after_a_restart_has_the_dup_flag(persistent_broker: Mosquitto) -> None:
    broker, topic = to_address(persistent_broker.address), unique_name("topic")
    async with (
        MqttClient(broker, unique_name("subscriber"), options=FAST_RECONNECT) as subscriber,
        MqttClient(broker, unique_name("publisher"), options=FAST_RECONNECT) as publisher,
    ):
        await subscriber.subscribe(topic)
        await publisher.publish(topic, b"unsettled")
        async with asyncio.timeout(TIMEOUT):
            assert [message.dup for message in (await subscriber.receive()).messages] == [False]
        await restart(persistent_broker)
        [again] = await receive_messages(subscriber, 1)
    assert (again.payload, again.dup) == (b"unsettled", True)


async def test_a_session_that_the_broker_kept_is_not_subscribed_again(persistent_broker: Mosquitto) -> None:
    topic = unique_name("topic")
    async with (
        Proxy(persistent_broker.address) as proxy,
        MqttClient(proxy.address, unique_name("subscriber"), options=FAST_RECONNECT) as subscriber,
        MqttClient(
            to_address(persistent_broker.address), unique_name("publisher"), options=FAST_RECONNECT
        ) as publisher,
    ):
        await subscriber.subscribe(topic)
        await restart(persistent_broker)
        await publisher.publish(topic, b"after")
        assert [message.payload for message in await receive_messages(subscriber, 1)] == [b"after"]
        await subscriber.publish(topic, b"after all packets of the reconnect")
        assert proxy.connections[-1].broker_packets(Connack) == [Connack(session_present=True)]
        assert proxy.connections[-1].client_packets(Subscribe) == []


@pytest.mark.parametrize("how", [SIGTERM, SIGKILL], ids=["stopped", "killed"])
async def test_subscriptions_that_the_broker_lost_are_subscribed_again(
    volatile_broker: Mosquitto, how: Signals, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "meshfleet")
    topic, name = unique_name("topic"), unique_name("subscriber")
    async with (
        Proxy(volatile_broker.address) as proxy,
        MqttClient(proxy.address, name, options=FAST_RECONNECT) as subscriber,
        MqttClient(
            to_address(volatile_broker.address), unique_name("publisher"), options=FAST_RECONNECT
        ) as publisher,
    ):
        await subscriber.subscribe(f"{topic}/+")
        await subscriber.subscribe(f"{topic}/+/low", qos=0)
        await subscriber.subscribe(f"{topic}/dropped")
        await subscriber.unsubscribe(f"{topic}/dropped")
        await restart(volatile_broker, how)
        await proxy.until(lambda: any(passage.broker_packets(Suback) for passage in proxy.connections[1:]))
        await publisher.publish(f"{topic}/a/low", b"low")
        await publisher.publish(f"{topic}/a", b"after")
        received = await receive_messages(subscriber, 2)
        [request] = proxy.connections[-1].client_packets(Subscribe)
    assert [(message.payload, message.qos) for message in received] == [(b"low", 0), (b"after", 1)]
    assert request.filters == ((f"{topic}/+", 1), (f"{topic}/+/low", 0))
    assert f"{proxy.address} has lost the session of {name}" in caplog.text
    assert f"{name} to {proxy.address} has a connection again" in caplog.text


async def test_messages_that_a_killed_broker_did_not_acknowledge_are_sent_again(
    volatile_broker: Mosquitto,
) -> None:
    topic = unique_name("topic")
    numbers = [b"%d" % number for number in range(50)]
    async with (
        Proxy(volatile_broker.address) as proxy,
        MqttClient(proxy.address, unique_name("publisher"), options=FAST_RECONNECT) as publisher,
        asyncio.TaskGroup() as tasks,
    ):
        proxy.stall(up=False)  # acknowledgements of the broker never reach the client
        pending = [tasks.create_task(publisher.publish(topic, number)) for number in numbers]
        first = proxy.connections[0]
        await proxy.until(lambda: len(first.client_packets(Publish)) == 50)
        proxy.stall()
        await asyncio.to_thread(volatile_broker.stop, SIGKILL)
        await proxy.cut()
        await asyncio.to_thread(volatile_broker.start)
        assert not any(task.done() for task in pending)
        async with MqttClient(
            to_address(volatile_broker.address), unique_name("subscriber"), clean=True
        ) as subscriber:
            await subscriber.subscribe(topic)
            proxy.resume()
            async with asyncio.timeout(TIMEOUT):
                await asyncio.gather(*pending)
            assert [message.payload for message in await receive_messages(subscriber, 50)] == numbers
        sent, again = first.client_packets(Publish), proxy.connections[-1].client_packets(Publish)
    assert not any(packet.dup for packet in sent)
    assert all(packet.dup for packet in again)
    assert [packet.packet_id for packet in again] == [packet.packet_id for packet in sent]
    assert len({packet.packet_id for packet in sent}) == 50


async def test_acknowledged_messages_are_not_sent_again(persistent_broker: Mosquitto) -> None:
    topic = unique_name("topic")
    async with (
        Proxy(persistent_broker.address) as proxy,
        MqttClient(proxy.address, unique_name("publisher"), options=FAST_RECONNECT) as publisher,
    ):
        await publisher.publish_all([Publish(topic, b"before", 1)] * 10)
        await restart(persistent_broker)
        await publisher.publish(topic, b"after")
        assert [packet.payload for packet in proxy.connections[-1].client_packets(Publish)] == [b"after"]
        assert len(proxy.connections[0].broker_packets(Puback)) == 10


async def test_a_publish_waits_while_the_broker_is_stopped(persistent_broker: Mosquitto) -> None:
    broker, topic = to_address(persistent_broker.address), unique_name("topic")
    async with (
        MqttClient(broker, unique_name("subscriber"), options=FAST_RECONNECT) as subscriber,
        asyncio.TaskGroup() as tasks,
    ):
        await subscriber.subscribe(topic)
        await asyncio.to_thread(persistent_broker.stop)
        waiting = [tasks.create_task(subscriber.publish(topic, b"%d" % number)) for number in range(10)]
        subscribing = tasks.create_task(subscriber.subscribe(f"{topic}/more"))
        await asyncio.to_thread(persistent_broker.start)
        async with asyncio.timeout(TIMEOUT):
            await asyncio.gather(subscribing, *waiting)
        assert {message.payload for message in await receive_messages(subscriber, 10)} == {
            b"%d" % number for number in range(10)
        }
