"""What the service says to gateways on another broker, and what they answer."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from meshfleet.errors import BrokerUnavailable
from meshfleet.link import Address, Link, Publish
from meshfleet.service.mqtt.outside import Outside
from meshfleet.service.requests.asking import Asking
from meshfleet.wire.codes import AckType, Operation
from meshfleet.wire.ids import Identifier, Mac, RequestId, Version
from meshfleet.wire.mqtt.packets import REFUSED, Puback, Suback, Subscribe
from meshfleet.wire.requests import Ack, ApiVersion, Write
from meshfleet.wire.responses import ApiVersionResponse
from meshfleet.wire.topics import RequestTopic, Topics
from tests.broker.stage import Clock
from tests.link.proxy import fresh
from tests.link.scripted import Broker, settled, soon, until
from tests.servers import Mosquitto
from tests.service.mqtt.shelf import PATIENT, Listening, Shelf
from tests.service.requests.third_party import gateway

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from meshfleet.db import Database
    from meshfleet.service.mqtt.carrier import Carrier
    from tests.link.scripted import Peer

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
def shelf(sqlite_database: Database) -> Iterator[Shelf]:
    yield Shelf(sqlite_database)
    sqlite_database.close()


@pytest.fixture
async def hearing(mosquitto: Mosquitto) -> AsyncIterator[list[bytes]]:
    """The payloads of all requests that come to a gateway, through all restarts of the broker."""
    heard: list[bytes] = []

    async def hear(link: Link) -> None:
        async for batch in link:
            heard.extend(message.payload for message in batch.messages)
            batch.acknowledge()

    async with Link(at(mosquitto), fresh("gateway"), clean=True, options=PATIENT) as link:
        await link.subscribe(f"mt/gateway/{G}/request/#")
        task = asyncio.create_task(hear(link))
        yield heard
        task.cancel()
        await asyncio.wait([task])


def at(broker: Mosquitto) -> Address:
    return Address(host=broker.address.host, port=broker.address.port)


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
    mosquitto: Mosquitto, shelf: Shelf, hearing: list[bytes]
) -> None:
    async with Listening(at(mosquitto), shelf) as listening:
        await listening.until_fine()
        for start in range(0, 3000, 100):  # three times what may be on its way at once
            listening.outside.send(numbered(100, start))
        await until(lambda: len(hearing) >= 3000)
    assert hearing == told(numbered(3000))
    assert listening.outside.dropped == 0


async def test_what_is_said_while_the_broker_is_away_leaves_when_it_is_back(shelf: Shelf) -> None:
    async with Broker() as broker, Listening(broker.address, shelf) as listening:
        peer = await broker.accept()
        await peer.grant()
        await listening.until_fine()
        peer.close()
        await until(lambda: listening.outside.trouble)
        listening.outside.send(numbered(3))
        back = await broker.accept()
        await back.grant()
        assert [(await back.expect(Publish)).payload for _ in range(3)] == [b"0", b"1", b"2"]
        back.acknowledge([each for each in back.received if isinstance(each, Publish)])


@pytest.mark.rule("rest-197")
async def test_a_request_is_not_sent_later_when_the_broker_is_away(shelf: Shelf) -> None:
    mac, topics = Mac(G), Topics()
    async with Broker() as broker, Listening(broker.address, shelf) as listening:
        asking = Asking(listening.outside, topics, Clock())
        peer = await broker.accept()
        await grant_all(peer, 2)
        await listening.until_fine()
        peer.close()
        await until(lambda: listening.outside.muted)
        write, ack = (RequestTopic(mac, Mac(D), operation, MODEL) for operation in (WRITE, ACK))
        with pytest.raises(BrokerUnavailable):
            await asking.ask(write, Write(), timeout=30.0)
        with pytest.raises(BrokerUnavailable):
            await asking.send(
                ack,
                Ack(time=datetime.now(UTC), type=AckType.ERASE_ALL),
                timeout=30.0,
                request_id=RequestId("x"),
            )
        assert asking.pending == 0
        back = await broker.accept()
        await back.grant()  # both at once
        await until(lambda: not listening.outside.muted)
        reading = asyncio.create_task(asking.ask(RequestTopic(mac, mac, VERSION), ApiVersion(), timeout=30.0))
        asked = await back.expect(Publish)
        assert asked.topic.endswith("/apiversion")  # and nothing before it
        back.acknowledge([asked])  # else the end would wait for it
        reading.cancel()
        await asyncio.wait([reading])


@pytest.mark.rule("request-37")
async def test_what_was_not_acknowledged_when_a_connection_broke_is_not_sent_again(shelf: Shelf) -> None:
    async with Broker() as broker, Listening(broker.address, shelf) as listening:
        peer = await broker.accept()
        await peer.grant()
        await listening.until_fine()
        await listening.outside.offer(numbered(1)[0])
        assert (await peer.expect(Publish)).payload == b"0"
        peer.close()
        await until(lambda: listening.outside.muted)
        back = await broker.accept()
        await back.grant()
        await soon(listening.outside.offer(numbered(1, start=1)[0]))
        assert (await back.expect(Publish)).payload == b"1"
        back.acknowledge([each for each in back.received if isinstance(each, Publish)])


async def test_a_request_does_not_wait_behind_acks_and_one_that_nobody_wants_never_leaves(
    shelf: Shelf,
) -> None:
    async with Broker() as broker, Listening(broker.address, shelf) as listening:
        peer = await broker.accept()
        await peer.grant()
        await listening.until_fine()
        listening.outside.send(numbered(3000))  # more than may be on its way at once
        first = await peer.publishes(PATIENT.window)
        unwanted, wanted = (
            asyncio.create_task(listening.outside.offer(Publish(REQUEST, name, 1)))
            for name in (b"unwanted", b"wanted")
        )
        await asyncio.sleep(0)
        unwanted.cancel()
        peer.acknowledge(first)
        next_one = await peer.expect(Publish)
        assert next_one.payload == b"wanted"
        await soon(wanted)
        rest = await peer.publishes(PATIENT.window - 1)
        assert b"unwanted" not in {each.payload for each in rest}
        peer.close()


@pytest.mark.rule("request-30")
async def test_what_has_waited_too_long_never_leaves_and_is_counted(shelf: Shelf) -> None:
    async with Broker() as broker:
        outside = Outside(
            broker.address, "meshfleet0123", prefix="", consumer=shelf, options=PATIENT, max_age=0.0
        )
        outside.send(numbered(5))  # nobody is there yet
        running = asyncio.create_task(outside.run())
        peer = await broker.accept()
        await peer.grant()
        await until(lambda: outside.dropped == 5)
        outside.send(numbered(1, start=5))
        sent = await peer.expect(Publish)
        assert sent.payload == b"5"
        peer.acknowledge([sent])
        running.cancel()
        await asyncio.wait([running])


async def test_only_so_many_wait_and_the_newest_are_dropped_and_counted(
    mosquitto: Mosquitto, shelf: Shelf, hearing: list[bytes]
) -> None:
    listening = Listening(at(mosquitto), shelf)
    listening.outside.send(numbered(6000))
    listening.outside.send(numbered(6000, start=6000))
    assert listening.outside.dropped == 2000
    listening.outside.send(numbered(1, start=12_000))
    assert listening.outside.dropped == 2001
    async with listening:
        await until(lambda: len(hearing) >= 10_000)
    assert hearing == told(numbered(10_000))


def test_nobody_knows_who_is_connected_there(shelf: Shelf) -> None:
    carrier: Carrier = Listening(Address(host="127.0.0.1", port=1), shelf).outside
    assert carrier.gateways() is None


# --- From gateways ---


@pytest.mark.parametrize("prefix", ["", "site/7"])
async def test_answers_go_to_who_listens_and_reports_to_the_consumer(
    mosquitto: Mosquitto, shelf: Shelf, prefix: str
) -> None:
    front = f"{prefix}/" if prefix else ""
    heard: list[Publish] = []
    listening = Listening(at(mosquitto), shelf, prefix=prefix)
    listening.outside.listen(f"{front}{RESPONSES}", heard.append)
    async with listening, Link(at(mosquitto), fresh("gateway"), clean=True) as link:
        await listening.until_fine()
        await until(lambda: not waits_for_subscriptions())
        messages = [
            Publish(f"{front}{RESPONSE if number % 3 == 0 else REPORT}", b"%d" % number, 1)
            for number in range(99)
        ]
        await link.publish_all(messages)
        await until(lambda: len(shelf.committed) + len(heard) >= 99)
    assert [message.payload for message in heard] == [b"%d" % number for number in range(0, 99, 3)]
    assert shelf.committed == [b"%d" % number for number in range(99) if number % 3]
    assert {message.topic for message in heard} == {f"{front}{RESPONSE}"}


def waits_for_subscriptions() -> bool:
    return any(task.get_name().startswith("outside.subscribe") for task in asyncio.all_tasks())


async def test_an_answer_is_heard_at_once_and_acknowledged_with_its_batch(shelf: Shelf) -> None:
    shelf.is_open.clear()
    heard: list[bytes] = []
    async with Broker() as broker:
        listening = Listening(broker.address, shelf)
        listening.outside.listen(RESPONSES, lambda message: heard.append(message.payload))
        async with listening:
            peer = await broker.accept()
            assert await grant_all(peer, 2) == {"mt/gateway/+/device/#", RESPONSES}
            await listening.until_fine()
            peer.send(
                Publish(REPORT, b"report", 1, packet_id=1), Publish(RESPONSE, b"answer", 1, packet_id=2)
            )
            await until(lambda: heard and shelf.offered)
            assert await settled(lambda: len(peer.unread)) == 0
            shelf.is_open.set()
            assert [(await peer.expect(Puback)).packet_id for _ in range(2)] == [1, 2]
    assert (heard, shelf.committed) == ([b"answer"], [b"report"])


async def test_answers_alone_wait_for_no_database(shelf: Shelf) -> None:
    shelf.is_open.clear()
    heard: list[bytes] = []
    async with Broker() as broker:
        listening = Listening(broker.address, shelf)
        listening.outside.listen(RESPONSES, lambda message: heard.append(message.payload))
        async with listening:
            peer = await broker.accept()
            await grant_all(peer, 2)
            peer.send(Publish(RESPONSE, b"answer", 1, packet_id=7))
            assert (await peer.expect(Puback)).packet_id == 7
    assert (heard, shelf.offered) == ([b"answer"], [])


async def test_what_nobody_listens_to_is_for_the_consumer_to_judge(shelf: Shelf) -> None:
    async with Broker() as broker:
        listening = Listening(broker.address, shelf)
        listening.outside.listen(RESPONSES, lambda _: pytest.fail("this is no answer"))
        async with listening:
            peer = await broker.accept()
            await grant_all(peer, 2)
            topics = ["mt/gateway/short/device/x", "mt/gateway", "x", f"mt/gateway/{G}/responses/x"]
            peer.send(*(Publish(topic, b"", 1, packet_id=1 + at) for at, topic in enumerate(topics)))
            for _ in topics:
                await peer.expect(Puback)
    assert len(shelf.offered) == len(topics)


async def test_a_broker_that_refuses_answers_still_brings_reports_and_is_asked_again(
    shelf: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    async with Broker() as broker:
        listening = Listening(broker.address, shelf)
        listening.outside.listen(RESPONSES, lambda _: None)
        async with listening:
            peer = await broker.accept()
            refused = 0
            while refused < 3:
                asked = await peer.expect(Subscribe)
                is_refused = asked.filters[0][0] == RESPONSES
                refused += is_refused
                peer.send(Suback(asked.packet_id, (REFUSED if is_refused else 1,)))
            await listening.until_fine()
            peer.send(Publish(REPORT, b"report", 1, packet_id=1))
            await until(lambda: shelf.committed)
    assert caplog.text.count("no answers of gateways come") == 1


# --- Both together ---


async def test_a_gateway_of_another_make_is_asked_through_mosquitto(
    mosquitto: Mosquitto, shelf: Shelf
) -> None:
    listening = Listening(at(mosquitto), shelf)
    asking = Asking(listening.outside, Topics(), Clock())
    async with listening:
        await listening.until_fine()
        await until(lambda: not waits_for_subscriptions())
        async with gateway(mosquitto.address.port, lambda asked: [asked.answer(version="2.3.1")]):
            answer = await soon(
                asking.ask(RequestTopic(Mac(G), Mac(G), Operation.APIVERSION), ApiVersion(), timeout=30.0)
            )
    assert isinstance(answer.response, ApiVersionResponse)
    assert answer.response.version == Version(2, 3, 1)
