"""Nothing is acknowledged before it is committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.errors import DatabaseUnavailable
from meshfleet.mqtt.codec.packets import (
    MAX_PACKET_ID,
    Connack,
    Puback,
    Publish,
    Pubrec,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from tests.mqtt.broker.messages import (
    TOPIC,
    acknowledge,
    advance_packet_ids,
    expect_messages,
    load_stored,
    numbered_payloads,
    payloads_of,
    publish,
    session_of,
)
from tests.mqtt.broker.running_broker import REPORTS, Consumer, G, RunningBroker, connect, report, response

if TYPE_CHECKING:
    from meshfleet.db import Database
    from meshfleet.mqtt.broker import ReportBatch

pytestmark = pytest.mark.anyio

MACS = [f"02005e0001{n:02x}" for n in range(20)]
"""MACs of many gateways."""


async def test_a_report_reaches_the_consumer_and_subscribers(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS, clean=False)
    gateway = await server.gateway()
    gateway.send(Publish(report(), b"{}", 1, packet_id=7))
    assert await gateway.expect(Puback) == Puback(7)
    assert [message.topic for message in server.consumer.messages] == [report()]
    assert (await viewer.expect(Publish)).payload == b"{}"


async def test_many_publishers_share_one_commit(server: RunningBroker) -> None:
    first, *others = [await server.gateway(mac) for mac in MACS]
    server.consumer.open.clear()
    first.send(Publish(report(MACS[0]), b"first", 1, packet_id=1))
    assert await first.receive_until_pong() == []
    for mac, gateway in zip(MACS[1:], others, strict=True):
        gateway.send(Publish(report(mac), b"{}", 1, packet_id=2))
        assert await gateway.receive_until_pong() == []
    server.consumer.open.set()
    assert await first.expect(Puback) == Puback(1)
    for gateway in others:
        assert await gateway.expect(Puback) == Puback(2)
    assert [[each.topic for each in batch] for batch in server.consumer.batches] == [
        [report(MACS[0])],
        [report(mac) for mac in MACS[1:]],
    ]


async def test_no_acknowledgement_is_sent_before_the_commit(server: RunningBroker) -> None:
    gateways = [await server.gateway(mac, clean=False) for mac in MACS[:3]]
    viewer = await server.client("viewer", clean=False)
    server.consumer.open.clear()
    for mac, gateway in zip(MACS, gateways, strict=False):
        gateway.send(Publish(report(mac), b"1", 1, packet_id=1), Publish(report(mac), b"2", 2, packet_id=2))
    viewer.send(Subscribe(3, ((REPORTS, 1),)), Unsubscribe(4, (REPORTS,)))
    newcomer = await server.raw_client()
    newcomer.send(connect("viewer-2", clean=False))
    for client in (*gateways, viewer):
        assert await client.receive_until_pong() == []
    assert newcomer.bytes == b""
    assert (await load_stored(server)).unreleased_ids == []
    server.consumer.open.set()
    for gateway in gateways:
        assert await gateway.expect(Puback) == Puback(1)
        assert await gateway.expect(Pubrec) == Pubrec(2)
    assert await viewer.expect(Suback) == Suback(3, (1,))
    assert await viewer.expect(Unsuback) == Unsuback(4)
    await newcomer.expect(Connack)
    assert "viewer-2" in {row.client_id for row in (await load_stored(server)).sessions.values()}


async def test_responses_that_need_no_commit_do_not_wait_for_one(server: RunningBroker) -> None:
    gateway = await server.gateway()
    server.consumer.open.clear()
    gateway.send(Publish(TOPIC, b"{}", 1, packet_id=1))
    assert await gateway.receive_until_pong() == []
    viewer = await server.subscriber("viewer", REPORTS)
    gateway.send(Publish(TOPIC, b"at 0"))
    await expect_messages(viewer, b"at 0")
    server.consumer.open.set()
    assert await gateway.expect(Puback) == Puback(1)


async def test_acknowledgements_are_sent_in_the_order_of_the_messages(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", f"mt/gateway/{G}/response/#")
    gateway = await server.gateway()
    ids = [5, 3, MAX_PACKET_ID, 1, 200, 2, 1000, 4]
    server.consumer.open.clear()
    for n, packet_id in enumerate(ids):
        topic = (TOPIC, response(), report(kind="heartbeat"))[n % 3]
        gateway.send(Publish(topic, b"{}", 1, packet_id=packet_id))
        if n % 2:
            await gateway.receive_until_pong()
    server.consumer.open.set()
    for n in range(6, 200):
        gateway.send(Publish(TOPIC, b"{}", 1, packet_id=n))
    expected = [*ids, *range(6, 200)]
    assert [(await gateway.expect(Puback)).packet_id for _ in expected] == expected
    assert await gateway.receive_until_pong() == []
    assert len(payloads_of(await viewer.receive_until_pong())) == 3


class RecordingConsumer(Consumer):
    """Consumer that records the batches it was passed, and may fail after a commit."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.attempts: list[tuple[int, list[Publish]]] = []
        self.late_failures: list[Exception] = []

    async def commit(self, batch: ReportBatch) -> None:
        self.attempts.append((id(batch), list(batch.messages)))
        await super().commit(batch)
        if self.late_failures:
            raise self.late_failures.pop(0)


