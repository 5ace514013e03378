"""Reports from an external broker: mosquitto, or a scripted one."""

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
    """Run a mosquitto that persists sessions and messages at a clean shutdown."""
    with Mosquitto(tmp_path, "persistence true", "max_queued_messages 0", "set_tcp_nodelay true") as broker:
        yield broker


@pytest.fixture
def consumer(database: Database) -> StoringConsumer:
    return StoringConsumer(database)


@pytest.fixture
def sqlite_consumer(sqlite_database: Database) -> StoringConsumer:
    """Return a consumer for tests in which the database does not matter."""
    return StoringConsumer(sqlite_database)


def build_address(broker: Mosquitto) -> BrokerAddress:
    return BrokerAddress(host=broker.address.host, port=broker.address.port)


def number_payloads(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


async def publish(broker: Mosquitto, payloads: list[bytes], topic: str = TOPIC) -> None:
    """Publish reports as a gateway and wait until the broker has acknowledged them."""
    async with MqttClient(build_address(broker), unique_name("gateway"), clean=True) as gateway:
        await gateway.publish_all([Publish(topic, payload, 1) for payload in payloads])


# --- Delivery guarantees ---


@pytest.mark.rule("broker-21", "broker-22")
async def test_reports_are_committed_in_order(mosquitto: Mosquitto, consumer: StoringConsumer) -> None:
    async with RunningClient(build_address(mosquitto), consumer) as running:
        await running.wait_until_ready()
        await publish(mosquitto, number_payloads(300))
        await wait_until(lambda: len(consumer.committed) >= 300)
    assert consumer.committed == number_payloads(300)
    assert not consumer.has_state_changes


@pytest.mark.rule("broker-22")
async def test_uncommitted_reports_are_resent_after_a_restart(
    mosquitto: Mosquitto, consumer: StoringConsumer
) -> None:
    consumer.is_open.clear()
    async with RunningClient(build_address(mosquitto), consumer) as running:
        await running.wait_until_ready()
        await publish(mosquitto, number_payloads(10))
        await wait_until(lambda: consumer.offered)
    assert consumer.committed == []
    await publish(mosquitto, number_payloads(10, start=10))  # while the service is disconnected
    consumer.is_open.set()
    async with RunningClient(build_address(mosquitto), consumer):
        await wait_until(lambda: len(consumer.committed) >= 20)
    assert consumer.committed == number_payloads(20)
    assert consumer.repeated


@pytest.mark.rule("broker-22")
async def test_committed_reports_are_not_resent(mosquitto: Mosquitto, consumer: StoringConsumer) -> None:
    async with RunningClient(build_address(mosquitto), consumer) as running:
        await running.wait_until_ready()
        await publish(mosquitto, number_payloads(50))
        await wait_until(lambda: len(consumer.committed) == 50)
        await publish(mosquitto, [b"last"])
        await wait_until(lambda: b"last" in consumer.offered)  # so all earlier reports are acknowledged
    async with RunningClient(build_address(mosquitto), consumer):
        await publish(mosquitto, [b"end"])
        await wait_until(lambda: b"end" in consumer.offered)
    assert consumer.offered[:50] == number_payloads(50)
    assert {*consumer.offered[50:]} == {b"last", b"end"}


@pytest.mark.rule("broker-22")
async def test_reports_are_not_acknowledged_before_their_commit(sqlite_consumer: StoringConsumer) -> None:
    sqlite_consumer.is_open.clear()
    async with ScriptedBroker() as broker, RunningClient(broker.address, sqlite_consumer):
        peer = await broker.accept()
        await peer.grant()
        peer.send(*(Publish(TOPIC, b"%d" % number, 1, packet_id=number) for number in range(1, 4)))
        await wait_until(lambda: sqlite_consumer.offered)
        peer.send(Publish(TOPIC, b"behind", 1, packet_id=4))
        assert await wait_until_stable(lambda: len(peer.unread)) == 0
        assert sqlite_consumer.committed == []
        sqlite_consumer.is_open.set()
        acknowledged = [(await peer.expect(Puback)).packet_id for _ in range(4)]
    assert acknowledged == [1, 2, 3, 4]
    assert sqlite_consumer.committed == [b"1", b"2", b"3", b"behind"]


@pytest.mark.rule("broker-22")
async def test_a_commit_is_retried_after_a_database_outage(
    sqlite_consumer: StoringConsumer, caplog: pytest.LogCaptureFixture
) -> None:
    full = DatabaseUnavailable("the disk is full", ReadinessCode.DISK_FULL)
    sqlite_consumer.failures = [full] * 3
    readiness = Readiness()
    async with ScriptedBroker() as broker, RunningClient(broker.address, sqlite_consumer) as running:
        readiness.add_check(running.client)
        peer = await broker.accept()
        await peer.grant()
        await running.wait_until_ready()
        assert readiness.list_problems() == []
        peer.send(Publish(TOPIC, b"kept", 1, packet_id=7))
        await wait_until(lambda: readiness.list_problems() == [full.readiness_problem])
        assert (await peer.expect(Puback)).packet_id == 7
        assert readiness.list_problems() == []
    assert sqlite_consumer.offered == [b"kept"] * 4
    assert sqlite_consumer.committed == [b"kept"]
    assert caplog.text.count("cannot commit") == 1


async def test_other_errors_of_the_consumer_are_raised(sqlite_consumer: StoringConsumer) -> None:
    sqlite_consumer.failures = [ValueError("a defect")]
    async with ScriptedBroker() as broker:
        running = await RunningClient(broker.address, sqlite_consumer).__aenter__()
        peer = await broker.accept()
        await peer.grant()
        peer.send(Publish(TOPIC, b"kept", 1, packet_id=7))
        with pytest.raises(ExceptionGroup) as raised:
            await running.task
        assert raised.group_contains(ValueError, match="a defect")
        assert not [packet for packet in peer.received if isinstance(packet, Puback)]


async def test_only_reports_below_the_prefix_are_received(
    mosquitto: Mosquitto, sqlite_consumer: StoringConsumer
) -> None:
    async with RunningClient(build_address(mosquitto), sqlite_consumer, prefix="site/7") as running:
        await running.wait_until_ready()
        await publish(mosquitto, [b"elsewhere"])
        await publish(mosquitto, [b"an answer"], "site/7/mt/gateway/02005e000001/response/x")
        await publish(mosquitto, [b"ours"], f"site/7/{TOPIC}")
        await wait_until(lambda: sqlite_consumer.offered)
    assert sqlite_consumer.offered == [b"ours"]


# --- Unavailable brokers ---


@pytest.mark.rule("broker-21")
async def test_no_report_is_lost_when_the_broker_restarts(
    mosquitto: Mosquitto, consumer: StoringConsumer
) -> None:
    async with RunningClient(build_address(mosquitto), consumer) as running:
        await running.wait_until_ready()
        await publish(mosquitto, number_payloads(20))
        await asyncio.to_thread(mosquitto.stop)
        await wait_until(lambda: running.client.problem)
        await asyncio.to_thread(mosquitto.start)
        await publish(mosquitto, number_payloads(20, start=20))
        await wait_until(lambda: {*number_payloads(40)} <= {*consumer.committed})
        assert running.client.problem is None


async def test_an_unavailable_broker_is_retried_and_logged_once(
    mosquitto: Mosquitto, sqlite_consumer: StoringConsumer, caplog: pytest.LogCaptureFixture
) -> None:
    mosquitto.stop()
    async with RunningClient(build_address(mosquitto), sqlite_consumer) as running:
        problem = running.client.problem
        assert problem == ReadinessProblem(
            ReadinessCode.BROKER, f"not subscribed to reports at {build_address(mosquitto)} yet"
        )
        await wait_until(lambda: "Connection refused" in str(running.client.problem))
        await asyncio.to_thread(mosquitto.start)
        await running.wait_until_ready()
        await publish(mosquitto, number_payloads(1))
        await wait_until(lambda: sqlite_consumer.offered)
    assert caplog.text.count("has no connection") == 1


async def test_the_client_resubscribes_when_the_broker_has_lost_its_session(
    sqlite_consumer: StoringConsumer,
) -> None:
    async with ScriptedBroker() as broker, RunningClient(broker.address, sqlite_consumer) as running:
        peer = await broker.accept()
        first = await peer.grant()
        peer.close()
        second = await (await broker.accept()).grant()
        await running.wait_until_ready()
    assert first.filters == second.filters == (("mt/gateway/+/device/#", 1),)


async def test_a_refused_subscription_is_retried_until_it_is_granted(
    sqlite_consumer: StoringConsumer, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedBroker() as broker, RunningClient(broker.address, sqlite_consumer) as running:
        peer = await broker.accept()
        for _ in range(3):
            await peer.grant(SUBACK_FAILURE)
        await wait_until(lambda: "mt/gateway/+/device/#" in str(running.client.problem))
        subscribe = await peer.expect(Subscribe)
        peer.send(Suback(subscribe.packet_id, (1,)))
        await running.wait_until_ready()
    assert caplog.text.count("cannot subscribe to reports") == 1


# --- Hostile brokers ---


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_flood_waits_at_the_broker_during_a_database_outage(
    sqlite_consumer: StoringConsumer, qos: int
) -> None:
    sqlite_consumer.is_open.clear()
    options = replace(PATIENT, backlog=MEBIBYTE)
    async with (
        ScriptedBroker() as broker,
        RunningClient(broker.address, sqlite_consumer, options=options) as running,
    ):
        peer = await broker.accept()
        await peer.grant()
        await running.wait_until_ready()
        packet = encode_packet(Publish(TOPIC, bytes(10_000), qos, packet_id=1 if qos else 0))
        for _ in range(64 * MEBIBYTE // len(packet)):
            peer.send(packet)
        unsent = await wait_until_stable(lambda: peer.waiting)
        assert unsent > 48 * MEBIBYTE  # most of the rest is in network buffers
        assert sum(map(len, sqlite_consumer.offered)) <= 2 * MEBIBYTE
        peer.reset()


async def test_a_too_large_message_is_received_without_its_payload(sqlite_consumer: StoringConsumer) -> None:
    options = replace(
        build_link_options(Settings(limits=BrokerLimits(packet_size=1024))), backoff=PATIENT.backoff
    )
    async with ScriptedBroker() as broker, RunningClient(broker.address, sqlite_consumer, options=options):
        peer = await broker.accept()
        await peer.grant()
        peer.send(Publish(TOPIC, bytes(5000), 1, packet_id=1), Publish(TOPIC, b"fits", 1, packet_id=2))
        assert [(await peer.expect(Puback)).packet_id for _ in range(2)] == [1, 2]
    assert sqlite_consumer.committed == [b"", b"fits"]


# --- Client id ---


@pytest.mark.rule("broker-22")
async def test_the_client_id_of_a_database_does_not_change(database: Database) -> None:
    name = await database.write(load_client_id)
    assert await database.write(load_client_id) == name
    assert len(name) == 23
    assert name.isalnum()
    assert name.isascii()


async def test_two_databases_have_different_client_ids(
    sqlite_database: Database, postgresql_database: Database
) -> None:
    names = {await each.write(load_client_id) for each in (sqlite_database, postgresql_database)}
    assert len(names) == 2
    for each in (sqlite_database, postgresql_database):
        each.close()
