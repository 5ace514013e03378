"""Interoperability with other clients: paho, mosquitto_pub and mosquitto_sub."""

from __future__ import annotations

import asyncio
import subprocess
from queue import Queue
from threading import Event
from typing import TYPE_CHECKING, NamedTuple, Self

import pytest
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

from meshfleet.mqtt.client import BrokerAddress, MqttClient, Publish, Will
from tests.external_tools import MOSQUITTO_PUB, MOSQUITTO_SUB, SystemProgram, require
from tests.mqtt.client.proxy import FAST_RECONNECT, TIMEOUT, Proxy, receive_messages, unique_name
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import ServerAddress


pytestmark = pytest.mark.anyio


TOPICS = ["Zürich/東京/🌡", "a//b", "/", " ", "deep/" * 50, "x" * 1000, "é", "e\u0301"]
PAYLOADS = [bytes(range(256)), b"", b"\x00", b"\xff\xfe", "Größe: 5 µm".encode(), b"x" * 100_000]


class ReceivedMessage(NamedTuple):
    """Message that paho received."""

    topic: str
    payload: bytes
    qos: int
    retain: bool


class Paho:
    """Paho client with its thread. Its methods block, so call them in a thread."""

    def __init__(
        self,
        server_address: tuple[str, int],
        will: Will | None = None,
        *,
        user: str | None = None,
        password: str | None = None,
    ) -> None:
        self._messages: Queue[ReceivedMessage] = Queue()
        self._responded = Event()
        self._client = Client(CallbackAPIVersion.VERSION2, unique_name("paho"))
        self._client.on_message = self._on_message
        self._client.on_connect = self._client.on_subscribe = self._on_response
        if user is not None:
            self._client.username_pw_set(user, password)
        if will is not None:
            self._client.will_set(will.topic, will.payload, will.qos, will.retain)
        self._client.connect(*server_address)
        self._client.loop_start()
        self._wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def subscribe(self, topic_filter: str, qos: int) -> None:
        self._client.subscribe(topic_filter, qos)
        self._wait()

    def publish(self, messages: list[Publish]) -> None:
        for sent in [
            self._client.publish(each.topic, each.payload, each.qos, each.retain) for each in messages
        ]:
            sent.wait_for_publish(TIMEOUT)
            assert sent.is_published()

    def receive(self, count: int) -> list[ReceivedMessage]:
        return [self._messages.get(timeout=TIMEOUT) for _ in range(count)]

    def vanish(self) -> None:
        """Close the socket without DISCONNECT."""
        self._client.loop_stop()
        connection = self._client.socket()
        assert connection is not None
        connection.close()

    def _on_message(self, _client: Client, _data: object, message: MQTTMessage) -> None:
        self._messages.put(
            ReceivedMessage(message.topic, bytes(message.payload), message.qos, message.retain)
        )

    def _on_response(self, *_: object) -> None:
        self._responded.set()

    def _wait(self) -> None:
        assert self._responded.wait(TIMEOUT)
        self._responded.clear()


@pytest.fixture
def paho(server_address: ServerAddress) -> Iterator[Paho]:
    with Paho(server_address) as paho:
        yield paho


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_messages_of_paho_at_any_qos_arrive_at_qos_1_at_most(
    broker: BrokerAddress, paho: Paho, topic: str, qos: int
) -> None:
    async with MqttClient(broker, unique_name("subscriber"), clean=True) as subscriber:
        await subscriber.subscribe(topic)
        await asyncio.to_thread(paho.publish, [Publish(topic, b"hello", qos)])
        [message] = await receive_messages(subscriber, 1)
    assert (message.topic, message.payload, message.qos) == (topic, b"hello", min(qos, 1))


@each_row("subscribed", [0, 1, 2])
@each_row("published", [0, 1])
async def test_messages_reach_paho_at_any_qos(
    broker: BrokerAddress, paho: Paho, topic: str, published: int, subscribed: int
) -> None:
    await asyncio.to_thread(paho.subscribe, topic, subscribed)
    async with MqttClient(broker, unique_name("publisher"), clean=True) as publisher:
        await publisher.publish(topic, b"hello", qos=published)
        received = await asyncio.to_thread(paho.receive, 1)
    assert received == [ReceivedMessage(topic, b"hello", min(published, subscribed), retain=False)]


async def test_any_topic_and_payload_arrives_in_both_directions(
    broker: BrokerAddress, paho: Paho, topic: str
) -> None:
    messages = [Publish(f"{topic}/{name}", payload, 1) for name in TOPICS for payload in PAYLOADS]
    expected = [(message.topic, message.payload) for message in messages]
    async with MqttClient(broker, unique_name("ours"), clean=True) as ours:
        await ours.subscribe(f"{topic}/#")
        await asyncio.to_thread(paho.publish, messages)
        assert [
            (each.topic, each.payload) for each in await receive_messages(ours, len(messages))
        ] == expected
        await ours.unsubscribe(f"{topic}/#")
        await asyncio.to_thread(paho.subscribe, f"{topic}/#", 1)
        await ours.publish_all(messages)
        received = await asyncio.to_thread(paho.receive, len(messages))
    assert [(each.topic, each.payload) for each in received] == expected


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_the_will_of_paho_is_received(
    broker: BrokerAddress, server_address: ServerAddress, topic: str, qos: int
) -> None:
    async with MqttClient(broker, unique_name("subscriber"), clean=True) as subscriber:
        await subscriber.subscribe(topic)
        with Paho(server_address, Will(topic, b"gone", qos)) as paho:
            await asyncio.to_thread(paho.vanish)
            [message] = await receive_messages(subscriber, 1)
    assert (message.payload, message.qos) == (b"gone", min(qos, 1))


