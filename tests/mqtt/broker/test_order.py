"""Messages keep their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.mqtt.codec.packets import MAX_PACKET_ID, Puback, Publish, Pubrec, Subscribe, Unsubscribe
from tests.mqtt.broker.messages import (
    TOPIC,
    acknowledge,
    advance_packet_ids,
    expect_messages,
    numbered_payloads,
    publish,
    receive_messages,
    session_of,
)
from tests.mqtt.broker.running_broker import REPORTS, report, with_fresh_broker
from tests.row_tables import each_row

if TYPE_CHECKING:
    from tests.mqtt.broker.raw_client import RawClient
    from tests.mqtt.broker.running_broker import RunningBroker

pytestmark = pytest.mark.anyio


async def test_repetitions_keep_their_order(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, clean=False)
    gateway = await stage.gateway()
    await publish(gateway, *numbered_payloads(50))
    first = await expect_messages(viewer, *numbered_payloads(50))
    viewer.abort()
    viewer = await stage.client("viewer", clean=False)
    assert await expect_messages(viewer, *numbered_payloads(50)) == [repeated(each) for each in first]
    await acknowledge(viewer, first[0], first[30], first[7], first[49])
    left = [repeated(each) for n, each in enumerate(first) if n not in {0, 30, 7, 49}]
    viewer.abort()
    viewer = await stage.client("viewer", clean=False)
    assert await receive_messages(viewer, 46) == left
    await stage.restart()
    viewer = await stage.client("viewer", clean=False)
    assert await receive_messages(viewer, 46) == left
    assert await viewer.receive_until_pong() == []


async def test_order_is_kept_where_packet_ids_begin_anew(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, clean=False)
    gateway = await stage.gateway()
    advance_packet_ids(stage, "viewer", MAX_PACKET_ID - 5)
    await publish(gateway, *numbered_payloads(10))
    first = await expect_messages(viewer, *numbered_payloads(10))
    assert [each.packet_id for each in first] == [*range(MAX_PACKET_ID - 4, MAX_PACKET_ID + 1), *range(1, 6)]
    await stage.restart()
    viewer = await stage.client("viewer", clean=False)
    assert await receive_messages(viewer, 10) == [repeated(each) for each in first]
    await publish(await stage.gateway(), b"next")
    (following,) = await expect_messages(viewer, b"next")
    assert (following.packet_id, following.dup) == (6, False)


async def test_order_is_kept_over_several_starts(stage: RunningBroker) -> None:
    await (await stage.subscriber("viewer", REPORTS, clean=False)).close()
    for n in range(4):
        await publish(await stage.gateway(), *numbered_payloads(5, start=5 * n))
        await stage.restart()
    viewer = await stage.client("viewer", clean=False)
    come = await expect_messages(viewer, *numbered_payloads(20))
    await acknowledge(viewer, *come[::2])
    await stage.restart()
    await publish(await stage.gateway(), *numbered_payloads(5, start=20))
    viewer = await stage.client("viewer", clean=False)
    await expect_messages(viewer, *(numbered_payloads(20)[1::2] + numbered_payloads(5, start=20)))


@each_row("clean", [True, False])
@each_row("qos", [0, 1, 2])
@with_fresh_broker
async def test_messages_of_one_publisher_arrive_in_their_order(
    stage: RunningBroker, qos: int, *, clean: bool
) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, clean=clean)
    gateway = await stage.gateway()
    come: list[bytes] = []
    for start in range(0, 1000, 125):
        for n, payload in enumerate(numbered_payloads(125, start), start + 1):
            gateway.send(Publish(TOPIC, payload, qos, packet_id=n if qos else 0))
        if start % 250:
            await gateway.receive_until_pong()
        else:
            come += await take(viewer, 60)
    come += await take(viewer, 1000 - len(come))
    assert come == numbered_payloads(1000)
    await stage.until(lambda: len(stage.consumer.messages) == 1000)
    assert [message.payload for message in stage.consumer.messages] == numbered_payloads(1000)
    assert len(stage.consumer.batches) > 1
    assert all(isinstance(packet, Puback | Pubrec) for packet in await gateway.receive_until_pong())


async def test_messages_of_many_publishers_keep_the_order_of_each(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, clean=False)
    macs = [f"02005e0001{n:02x}" for n in range(10)]
    gateways = [await stage.gateway(mac) for mac in macs]
    for n, payload in enumerate(numbered_payloads(50), 1):
        for mac, gateway in zip(macs, gateways, strict=True):
            gateway.send(Publish(report(mac), payload, 1, packet_id=n))
    by_topic: dict[str, list[bytes]] = {}
    for _ in range(500):
        message = await viewer.expect(Publish)
        viewer.send(Puback(message.packet_id))
        by_topic.setdefault(message.topic, []).append(message.payload)
    assert by_topic == {report(mac): numbered_payloads(50) for mac in macs}


@each_row("restarted", [False, True])
@pytest.mark.parametrize("limits", [BrokerLimits(in_flight=5)])
@with_fresh_broker
async def test_what_waited_comes_before_what_is_new(stage: RunningBroker, *, restarted: bool) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, clean=False)
    gateway = await stage.gateway()
    await publish(gateway, *numbered_payloads(8))
    await expect_messages(viewer, *numbered_payloads(5))  # the other three wait for a place
    viewer.abort()
    await stage.until(lambda: session_of(stage, "viewer").connection is None)
    await publish(gateway, *numbered_payloads(8, start=8))
    if restarted:
        await stage.restart()
        gateway = await stage.gateway()
    viewer = await stage.client("viewer", clean=False)
    await publish(gateway, *numbered_payloads(8, start=16))
    assert await take(viewer, 24) == numbered_payloads(24)
    assert await viewer.receive_until_pong() == []


@pytest.mark.parametrize("limits", [BrokerLimits(in_flight=1)])
async def test_what_waits_keeps_its_place_while_the_window_opens_one_by_one(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway()
    for n, payload in enumerate(numbered_payloads(30)):
        await publish(gateway, payload)
        if n % 3 == 2:
            assert await take(viewer, 1) == [b"%05d" % (n // 3)]
    assert await take(viewer, 20) == numbered_payloads(20, start=10)


@pytest.mark.parametrize("limits", [BrokerLimits(in_flight=3)])
async def test_a_changed_subscription_does_not_change_the_order(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway()
    await publish(gateway, *numbered_payloads(6))
    viewer.send(Unsubscribe(2, (REPORTS,)), Subscribe(3, ((TOPIC, 1),)))
    first = await receive_messages(viewer, 3)
    assert len(await viewer.receive_until_pong()) == 2
    await publish(gateway, *numbered_payloads(6, start=6))
    viewer.send(*(Puback(message.packet_id) for message in first))
    assert [each.payload for each in first] + await take(viewer, 9) == numbered_payloads(12)


async def take(viewer: RawClient, count: int) -> list[bytes]:
    """The next messages, each acknowledged as it comes."""
    come = []
    for _ in range(count):
        message = await viewer.expect(Publish)
        if message.qos:
            viewer.send(Puback(message.packet_id))
        come.append(message.payload)
    return come


def repeated(message: Publish) -> Publish:
    """The same, marked as a repetition."""
    return Publish(message.topic, message.payload, 1, message.retain, dup=True, packet_id=message.packet_id)
