"""What the service says to gateways on another broker, and what they answer."""

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

G, D = "02005e000001", "02005e0000aa"
REPORT = f"mt/gateway/{G}/device/{D}/measurement/8800"
REQUEST = f"mt/gateway/{G}/request/{D}/read/8000"
RESPONSE = f"mt/gateway/{G}/response/{D}/read/8000"
RESPONSES = "mt/gateway/+/response/#"
MODEL = Identifier("8000")
WRITE, ACK, VERSION = Operation.WRITE, Operation.ACK, Operation.APIVERSION


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path, "max_queued_messages 0", "set_tcp_nodelay true") as broker:
        yield broker


@pytest.fixture
def shelf(sqlite_database: Database) -> Iterator[StoringConsumer]:
    yield StoringConsumer(sqlite_database)
    sqlite_database.close()


@pytest.fixture
async def hearing(mosquitto: Mosquitto) -> AsyncIterator[list[bytes]]:
    """The payloads of all requests that come to a gateway, through all restarts of the broker."""
    heard: list[bytes] = []

    async def hear(link: MqttClient) -> None:
        async for batch in link:
            heard.extend(message.payload for message in batch.messages)
            batch.acknowledge()

    async with MqttClient(at(mosquitto), unique_name("gateway"), clean=True, options=PATIENT) as link:
        await link.subscribe(f"mt/gateway/{G}/request/#")
        task = asyncio.create_task(hear(link))
        yield heard
        task.cancel()
        await asyncio.wait([task])


def at(broker: Mosquitto) -> BrokerAddress:
    return BrokerAddress(host=broker.address.host, port=broker.address.port)


def numbered(count: int, start: int = 0) -> list[Publish]:
    return [Publish(REQUEST, b"%d" % number, 1) for number in range(start, start + count)]


def told(messages: list[Publish]) -> list[bytes]:
    return [message.payload for message in messages]


async def grant_all(peer: Peer, count: int) -> set[str]:
    """Grant so many subscriptions, in whatever order they come; gives what they are for."""
    return {wanted for _ in range(count) for wanted, _ in (await peer.grant()).filters}


# --- To gateways ---


@pytest.mark.rule("request-35")
async def test_messages_reach_a_gateway_in_their_order(
    mosquitto: Mosquitto, shelf: StoringConsumer, hearing: list[bytes]
) -> None:
    async with RunningClient(at(mosquitto), shelf) as listening:
        await listening.until_fine()
        for start in range(0, 3000, 100):  # three times what may be on its way at once
            listening.client.send(numbered(100, start))
        await wait_until(lambda: len(hearing) >= 3000)
    assert hearing == told(numbered(3000))
    assert listening.client.dropped == 0


async def test_what_is_said_while_the_broker_is_away_leaves_when_it_is_back(shelf: StoringConsumer) -> None:
    async with ScriptedBroker() as broker, RunningClient(broker.address, shelf) as listening:
        peer = await broker.accept()
        await peer.grant()
        await listening.until_fine()
        peer.close()
        await wait_until(lambda: listening.client.trouble)
        listening.client.send(numbered(3))
        back = await broker.accept()
        await back.grant()
        assert [(await back.expect(Publish)).payload for _ in range(3)] == [b"0", b"1", b"2"]
        back.acknowledge([each for each in back.received if isinstance(each, Publish)])


@pytest.mark.rule("rest-197")
async def test_a_request_is_not_sent_later_when_the_broker_is_away(shelf: StoringConsumer) -> None:
    mac, topics = Mac(G), TopicCodec()
    async with ScriptedBroker() as broker, RunningClient(broker.address, shelf) as listening:
        asking = RpcClient(listening.client, topics, Clock())
        peer = await broker.accept()
        await grant_all(peer, 2)
        await listening.until_fine()
        peer.close()
        await wait_until(lambda: listening.client.unavailable_reason)
        write, ack = (RequestTopic(mac, Mac(D), operation, MODEL) for operation in (WRITE, ACK))
        with pytest.raises(BrokerUnavailable):
            await asking.request(write, WriteRequest(), timeout=30.0)
        with pytest.raises(BrokerUnavailable):
            await asking.send(
                ack,
                AckRequest(time=datetime.now(UTC), type=AckType.ERASE_ALL),
                timeout=30.0,
                request_id=RequestId("x"),
            )
        assert asking.pending == 0
        back = await broker.accept()
        await back.grant()  # both at once
        await wait_until(lambda: not listening.client.unavailable_reason)
        reading = asyncio.create_task(
            asking.request(RequestTopic(mac, mac, VERSION), ApiVersionRequest(), timeout=30.0)
        )
        asked = await back.expect(Publish)
        assert asked.topic.endswith("/apiversion")  # and nothing before it
        back.acknowledge([asked])  # else the end would wait for it
        reading.cancel()
        await asyncio.wait([reading])