async def test_the_will_of_the_client_reaches_paho(
    server_address: ServerAddress, paho: Paho, topic: str
) -> None:
    await asyncio.to_thread(paho.subscribe, topic, 2)
    will = Will(topic, "schön war es".encode(), 1)
    async with (
        Proxy(server_address) as proxy,
        MqttClient(proxy.address, unique_name("publisher"), will=will, options=FAST_RECONNECT),
    ):
        await proxy.cut()
        received = await asyncio.to_thread(paho.receive, 1)
    assert received == [ReceivedMessage(topic, "schön war es".encode(), 1, retain=False)]


async def test_retained_messages_are_received_in_both_directions(
    broker: BrokerAddress, paho: Paho, topic: str
) -> None:
    async with MqttClient(broker, unique_name("ours"), clean=True) as ours:
        await ours.publish(f"{topic}/ours", b"kept", retain=True)
        await asyncio.to_thread(paho.publish, [Publish(f"{topic}/theirs", b"kept too", 2, retain=True)])
        await asyncio.to_thread(paho.subscribe, f"{topic}/ours", 1)
        await ours.subscribe(f"{topic}/theirs")
        [message] = await receive_messages(ours, 1)
        received = await asyncio.to_thread(paho.receive, 1)
    assert (message.payload, message.retain) == (b"kept too", True)
    assert received == [ReceivedMessage(f"{topic}/ours", b"kept", 1, retain=True)]


async def test_thousands_of_messages_arrive_in_order_in_both_directions_at_once(
    broker: BrokerAddress, paho: Paho, topic: str
) -> None:
    ours = [Publish(f"{topic}/ours", b"%d" % number, 1) for number in range(2000)]
    theirs = [Publish(f"{topic}/theirs", b"%d" % number, number % 3) for number in range(2000)]
    await asyncio.to_thread(paho.subscribe, f"{topic}/ours", 2)
    async with MqttClient(broker, unique_name("ours")) as client:
        await client.subscribe(f"{topic}/theirs")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.publish_all(ours))
            tasks.create_task(asyncio.to_thread(paho.publish, theirs))
            to_us = tasks.create_task(receive_messages(client, 2000))
            to_paho = tasks.create_task(asyncio.to_thread(paho.receive, 2000))
    assert [each.payload for each in to_paho.result()] == [each.payload for each in ours]
    for qos in (0, 1, 2):  # order is kept per QoS: at QoS 2 the broker waits for the PUBREL of paho
        received = [each.payload for each in to_us.result() if int(each.payload) % 3 == qos]
        assert received == [each.payload for each in theirs if each.qos == qos]


def run(program: SystemProgram, server_address: ServerAddress, *arguments: str, lines: bytes = b"") -> bytes:
    connection = ("-h", server_address.host, "-p", str(server_address.port), "-V", "311")
    result = subprocess.run(
        [require(program), *connection, *arguments],
        check=True,
        capture_output=True,
        input=lines,
        timeout=TIMEOUT,
    )
    return result.stdout


@pytest.mark.parametrize("qos", ["0", "1", "2"])
async def test_messages_of_mosquitto_pub_arrive(
    broker: BrokerAddress, server_address: ServerAddress, topic: str, qos: str
) -> None:
    async with MqttClient(broker, unique_name("subscriber"), clean=True) as subscriber:
        await subscriber.subscribe(f"{topic}/+")
        lines = "eins\nzwei\ndrei: ½\n".encode()
        await asyncio.to_thread(
            run, MOSQUITTO_PUB, server_address, "-t", f"{topic}/ä", "-q", qos, "-l", lines=lines
        )
        messages = await receive_messages(subscriber, 3)
        await asyncio.to_thread(run, MOSQUITTO_PUB, server_address, "-t", f"{topic}/empty", "-q", qos, "-n")
        messages += await receive_messages(subscriber, 1)
    assert [each.payload for each in messages] == [b"eins", b"zwei", "drei: ½".encode(), b""]
    assert {each.topic for each in messages} == {f"{topic}/ä", f"{topic}/empty"}
    assert {each.qos for each in messages} == {min(int(qos), 1)}


async def test_mosquitto_sub_receives_messages(
    broker: BrokerAddress, server_address: ServerAddress, topic: str
) -> None:
    session = ("-i", unique_name("sub"), "-c", "-q", "1", "-t", f"{topic}/#")
    await asyncio.to_thread(run, MOSQUITTO_SUB, server_address, *session, "-E")  # subscribes and disconnects
    async with MqttClient(broker, unique_name("publisher"), clean=True) as publisher:
        await publisher.publish_all(
            [Publish(f"{topic}/{name}", name.encode(), 1) for name in ("a", "ß", "c/d")]
        )
    received = await asyncio.to_thread(
        run, MOSQUITTO_SUB, server_address, *session, "-C", "3", "-F", "%t %q %p"
    )
    assert received.decode().splitlines() == [f"{topic}/{name} 1 {name}" for name in ("a", "ß", "c/d")]
