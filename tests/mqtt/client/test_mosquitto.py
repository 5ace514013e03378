"""The client works with a real broker, mosquitto."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.client import BrokerAddress, MessageBatch, MqttClient, Publish, Will
from tests.mqtt.client.proxy import (
    FAST_RECONNECT,
    TIMEOUT,
    Proxy,
    receive_messages,
    receive_messages_until,
    unique_name,
)
from tests.row_tables import each_row

if TYPE_CHECKING:
    from tests.servers import ServerAddress

pytestmark = pytest.mark.anyio


def numbered(topic: str, count: int, qos: int = 1) -> list[Publish]:
    return [Publish(topic, b"%d" % number, qos) for number in range(count)]


def payloads(messages: list[Publish]) -> list[bytes]:
    return [message.payload for message in messages]


@pytest.mark.parametrize("subscribed", [0, 1])
@pytest.mark.parametrize("published", [0, 1])
async def test_a_message_arrives_as_published_with_the_lower_qos(
    broker: BrokerAddress, topic: str, published: int, subscribed: int
) -> None:
    async with (
        MqttClient(broker, unique_name("subscriber"), clean=True) as subscriber,
        MqttClient(broker, unique_name("publisher"), clean=True) as publisher,
    ):
        await subscriber.subscribe(topic, qos=subscribed)
        await publisher.publish(topic, b"\x00\xff{}", qos=published)
        [message] = await receive_messages(subscriber, 1)
    assert (message.topic, message.payload) == (topic, b"\x00\xff{}")
    assert message.qos == min(published, subscribed)
    assert not message.retain
    assert not message.dup


@each_row(
    ("topic_filter", "matching"),
    [
        ("{}/+/up", ["{}/a/up", "{}/b/up"]),
        ("{}/+", ["{}/a"]),
        ("{}/#", ["{}", "{}/a", "{}/a/up", "{}/b/up", "{}/b/up/deep"]),
        ("+/a/up", ["{}/a/up"]),
        ("{}/b/up", ["{}/b/up"]),
    ],
)
async def test_wildcards_match_levels(
    broker: BrokerAddress, topic: str, topic_filter: str, matching: list[str]
) -> None:
    topics = [
        each.format(topic) for each in ("{}", "{}/a", "{}/a/up", "{}/b/up", "{}/b/up/deep", "other-{}/a")
    ]
    async with MqttClient(broker, unique_name("both"), clean=True) as client:
        await client.subscribe(topic_filter.format(topic), f"{topic}-end")
        await client.publish_all([Publish(each, b"", 1) for each in (*topics, f"{topic}-end")])
        messages = await receive_messages(client, len(matching) + 1)
    assert [message.topic for message in messages[:-1]] == [each.format(topic) for each in matching]


async def test_a_hash_does_not_match_the_topics_of_the_broker_itself(
    broker: BrokerAddress, topic: str
) -> None:
    async with MqttClient(broker, unique_name("client"), clean=True) as client:
        await client.subscribe("#")
        await client.publish(topic, b"end of all")
        assert not [
            each for each in await receive_messages_until(client, b"end of all") if each.topic.startswith("$")
        ]
        await client.unsubscribe("#")
        await client.subscribe("$SYS/broker/version")
        [version] = await receive_messages(client, 1)
        assert version.payload.startswith(b"mosquitto")


async def test_a_retained_message_reaches_later_subscribers(broker: BrokerAddress, topic: str) -> None:
    async with (
        MqttClient(broker, unique_name("early"), clean=True) as early,
        MqttClient(broker, unique_name("late"), clean=True) as late,
    ):
        await early.subscribe(topic)
        await early.publish(topic, b"kept", retain=True)
        [at_once] = await receive_messages(early, 1)
        await late.subscribe(topic)
        [afterwards] = await receive_messages(late, 1)
    assert (at_once.payload, at_once.retain) == (b"kept", False)
    assert (afterwards.payload, afterwards.retain) == (b"kept", True)


async def test_an_empty_payload_deletes_a_retained_message(broker: BrokerAddress, topic: str) -> None:
    async with (
        MqttClient(broker, unique_name("early"), clean=True) as early,
        MqttClient(broker, unique_name("late"), clean=True) as late,
    ):
        await early.publish(topic, b"kept", retain=True)
        await early.publish(topic, b"", retain=True)
        await late.subscribe(topic)
        await early.publish(topic, b"end")
        assert await receive_messages_until(late, b"end") == []


async def test_no_message_arrives_between_unsubscribing_and_subscribing_again(
    broker: BrokerAddress, topic: str
) -> None:
    async with MqttClient(broker, unique_name("client"), clean=True) as client:
        await client.subscribe(f"{topic}/#", f"{topic}-end")
        await client.unsubscribe(f"{topic}/#")
        await client.publish(f"{topic}/a", b"unwanted")
        await client.publish(f"{topic}-end", b"end")
        assert await receive_messages_until(client, b"end") == []
        await client.subscribe(f"{topic}/#")
        await client.publish(f"{topic}/a", b"wanted")
        assert payloads(await receive_messages(client, 1)) == [b"wanted"]


@pytest.mark.parametrize("qos", [0, 1])
async def test_the_will_is_published_when_the_network_is_cut(
    broker: BrokerAddress, server_address: ServerAddress, topic: str, qos: int
) -> None:
    will = Will(topic, b"gone", qos, retain=True)
    async with (
        Proxy(server_address) as proxy,
        MqttClient(broker, unique_name("subscriber"), clean=True) as subscriber,
    ):
        await subscriber.subscribe(topic)
        async with MqttClient(proxy.address, unique_name("publisher"), will=will, options=FAST_RECONNECT):
            await proxy.cut()
            [message] = await receive_messages(subscriber, 1)
            assert (message.payload, message.qos) == (b"gone", qos)
        await subscriber.unsubscribe(topic)
        await subscriber.subscribe(topic)
        [kept] = await receive_messages(subscriber, 1)
        assert (kept.payload, kept.retain) == (b"gone", True)


async def test_the_will_is_not_published_after_disconnect(broker: BrokerAddress, topic: str) -> None:
    async with MqttClient(broker, unique_name("subscriber"), clean=True) as subscriber:
        await subscriber.subscribe(topic)
        async with MqttClient(
            broker, unique_name("publisher"), clean=True, will=Will(topic, b"gone", 1)
        ) as publisher:
            await publisher.publish(topic, b"farewell")
        await subscriber.publish(topic, b"end")
        assert payloads(await receive_messages_until(subscriber, b"end")) == [b"farewell"]


async def test_a_persistent_session_queues_messages_while_its_client_is_disconnected(
    broker: BrokerAddress, topic: str
) -> None:
    client_id = unique_name("persistent")
    async with MqttClient(broker, client_id) as client:
        await client.subscribe(topic)
    async with MqttClient(broker, unique_name("publisher"), clean=True) as publisher:
        await publisher.publish_all(numbered(topic, 500))
    async with MqttClient(broker, client_id) as client:
        messages = await receive_messages(client, 500)
    assert payloads(messages) == [b"%d" % number for number in range(500)]
    assert not any(message.dup for message in messages)


async def test_a_clean_session_queues_nothing(broker: BrokerAddress, topic: str) -> None:
    client_id = unique_name("client")
    async with MqttClient(broker, client_id) as client:
        await client.subscribe(topic)
    async with MqttClient(broker, client_id, clean=True):
        pass
    async with (
        MqttClient(broker, unique_name("publisher"), clean=True) as publisher,
        MqttClient(broker, client_id) as client,
    ):
        await publisher.publish(topic, b"missed")
        await client.subscribe(topic)
        await publisher.publish(topic, b"end")
        assert await receive_messages_until(client, b"end") == []


async def test_only_unacknowledged_messages_are_received_again(broker: BrokerAddress, topic: str) -> None:
    client_id = unique_name("client")
    async with MqttClient(broker, unique_name("publisher"), clean=True) as publisher:
        async with MqttClient(broker, client_id) as client:
            await client.subscribe(topic)
            await publisher.publish(topic, b"settled")
            assert payloads(await receive_messages(client, 1)) == [b"settled"]
            await publisher.publish(topic, b"open")
            assert payloads((await client.receive()).messages) == [b"open"]
        async with MqttClient(broker, client_id) as client:
            await publisher.publish(topic, b"end")
            [again] = await receive_messages_until(client, b"end")
            assert (again.payload, again.dup) == (b"open", True)
        async with MqttClient(broker, client_id) as client:
            await publisher.publish(topic, b"end of all")
            assert await receive_messages_until(client, b"end of all") == []


async def test_a_batch_acknowledged_after_a_cut_is_received_again(
    broker: BrokerAddress, server_address: ServerAddress, topic: str
) -> None:
    async with (
        Proxy(server_address) as proxy,
        MqttClient(proxy.address, unique_name("late"), options=FAST_RECONNECT) as client,
        MqttClient(broker, unique_name("publisher"), clean=True) as publisher,
    ):
        await client.subscribe(topic)
        await publisher.publish_all(numbered(topic, 5))
        batches: list[MessageBatch] = []
        async with asyncio.timeout(TIMEOUT):
            while sum(len(batch.messages) for batch in batches) < 5:
                batches.append(await client.receive())
        await proxy.cut()
        for batch in batches:
            batch.acknowledge()
        again = await receive_messages(client, 5)
        assert payloads(again) == [b"0", b"1", b"2", b"3", b"4"]
        assert all(message.dup for message in again)
        await publisher.publish(topic, b"end")
        assert await receive_messages_until(client, b"end") == []


async def test_many_messages_arrive_as_few_batches(broker: BrokerAddress, topic: str) -> None:
    async with (
        MqttClient(broker, unique_name("subscriber"), clean=True) as subscriber,
        MqttClient(broker, unique_name("publisher"), clean=True) as publisher,
    ):
        await subscriber.subscribe(f"{topic}/#")
        await publisher.publish_all([Publish(f"{topic}/{n % 10}", b"%d" % n, n % 2) for n in range(3000)])
        batches: list[MessageBatch] = []
        async with asyncio.timeout(TIMEOUT):
            while sum(len(batch.messages) for batch in batches) < 3000:
                batches.append(await subscriber.receive())
    assert len(batches) < 300
    for number in range(10):
        address = [each for batch in batches for each in batch.messages if each.topic == f"{topic}/{number}"]
        assert payloads(address) == [b"%d" % n for n in range(number, 3000, 10)]


async def test_ten_thousand_messages_in_each_direction_arrive_once_and_in_order(
    broker: BrokerAddress, topic: str
) -> None:
    async with (
        MqttClient(broker, unique_name("left")) as left,
        MqttClient(broker, unique_name("right")) as right,
    ):
        await left.subscribe(f"{topic}/left")
        await right.subscribe(f"{topic}/right")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(left.publish_all(numbered(f"{topic}/right", 10_000)))
            tasks.create_task(right.publish_all(numbered(f"{topic}/left", 10_000)))
            to_left = tasks.create_task(receive_messages(left, 10_000))
            to_right = tasks.create_task(receive_messages(right, 10_000))
    expected = [b"%d" % number for number in range(10_000)]
    assert payloads(to_left.result()) == expected
    assert payloads(to_right.result()) == expected


async def test_several_hundred_clients_work_side_by_side(broker: BrokerAddress, topic: str) -> None:
    async with AsyncExitStack() as stack:
        clients = [MqttClient(broker, unique_name(f"client-{number}"), clean=True) for number in range(300)]
        await asyncio.gather(*(stack.enter_async_context(client) for client in clients))
        await asyncio.gather(*(client.subscribe(f"{topic}/{n}") for n, client in enumerate(clients)))
        await asyncio.gather(
            *(client.publish(f"{topic}/{(n + 1) % 300}", b"from %d" % n) for n, client in enumerate(clients))
        )
        received = await asyncio.gather(*(receive_messages(client, 1) for client in clients))
    assert [message.payload for [message] in received] == [b"from %d" % ((n - 1) % 300) for n in range(300)]


@each_row("qos", [0, 1])
@each_row("size", [0, 1, 127, 128, 16_383, 16_384, 300_000])
async def test_a_payload_of_any_size_arrives_complete(
    broker: BrokerAddress, topic: str, size: int, qos: int
) -> None:
    payload = bytes(number * 7 % 251 for number in range(size))
    async with MqttClient(broker, unique_name("both"), clean=True) as client:
        await client.subscribe(topic)
        await client.publish_all([Publish(topic, payload, qos)] * 3)
        assert payloads(await receive_messages(client, 3)) == [payload] * 3
