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
from tests.mqtt.broker.running_broker import REPORTS, RunningBroker, report, with_fresh_broker
from tests.row_tables import each_row

if TYPE_CHECKING:
    from tests.mqtt.broker.raw_client import RawClient

pytestmark = pytest.mark.anyio


async def test_resent_messages_keep_their_order(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS, clean=False)
    gateway = await server.gateway()
    await publish(gateway, *numbered_payloads(50))
    first = await expect_messages(viewer, *numbered_payloads(50))
    viewer.abort()
    viewer = await server.client("viewer", clean=False)
    assert await expect_messages(viewer, *numbered_payloads(50)) == [as_resent(each) for each in first]
    await acknowledge(viewer, first[0], first[30], first[7], first[49])
    unacknowledged = [as_resent(each) for n, each in enumerate(first) if n not in {0, 30, 7, 49}]
    viewer.abort()
    viewer = await server.client("viewer", clean=False)
    assert await receive_messages(viewer, 46) == unacknowledged
    await server.restart()
    viewer = await server.client("viewer", clean=False)
    assert await receive_messages(viewer, 46) == unacknowledged
    assert await viewer.receive_until_pong() == []


async def test_order_is_kept_where_packet_ids_start_again_at_1(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS, clean=False)
    gateway = await server.gateway()
    advance_packet_ids(server, "viewer", MAX_PACKET_ID - 5)
    await publish(gateway, *numbered_payloads(10))
    first = await expect_messages(viewer, *numbered_payloads(10))
    assert [each.packet_id for each in first] == [*range(MAX_PACKET_ID - 4, MAX_PACKET_ID + 1), *range(1, 6)]
    await server.restart()
    viewer = await server.client("viewer", clean=False)
    assert await receive_messages(viewer, 10) == [as_resent(each) for each in first]
    await publish(await server.gateway(), b"next")
    (following,) = await expect_messages(viewer, b"next")
    assert (following.packet_id, following.dup) == (6, False)


async def test_order_is_kept_over_several_restarts(server: RunningBroker) -> None:
    await (await server.subscriber("viewer", REPORTS, clean=False)).close()
    for n in range(4):
        await publish(await server.gateway(), *numbered_payloads(5, start=5 * n))
        await server.restart()
    viewer = await server.client("viewer", clean=False)
    received = await expect_messages(viewer, *numbered_payloads(20))
    await acknowledge(viewer, *received[::2])
    await server.restart()
    await publish(await server.gateway(), *numbered_payloads(5, start=20))
    viewer = await server.client("viewer", clean=False)
    await expect_messages(viewer, *(numbered_payloads(20)[1::2] + numbered_payloads(5, start=20)))


@each_row("clean", [True, False])
@each_row("qos", [0, 1, 2])
@with_fresh_broker
async def test_messages_of_one_publisher_arrive_in_their_order(
    server: RunningBroker, qos: int, *, clean: bool
) -> None:
    viewer = await server.subscriber("viewer", REPORTS, clean=clean)
    gateway = await server.gateway()
    received: list[bytes] = []
    for start in range(0, 1000, 125):
        for n, payload in enumerate(numbered_payloads(125, start), start + 1):
            gateway.send(Publish(TOPIC, payload, qos, packet_id=n if qos else 0))
        if start % 250:
            await gateway.receive_until_pong()
        else:
            received += await receive_and_acknowledge(viewer, 60)
    received += await receive_and_acknowledge(viewer, 1000 - len(received))
    assert received == numbered_payloads(1000)
    await server.until(lambda: len(server.consumer.messages) == 1000)
    assert [message.payload for message in server.consumer.messages] == numbered_payloads(1000)
    assert len(server.consumer.batches) > 1
    assert all(isinstance(packet, Puback | Pubrec) for packet in await gateway.receive_until_pong())


async def test_messages_of_many_publishers_keep_the_order_of_each_publisher(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS, clean=False)
    macs = [f"02005e0001{n:02x}" for n in range(10)]
    gateways = [await server.gateway(mac) for mac in macs]
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
async def test_queued_messages_are_sent_before_new_ones(server: RunningBroker, *, restarted: bool) -> None:
    viewer = await server.subscriber("viewer", REPORTS, clean=False)
    gateway = await server.gateway()
    await publish(gateway, *numbered_payloads(8))
    await expect_messages(viewer, *numbered_payloads(5))  # the other three wait for the in-flight window
    viewer.abort()
    await server.until(lambda: session_of(server, "viewer").connection is None)
    await publish(gateway, *numbered_payloads(8, start=8))
    if restarted:
        await server.restart()
        gateway = await server.gateway()
    viewer = await server.client("viewer", clean=False)
    await publish(gateway, *numbered_payloads(8, start=16))
    assert await receive_and_acknowledge(viewer, 24) == numbered_payloads(24)
    assert await viewer.receive_until_pong() == []


@pytest.mark.parametrize("limits", [BrokerLimits(in_flight=1)])
async def test_queued_messages_keep_their_order_while_the_window_opens_one_by_one(
    server: RunningBroker,
) -> None:
    viewer = await server.subscriber("viewer", REPORTS)
    gateway = await server.gateway()
    for n, payload in enumerate(numbered_payloads(30)):
        await publish(gateway, payload)
        if n % 3 == 2:
            assert await receive_and_acknowledge(viewer, 1) == [b"%05d" % (n // 3)]
    assert await receive_and_acknowledge(viewer, 20) == numbered_payloads(20, start=10)


@pytest.mark.parametrize("limits", [BrokerLimits(in_flight=3)])
async def test_a_changed_subscription_does_not_change_the_order(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS)
    gateway = await server.gateway()
    await publish(gateway, *numbered_payloads(6))
    viewer.send(Unsubscribe(2, (REPORTS,)), Subscribe(3, ((TOPIC, 1),)))
    first = await receive_messages(viewer, 3)
    assert len(await viewer.receive_until_pong()) == 2
    await publish(gateway, *numbered_payloads(6, start=6))
    viewer.send(*(Puback(message.packet_id) for message in first))
    assert [each.payload for each in first] + await receive_and_acknowledge(viewer, 9) == numbered_payloads(
        12
    )


async def receive_and_acknowledge(viewer: RawClient, count: int) -> list[bytes]:
    """Receive this many messages, acknowledge each one, and return their payloads."""
    received = []
    for _ in range(count):
        message = await viewer.expect(Publish)
        if message.qos:
            viewer.send(Puback(message.packet_id))
        received.append(message.payload)
    return received


def as_resent(message: Publish) -> Publish:
    """Return the message as it is sent again, with the dup flag."""
    return Publish(message.topic, message.payload, 1, message.retain, dup=True, packet_id=message.packet_id)