async def test_a_failed_batch_is_passed_again_unchanged_and_acknowledged_once(
    sqlite_database: Database,
) -> None:
    server = RunningBroker(sqlite_database)
    server.consumer = consumer = RecordingConsumer(sqlite_database)
    async with server:
        viewer = await server.subscriber("viewer", REPORTS, clean=False)
        gateway = await server.gateway()
        consumer.attempts.clear()
        consumer.failures += [DatabaseUnavailable("gone")] * 3
        gateway.send(*(Publish(TOPIC, b"early", 1, packet_id=n) for n in (1, 2)))
        await server.until(lambda: len(consumer.failures) < 3)
        gateway.send(*(Publish(TOPIC, b"late", 1, packet_id=n) for n in (3, 4)))
        assert await gateway.receive_until_pong() == []
        assert [(await gateway.expect(Puback)).packet_id for _ in range(4)] == [1, 2, 3, 4]
        assert await gateway.receive_until_pong() == []
        early = [Publish(TOPIC, b"early", 1, packet_id=n) for n in (1, 2)]
        assert [messages for _, messages in consumer.attempts[:4]] == [early] * 4
        assert len({batch for batch, _ in consumer.attempts[:4]}) == 1
        assert [message.packet_id for message in consumer.messages] == [1, 2, 3, 4]
        await expect_messages(viewer, b"early", b"early", b"late", b"late")
        assert len((await load_stored(server)).messages) == 4


async def test_a_batch_whose_commit_result_was_lost_can_be_written_twice(sqlite_database: Database) -> None:
    server = RunningBroker(sqlite_database)
    server.consumer = consumer = RecordingConsumer(sqlite_database)
    async with server:
        viewer = await server.subscriber("viewer", REPORTS, response(), clean=False)
        gateway = await server.gateway(clean=False)
        consumer.late_failures += [DatabaseUnavailable("gone")] * 2
        gateway.send(
            Publish(TOPIC, b"kept", 1, retain=True, packet_id=1),
            Publish(TOPIC, b"twice", 2, packet_id=2),
        )
        assert await gateway.expect(Puback) == Puback(1)
        assert await gateway.expect(Pubrec) == Pubrec(2)
        assert consumer.late_failures == []
        await expect_messages(viewer, b"kept", b"twice")
        stored = await load_stored(server)
        assert [message.payload for _, _, message in stored.messages] == [b"kept", b"twice"]
        assert len(stored.unreleased_ids) == len(stored.retained) == 1
        assert len(stored.subscriptions) == len(stored.sessions) == 2


async def test_an_error_other_than_of_the_database_ends_the_broker_without_acknowledgements(
    sqlite_database: Database,
) -> None:
    server = RunningBroker(sqlite_database)
    await server.start()
    gateway = await server.gateway()
    neighbor = await server.gateway(MACS[0])
    server.consumer.failures.append(ZeroDivisionError())
    gateway.send(Publish(TOPIC, b"{}", 1, packet_id=1))
    assert await gateway.receive_until_closed() == []
    assert await neighbor.receive_until_closed() == []
    with pytest.raises(ExceptionGroup) as caught:
        await server.stop()
    assert caught.group_contains(ZeroDivisionError)


