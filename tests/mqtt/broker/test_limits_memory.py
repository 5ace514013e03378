"""The memory and the rows that clients can make the broker use are limited."""

from __future__ import annotations

import gc
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.broker import load_stored_state
from meshfleet.mqtt.broker.outgoing_message import MESSAGE_OVERHEAD_BYTES
from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.mqtt.codec.encoder import PINGREQ, encode_packet
from meshfleet.mqtt.codec.packets import SUBACK_FAILURE, Puback, Publish, Suback, Subscribe
from tests.mqtt.broker.running_broker import REPORTS, G, RunningBroker, report, request
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from meshfleet.db import Database

pytestmark = pytest.mark.anyio

OTHER = "02005e000002"
KIB = 1024


@pytest.fixture
async def server(sqlite_database: Database) -> AsyncIterator[RunningBroker]:
    """Run a broker in which every account may retain two of at most twenty messages.

    It does not check connections periodically: queued bytes are counted when messages are written.
    """
    limits = BrokerLimits(retained=20, queue_bytes=256 * KIB, publish_rate=10**9)
    async with RunningBroker(sqlite_database, limits, slow_seconds=0, sweep_seconds=3600) as running:
        yield running
        for connection in running.broker.connections:
            connection.close("the test ends")
        await running.until(lambda: len(running.broker.connections) == 0)
        assert [session for session in running.broker.sessions if session.persistent_id is None] == []
        for session in running.broker.sessions:
            running.broker.sessions.delete(session)
        assert running.broker.quotas.queued_bytes == 0


def retained(topic: str, payload: bytes = b"{}") -> Publish:
    return Publish(topic, payload, 0, retain=True)


# Retained messages


async def test_an_account_retains_no_more_messages_than_its_share(server: RunningBroker) -> None:
    gateway, other = await server.gateway(), await server.gateway(OTHER)
    gateway.send(*(retained(report(kind=f"x/{index}")) for index in range(5)))
    await gateway.receive_until_pong()
    assert len(server.broker.retained) == 2
    gateway.send(retained(report(kind="x/0"), b"newer"))  # replaces the older one
    gateway.send(retained(report(kind="x/1"), b""), retained(report(kind="x/9")))
    await gateway.receive_until_pong()
    viewer = await server.client("viewer")
    viewer.send(Subscribe(1, ((REPORTS, 0),)))
    received = [packet for packet in await viewer.receive_until_pong() if isinstance(packet, Publish)]
    assert {(packet.topic, packet.payload) for packet in received} == {
        (report(kind="x/0"), b"newer"),
        (report(kind="x/9"), b"{}"),
    }
    other.send(retained(report(OTHER)))
    await other.receive_until_pong()
    assert len(server.broker.retained) == 3


async def test_no_more_messages_are_retained_in_total_than_the_limit(server: RunningBroker) -> None:
    for mac in range(12):
        gateway = await server.gateway(f"{mac:012x}")
        gateway.send(*(retained(report(f"{mac:012x}", kind=f"x/{index}")) for index in range(2)))
        await gateway.receive_until_pong()
    assert len(server.broker.retained) == 20
    await server.broker.publish(report(), b"{}")
    assert len((await server.database.read(load_stored_state)).retained) == 20


@each_row(
    "message",
    [
        retained(report(kind="x" * (1025 - len(report(kind=""))))),
        retained(report(kind="ä" * 520)),
        retained(report(), bytes(64 * KIB + 1)),
    ],
)
async def test_messages_that_are_too_long_are_delivered_and_not_retained(
    server: RunningBroker, message: Publish
) -> None:
    viewer = await server.subscriber("viewer", REPORTS, qos=0)
    gateway = await server.gateway()
    gateway.send(message)
    assert (await viewer.expect(Publish)).topic == message.topic
    await gateway.receive_until_pong()
    assert len(server.broker.retained) == 0


async def test_a_message_with_the_longest_topic_is_retained_and_persisted(server: RunningBroker) -> None:
    longest = report(kind="x" * (1024 - len(report(kind=""))))
    gateway = await server.gateway()
    gateway.send(Publish(longest, b"{}", 1, retain=True, packet_id=1))
    await gateway.expect(Puback)
    assert set((await server.database.read(load_stored_state)).retained) == {longest}


async def test_a_message_with_very_many_topic_levels_is_not_retained(server: RunningBroker) -> None:
    gateway = await server.gateway()
    gateway.send(retained(report(kind="/" * 900)))
    await gateway.receive_until_pong()
    assert len(server.broker.retained) == 0


@pytest.mark.parametrize("qos", [0, 1])
async def test_retained_messages_do_not_cut_a_new_subscriber_off(server: RunningBroker, qos: int) -> None:
    for mac in (f"{number:012x}" for number in range(15)):
        gateway = await server.gateway(mac)
        for index in (1, 2):
            topic = report(mac, kind=f"x/{index}")
            gateway.send(Publish(topic, bytes(12 * KIB), qos, retain=True, packet_id=index * qos))
        await gateway.receive_until_pong()
    assert len(server.broker.retained) == 10  # as many as fit into half a queue, one per account
    viewer = await server.client("viewer")
    viewer.send(Subscribe(1, ((REPORTS, qos),)))
    received = await viewer.receive_until_pong()
    assert [type(packet) for packet in received].count(Publish) == 10
    assert Suback(1, (qos,)) in received
    assert await viewer.receive_until_pong() == []  # it is still connected


