"""Reports from another broker: mosquitto, or one that does what a test tells it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from meshfleet.errors import DatabaseUnavailable
from meshfleet.errors.readiness import ReadinessCode, ReadinessProblem
from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.mqtt.client import BrokerAddress, MqttClient, Publish
from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import SUBACK_FAILURE, Puback, Suback, Subscribe
from meshfleet.service.external_broker.client import build_link_options, load_client_id
from meshfleet.service.readiness import Readiness
from meshfleet.settings import Settings
from tests.mqtt.client.proxy import unique_name
from tests.mqtt.client.scripted_broker import ScriptedBroker, wait_until, wait_until_stable
from tests.servers import Mosquitto
from tests.service.external_broker.storing_consumer import PATIENT, RunningClient, StoringConsumer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from meshfleet.db import Database

pytestmark = pytest.mark.anyio

TOPIC = "mt/gateway/02005e000001/device/02005e0000aa/measurement/8800"
MEBIBYTE = 1024 * 1024


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    """Remembers sessions and messages when it is stopped properly."""
    with Mosquitto(tmp_path, "persistence true", "max_queued_messages 0", "set_tcp_nodelay true") as broker:
        yield broker


@pytest.fixture
def shelf(database: Database) -> StoringConsumer:
    return StoringConsumer(database)


@pytest.fixture
def some_shelf(sqlite_database: Database) -> Iterator[StoringConsumer]:
    """For tests in which it does not matter which database is behind it."""
    yield StoringConsumer(sqlite_database)
    sqlite_database.close()


def at(broker: Mosquitto) -> BrokerAddress:
    return BrokerAddress(host=broker.address.host, port=broker.address.port)


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


async def publish(broker: Mosquitto, payloads: list[bytes], topic: str = TOPIC) -> None:
    """Let a gateway report; the broker has taken it all when this returns."""
    async with MqttClient(at(broker), unique_name("gateway"), clean=True) as gateway:
        await gateway.publish_all([Publish(topic, payload, 1) for payload in payloads])


# --- What is promised ---


@pytest.mark.rule("broker-21", "broker-22")
async def test_reports_are_taken_in_their_order(mosquitto: Mosquitto, shelf: StoringConsumer) -> None:
    async with RunningClient(at(mosquitto), shelf) as listening:
        await listening.until_fine()
        await publish(mosquitto, numbered(300))
        await wait_until(lambda: len(shelf.committed) >= 300)
    assert shelf.committed == numbered(300)
    assert not shelf.has_news


@pytest.mark.rule("broker-22")
async def test_what_was_not_committed_when_the_service_ended_comes_again(
    mosquitto: Mosquitto, shelf: StoringConsumer
) -> None:
    shelf.is_open.clear()
    async with RunningClient(at(mosquitto), shelf) as listening:
        await listening.until_fine()
        await publish(mosquitto, numbered(10))
        await wait_until(lambda: shelf.offered)
    assert shelf.committed == []
    await publish(mosquitto, numbered(10, start=10))  # while nobody is there
    shelf.is_open.set()
    async with RunningClient(at(mosquitto), shelf):
        await wait_until(lambda: len(shelf.committed) >= 20)
    assert shelf.committed == numbered(20)
    assert shelf.repeated


@pytest.mark.rule("broker-22")
async def test_what_was_committed_does_not_come_again(mosquitto: Mosquitto, shelf: StoringConsumer) -> None:
    async with RunningClient(at(mosquitto), shelf) as listening:
        await listening.until_fine()
        await publish(mosquitto, numbered(50))
        await wait_until(lambda: len(shelf.committed) == 50)
        await publish(mosquitto, [b"last"])
        await wait_until(lambda: b"last" in shelf.offered)  # so all before it are acknowledged
    async with RunningClient(at(mosquitto), shelf):
        await publish(mosquitto, [b"end"])
        await wait_until(lambda: b"end" in shelf.offered)
    assert shelf.offered[:50] == numbered(50)
    assert {*shelf.offered[50:]} == {b"last", b"end"}


@pytest.mark.rule("broker-22")
async def test_nothing_is_acknowledged_before_it_is_committed(some_shelf: StoringConsumer) -> None:
    some_shelf.is_open.clear()
    async with ScriptedBroker() as broker, RunningClient(broker.address, some_shelf):
        peer = await broker.accept()
        await peer.grant()
        peer.send(*(Publish(TOPIC, b"%d" % number, 1, packet_id=number) for number in range(1, 4)))
        await wait_until(lambda: some_shelf.offered)
        peer.send(Publish(TOPIC, b"behind", 1, packet_id=4))
        assert await wait_until_stable(lambda: len(peer.unread)) == 0
        assert some_shelf.committed == []
        some_shelf.is_open.set()
        acknowledged = [(await peer.expect(Puback)).packet_id for _ in range(4)]
    assert acknowledged == [1, 2, 3, 4]
    assert some_shelf.committed == [b"1", b"2", b"3", b"behind"]


@pytest.mark.rule("broker-22")
async def test_a_database_that_is_away_is_asked_again_for_the_same_reports(
    some_shelf: StoringConsumer, caplog: pytest.LogCaptureFixture
) -> None:
    full = DatabaseUnavailable("the disk is full", ReadinessCode.DISK_FULL)
    some_shelf.failures = [full] * 3
    readiness = Readiness()
    async with ScriptedBroker() as broker, RunningClient(broker.address, some_shelf) as listening:
        readiness.add_check(listening.client)
        peer = await broker.accept()
        await peer.grant()
        await listening.until_fine()
        assert readiness.list_troubles() == []
        peer.send(Publish(TOPIC, b"kept", 1, packet_id=7))
        await wait_until(lambda: readiness.list_troubles() == [full.readiness_problem])
        assert (await peer.expect(Puback)).packet_id == 7
        assert readiness.list_troubles() == []
    assert some_shelf.offered == [b"kept"] * 4
    assert some_shelf.committed == [b"kept"]
    assert caplog.text.count("cannot commit") == 1


async def test_another_error_of_the_consumer_is_not_passed_over(some_shelf: StoringConsumer) -> None:
    some_shelf.failures = [ValueError("a defect")]
    async with ScriptedBroker() as broker:
        listening = await RunningClient(broker.address, some_shelf).__aenter__()
        peer = await broker.accept()
        await peer.grant()
        peer.send(Publish(TOPIC, b"kept", 1, packet_id=7))
        with pytest.raises(ExceptionGroup) as raised:
            await listening.task
        assert raised.group_contains(ValueError, match="a defect")
        assert not [packet for packet in peer.received if isinstance(packet, Puback)]


async def test_only_reports_below_the_prefix_are_taken(
    mosquitto: Mosquitto, some_shelf: StoringConsumer
) -> None:
    async with RunningClient(at(mosquitto), some_shelf, prefix="site/7") as listening:
        await listening.until_fine()
        await publish(mosquitto, [b"elsewhere"])
        await publish(mosquitto, [b"an answer"], "site/7/mt/gateway/02005e000001/response/x")
        await publish(mosquitto, [b"ours"], f"site/7/{TOPIC}")
        await wait_until(lambda: some_shelf.offered)
    assert some_shelf.offered == [b"ours"]


# --- Brokers that come and go ---


@pytest.mark.rule("broker-21")
async def test_a_broker_that_goes_is_waited_for_and_nothing_is_missing(
    mosquitto: Mosquitto, shelf: StoringConsumer
) -> None:
    async with RunningClient(at(mosquitto), shelf) as listening:
        await listening.until_fine()
        await publish(mosquitto, numbered(20))
        await asyncio.to_thread(mosquitto.stop)
        await wait_until(lambda: listening.client.trouble)
        await asyncio.to_thread(mosquitto.start)
        await publish(mosquitto, numbered(20, start=20))
        await wait_until(lambda: {*numbered(40)} <= {*shelf.committed})
        assert listening.client.trouble is None


async def test_a_broker_that_is_not_there_is_waited_for_and_told_of_once(
    mosquitto: Mosquitto, some_shelf: StoringConsumer, caplog: pytest.LogCaptureFixture
) -> None:
    mosquitto.stop()
    async with RunningClient(at(mosquitto), some_shelf) as listening:
        early = listening.client.trouble
        assert early == ReadinessProblem(ReadinessCode.BROKER, f"not subscribed to reports at {at(mosquitto)} yet")
        await wait_until(lambda: "Connection refused" in str(listening.client.trouble))
        await asyncio.to_thread(mosquitto.start)
        await listening.until_fine()
        await publish(mosquitto, numbered(1))
        await wait_until(lambda: some_shelf.offered)
    assert caplog.text.count("has no connection") == 1


async def test_a_broker_that_forgets_us_is_asked_for_reports_again(some_shelf: StoringConsumer) -> None:
    async with ScriptedBroker() as broker, RunningClient(broker.address, some_shelf) as listening:
        peer = await broker.accept()
        first = await peer.grant()
        peer.close()
        again = await (await broker.accept()).grant()
        await listening.until_fine()
    assert first.filters == again.filters == (("mt/gateway/+/device/#", 1),)


async def test_a_broker_that_refuses_to_send_reports_is_asked_until_it_does(
    some_shelf: StoringConsumer, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedBroker() as broker, RunningClient(broker.address, some_shelf) as listening:
        peer = await broker.accept()
        for _ in range(3):
            await peer.grant(SUBACK_FAILURE)
        await wait_until(lambda: "mt/gateway/+/device/#" in str(listening.client.trouble))
        asked = await peer.expect(Subscribe)
        peer.send(Suback(asked.packet_id, (1,)))
        await listening.until_fine()
    assert caplog.text.count("cannot subscribe to reports") == 1


# --- Brokers that mean harm ---


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_flood_waits_at_the_broker_while_the_database_is_away(
    some_shelf: StoringConsumer, qos: int
) -> None:
    some_shelf.is_open.clear()
    options = replace(PATIENT, backlog=MEBIBYTE)
    async with (
        ScriptedBroker() as broker,
        RunningClient(broker.address, some_shelf, options=options) as listening,
    ):
        peer = await broker.accept()
        await peer.grant()
        await listening.until_fine()
        piece = encode_packet(Publish(TOPIC, bytes(10_000), qos, packet_id=1 if qos else 0))
        for _ in range(64 * MEBIBYTE // len(piece)):
            peer.send(piece)
        left = await wait_until_stable(lambda: peer.waiting)
        assert left > 48 * MEBIBYTE  # the rest is in the buffers of the network, most of it
        assert sum(map(len, some_shelf.offered)) <= 2 * MEBIBYTE
        peer.reset()


async def test_a_message_that_is_too_large_comes_without_its_payload(some_shelf: StoringConsumer) -> None:
    options = replace(
        build_link_options(Settings(limits=BrokerLimits(packet_size=1024))), backoff=PATIENT.backoff
    )
    async with ScriptedBroker() as broker, RunningClient(broker.address, some_shelf, options=options):
        peer = await broker.accept()
        await peer.grant()
        peer.send(Publish(TOPIC, bytes(5000), 1, packet_id=1), Publish(TOPIC, b"fits", 1, packet_id=2))
        assert [(await peer.expect(Puback)).packet_id for _ in range(2)] == [1, 2]
    assert some_shelf.committed == [b"", b"fits"]


# --- Who we are ---


@pytest.mark.rule("broker-22")
async def test_the_name_of_the_session_stays_the_same_for_a_database(database: Database) -> None:
    name = await database.write(load_client_id)
    assert await database.write(load_client_id) == name
    assert len(name) == 23
    assert name.isalnum()
    assert name.isascii()


async def test_two_databases_have_two_sessions(
    sqlite_database: Database, postgresql_database: Database
) -> None:
    names = {await each.write(load_client_id) for each in (sqlite_database, postgresql_database)}
    assert len(names) == 2
    for each in (sqlite_database, postgresql_database):
        each.close()
