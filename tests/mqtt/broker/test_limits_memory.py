"""What clients can make the broker remember is limited, whatever they send."""

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
async def stage(sqlite_database: Database) -> AsyncIterator[RunningBroker]:
    """A broker that gives every account two of twenty places for retained messages, and no hurry.

    It does not look at connections by itself: what waits for them is counted when it is written.
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
    sqlite_database.close()


def retained(topic: str, payload: bytes = b"{}") -> Publish:
    return Publish(topic, payload, 0, retain=True)


# Retained messages


async def test_one_account_has_its_share_of_retained_messages_and_no_more(stage: RunningBroker) -> None:
    gateway, other = await stage.gateway(), await stage.gateway(OTHER)
    gateway.send(*(retained(report(kind=f"x/{at}")) for at in range(5)))
    await gateway.receive_until_pong()
    assert len(stage.broker.retained) == 2
    gateway.send(retained(report(kind="x/0"), b"newer"))  # in the place of the older one
    gateway.send(retained(report(kind="x/1"), b""), retained(report(kind="x/9")))
    await gateway.receive_until_pong()
    viewer = await stage.client("viewer")
    viewer.send(Subscribe(1, ((REPORTS, 0),)))
    got = [packet for packet in await viewer.receive_until_pong() if isinstance(packet, Publish)]
    assert {(packet.topic, packet.payload) for packet in got} == {
        (report(kind="x/0"), b"newer"),
        (report(kind="x/9"), b"{}"),
    }
    other.send(retained(report(OTHER)))
    await other.receive_until_pong()
    assert len(stage.broker.retained) == 3


async def test_so_many_messages_are_retained_in_all_and_no_more(stage: RunningBroker) -> None:
    for mac in range(12):
        gateway = await stage.gateway(f"{mac:012x}")
        gateway.send(*(retained(report(f"{mac:012x}", kind=f"x/{at}")) for at in range(2)))
        await gateway.receive_until_pong()
    assert len(stage.broker.retained) == 20
    await stage.broker.publish(report(), b"{}")
    assert len((await stage.database.read(load_stored_state)).retained) == 20


@each_row(
    "message",
    [
        retained(report(kind="x" * (1025 - len(report(kind=""))))),
        retained(report(kind="ä" * 520)),
        retained(report(), bytes(64 * KIB + 1)),
    ],
)
async def test_what_is_too_long_is_delivered_and_not_retained(stage: RunningBroker, message: Publish) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, qos=0)
    gateway = await stage.gateway()
    gateway.send(message)
    assert (await viewer.expect(Publish)).topic == message.topic
    await gateway.receive_until_pong()
    assert len(stage.broker.retained) == 0


async def test_the_longest_topic_is_retained_and_written(stage: RunningBroker) -> None:
    longest = report(kind="x" * (1024 - len(report(kind=""))))
    gateway = await stage.gateway()
    gateway.send(Publish(longest, b"{}", 1, retain=True, packet_id=1))
    await gateway.expect(Puback)
    assert set((await stage.database.read(load_stored_state)).retained) == {longest}


async def test_a_topic_of_very_many_levels_is_not_retained(stage: RunningBroker) -> None:
    gateway = await stage.gateway()
    gateway.send(retained(report(kind="/" * 900)))
    await gateway.receive_until_pong()
    assert len(stage.broker.retained) == 0


@pytest.mark.parametrize("qos", [0, 1])
async def test_what_is_retained_cuts_nobody_off_who_subscribes(stage: RunningBroker, qos: int) -> None:
    for mac in (f"{number:012x}" for number in range(15)):
        gateway = await stage.gateway(mac)
        for at in (1, 2):
            topic = report(mac, kind=f"x/{at}")
            gateway.send(Publish(topic, bytes(12 * KIB), qos, retain=True, packet_id=at * qos))
        await gateway.receive_until_pong()
    assert len(stage.broker.retained) == 10  # as many as fit into half a queue, one of each account
    viewer = await stage.client("viewer")
    viewer.send(Subscribe(1, ((REPORTS, qos),)))
    came = await viewer.receive_until_pong()
    assert [type(packet) for packet in came].count(Publish) == 10
    assert Suback(1, (qos,)) in came
    assert await viewer.receive_until_pong() == []  # it is still there


# Who does not read


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_slow_reader_is_dropped_while_others_are_served(stage: RunningBroker, qos: int) -> None:
    slow = await stage.subscriber("viewer", REPORTS, qos=qos)
    quick = await stage.subscriber("viewer-2", REPORTS, qos=0)
    slow.pause_reading()
    gateway = await stage.gateway()
    count = 0
    # A kernel takes some megabytes for a reader that does not read.
    while len(stage.broker.connections.of_account("user viewer")) and count < 2000:
        count += 1
        gateway.send(Publish(report(), bytes(32 * KIB), 1, packet_id=count))
        assert await gateway.expect(Puback) == Puback(count)
        assert len((await quick.expect(Publish)).payload) == 32 * KIB
    assert count < 2000
    assert len(stage.consumer.messages) == count
    assert stage.broker.quotas.queued_bytes == 0


@pytest.mark.rule("broker-25")
async def test_what_leaves_at_once_or_never_fills_no_more_than_a_queue(sqlite_database: Database) -> None:
    each = len(request()) + 1 + MESSAGE_OVERHEAD_BYTES
    async with RunningBroker(sqlite_database, BrokerLimits(queue_bytes=4 * each)) as stage:
        gateway = await stage.subscriber(G, f"mt/gateway/{G}/request/#")
        for turn in (1, 2):
            stage.broker.send(Publish(request(), b"%d" % number, 1) for number in range(6))
            come = [packet for packet in await gateway.receive_until_pong() if isinstance(packet, Publish)]
            assert [message.payload for message in come] == [b"0", b"1", b"2", b"3"]
            assert stage.broker.quotas.dropped_counts["session-full"] == 2 * turn
            gateway.send(*(Puback(message.packet_id) for message in come))
            await gateway.receive_until_pong()
    sqlite_database.close()


# What is remembered of topics


async def test_the_ways_of_long_topics_are_not_remembered(stage: RunningBroker) -> None:
    gateway = await stage.gateway()
    tracemalloc.start()
    try:
        for at in range(100):
            gateway.send(Publish(f"mt/gateway/{G}/x/{'y' * 60_000}/{at}", b"", 0))
        await gateway.receive_until_pong()
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2000 * KIB, "6 MB came"


# While the database is away


@pytest.mark.parametrize(
    "packet",
    [
        encode_packet(Publish(report(kind="x" * 60_000), b"", 1, packet_id=1)) + PINGREQ,
        encode_packet(Subscribe(1, ((f"mt/gateway/{G}/request/#", 0),))) * 50,
    ],
    ids=["long topics", "subscriptions"],
)
async def test_while_the_database_is_away_a_round_does_not_grow_for_ever(
    sqlite_database: Database, packet: bytes
) -> None:
    limits = BrokerLimits(publish_rate=10**9)
    async with RunningBroker(sqlite_database, limits, max_batch_bytes=64 * KIB) as stage:
        gateway = await stage.gateway(clean=False)
        stage.consumer.open.clear()
        gateway.send(packet * 100)
        await stage.until(lambda: stage.broker.held_publishers > 0)
        stage.consumer.open.set()
        await gateway.receive_until_pong()
    sqlite_database.close()


# Many filters at once


async def test_who_asks_again_and_again_for_what_is_retained_gets_no_more_for_now(
    sqlite_database: Database,
) -> None:
    async with RunningBroker(sqlite_database, BrokerLimits(publish_rate=10)) as stage:
        gateway = await stage.gateway()
        gateway.send(*(retained(report(kind=f"x/{at}")) for at in range(5)))
        await gateway.receive_until_pong()
        viewer = await stage.client("viewer")
        sent = stage.broker.quotas.delivered_count
        viewer.send(Subscribe(1, ((REPORTS, 0),) * 1000))  # each of them brings what is retained
        while not isinstance(answer := await viewer.receive(), Suback):
            assert isinstance(answer, Publish)
        assert answer.codes.count(0) < 10
        assert set(answer.codes[10:]) == {SUBACK_FAILURE}
        assert stage.broker.quotas.delivered_count - sent < 50
    sqlite_database.close()


async def test_filters_that_are_too_long_or_too_deep_are_refused(stage: RunningBroker) -> None:
    client = await stage.client("viewer")
    place = f"mt/gateway/{G}/device/"
    wanted = [place + "x" * (1024 - len(place)), place + "x" * (1025 - len(place)), place + "ä" * 510]
    wanted += [place + "/" * 27 + "#", place + "/" * 28 + "#", place + "+/" * 10_000 + "#"]
    client.send(Subscribe(1, tuple((each, 0) for each in wanted)))
    assert (await client.expect(Suback)).codes == (
        0,
        SUBACK_FAILURE,
        SUBACK_FAILURE,
        0,
        SUBACK_FAILURE,
        SUBACK_FAILURE,
    )