# Clients that do not read


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_slow_reader_is_cut_off_while_others_are_served(server: RunningBroker, qos: int) -> None:
    slow = await server.subscriber("viewer", REPORTS, qos=qos)
    quick = await server.subscriber("viewer-2", REPORTS, qos=0)
    slow.pause_reading()
    gateway = await server.gateway()
    count = 0
    # The kernel buffers some megabytes for a client that does not read.
    while len(server.broker.connections.find_by_account("user viewer")) and count < 2000:
        count += 1
        gateway.send(Publish(report(), bytes(32 * KIB), 1, packet_id=count))
        assert await gateway.expect(Puback) == Puback(count)
        assert len((await quick.expect(Publish)).payload) == 32 * KIB
    assert count < 2000
    assert len(server.consumer.messages) == count
    assert server.broker.quotas.queued_bytes == 0


@pytest.mark.rule("broker-25")
async def test_volatile_messages_fill_no_more_than_a_queue(sqlite_database: Database) -> None:
    message_bytes = len(request()) + 1 + MESSAGE_OVERHEAD_BYTES
    async with RunningBroker(sqlite_database, BrokerLimits(queue_bytes=4 * message_bytes)) as server:
        gateway = await server.subscriber(G, f"mt/gateway/{G}/request/#")
        for turn in (1, 2):
            server.broker.send(Publish(request(), b"%d" % number, 1) for number in range(6))
            received = [
                packet for packet in await gateway.receive_until_pong() if isinstance(packet, Publish)
            ]
            assert [message.payload for message in received] == [b"0", b"1", b"2", b"3"]
            assert server.broker.quotas.dropped_counts["session-full"] == 2 * turn
            gateway.send(*(Puback(message.packet_id) for message in received))
            await gateway.receive_until_pong()


# Cached routes


async def test_routes_of_long_topics_are_not_cached(server: RunningBroker) -> None:
    gateway = await server.gateway()
    tracemalloc.start()
    try:
        for index in range(100):
            gateway.send(Publish(f"mt/gateway/{G}/x/{'y' * 60_000}/{index}", b"", 0))
        await gateway.receive_until_pong()
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 2000 * KIB, "6 MB of topics were received"


# While the database is unavailable


@pytest.mark.parametrize(
    "packet",
    [
        encode_packet(Publish(report(kind="x" * 60_000), b"", 1, packet_id=1)) + PINGREQ,
        encode_packet(Subscribe(1, ((f"mt/gateway/{G}/request/#", 0),))) * 50,
    ],
    ids=["long topics", "subscriptions"],
)
async def test_a_batch_does_not_grow_forever_while_the_database_is_unavailable(
    sqlite_database: Database, packet: bytes
) -> None:
    limits = BrokerLimits(publish_rate=10**9)
    async with RunningBroker(sqlite_database, limits, max_batch_bytes=64 * KIB) as server:
        gateway = await server.gateway(clean=False)
        server.consumer.open.clear()
        gateway.send(packet * 100)
        await server.until(lambda: server.broker.held_publishers > 0)
        server.consumer.open.set()
        await gateway.receive_until_pong()


# Many filters at once


async def test_a_client_that_subscribes_repeatedly_gets_a_limited_number_of_retained_messages(
    sqlite_database: Database,
) -> None:
    async with RunningBroker(sqlite_database, BrokerLimits(publish_rate=10)) as server:
        gateway = await server.gateway()
        gateway.send(*(retained(report(kind=f"x/{index}")) for index in range(5)))
        await gateway.receive_until_pong()
        viewer = await server.client("viewer")
        sent = server.broker.quotas.delivered_count
        viewer.send(Subscribe(1, ((REPORTS, 0),) * 1000))  # each of them matches the retained messages
        while not isinstance(response := await viewer.receive(), Suback):
            assert isinstance(response, Publish)
        assert response.codes.count(0) < 10
        assert set(response.codes[10:]) == {SUBACK_FAILURE}
        assert server.broker.quotas.delivered_count - sent < 50


async def test_filters_that_are_too_long_or_too_deep_are_refused(server: RunningBroker) -> None:
    client = await server.client("viewer")
    prefix = f"mt/gateway/{G}/device/"
    filters = [prefix + "x" * (1024 - len(prefix)), prefix + "x" * (1025 - len(prefix)), prefix + "ä" * 510]
    filters += [prefix + "/" * 27 + "#", prefix + "/" * 28 + "#", prefix + "+/" * 10_000 + "#"]
    client.send(Subscribe(1, tuple((each, 0) for each in filters)))
    assert (await client.expect(Suback)).codes == (
        0,
        SUBACK_FAILURE,
        SUBACK_FAILURE,
        0,
        SUBACK_FAILURE,
        SUBACK_FAILURE,
    )
