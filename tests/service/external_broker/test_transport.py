"""Messages to gateways and their responses through an external broker."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from meshfleet.errors import BrokerUnavailable
from meshfleet.mqtt.client import BrokerAddress, MqttClient, Publish
from meshfleet.mqtt.codec.packets import SUBACK_FAILURE, Puback, Suback, Subscribe
from meshfleet.protocol.codes import AckType, Operation
from meshfleet.protocol.ids import Identifier, Mac, RequestId, Version
from meshfleet.protocol.requests import AckRequest, ApiVersionRequest, WriteRequest
from meshfleet.protocol.responses import ApiVersionResponse
from meshfleet.protocol.topics import RequestTopic, TopicCodec
from meshfleet.service.external_broker.client import ExternalBrokerClient
from meshfleet.service.requests.rpc import RpcClient
from tests.mqtt.broker.running_broker import Clock
from tests.mqtt.client.proxy import unique_name
from tests.mqtt.client.scripted_broker import ScriptedBroker, wait_until, wait_until_stable, with_timeout
from tests.servers import Mosquitto
from tests.service.external_broker.storing_consumer import PATIENT, RunningClient, StoringConsumer
from tests.service.requests.scripted_gateway import connect_gateway

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from meshfleet.db import Database
    from meshfleet.service.transport import Transport
    from tests.mqtt.client.scripted_broker import Peer

pytestmark = pytest.mark.anyio

GATEWAY, DEVICE = "02005e000001", "02005e0000aa"
REPORT = f"mt/gateway/{GATEWAY}/device/{DEVICE}/measurement/8800"
REQUEST = f"mt/gateway/{GATEWAY}/request/{DEVICE}/read/8000"
RESPONSE = f"mt/gateway/{GATEWAY}/response/{DEVICE}/read/8000"
RESPONSES = "mt/gateway/+/response/#"
MODEL = Identifier("8000")
WRITE, ACK, VERSION = Operation.WRITE, Operation.ACK, Operation.APIVERSION


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path, "max_queued_messages 0", "set_tcp_nodelay true") as broker:
        yield broker


@pytest.fixture
def consumer(sqlite_database: Database) -> StoringConsumer:
    return StoringConsumer(sqlite_database)


@pytest.fixture
async def received(mosquitto: Mosquitto) -> AsyncIterator[list[bytes]]:
    """Collect the payloads of all requests that a gateway receives, across restarts of the broker."""
    payloads: list[bytes] = []

    async def receive(client: MqttClient) -> None:
        async for batch in client:
            payloads.extend(message.payload for message in batch.messages)
            batch.acknowledge()

    async with MqttClient(
        build_address(mosquitto), unique_name("gateway"), clean=True, options=PATIENT
    ) as client:
        await client.subscribe(f"mt/gateway/{GATEWAY}/request/#")
        task = asyncio.create_task(receive(client))
        yield payloads
        task.cancel()
        await asyncio.wait([task])


def build_address(broker: Mosquitto) -> BrokerAddress:
    return BrokerAddress(host=broker.address.host, port=broker.address.port)


def number_messages(count: int, start: int = 0) -> list[Publish]:
    return [Publish(REQUEST, b"%d" % number, 1) for number in range(start, start + count)]


def list_payloads(messages: list[Publish]) -> list[bytes]:
    return [message.payload for message in messages]


async def grant_all(peer: Peer, count: int) -> set[str]:
    """Grant a number of subscriptions in any order and return their topic filters."""
    return {topic_filter for _ in range(count) for topic_filter, _ in (await peer.grant()).filters}


# --- To gateways ---


@pytest.mark.rule("request-35")
async def test_messages_reach_a_gateway_in_order(
    mosquitto: Mosquitto, consumer: StoringConsumer, received: list[bytes]
) -> None:
    async with RunningClient(build_address(mosquitto), consumer) as running:
        await running.wait_until_ready()
        for start in range(0, 3000, 100):  # three times the in-flight window
            running.client.send(number_messages(100, start))
        await wait_until(lambda: len(received) >= 3000)
    assert received == list_payloads(number_messages(3000))
    assert running.client.dropped == 0


async def test_messages_sent_while_disconnected_are_sent_after_the_reconnect(
    consumer: StoringConsumer,
) -> None:
    async with ScriptedBroker() as broker, RunningClient(broker.address, consumer) as running:
        peer = await broker.accept()
        await peer.grant()
        await running.wait_until_ready()
        peer.close()
        await wait_until(lambda: running.client.problem)
        running.client.send(number_messages(3))
        reconnected = await broker.accept()
        await reconnected.grant()
        assert [(await reconnected.expect(Publish)).payload for _ in range(3)] == [b"0", b"1", b"2"]
        reconnected.acknowledge([each for each in reconnected.received if isinstance(each, Publish)])


@pytest.mark.rule("rest-197")
async def test_a_request_fails_while_the_broker_is_unavailable_and_is_not_sent_later(
    consumer: StoringConsumer,
) -> None:
    mac, topics = Mac(GATEWAY), TopicCodec()
    async with ScriptedBroker() as broker, RunningClient(broker.address, consumer) as running:
        rpc = RpcClient(running.client, topics, Clock())
        peer = await broker.accept()
        await grant_all(peer, 2)
        await running.wait_until_ready()
        peer.close()
        await wait_until(lambda: running.client.unavailable_reason)
        write, ack = (RequestTopic(mac, Mac(DEVICE), operation, MODEL) for operation in (WRITE, ACK))
        with pytest.raises(BrokerUnavailable):
            await rpc.request(write, WriteRequest(), timeout=30.0)
        with pytest.raises(BrokerUnavailable):
            await rpc.send(
                ack,
                AckRequest(time=datetime.now(UTC), type=AckType.ERASE_ALL),
                timeout=30.0,
                request_id=RequestId("x"),
            )
        assert rpc.pending == 0
        reconnected = await broker.accept()
        await reconnected.grant()  # one SUBSCRIBE for both filters
        await wait_until(lambda: not running.client.unavailable_reason)
        reading = asyncio.create_task(
            rpc.request(RequestTopic(mac, mac, VERSION), ApiVersionRequest(), timeout=30.0)
        )
        published = await reconnected.expect(Publish)
        assert published.topic.endswith("/apiversion")  # it is the first message
        reconnected.acknowledge([published])  # otherwise the shutdown would wait for it
        reading.cancel()
        await asyncio.wait([reading])


@pytest.mark.rule("request-37")
async def test_messages_in_flight_when_a_connection_breaks_are_not_resent(
    consumer: StoringConsumer,
) -> None:
    async with ScriptedBroker() as broker, RunningClient(broker.address, consumer) as running:
        peer = await broker.accept()
        await peer.grant()
        await running.wait_until_ready()
        await running.client.send_urgent(number_messages(1)[0])
        assert (await peer.expect(Publish)).payload == b"0"
        peer.close()
        await wait_until(lambda: running.client.unavailable_reason)
        reconnected = await broker.accept()
        await reconnected.grant()
        await with_timeout(running.client.send_urgent(number_messages(1, start=1)[0]))
        assert (await reconnected.expect(Publish)).payload == b"1"
        reconnected.acknowledge([each for each in reconnected.received if isinstance(each, Publish)])


async def test_a_request_is_sent_before_waiting_acks_and_a_canceled_one_is_not_sent(
    consumer: StoringConsumer,
) -> None:
    async with ScriptedBroker() as broker, RunningClient(broker.address, consumer) as running:
        peer = await broker.accept()
        await peer.grant()
        await running.wait_until_ready()
        running.client.send(number_messages(3000))  # more than the in-flight window
        first = await peer.publishes(PATIENT.window)
        canceled, urgent = (
            asyncio.create_task(running.client.send_urgent(Publish(REQUEST, name, 1)))
            for name in (b"unwanted", b"wanted")
        )
        await asyncio.sleep(0)
        canceled.cancel()
        peer.acknowledge(first)
        next_one = await peer.expect(Publish)
        assert next_one.payload == b"wanted"
        await with_timeout(urgent)
        others = await peer.publishes(PATIENT.window - 1)
        assert b"unwanted" not in {each.payload for each in others}
        peer.close()


@pytest.mark.rule("request-30")
async def test_expired_messages_are_dropped_and_counted(consumer: StoringConsumer) -> None:
    async with ScriptedBroker() as broker:
        external_client = ExternalBrokerClient(
            broker.address,
            "meshfleet0123",
            prefix="",
            options=PATIENT,
            max_age=0.0,
        )
        external_client.send(number_messages(5))  # not connected yet
        task = asyncio.create_task(external_client.run(consumer))
        peer = await broker.accept()
        await peer.grant()
        await wait_until(lambda: external_client.dropped == 5)
        external_client.send(number_messages(1, start=5))
        sent = await peer.expect(Publish)
        assert sent.payload == b"5"
        peer.acknowledge([sent])
        task.cancel()
        await asyncio.wait([task])


async def test_messages_beyond_the_queue_limit_are_dropped_and_counted(
    mosquitto: Mosquitto, consumer: StoringConsumer, received: list[bytes]
) -> None:
    running = RunningClient(build_address(mosquitto), consumer)
    running.client.send(number_messages(6000))
    running.client.send(number_messages(6000, start=6000))
    assert running.client.dropped == 2000
    running.client.send(number_messages(1, start=12_000))
    assert running.client.dropped == 2001
    async with running:
        await wait_until(lambda: len(received) >= 10_000)
    assert received == list_payloads(number_messages(10_000))


def test_the_connected_gateways_of_an_external_broker_are_unknown(consumer: StoringConsumer) -> None:
    transport: Transport = RunningClient(BrokerAddress(host="127.0.0.1", port=1), consumer).client
    assert transport.connected_gateways() is None


# --- From gateways ---


@pytest.mark.parametrize("prefix", ["", "site/7"])
async def test_responses_go_to_callbacks_and_reports_to_the_consumer(
    mosquitto: Mosquitto, consumer: StoringConsumer, prefix: str
) -> None:
    root = f"{prefix}/" if prefix else ""
    payloads: list[Publish] = []
    running = RunningClient(build_address(mosquitto), consumer, prefix=prefix)
    running.client.subscribe(f"{root}{RESPONSES}", payloads.append)
    async with running, MqttClient(build_address(mosquitto), unique_name("gateway"), clean=True) as client:
        await running.wait_until_ready()
        await wait_until(lambda: not has_pending_subscriptions())
        messages = [
            Publish(f"{root}{RESPONSE if number % 3 == 0 else REPORT}", b"%d" % number, 1)
            for number in range(99)
        ]
        await client.publish_all(messages)
        await wait_until(lambda: len(consumer.committed) + len(payloads) >= 99)
    assert [message.payload for message in payloads] == [b"%d" % number for number in range(0, 99, 3)]
    assert consumer.committed == [b"%d" % number for number in range(99) if number % 3]
    assert {message.topic for message in payloads} == {f"{root}{RESPONSE}"}


def has_pending_subscriptions() -> bool:
    return any(task.get_name().startswith("external_broker.subscribe") for task in asyncio.all_tasks())


async def test_a_response_is_delivered_at_once_and_acknowledged_with_its_batch(
    consumer: StoringConsumer,
) -> None:
    consumer.is_open.clear()
    payloads: list[bytes] = []
    async with ScriptedBroker() as broker:
        running = RunningClient(broker.address, consumer)
        running.client.subscribe(RESPONSES, lambda message: payloads.append(message.payload))
        async with running:
            peer = await broker.accept()
            assert await grant_all(peer, 2) == {"mt/gateway/+/device/#", RESPONSES}
            await running.wait_until_ready()
            peer.send(
                Publish(REPORT, b"report", 1, packet_id=1), Publish(RESPONSE, b"answer", 1, packet_id=2)
            )
            await wait_until(lambda: payloads and consumer.offered)
            assert await wait_until_stable(lambda: len(peer.unread)) == 0
            consumer.is_open.set()
            assert [(await peer.expect(Puback)).packet_id for _ in range(2)] == [1, 2]
    assert (payloads, consumer.committed) == ([b"answer"], [b"report"])


async def test_responses_do_not_wait_for_the_database(consumer: StoringConsumer) -> None:
    consumer.is_open.clear()
    payloads: list[bytes] = []
    async with ScriptedBroker() as broker:
        running = RunningClient(broker.address, consumer)
        running.client.subscribe(RESPONSES, lambda message: payloads.append(message.payload))
        async with running:
            peer = await broker.accept()
            await grant_all(peer, 2)
            peer.send(Publish(RESPONSE, b"answer", 1, packet_id=7))
            assert (await peer.expect(Puback)).packet_id == 7
    assert (payloads, consumer.offered) == ([b"answer"], [])


async def test_messages_without_a_callback_go_to_the_consumer(consumer: StoringConsumer) -> None:
    async with ScriptedBroker() as broker:
        running = RunningClient(broker.address, consumer)
        running.client.subscribe(RESPONSES, lambda _: pytest.fail("not a response"))
        async with running:
            peer = await broker.accept()
            await grant_all(peer, 2)
            topics = ["mt/gateway/short/device/x", "mt/gateway", "x", f"mt/gateway/{GATEWAY}/responses/x"]
            peer.send(*(Publish(topic, b"", 1, packet_id=1 + index) for index, topic in enumerate(topics)))
            for _ in topics:
                await peer.expect(Puback)
    assert len(consumer.offered) == len(topics)


async def test_a_refused_subscription_to_responses_is_retried_while_reports_arrive(
    consumer: StoringConsumer, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedBroker() as broker:
        running = RunningClient(broker.address, consumer)
        running.client.subscribe(RESPONSES, lambda _: None)
        async with running:
            peer = await broker.accept()
            refused = 0
            while refused < 3:
                published = await peer.expect(Subscribe)
                is_refused = published.filters[0][0] == RESPONSES
                refused += is_refused
                peer.send(Suback(published.packet_id, (SUBACK_FAILURE if is_refused else 1,)))
            await running.wait_until_ready()
            peer.send(Publish(REPORT, b"report", 1, packet_id=1))
            await wait_until(lambda: consumer.committed)
    assert caplog.text.count("cannot subscribe to responses of gateways") == 1


# --- Requests end to end ---


async def test_a_request_to_a_gateway_succeeds_through_mosquitto(
    mosquitto: Mosquitto, consumer: StoringConsumer
) -> None:
    running = RunningClient(build_address(mosquitto), consumer)
    rpc = RpcClient(running.client, TopicCodec(), Clock())
    async with running:
        await running.wait_until_ready()
        await wait_until(lambda: not has_pending_subscriptions())
        async with connect_gateway(
            mosquitto.address.port, lambda published: [published.build_response(version="2.3.1")]
        ):
            result = await with_timeout(
                rpc.request(
                    RequestTopic(Mac(GATEWAY), Mac(GATEWAY), Operation.APIVERSION),
                    ApiVersionRequest(),
                    timeout=30.0,
                )
            )
    assert isinstance(result.response, ApiVersionResponse)
    assert result.response.version == Version(2, 3, 1)
