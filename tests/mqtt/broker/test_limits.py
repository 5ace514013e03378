"""Every limit holds for one client and for many, and all counters return to zero."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AbstractAsyncContextManager, asynccontextmanager
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
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from meshfleet.db import Database
    from tests.mqtt.broker.raw_client import RawClient

    Limited = Callable[..., AbstractAsyncContextManager[RunningBroker]]

pytestmark = pytest.mark.anyio

OTHER = "02005e000002"
"""MAC of another gateway."""
MESSAGE_BYTES = len(report()) + 1 + MESSAGE_OVERHEAD_BYTES
"""Bytes that a report with a payload of one byte counts for."""
REFUSED = Connack(code=ConnectReturnCode.SERVER_UNAVAILABLE)


@pytest.fixture
def limited(sqlite_database: Database) -> Limited:
    """Return a function that runs a broker with small limits and checks in the end that nothing is left."""

    @asynccontextmanager
    async def run(*, slow_seconds: float = 10.0, **limits: int) -> AsyncIterator[RunningBroker]:
        async with RunningBroker(
            sqlite_database, BrokerLimits(**limits), slow_seconds=slow_seconds
        ) as server:
            yield server
            await close_all_connections(server)
            assert {session.persistent_id is None for session in server.broker.sessions} <= {False}
            for session in server.broker.sessions:
                server.broker.sessions.delete(session)
            assert (
                len(server.broker.sessions)
                == server.broker.quotas.queued_bytes
                == server.broker.quotas.absent_queued_bytes
                == 0
            )

    return run


async def close_all_connections(server: RunningBroker) -> None:
    for connection in server.broker.connections:
        connection.close("the test ends")
    await server.until(lambda: len(server.broker.connections) == 0)
    assert not server.broker.connections.connected_accounts


async def expect_refusal(server: RunningBroker, user: str, **options: object) -> Connack:
    """Connect a client that must be refused, and return the CONNACK."""
    client = await server.raw_client()
    client.send(connect(user, **options))
    response = await client.expect(Connack)
    assert await client.receive_until_closed() == []
    return response


async def is_closed_unread(server: RunningBroker) -> bool:
    """Return whether a new connection is closed without a CONNACK."""
    client = await server.raw_client()
    client.send(connect("viewer-late"))
    return await client.receive_until_closed() == [] and client.bytes == b""


def publish(client: RawClient, topic: str, *payloads: bytes, qos: int = 1) -> None:
    """Publish in one write, with the packet identifiers 1, 2, ..."""
    packet_ids = range(1, len(payloads) + 1) if qos else [0] * len(payloads)
    client.send(
        *(
            Publish(topic, payload, qos, packet_id=packet_id)
            for packet_id, payload in zip(packet_ids, payloads, strict=True)
        )
    )


async def payloads(client: RawClient) -> list[bytes]:
    """Return the payloads of all messages that have arrived."""
    return [packet.payload for packet in await client.receive_until_pong() if isinstance(packet, Publish)]


def numbered(count: int) -> list[bytes]:
    return [b"%d" % index for index in range(count)]


# Connections


@pytest.mark.parametrize("limit", ["connections", "connections_per_address"])
async def test_connections_beyond_the_limit_are_closed(limited: Limited, limit: str) -> None:
    async with limited(**{limit: 3}) as server:
        first = await server.raw_client()
        second, third = await server.client("viewer-1"), await server.client("viewer-2")
        await server.until(lambda: len(server.broker.connections) == 3)
        for _ in range(5):
            assert await is_closed_unread(server)
        assert len(server.broker.connections) == 3
        assert await second.receive_until_pong() == await third.receive_until_pong() == []
        first.abort()
        await server.until(lambda: len(server.broker.connections) == 2)
        await server.client("viewer-3")


async def test_an_account_has_no_more_connections_than_the_limit(limited: Limited) -> None:
    async with limited(connections_per_account=2) as server:
        one = await server.client("viewer", client_id="1")
        two = await server.client("viewer", client_id="2")
        for clean in (True, False):
            assert await expect_refusal(server, "viewer", client_id="3", clean=clean) == REFUSED
        assert len(server.broker.sessions) == 2
        await server.client("viewer-2")
        again = await server.client("viewer", client_id="2")  # replaces its older connection
        assert await two.receive_until_closed() == []
        one.send(Disconnect())
        await one.receive_until_closed()
        await server.client("viewer", client_id="3")
        assert await again.receive_until_pong() == []


async def test_a_client_that_is_refused_keeps_its_session(limited: Limited) -> None:
    async with limited(connections_per_account=1) as server:
        (await server.subscriber("viewer", REPORTS, client_id="old", clean=False)).abort()
        await server.until(lambda: len(server.broker.connections) == 0)
        await server.client("viewer", client_id="new")
        for clean in (False, True):
            assert await expect_refusal(server, "viewer", client_id="old", clean=clean) == REFUSED
        assert {session.client_id for session in server.broker.sessions} == {"old", "new"}


async def test_a_connection_that_sends_no_complete_connect_is_closed(limited: Limited) -> None:
    async with limited(connect_seconds=5) as server:
        await server.client("viewer")
        silent, slow = await server.raw_client(), await server.raw_client()
        slow.send(encode_packet(connect("viewer-2"))[:-1])
        await server.until(lambda: len(server.broker.connections) == 3)
        now = asyncio.get_running_loop().time()
        for connection in server.broker.connections:
            connection.check_deadlines(now - 10)
            connection.check_deadlines(now)
        assert len(server.broker.connections) == 3
        for connection in server.broker.connections:
            connection.check_deadlines(now + 6)
        assert await silent.receive_until_closed() == await slow.receive_until_closed() == []
        assert len(server.broker.connections) == 1


# Packets


async def test_an_oversized_report_is_acknowledged_and_reported_to_the_consumer(limited: Limited) -> None:
    async with limited(packet_size=1024) as server:
        viewer = await server.subscriber("viewer", REPORTS)
        gateway = await server.gateway()
        for size in (2000, 100_000):
            gateway.send(Publish(report(), bytes(size), 1, retain=True, packet_id=5))
            gateway.send(Publish(report(), b"next", 1, packet_id=6))
            assert [await gateway.expect(Puback), await gateway.expect(Puback)] == [Puback(5), Puback(6)]
            assert await payloads(viewer) == [b"next"]
            large, following = server.consumer.messages[-2:]
            assert isinstance(large, OversizedPublish)
            assert (large.topic, large.payload, large.size) == (report(), b"", size)
            assert following.payload == b"next"
        assert len(server.broker.retained) == 0


async def test_a_packet_of_the_maximum_size_is_accepted(limited: Limited) -> None:
    async with limited(packet_size=1024) as server:
        gateway = await server.gateway()
        payload_bytes = 1024 - 2 - len(report()) - 2
        publish(gateway, report(), bytes(payload_bytes), bytes(payload_bytes + 1))
        assert [await gateway.expect(Puback), await gateway.expect(Puback)] == [Puback(1), Puback(2)]
        assert [type(message) for message in server.consumer.messages] == [Publish, OversizedPublish]


@each_row(
    ("user", "topic", "qos"),
    [
        (G, f"mt/gateway/{G}/response/x", 1),
        (G, report(), 2),
        ("operator", request(), 1),
        (G, report(OTHER), 1),
    ],
)
async def test_an_oversized_message_that_is_no_report_closes_the_connection(
    limited: Limited, user: str, topic: str, qos: int
) -> None:
    async with limited(packet_size=1024) as server:
        client = await server.client(user)
        client.send(Publish(topic, bytes(2000), qos, packet_id=1))
        assert await client.receive_until_closed() == []
        assert server.consumer.messages == []


async def test_other_oversized_packets_close_the_connection(limited: Limited) -> None:
    async with limited(packet_size=1024) as server:
        unauthenticated, client = await server.raw_client(), await server.client("viewer")
        unauthenticated.send(connect("viewer", client_id="x" * 2000))
        client.send(Subscribe(1, tuple((f"{REPORTS[:-1]}{index}", 0) for index in range(100))))
        assert await unauthenticated.receive_until_closed() == await client.receive_until_closed() == []


# Subscriptions


async def test_a_client_has_no_more_subscriptions_than_the_limit(limited: Limited) -> None:
    async with limited(subscriptions=2) as server:
        client = await server.subscriber("viewer", report(kind="a"), report(kind="b"), clean=False)
        client.send(Subscribe(2, tuple((report(kind=kind), 0) for kind in "abcd")))
        assert (await client.expect(Suback)).codes == (0, 0, SUBACK_FAILURE, SUBACK_FAILURE)
        client.send(Disconnect())
        await client.receive_until_closed()
        client = await server.client("viewer", clean=False)
        client.send(Subscribe(3, ((report(kind="c"), 0),)))
        assert (await client.expect(Suback)).codes == (SUBACK_FAILURE,)
        await server.subscriber("viewer", report(kind="c"), client_id="another")


# Queues


async def test_no_more_messages_are_in_flight_than_the_limit(limited: Limited) -> None:
    async with limited(in_flight=3) as server:
        viewer = await server.subscriber("viewer", REPORTS)
        publish(await server.gateway(), report(), *numbered(8))
        await server.until(lambda: len(server.consumer.messages) == 8)
        first = [packet for packet in await viewer.receive_until_pong() if isinstance(packet, Publish)]
        assert [packet.payload for packet in first] == numbered(3)
        viewer.send(Puback(first[1].packet_id), Puback(first[2].packet_id))
        assert await payloads(viewer) == numbered(5)[3:]
        viewer.send(Puback(first[1].packet_id))  # a second PUBACK frees no slot
        assert await payloads(viewer) == []


async def test_no_more_messages_are_in_flight_after_a_reconnect(limited: Limited) -> None:
    async with limited(in_flight=3) as server:
        (await server.subscriber("viewer", REPORTS, clean=False)).abort()
        await server.until(lambda: len(server.broker.connections) == 0)
        for payload in numbered(8):
            await server.broker.publish(report(), payload)
        for _ in range(2):
            viewer = await server.client("viewer", clean=False)
            assert await payloads(viewer) == numbered(3)


async def test_no_more_messages_are_in_flight_after_a_restart(limited: Limited) -> None:
    async with limited(in_flight=3) as server:
        (await server.subscriber("viewer", REPORTS, clean=False)).abort()
        await server.until(lambda: len(server.broker.connections) == 0)
        for payload in numbered(8):
            await server.broker.publish(report(), payload)
        await server.restart()
        viewer = await server.client("viewer", clean=False)
        assert await payloads(viewer) == numbered(3)


@pytest.mark.parametrize(
    "limits",
    [
        {"queue_bytes": 4 * MESSAGE_BYTES},
        {"queues_bytes": 8 * MESSAGE_BYTES},  # half of it is reserved for connected clients
    ],
)
async def test_the_oldest_messages_are_kept_for_an_absent_client(
    limited: Limited, limits: dict[str, int]
) -> None:
    async with limited(**limits) as server:
        (await server.subscriber("viewer", REPORTS, clean=False)).abort()
        await server.until(lambda: len(server.broker.connections) == 0)
        gateway = await server.gateway()
        publish(gateway, report(), *numbered(9))
        assert [(await gateway.expect(Puback)).packet_id for _ in range(9)] == list(range(1, 10))
        assert (server.broker.quotas.queued_bytes, server.broker.quotas.dropped_counts.total()) == (
            4 * MESSAGE_BYTES,
            5,
        )
        assert len((await server.database.read(load_stored_state)).messages) == 4
        viewer = await server.client("viewer", clean=False)
        assert await payloads(viewer) == numbered(4)


async def test_a_client_that_keeps_up_is_served_although_other_queues_are_full(limited: Limited) -> None:
    async with limited(queues_bytes=4 * MESSAGE_BYTES) as server:
        await (await server.subscriber("viewer", REPORTS, clean=False)).close()
        await server.until(lambda: len(server.broker.connections) == 0)
        healthy = await server.subscriber("viewer-2", REPORTS)
        gateway = await server.gateway()
        for payload in numbered(8):
            publish(gateway, report(), payload)
            assert await gateway.expect(Puback) == Puback(1)
            (received,) = [
                packet for packet in await healthy.receive_until_pong() if isinstance(packet, Publish)
            ]
            assert received.payload == payload
            healthy.send(Puback(received.packet_id))
        await healthy.receive_until_pong()
        assert server.broker.quotas.dropped_counts.total() > 0  # messages for the absent client
        assert len(server.broker.connections) == 2


@pytest.mark.rule("broker-24")
@pytest.mark.parametrize(
    "absent",
    [[("viewer", "1"), ("viewer", "2")], [(f"viewer-{number}", "1") for number in range(4)]],
    ids=["of its account", "of others"],
)
async def test_a_client_that_keeps_up_gets_a_burst_although_the_queues_of_absent_clients_are_full(
    limited: Limited, absent: list[tuple[str, str]]
) -> None:
    async with limited(
        queue_bytes=20 * MESSAGE_BYTES, queues_bytes=80 * MESSAGE_BYTES, in_flight=5
    ) as server:
        for user, client_id in absent:
            (await server.subscriber(user, REPORTS, client_id=client_id, clean=False)).abort()
        await server.until(lambda: len(server.broker.connections) == 0)
        for _ in range(25):
            await server.broker.publish(report(), b"x")
        healthy, gateway = await server.subscriber("viewer", REPORTS), await server.gateway()
        burst = [chr(ord("a") + index).encode() for index in range(15)]  # more than may be in flight
        publish(gateway, report(), *burst)
        await server.until(lambda: len(server.consumer.messages) == 25 + len(burst))
        received: list[Publish] = []
        while len(received) < len(burst):
            received.append(message := await healthy.expect(Publish))
            healthy.send(Puback(message.packet_id))
        assert [message.payload for message in received] == burst
        await healthy.receive_until_pong()


@pytest.mark.rule("broker-26")
async def test_a_client_with_a_full_queue_that_acknowledges_nothing_is_cut_off(
    limited: Limited, caplog: pytest.LogCaptureFixture
) -> None:
    async with limited(queue_bytes=4 * MESSAGE_BYTES, slow_seconds=0) as server:
        viewer = await server.subscriber("viewer", REPORTS)
        neighbor = await server.subscriber("viewer-2", REPORTS, qos=0)
        gateway = await server.gateway()
        publish(gateway, report(), *numbered(4))
        assert await payloads(viewer) == numbered(4)
        publish(gateway, report(), b"4")
        assert await viewer.receive_until_closed() == []
        assert await payloads(neighbor) == numbered(5)
        await server.until(lambda: len(server.consumer.messages) == 5)
        quotas = server.broker.quotas
        assert (quotas.queued_bytes, quotas.cut_off_count) == (0, 1)
        assert (quotas.dropped_counts["session-full"], quotas.dropped_counts["cut-off"]) == (1, 4)
        (line,) = [each.getMessage() for each in warnings(caplog) if "cut off" in each.getMessage()]
        assert "client 'viewer' of user viewer at 127.0.0.1 is cut off" in line
        assert (
            f"{4 * MESSAGE_BYTES} bytes are queued for it, limits.queue-bytes is {4 * MESSAGE_BYTES}" in line
        )


@pytest.mark.rule("broker-25")
async def test_a_client_with_a_full_queue_stays_connected_until_its_time_to_acknowledge_is_over(
    limited: Limited, caplog: pytest.LogCaptureFixture
) -> None:
    async with limited(queue_bytes=4 * MESSAGE_BYTES, in_flight=2) as server:
        viewer = await server.subscriber("viewer", REPORTS)
        gateway = await server.gateway()
        publish(gateway, report(), *numbered(9))
        await server.until(lambda: len(server.consumer.messages) == 9)
        received: list[Publish] = []
        while len(received) < 4:
            received.append(await viewer.expect(Publish))
            viewer.send(Puback(received[-1].packet_id))
        assert [message.payload for message in received] == numbered(4)
        assert await payloads(viewer) == []
        assert server.broker.quotas.dropped_counts["session-full"] == 5
        (line,) = [each.getMessage() for each in warnings(caplog)]  # one for all five
        assert line.startswith("messages for client 'viewer' of user viewer are dropped")
        publish(gateway, report(), b"9")
        assert (await viewer.expect(Publish)).payload == b"9"


def warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [each for each in caplog.records if each.levelno >= logging.WARNING]


async def test_the_total_size_of_all_queues_is_limited(limited: Limited) -> None:
    async with limited(queues_bytes=10 * MESSAGE_BYTES) as server:
        for user in ("viewer-1", "viewer-2"):
            (await server.subscriber(user, REPORTS, clean=False)).abort()
        await server.until(lambda: len(server.broker.connections) == 0)
        for payload in numbered(5):
            await server.broker.publish(report(), payload)
        assert server.broker.quotas.queued_bytes == 5 * MESSAGE_BYTES
        assert sorted(len(session) for session in server.broker.sessions) == [2, 3]
        for user in ("viewer-1", "viewer-2"):
            viewer = await server.client(user, clean=False)
            received = [packet for packet in await viewer.receive_until_pong() if isinstance(packet, Publish)]
            viewer.send(*(Puback(packet.packet_id) for packet in received))
            await viewer.receive_until_pong()
        assert server.broker.quotas.queued_bytes == 0


# Publish rate


async def test_a_fast_publisher_is_throttled_and_loses_nothing(limited: Limited) -> None:
    async with limited(publish_rate=50) as server:
        fast, neighbor = await server.gateway(), await server.gateway(OTHER)
        publish(fast, report(), *numbered(120))
        assert [(await fast.expect(Puback)).packet_id for _ in range(120)] == list(range(1, 121))
        fast.send(PINGREQ)  # it is 70 packets over its budget, so this is read in a later second
        for _ in range(20):
            assert await neighbor.receive_until_pong() == []
        assert fast.bytes.count(b"\xd0\x00") == 0
        for _ in range(2):
            for connection in server.broker.connections:
                connection.check_deadlines(0)
        await fast.expect(Pingresp)
        assert [message.payload for message in server.consumer.messages] == numbered(120)


# Sessions


async def test_an_account_has_no_more_persistent_sessions_than_the_limit(limited: Limited) -> None:
    async with limited(sessions_per_account=2) as server:
        for name in ("1", "2"):
            await server.client("viewer", client_id=name, clean=False)
        assert await expect_refusal(server, "viewer", client_id="3", clean=False) == REFUSED
        await server.client("viewer", client_id="3")
        await server.client("viewer", client_id="1", clean=False)
        await server.client("viewer-2", client_id="3", clean=False)
        await server.client("viewer", client_id="2", clean=True)
        await server.client("viewer", client_id="4", clean=False)


async def test_the_session_of_a_client_that_stays_away_too_long_is_deleted(limited: Limited) -> None:
    async with limited(session_age=100) as server:
        (await server.subscriber("viewer", REPORTS, clean=False)).abort()
        await server.until(lambda: len(server.broker.connections) == 0)
        await server.broker.publish(report(), b"{}")
        server.clock.move(seconds=90)
        server.broker.sessions.delete_expired(server.clock())
        assert len(server.broker.sessions) == 1
        server.clock.move(seconds=20)
        server.broker.sessions.delete_expired(server.clock())
        assert len(server.broker.sessions) == server.broker.quotas.queued_bytes == 0
        await server.broker.publish(report(), b"{}")
        stored = await server.database.read(load_stored_state)
        assert len(stored.sessions) == len(stored.subscriptions) == len(stored.messages) == 0


# Changed limits


async def test_changed_limits_hold_for_new_clients_subscriptions_and_messages(limited: Limited) -> None:
    async with limited() as server:
        viewer = await server.subscriber("viewer", report(kind="a"), report(kind="b"))
        gateway = await server.gateway()
        server.broker.apply_limits(
            BrokerLimits(subscriptions=2, packet_size=1024, connections_per_account=1, retained=10)
        )
        viewer.send(Subscribe(2, ((report(kind="b"), 0), (report(kind="c"), 0))))
        assert (await viewer.expect(Suback)).codes == (0, SUBACK_FAILURE), "present subscriptions stay"
        other = await server.raw_client()
        other.send(connect("viewer", client_id="another"))
        assert await other.expect(Connack) == REFUSED
        for number in range(1, 3):  # one account may retain a tenth of all messages
            gateway.send(Publish(report(kind=f"event/{number}"), b"{}", 1, retain=True, packet_id=number))
            await gateway.expect(Puback)
        assert len(server.broker.retained) == 1
        long_message = Publish(report(), bytes(2000), 1, packet_id=3)
        gateway.send(long_message)
        assert await gateway.expect(Puback) == Puback(3), "a present connection keeps its packet size"
        operator = await server.raw_client()
        operator.send(connect("operator", client_id="x" * 2000))
        assert await operator.receive_until_closed() == []


async def test_changed_queue_limits_hold_for_the_next_message(limited: Limited) -> None:
    async with limited() as server:
        await (await server.subscriber("viewer", REPORTS, clean=False)).close()
        gateway = await server.gateway()
        for number in range(1, 5):
            gateway.send(Publish(report(), b"x", 1, packet_id=number))
            await gateway.expect(Puback)
            server.broker.apply_limits(BrokerLimits(queue_bytes=2 * MESSAGE_BYTES))
        assert server.broker.quotas.queued_bytes == 2 * MESSAGE_BYTES
        viewer = await server.client("viewer", clean=False)
        for packet in await viewer.receive_until_pong():
            assert isinstance(packet, Publish)
            viewer.send(Puback(packet.packet_id))
        await viewer.receive_until_pong()