@pytest.mark.rule("request-37")
async def test_what_was_not_acknowledged_when_a_connection_broke_is_not_sent_again(
    shelf: StoringConsumer,
) -> None:
    async with ScriptedBroker() as broker, RunningClient(broker.address, shelf) as listening:
        peer = await broker.accept()
        await peer.grant()
        await listening.until_fine()
        await listening.client.send_urgent(numbered(1)[0])
        assert (await peer.expect(Publish)).payload == b"0"
        peer.close()
        await wait_until(lambda: listening.client.unavailable_reason)
        back = await broker.accept()
        await back.grant()
        await with_timeout(listening.client.send_urgent(numbered(1, start=1)[0]))
        assert (await back.expect(Publish)).payload == b"1"
        back.acknowledge([each for each in back.received if isinstance(each, Publish)])


async def test_a_request_does_not_wait_behind_acks_and_one_that_nobody_wants_never_leaves(
    shelf: StoringConsumer,
) -> None:
    async with ScriptedBroker() as broker, RunningClient(broker.address, shelf) as listening:
        peer = await broker.accept()
        await peer.grant()
        await listening.until_fine()
        listening.client.send(numbered(3000))  # more than may be on its way at once
        first = await peer.publishes(PATIENT.window)
        unwanted, wanted = (
            asyncio.create_task(listening.client.send_urgent(Publish(REQUEST, name, 1)))
            for name in (b"unwanted", b"wanted")
        )
        await asyncio.sleep(0)
        unwanted.cancel()
        peer.acknowledge(first)
        next_one = await peer.expect(Publish)
        assert next_one.payload == b"wanted"
        await with_timeout(wanted)
        rest = await peer.publishes(PATIENT.window - 1)
        assert b"unwanted" not in {each.payload for each in rest}
        peer.close()


@pytest.mark.rule("request-30")
async def test_what_has_waited_too_long_never_leaves_and_is_counted(shelf: StoringConsumer) -> None:
    async with ScriptedBroker() as broker:
        outside = ExternalBrokerClient(
            broker.address, "meshfleet0123", prefix="", consumer=shelf, options=PATIENT, max_age=0.0
        )
        outside.send(numbered(5))  # nobody is there yet
        running = asyncio.create_task(outside.run())
        peer = await broker.accept()
        await peer.grant()
        await wait_until(lambda: outside.dropped == 5)
        outside.send(numbered(1, start=5))
        sent = await peer.expect(Publish)
        assert sent.payload == b"5"
        peer.acknowledge([sent])
        running.cancel()
        await asyncio.wait([running])


async def test_only_so_many_wait_and_the_newest_are_dropped_and_counted(
    mosquitto: Mosquitto, shelf: StoringConsumer, hearing: list[bytes]
) -> None:
    listening = RunningClient(at(mosquitto), shelf)
    listening.client.send(numbered(6000))
    listening.client.send(numbered(6000, start=6000))
    assert listening.client.dropped == 2000
    listening.client.send(numbered(1, start=12_000))
    assert listening.client.dropped == 2001
    async with listening:
        await wait_until(lambda: len(hearing) >= 10_000)
    assert hearing == told(numbered(10_000))


def test_nobody_knows_who_is_connected_there(shelf: StoringConsumer) -> None:
    carrier: Transport = RunningClient(BrokerAddress(host="127.0.0.1", port=1), shelf).client
    assert carrier.connected_gateways() is None


# --- From gateways ---


@pytest.mark.parametrize("prefix", ["", "site/7"])
async def test_answers_go_to_who_listens_and_reports_to_the_consumer(
    mosquitto: Mosquitto, shelf: StoringConsumer, prefix: str
) -> None:
    front = f"{prefix}/" if prefix else ""
    heard: list[Publish] = []
    listening = RunningClient(at(mosquitto), shelf, prefix=prefix)
    listening.client.subscribe(f"{front}{RESPONSES}", heard.append)
    async with listening, MqttClient(at(mosquitto), unique_name("gateway"), clean=True) as link:
        await listening.until_fine()
        await wait_until(lambda: not waits_for_subscriptions())
        messages = [
            Publish(f"{front}{RESPONSE if number % 3 == 0 else REPORT}", b"%d" % number, 1)
            for number in range(99)
        ]
        await link.publish_all(messages)
        await wait_until(lambda: len(shelf.committed) + len(heard) >= 99)
    assert [message.payload for message in heard] == [b"%d" % number for number in range(0, 99, 3)]
    assert shelf.committed == [b"%d" % number for number in range(99) if number % 3]
    assert {message.topic for message in heard} == {f"{front}{RESPONSE}"}