async def test_a_subscription_is_committed_before_its_suback(server: RunningBroker) -> None:
    viewer = await server.client("viewer", clean=False)
    for n in range(1, 30):
        topic_filter = report(kind=f"event/{n}")
        viewer.send(Subscribe(n, ((topic_filter, n % 2),)))
        assert await viewer.expect(Suback) == Suback(n, (n % 2,))
        assert (await load_stored(server)).subscriptions == [(1, topic_filter, n % 2)]
        viewer.send(Unsubscribe(n, (topic_filter,)))
        assert await viewer.expect(Unsuback) == Unsuback(n)
        assert (await load_stored(server)).subscriptions == []


async def test_a_message_is_committed_before_its_puback(server: RunningBroker) -> None:
    await (await server.subscriber("viewer", REPORTS, clean=False)).close()
    gateway = await server.gateway()
    for n, payload in enumerate(numbered_payloads(30), 1):
        await publish(gateway, payload)
        stored = await load_stored(server)
        assert [message.payload for _, _, message in stored.messages] == numbered_payloads(n)


async def test_a_message_that_was_acknowledged_leaves_no_row(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS, clean=False)
    gateway = await server.gateway()
    await publish(gateway, *numbered_payloads(5))
    received = await expect_messages(viewer, *numbered_payloads(5))
    assert len((await load_stored(server)).messages) == 5
    await acknowledge(viewer, *received[:3])
    await publish(gateway, b"another round", topic=response())
    stored = await load_stored(server)
    assert [message.payload for _, _, message in stored.messages] == numbered_payloads(2, start=3)
    await acknowledge(viewer, *received[3:])
    await server.restart()
    assert (await load_stored(server)).messages == []
    assert len(session_of(server, "viewer")) == 0


async def test_a_message_that_was_acknowledged_before_the_commit_leaves_no_row(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS, clean=False)
    gateway = await server.gateway()
    server.consumer.open.clear()
    gateway.send(Publish(TOPIC, b"first", 1, packet_id=1))
    assert await gateway.receive_until_pong() == []
    gateway.send(Publish(TOPIC, b"quick", 1, packet_id=2))
    await acknowledge(viewer, *await expect_messages(viewer, b"first", b"quick"))
    server.consumer.open.set()
    assert [await gateway.expect(Puback) for _ in range(2)] == [Puback(1), Puback(2)]
    assert (await load_stored(server)).messages == []


@pytest.mark.parametrize("committed", [False, True])
async def test_a_packet_id_may_be_used_again_within_a_batch(
    server: RunningBroker, *, committed: bool
) -> None:
    """Test with and without a commit of the first message that used the packet identifier."""
    viewer = await server.subscriber("viewer", REPORTS, clean=False)
    gateway = await server.gateway()
    if committed:
        await publish(gateway, b"first")
    server.consumer.open.clear()
    gateway.send(Publish(TOPIC, b"", 1, packet_id=2))
    assert await gateway.receive_until_pong() == []  # later messages go into the next batch
    if not committed:
        gateway.send(Publish(TOPIC, b"first", 1, packet_id=3))
    expected = [b"first", b""] if committed else [b"", b"first"]
    received = {message.payload: message for message in await expect_messages(viewer, *expected)}
    await acknowledge(viewer, received[b"first"])
    advance_packet_ids(server, "viewer", received[b"first"].packet_id - 1)
    gateway.send(Publish(TOPIC, b"second", 1, packet_id=4))
    (second,) = await expect_messages(viewer, b"second")
    assert second.packet_id == received[b"first"].packet_id
    server.consumer.open.set()
    await server.until(lambda: bool(server.consumer.messages) and server.consumer.messages[-1].packet_id == 4)
    assert [row.payload for *_, row in (await load_stored(server)).messages] == [b"", b"second"]
    await server.restart()
    viewer = await server.client("viewer", clean=False)
    again = await expect_messages(viewer, b"", b"second")
    assert [message.packet_id for message in again] == [received[b""].packet_id, second.packet_id]
