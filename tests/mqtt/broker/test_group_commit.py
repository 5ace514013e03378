"""Nothing is said before it is written down."""

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
"""Of many gateways."""


async def test_a_report_reaches_the_consumer_and_who_subscribed(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, clean=False)
    gateway = await stage.gateway()
    gateway.send(Publish(report(), b"{}", 1, packet_id=7))
    assert await gateway.expect(Puback) == Puback(7)
    assert [message.topic for message in stage.consumer.messages] == [report()]
    assert (await viewer.expect(Publish)).payload == b"{}"


async def test_many_publishers_share_one_commit(stage: RunningBroker) -> None:
    first, *others = [await stage.gateway(mac) for mac in MACS]
    stage.consumer.open.clear()
    first.send(Publish(report(MACS[0]), b"first", 1, packet_id=1))
    assert await first.receive_until_pong() == []
    for mac, gateway in zip(MACS[1:], others, strict=True):
        gateway.send(Publish(report(mac), b"{}", 1, packet_id=2))
        assert await gateway.receive_until_pong() == []
    stage.consumer.open.set()
    assert await first.expect(Puback) == Puback(1)
    for gateway in others:
        assert await gateway.expect(Puback) == Puback(2)
    assert [[each.topic for each in batch] for batch in stage.consumer.batches] == [
        [report(MACS[0])],
        [report(mac) for mac in MACS[1:]],
    ]


async def test_nobody_is_answered_before_the_commit(stage: RunningBroker) -> None:
    gateways = [await stage.gateway(mac, clean=False) for mac in MACS[:3]]
    viewer = await stage.client("viewer", clean=False)
    stage.consumer.open.clear()
    for mac, gateway in zip(MACS, gateways, strict=False):
        gateway.send(Publish(report(mac), b"1", 1, packet_id=1), Publish(report(mac), b"2", 2, packet_id=2))
    viewer.send(Subscribe(3, ((REPORTS, 1),)), Unsubscribe(4, (REPORTS,)))
    newcomer = await stage.raw_client()
    newcomer.send(connect("viewer-2", clean=False))
    for client in (*gateways, viewer):
        assert await client.receive_until_pong() == []
    assert newcomer.bytes == b""
    assert (await load_stored(stage)).unreleased_ids == []
    stage.consumer.open.set()
    for gateway in gateways:
        assert await gateway.expect(Puback) == Puback(1)
        assert await gateway.expect(Pubrec) == Pubrec(2)
    assert await viewer.expect(Suback) == Suback(3, (1,))
    assert await viewer.expect(Unsuback) == Unsuback(4)
    await newcomer.expect(Connack)
    assert "viewer-2" in {row.client_id for row in (await load_stored(stage)).sessions.values()}


async def test_who_promises_nothing_does_not_wait_for_the_commit(stage: RunningBroker) -> None:
    gateway = await stage.gateway()
    stage.consumer.open.clear()
    gateway.send(Publish(TOPIC, b"{}", 1, packet_id=1))
    assert await gateway.receive_until_pong() == []
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway.send(Publish(TOPIC, b"at 0"))
    await expect_messages(viewer, b"at 0")
    stage.consumer.open.set()
    assert await gateway.expect(Puback) == Puback(1)