def waits_for_subscriptions() -> bool:
    return any(task.get_name().startswith("external_broker.subscribe") for task in asyncio.all_tasks())


async def test_an_answer_is_heard_at_once_and_acknowledged_with_its_batch(shelf: StoringConsumer) -> None:
    shelf.is_open.clear()
    heard: list[bytes] = []
    async with ScriptedBroker() as broker:
        listening = RunningClient(broker.address, shelf)
        listening.client.subscribe(RESPONSES, lambda message: heard.append(message.payload))
        async with listening:
            peer = await broker.accept()
            assert await grant_all(peer, 2) == {"mt/gateway/+/device/#", RESPONSES}
            await listening.until_fine()
            peer.send(
                Publish(REPORT, b"report", 1, packet_id=1), Publish(RESPONSE, b"answer", 1, packet_id=2)
            )
            await wait_until(lambda: heard and shelf.offered)
            assert await wait_until_stable(lambda: len(peer.unread)) == 0
            shelf.is_open.set()
            assert [(await peer.expect(Puback)).packet_id for _ in range(2)] == [1, 2]
    assert (heard, shelf.committed) == ([b"answer"], [b"report"])


async def test_answers_alone_wait_for_no_database(shelf: StoringConsumer) -> None:
    shelf.is_open.clear()
    heard: list[bytes] = []
    async with ScriptedBroker() as broker:
        listening = RunningClient(broker.address, shelf)
        listening.client.subscribe(RESPONSES, lambda message: heard.append(message.payload))
        async with listening:
            peer = await broker.accept()
            await grant_all(peer, 2)
            peer.send(Publish(RESPONSE, b"answer", 1, packet_id=7))
            assert (await peer.expect(Puback)).packet_id == 7
    assert (heard, shelf.offered) == ([b"answer"], [])


async def test_what_nobody_listens_to_is_for_the_consumer_to_judge(shelf: StoringConsumer) -> None:
    async with ScriptedBroker() as broker:
        listening = RunningClient(broker.address, shelf)
        listening.client.subscribe(RESPONSES, lambda _: pytest.fail("this is no answer"))
        async with listening:
            peer = await broker.accept()
            await grant_all(peer, 2)
            topics = ["mt/gateway/short/device/x", "mt/gateway", "x", f"mt/gateway/{G}/responses/x"]
            peer.send(*(Publish(topic, b"", 1, packet_id=1 + at) for at, topic in enumerate(topics)))
            for _ in topics:
                await peer.expect(Puback)
    assert len(shelf.offered) == len(topics)


async def test_a_broker_that_refuses_answers_still_brings_reports_and_is_asked_again(
    shelf: StoringConsumer, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedBroker() as broker:
        listening = RunningClient(broker.address, shelf)
        listening.client.subscribe(RESPONSES, lambda _: None)
        async with listening:
            peer = await broker.accept()
            refused = 0
            while refused < 3:
                asked = await peer.expect(Subscribe)
                is_refused = asked.filters[0][0] == RESPONSES
                refused += is_refused
                peer.send(Suback(asked.packet_id, (SUBACK_FAILURE if is_refused else 1,)))
            await listening.until_fine()
            peer.send(Publish(REPORT, b"report", 1, packet_id=1))
            await wait_until(lambda: shelf.committed)
    assert caplog.text.count("cannot subscribe to responses of gateways") == 1


# --- Both together ---


async def test_a_gateway_of_another_make_is_asked_through_mosquitto(
    mosquitto: Mosquitto, shelf: StoringConsumer
) -> None:
    listening = RunningClient(at(mosquitto), shelf)
    asking = RpcClient(listening.client, TopicCodec(), Clock())
    async with listening:
        await listening.until_fine()
        await wait_until(lambda: not waits_for_subscriptions())
        async with connect_gateway(
            mosquitto.address.port, lambda asked: [asked.build_response(version="2.3.1")]
        ):
            answer = await with_timeout(
                asking.request(
                    RequestTopic(Mac(G), Mac(G), Operation.APIVERSION), ApiVersionRequest(), timeout=30.0
                )
            )
    assert isinstance(answer.response, ApiVersionResponse)
    assert answer.response.version == Version(2, 3, 1)
