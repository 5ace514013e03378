"""Every limit holds, against one client and against many, and what was counted is counted back."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.broker import load_stored_state
from meshfleet.mqtt.broker.outgoing_message import MESSAGE_OVERHEAD_BYTES
from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.mqtt.codec.encoder import PINGREQ, encode_packet
from meshfleet.mqtt.codec.packets import (
    SUBACK_FAILURE,
    Connack,
    ConnectReturnCode,
    Disconnect,
    OversizedPublish,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
)
from tests.mqtt.broker.running_broker import REPORTS, G, RunningBroker, connect, report, request
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from meshfleet.db import Database
    from tests.mqtt.broker.raw_client import RawClient

    Limited = Callable[..., AbstractAsyncContextManager[RunningBroker]]

pytestmark = pytest.mark.anyio

OTHER = "02005e000002"
EACH = len(report()) + 1 + MESSAGE_OVERHEAD_BYTES
"""Bytes that a report with a payload of one byte counts for."""
FULL = Connack(code=ConnectReturnCode.SERVER_UNAVAILABLE)


@pytest.fixture
def limited(sqlite_database: Database) -> Iterator[Limited]:
    """A broker with some small limits. In the end nobody is left, and nothing is counted any more."""

    @asynccontextmanager
    async def run(*, slow_seconds: float = 10.0, **limits: int) -> AsyncIterator[RunningBroker]:
        async with RunningBroker(sqlite_database, BrokerLimits(**limits), slow_seconds=slow_seconds) as stage:
            yield stage
            await everybody_leaves(stage)
            assert {session.persistent_id is None for session in stage.broker.sessions} <= {False}
            for session in stage.broker.sessions:
                stage.broker.sessions.delete(session)
            assert (
                len(stage.broker.sessions)
                == stage.broker.quotas.queued_bytes
                == stage.broker.quotas.absent_queued_bytes
                == 0
            )

    yield run
    sqlite_database.close()


async def everybody_leaves(stage: RunningBroker) -> None:
    for connection in stage.broker.connections:
        connection.close("the test ends")
    await stage.until(lambda: len(stage.broker.connections) == 0)
    assert not stage.broker.connections.connected_accounts


async def refused(stage: RunningBroker, user: str, **options: object) -> Connack:
    """What somebody hears who is not let in."""
    client = await stage.raw_client()
    client.send(connect(user, **options))
    answer = await client.expect(Connack)
    assert await client.receive_until_closed() == []
    return answer


async def is_cut_off(stage: RunningBroker) -> bool:
    """Whether there is no room even for somebody who says nothing."""
    client = await stage.raw_client()
    client.send(connect("viewer-late"))
    return await client.receive_until_closed() == [] and client.bytes == b""


def publish(client: RawClient, topic: str, *payloads: bytes, qos: int = 1) -> None:
    """Publish at once, with the packet ids 1, 2, ..."""
    ids = range(1, len(payloads) + 1) if qos else [0] * len(payloads)
    client.send(*(Publish(topic, each, qos, packet_id=at) for at, each in zip(ids, payloads, strict=True)))


async def payloads(client: RawClient) -> list[bytes]:
    """Of all messages that have come."""
    return [packet.payload for packet in await client.receive_until_pong() if isinstance(packet, Publish)]


def number(count: int) -> list[bytes]:
    return [b"%d" % at for at in range(count)]


# Connections


@pytest.mark.parametrize("limit", ["connections", "connections_per_address"])
async def test_so_many_connections_and_no_more(limited: Limited, limit: str) -> None:
    async with limited(**{limit: 3}) as stage:
        first = await stage.raw_client()
        second, third = await stage.client("viewer-1"), await stage.client("viewer-2")
        await stage.until(lambda: len(stage.broker.connections) == 3)
        for _ in range(5):
            assert await is_cut_off(stage)
        assert len(stage.broker.connections) == 3
        assert await second.receive_until_pong() == await third.receive_until_pong() == []
        first.abort()
        await stage.until(lambda: len(stage.broker.connections) == 2)
        await stage.client("viewer-3")


async def test_an_account_has_so_many_connections_and_no_more(limited: Limited) -> None:
    async with limited(connections_per_account=2) as stage:
        one = await stage.client("viewer", client_id="1")
        two = await stage.client("viewer", client_id="2")
        for clean in (True, False):
            assert await refused(stage, "viewer", client_id="3", clean=clean) == FULL
        assert len(stage.broker.sessions) == 2
        await stage.client("viewer-2")
        again = await stage.client("viewer", client_id="2")  # in the place of its older connection
        assert await two.receive_until_closed() == []
        one.send(Disconnect())
        await one.receive_until_closed()
        await stage.client("viewer", client_id="3")
        assert await again.receive_until_pong() == []


async def test_a_client_that_is_refused_keeps_its_session(limited: Limited) -> None:
    async with limited(connections_per_account=1) as stage:
        (await stage.subscriber("viewer", REPORTS, client_id="old", clean=False)).abort()
        await stage.until(lambda: len(stage.broker.connections) == 0)
        await stage.client("viewer", client_id="new")
        for clean in (False, True):
            assert await refused(stage, "viewer", client_id="old", clean=clean) == FULL
        assert {session.client_id for session in stage.broker.sessions} == {"old", "new"}


async def test_who_says_nothing_is_cut_off(limited: Limited) -> None:
    async with limited(connect_seconds=5) as stage:
        await stage.client("viewer")
        silent, slow = await stage.raw_client(), await stage.raw_client()
        slow.send(encode_packet(connect("viewer-2"))[:-1])
        await stage.until(lambda: len(stage.broker.connections) == 3)
        now = asyncio.get_running_loop().time()
        for connection in stage.broker.connections:
            connection.check_deadlines(now - 10)
            connection.check_deadlines(now)
        assert len(stage.broker.connections) == 3
        for connection in stage.broker.connections:
            connection.check_deadlines(now + 6)
        assert await silent.receive_until_closed() == await slow.receive_until_closed() == []
        assert len(stage.broker.connections) == 1


# Packets


async def test_a_report_that_is_too_large_is_acknowledged_and_the_consumer_is_told(limited: Limited) -> None:
    async with limited(packet_size=1024) as stage:
        viewer = await stage.subscriber("viewer", REPORTS)
        gateway = await stage.gateway()
        for size in (2000, 100_000):
            gateway.send(Publish(report(), bytes(size), 1, retain=True, packet_id=5))
            gateway.send(Publish(report(), b"next", 1, packet_id=6))
            assert [await gateway.expect(Puback), await gateway.expect(Puback)] == [Puback(5), Puback(6)]
            assert await payloads(viewer) == [b"next"]
            large, following = stage.consumer.messages[-2:]
            assert isinstance(large, OversizedPublish)
            assert (large.topic, large.payload, large.size) == (report(), b"", size)
            assert following.payload == b"next"
        assert len(stage.broker.retained) == 0


async def test_the_largest_packet_is_taken(limited: Limited) -> None:
    async with limited(packet_size=1024) as stage:
        gateway = await stage.gateway()
        room = 1024 - 2 - len(report()) - 2
        publish(gateway, report(), bytes(room), bytes(room + 1))
        assert [await gateway.expect(Puback), await gateway.expect(Puback)] == [Puback(1), Puback(2)]
        assert [type(message) for message in stage.consumer.messages] == [Publish, OversizedPublish]


@each_row(
    ("user", "topic", "qos"),
    [
        (G, f"mt/gateway/{G}/response/x", 1),
        (G, report(), 2),
        ("operator", request(), 1),
        (G, report(OTHER), 1),
    ],
)
async def test_elsewhere_a_packet_that_is_too_large_ends_the_connection(
    limited: Limited, user: str, topic: str, qos: int
) -> None:
    async with limited(packet_size=1024) as stage:
        client = await stage.client(user)
        client.send(Publish(topic, bytes(2000), qos, packet_id=1))
        assert await client.receive_until_closed() == []
        assert stage.consumer.messages == []


async def test_no_other_packet_may_be_too_large(limited: Limited) -> None:
    async with limited(packet_size=1024) as stage:
        stranger, client = await stage.raw_client(), await stage.client("viewer")
        stranger.send(connect("viewer", client_id="x" * 2000))
        client.send(Subscribe(1, tuple((f"{REPORTS[:-1]}{at}", 0) for at in range(100))))
        assert await stranger.receive_until_closed() == await client.receive_until_closed() == []


# Subscriptions


async def test_a_client_has_so_many_subscriptions_and_no_more(limited: Limited) -> None:
    async with limited(subscriptions=2) as stage:
        client = await stage.subscriber("viewer", report(kind="a"), report(kind="b"), clean=False)
        client.send(Subscribe(2, tuple((report(kind=kind), 0) for kind in "abcd")))
        assert (await client.expect(Suback)).codes == (0, 0, SUBACK_FAILURE, SUBACK_FAILURE)
        client.send(Disconnect())
        await client.receive_until_closed()
        client = await stage.client("viewer", clean=False)
        client.send(Subscribe(3, ((report(kind="c"), 0),)))
        assert (await client.expect(Suback)).codes == (SUBACK_FAILURE,)
        await stage.subscriber("viewer", report(kind="c"), client_id="another")


# Queues


async def test_so_many_messages_are_in_flight_and_no_more(limited: Limited) -> None:
    async with limited(in_flight=3) as stage:
        viewer = await stage.subscriber("viewer", REPORTS)
        publish(await stage.gateway(), report(), *number(8))
        await stage.until(lambda: len(stage.consumer.messages) == 8)
        first = [packet for packet in await viewer.receive_until_pong() if isinstance(packet, Publish)]
        assert [packet.payload for packet in first] == number(3)
        viewer.send(Puback(first[1].packet_id), Puback(first[2].packet_id))
        assert await payloads(viewer) == number(5)[3:]
        viewer.send(Puback(first[1].packet_id))  # a second time: makes no room
        assert await payloads(viewer) == []


async def test_no_more_are_in_flight_on_another_connection(limited: Limited) -> None:
    async with limited(in_flight=3) as stage:
        (await stage.subscriber("viewer", REPORTS, clean=False)).abort()
        await stage.until(lambda: len(stage.broker.connections) == 0)
        for payload in number(8):
            await stage.broker.publish(report(), payload)
        for _ in range(2):
            viewer = await stage.client("viewer", clean=False)
            assert await payloads(viewer) == number(3)


async def test_no_more_are_in_flight_after_a_restart(limited: Limited) -> None:
    async with limited(in_flight=3) as stage:
        (await stage.subscriber("viewer", REPORTS, clean=False)).abort()
        await stage.until(lambda: len(stage.broker.connections) == 0)
        for payload in number(8):
            await stage.broker.publish(report(), payload)
        await stage.restart()
        viewer = await stage.client("viewer", clean=False)
        assert await payloads(viewer) == number(3)


@pytest.mark.parametrize(
    "limits",
    [
        {"queue_bytes": 4 * EACH},
        {"queues_bytes": 8 * EACH},  # half of it is for connected clients
    ],
)
async def test_for_an_absent_client_the_oldest_wait(limited: Limited, limits: dict[str, int]) -> None:
    async with limited(**limits) as stage:
        (await stage.subscriber("viewer", REPORTS, clean=False)).abort()
        await stage.until(lambda: len(stage.broker.connections) == 0)
        gateway = await stage.gateway()
        publish(gateway, report(), *number(9))
        assert [(await gateway.expect(Puback)).packet_id for _ in range(9)] == list(range(1, 10))
        assert (stage.broker.quotas.queued_bytes, stage.broker.quotas.dropped_counts.total()) == (4 * EACH, 5)
        assert len((await stage.database.read(load_stored_state)).messages) == 4
        viewer = await stage.client("viewer", clean=False)
        assert await payloads(viewer) == number(4)


async def test_who_keeps_up_is_served_although_the_queues_of_others_are_full(limited: Limited) -> None:
    async with limited(queues_bytes=4 * EACH) as stage:
        await (await stage.subscriber("viewer", REPORTS, clean=False)).close()
        await stage.until(lambda: len(stage.broker.connections) == 0)
        healthy = await stage.subscriber("viewer-2", REPORTS)
        gateway = await stage.gateway()
        for payload in number(8):
            publish(gateway, report(), payload)
            assert await gateway.expect(Puback) == Puback(1)
            (came,) = [packet for packet in await healthy.receive_until_pong() if isinstance(packet, Publish)]
            assert came.payload == payload
            healthy.send(Puback(came.packet_id))
        await healthy.receive_until_pong()
        assert stage.broker.quotas.dropped_counts.total() > 0  # of what the absent one is owed
        assert len(stage.broker.connections) == 2


@pytest.mark.rule("broker-24")
@pytest.mark.parametrize(
    "absent",
    [[("viewer", "1"), ("viewer", "2")], [(f"viewer-{number}", "1") for number in range(4)]],
    ids=["of its account", "of others"],
)
async def test_who_keeps_up_gets_a_burst_although_the_queues_of_absent_clients_are_full(
    limited: Limited, absent: list[tuple[str, str]]
) -> None:
    async with limited(queue_bytes=20 * EACH, queues_bytes=80 * EACH, in_flight=5) as stage:
        for user, client_id in absent:
            (await stage.subscriber(user, REPORTS, client_id=client_id, clean=False)).abort()
        await stage.until(lambda: len(stage.broker.connections) == 0)
        for _ in range(25):
            await stage.broker.publish(report(), b"x")
        healthy, gateway = await stage.subscriber("viewer", REPORTS), await stage.gateway()
        burst = [chr(ord("a") + at).encode() for at in range(15)]  # more than may be in flight
        publish(gateway, report(), *burst)
        await stage.until(lambda: len(stage.consumer.messages) == 25 + len(burst))
        came: list[Publish] = []
        while len(came) < len(burst):
            came.append(message := await healthy.expect(Publish))
            healthy.send(Puback(message.packet_id))
        assert [message.payload for message in came] == burst
        await healthy.receive_until_pong()


@pytest.mark.rule("broker-26")
async def test_a_client_with_a_full_queue_that_acknowledges_nothing_is_cut_off(
    limited: Limited, caplog: pytest.LogCaptureFixture
) -> None:
    async with limited(queue_bytes=4 * EACH, slow_seconds=0) as stage:
        viewer = await stage.subscriber("viewer", REPORTS)
        neighbour = await stage.subscriber("viewer-2", REPORTS, qos=0)
        gateway = await stage.gateway()
        publish(gateway, report(), *number(4))
        assert await payloads(viewer) == number(4)
        publish(gateway, report(), b"4")
        assert await viewer.receive_until_closed() == []
        assert await payloads(neighbour) == number(5)
        await stage.until(lambda: len(stage.consumer.messages) == 5)
        stock = stage.broker.quotas
        assert (stock.queued_bytes, stock.cut_off_count) == (0, 1)
        assert (stock.dropped_counts["session-full"], stock.dropped_counts["cut-off"]) == (1, 4)
        (line,) = [each.getMessage() for each in warnings(caplog) if "cut off" in each.getMessage()]
        assert "client 'viewer' of user viewer at 127.0.0.1 is cut off" in line
        assert f"{4 * EACH} bytes are queued for it, limits.queue-bytes is {4 * EACH}" in line


@pytest.mark.rule("broker-25")
async def test_a_client_with_a_full_queue_stays_within_the_time_it_has_to_acknowledge(
    limited: Limited, caplog: pytest.LogCaptureFixture
) -> None:
    async with limited(queue_bytes=4 * EACH, in_flight=2) as stage:
        viewer = await stage.subscriber("viewer", REPORTS)
        gateway = await stage.gateway()
        publish(gateway, report(), *number(9))
        await stage.until(lambda: len(stage.consumer.messages) == 9)
        came: list[Publish] = []
        while len(came) < 4:
            came.append(await viewer.expect(Publish))
            viewer.send(Puback(came[-1].packet_id))
        assert [message.payload for message in came] == number(4)
        assert await payloads(viewer) == []
        assert stage.broker.quotas.dropped_counts["session-full"] == 5
        (line,) = [each.getMessage() for each in warnings(caplog)]  # one for all five
        assert line.startswith("messages for client 'viewer' of user viewer are dropped")
        publish(gateway, report(), b"9")
        assert (await viewer.expect(Publish)).payload == b"9"


def warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [each for each in caplog.records if each.levelno >= logging.WARNING]


async def test_what_all_queues_hold_is_limited_over_all_of_them(limited: Limited) -> None:
    async with limited(queues_bytes=10 * EACH) as stage:
        for user in ("viewer-1", "viewer-2"):
            (await stage.subscriber(user, REPORTS, clean=False)).abort()
        await stage.until(lambda: len(stage.broker.connections) == 0)
        for payload in number(5):
            await stage.broker.publish(report(), payload)
        assert stage.broker.quotas.queued_bytes == 5 * EACH
        assert sorted(len(session) for session in stage.broker.sessions) == [2, 3]
        for user in ("viewer-1", "viewer-2"):
            viewer = await stage.client(user, clean=False)
            got = [packet for packet in await viewer.receive_until_pong() if isinstance(packet, Publish)]
            viewer.send(*(Puback(packet.packet_id) for packet in got))
            await viewer.receive_until_pong()
        assert stage.broker.quotas.queued_bytes == 0


# Pace


async def test_a_fast_sender_is_slowed_and_loses_nothing(limited: Limited) -> None:
    async with limited(publish_rate=50) as stage:
        fast, neighbour = await stage.gateway(), await stage.gateway(OTHER)
        publish(fast, report(), *number(120))
        assert [(await fast.expect(Puback)).packet_id for _ in range(120)] == list(range(1, 121))
        fast.send(PINGREQ)  # it is behind by 70, so this is not read before its next seconds
        for _ in range(20):
            assert await neighbour.receive_until_pong() == []
        assert fast.bytes.count(b"\xd0\x00") == 0
        for _ in range(2):
            for connection in stage.broker.connections:
                connection.check_deadlines(0)
        await fast.expect(Pingresp)
        assert [message.payload for message in stage.consumer.messages] == number(120)


# Sessions


async def test_an_account_has_so_many_sessions_that_stay_and_no_more(limited: Limited) -> None:
    async with limited(sessions_per_account=2) as stage:
        for name in ("1", "2"):
            await stage.client("viewer", client_id=name, clean=False)
        assert await refused(stage, "viewer", client_id="3", clean=False) == FULL
        await stage.client("viewer", client_id="3")
        await stage.client("viewer", client_id="1", clean=False)
        await stage.client("viewer-2", client_id="3", clean=False)
        await stage.client("viewer", client_id="2", clean=True)
        await stage.client("viewer", client_id="4", clean=False)


async def test_the_session_of_who_is_away_too_long_is_forgotten(limited: Limited) -> None:
    async with limited(session_age=100) as stage:
        (await stage.subscriber("viewer", REPORTS, clean=False)).abort()
        await stage.until(lambda: len(stage.broker.connections) == 0)
        await stage.broker.publish(report(), b"{}")
        stage.clock.move(seconds=90)
        stage.broker.sessions.delete_expired(stage.clock())
        assert len(stage.broker.sessions) == 1
        stage.clock.move(seconds=20)
        stage.broker.sessions.delete_expired(stage.clock())
        assert len(stage.broker.sessions) == stage.broker.quotas.queued_bytes == 0
        await stage.broker.publish(report(), b"{}")
        saved = await stage.database.read(load_stored_state)
        assert len(saved.sessions) == len(saved.subscriptions) == len(saved.messages) == 0