async def test_acknowledgements_come_in_the_order_of_the_messages(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", f"mt/gateway/{G}/response/#")
    gateway = await stage.gateway()
    ids = [5, 3, MAX_PACKET_ID, 1, 200, 2, 1000, 4]
    stage.consumer.open.clear()
    for n, packet_id in enumerate(ids):
        topic = (TOPIC, response(), report(kind="heartbeat"))[n % 3]
        gateway.send(Publish(topic, b"{}", 1, packet_id=packet_id))
        if n % 2:
            await gateway.receive_until_pong()
    stage.consumer.open.set()
    for n in range(6, 200):
        gateway.send(Publish(TOPIC, b"{}", 1, packet_id=n))
    expected = [*ids, *range(6, 200)]
    assert [(await gateway.expect(Puback)).packet_id for _ in expected] == expected
    assert await gateway.receive_until_pong() == []
    assert len(payloads_of(await viewer.receive_until_pong())) == 3


class Watched(Consumer):
    """Remembers what it was handed over, and may fail after a commit."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.tries: list[tuple[int, list[Publish]]] = []
        self.late_failures: list[Exception] = []

    async def commit(self, batch: ReportBatch) -> None:
        self.tries.append((id(batch), list(batch.messages)))
        await super().commit(batch)
        if self.late_failures:
            raise self.late_failures.pop(0)


async def test_a_batch_that_fails_is_handed_over_again_unchanged_and_acknowledged_once(
    sqlite_database: Database,
) -> None:
    stage = RunningBroker(sqlite_database)
    stage.consumer = consumer = Watched(sqlite_database)
    async with stage:
        viewer = await stage.subscriber("viewer", REPORTS, clean=False)
        gateway = await stage.gateway()
        consumer.tries.clear()
        consumer.failures += [DatabaseUnavailable("gone")] * 3
        gateway.send(*(Publish(TOPIC, b"early", 1, packet_id=n) for n in (1, 2)))
        await stage.until(lambda: len(consumer.failures) < 3)
        gateway.send(*(Publish(TOPIC, b"late", 1, packet_id=n) for n in (3, 4)))
        assert await gateway.receive_until_pong() == []
        assert [(await gateway.expect(Puback)).packet_id for _ in range(4)] == [1, 2, 3, 4]
        assert await gateway.receive_until_pong() == []
        early = [Publish(TOPIC, b"early", 1, packet_id=n) for n in (1, 2)]
        assert [messages for _, messages in consumer.tries[:4]] == [early] * 4
        assert len({batch for batch, _ in consumer.tries[:4]}) == 1
        assert [message.packet_id for message in consumer.messages] == [1, 2, 3, 4]
        await expect_messages(viewer, b"early", b"early", b"late", b"late")
        assert len((await load_stored(stage)).messages) == 4
    sqlite_database.close()


async def test_a_batch_whose_commit_was_not_heard_of_may_be_recorded_twice(sqlite_database: Database) -> None:
    stage = RunningBroker(sqlite_database)
    stage.consumer = consumer = Watched(sqlite_database)
    async with stage:
        viewer = await stage.subscriber("viewer", REPORTS, response(), clean=False)
        gateway = await stage.gateway(clean=False)
        consumer.late_failures += [DatabaseUnavailable("gone")] * 2
        gateway.send(
            Publish(TOPIC, b"kept", 1, retain=True, packet_id=1),
            Publish(TOPIC, b"twice", 2, packet_id=2),
        )
        assert await gateway.expect(Puback) == Puback(1)
        assert await gateway.expect(Pubrec) == Pubrec(2)
        assert consumer.late_failures == []
        await expect_messages(viewer, b"kept", b"twice")
        saved = await load_stored(stage)
        assert [letter.payload for _, _, letter in saved.messages] == [b"kept", b"twice"]
        assert len(saved.unreleased_ids) == len(saved.retained) == 1
        assert len(saved.subscriptions) == len(saved.sessions) == 2
    sqlite_database.close()


async def test_an_error_that_is_not_the_databases_ends_the_broker_without_an_answer(
    sqlite_database: Database,
) -> None:
    stage = RunningBroker(sqlite_database)
    await stage.start()
    gateway = await stage.gateway()
    neighbour = await stage.gateway(MACS[0])
    stage.consumer.failures.append(ZeroDivisionError())
    gateway.send(Publish(TOPIC, b"{}", 1, packet_id=1))
    assert await gateway.receive_until_closed() == []
    assert await neighbour.receive_until_closed() == []
    with pytest.raises(ExceptionGroup) as caught:
        await stage.stop()
    assert caught.group_contains(ZeroDivisionError)
    sqlite_database.close()


async def test_a_subscription_is_in_the_database_when_its_suback_comes(stage: RunningBroker) -> None:
    viewer = await stage.client("viewer", clean=False)
    for n in range(1, 30):
        wanted = report(kind=f"event/{n}")
        viewer.send(Subscribe(n, ((wanted, n % 2),)))
        assert await viewer.expect(Suback) == Suback(n, (n % 2,))
        assert (await load_stored(stage)).subscriptions == [(1, wanted, n % 2)]
        viewer.send(Unsubscribe(n, (wanted,)))
        assert await viewer.expect(Unsuback) == Unsuback(n)
        assert (await load_stored(stage)).subscriptions == []


async def test_a_message_is_in_the_database_when_its_puback_comes(stage: RunningBroker) -> None:
    await (await stage.subscriber("viewer", REPORTS, clean=False)).close()
    gateway = await stage.gateway()
    for n, payload in enumerate(numbered_payloads(30), 1):
        await publish(gateway, payload)
        assert [letter.payload for _, _, letter in (await load_stored(stage)).messages] == numbered_payloads(
            n
        )


async def test_a_message_that_was_acknowledged_leaves_no_row(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, clean=False)
    gateway = await stage.gateway()
    await publish(gateway, *numbered_payloads(5))
    come = await expect_messages(viewer, *numbered_payloads(5))
    assert len((await load_stored(stage)).messages) == 5
    await acknowledge(viewer, *come[:3])
    await publish(gateway, b"another round", topic=response())
    assert [letter.payload for _, _, letter in (await load_stored(stage)).messages] == numbered_payloads(
        2, start=3
    )
    await acknowledge(viewer, *come[3:])
    await stage.restart()
    assert (await load_stored(stage)).messages == []
    assert len(session_of(stage, "viewer")) == 0


async def test_a_message_that_was_acknowledged_before_the_commit_leaves_no_row(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, clean=False)
    gateway = await stage.gateway()
    stage.consumer.open.clear()
    gateway.send(Publish(TOPIC, b"first", 1, packet_id=1))
    assert await gateway.receive_until_pong() == []
    gateway.send(Publish(TOPIC, b"quick", 1, packet_id=2))
    await acknowledge(viewer, *await expect_messages(viewer, b"first", b"quick"))
    stage.consumer.open.set()
    assert [await gateway.expect(Puback) for _ in range(2)] == [Puback(1), Puback(2)]
    assert (await load_stored(stage)).messages == []


@pytest.mark.parametrize("committed", [False, True])
async def test_a_packet_id_may_be_used_again_within_a_round(stage: RunningBroker, *, committed: bool) -> None:
    """Whether the first message with it was committed before or not."""
    viewer = await stage.subscriber("viewer", REPORTS, clean=False)
    gateway = await stage.gateway()
    if committed:
        await publish(gateway, b"first")
    stage.consumer.open.clear()
    gateway.send(Publish(TOPIC, b"", 1, packet_id=2))
    assert await gateway.receive_until_pong() == []  # what comes now is for the next round
    if not committed:
        gateway.send(Publish(TOPIC, b"first", 1, packet_id=3))
    expected = [b"first", b""] if committed else [b"", b"first"]
    come = {message.payload: message for message in await expect_messages(viewer, *expected)}
    await acknowledge(viewer, come[b"first"])
    advance_packet_ids(stage, "viewer", come[b"first"].packet_id - 1)
    gateway.send(Publish(TOPIC, b"second", 1, packet_id=4))
    (second,) = await expect_messages(viewer, b"second")
    assert second.packet_id == come[b"first"].packet_id
    stage.consumer.open.set()
    await stage.until(lambda: bool(stage.consumer.messages) and stage.consumer.messages[-1].packet_id == 4)
    assert [letter.payload for *_, letter in (await load_stored(stage)).messages] == [b"", b"second"]
    await stage.restart()
    viewer = await stage.client("viewer", clean=False)
    again = await expect_messages(viewer, b"", b"second")
    assert [message.packet_id for message in again] == [come[b""].packet_id, second.packet_id]
