"""Messages at QoS 2, which the broker receives and never sends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.codec.packets import MAX_PACKET_ID, Puback, Pubcomp, Publish, Pubrec, Pubrel
from tests.mqtt.broker.messages import TOPIC, expect_messages, load_stored, publish, session_of
from tests.mqtt.broker.running_broker import REPORTS, G, RunningBroker, request, response, with_fresh_broker
from tests.row_tables import each_row

if TYPE_CHECKING:
    from tests.mqtt.broker.raw_client import RawClient

pytestmark = pytest.mark.anyio

CLEAN_AND_PERSISTENT = pytest.mark.parametrize("clean", [True, False])
"""Both kinds of session of the publisher."""


@CLEAN_AND_PERSISTENT
@each_row("topic", [TOPIC, response()])
@each_row("packet_id", [1, 0x1234, MAX_PACKET_ID])
@with_fresh_broker
async def test_a_message_is_received_released_and_completed(
    server: RunningBroker, packet_id: int, topic: str, *, clean: bool
) -> None:
    viewer = await server.subscriber("viewer", REPORTS, "mt/gateway/+/response/#")
    gateway = await server.gateway(clean=clean)
    gateway.send(Publish(topic, b"{}", 2, packet_id=packet_id))
    assert await gateway.expect(Pubrec) == Pubrec(packet_id)
    gateway.send(Pubrel(packet_id))
    assert await gateway.expect(Pubcomp) == Pubcomp(packet_id)
    assert gateway.bytes[-8:] == b"\x50\x02" + packet_id.to_bytes(2) + b"\x70\x02" + packet_id.to_bytes(2)
    assert await gateway.receive_until_pong() == []
    await expect_messages(viewer, b"{}")
    assert len(server.consumer.messages) == (topic == TOPIC)


@CLEAN_AND_PERSISTENT
@each_row("dup", [False, True])
@with_fresh_broker
async def test_a_message_repeated_before_its_pubrel_is_delivered_once(
    server: RunningBroker, *, dup: bool, clean: bool
) -> None:
    viewer = await server.subscriber("viewer", REPORTS)
    gateway = await server.gateway(clean=clean)
    await publish_qos2(gateway, 7)
    await publish_qos2(gateway, 7, dup=dup)
    await publish_qos2(gateway, 8)
    await expect_messages(viewer, b"7", b"8")
    assert [message.payload for message in server.consumer.messages] == [b"7", b"8"]


async def test_a_message_repeated_in_the_same_batch_is_delivered_once(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS)
    gateway = await server.gateway(clean=False)
    server.consumer.open.clear()
    first = Publish(TOPIC, b"7", 2, packet_id=7)
    gateway.send(first, Publish(TOPIC, b"7", 2, dup=True, packet_id=7))
    assert await gateway.receive_until_pong() == []
    gateway.abort()
    gateway = await server.gateway(clean=False)
    gateway.send(Publish(TOPIC, b"7", 2, dup=True, packet_id=7))
    assert await gateway.receive_until_pong() == []
    server.consumer.open.set()
    assert await gateway.expect(Pubrec) == Pubrec(7)
    await expect_messages(viewer, b"7")
    assert server.consumer.messages == [first]


@CLEAN_AND_PERSISTENT
async def test_the_same_packet_id_after_its_pubcomp_is_a_new_message(
    server: RunningBroker, *, clean: bool
) -> None:
    viewer = await server.subscriber("viewer", REPORTS)
    gateway = await server.gateway(clean=clean)
    for dup in (False, False, True):
        await publish_qos2(gateway, 7, dup=dup)
        await send_pubrel(gateway, 7)
    await expect_messages(viewer, b"7", b"7", b"7")
    assert len(server.consumer.messages) == 3


async def test_a_message_after_the_pubrel_of_its_packet_id_is_a_new_one(server: RunningBroker) -> None:
    """Send all packets in one write, so that they are in one batch."""
    gateway = await server.gateway(clean=False)
    message = Publish(TOPIC, b"7", 2, packet_id=7)
    gateway.send(message, Pubrel(7), message, Pubrel(7), message)
    responses = [await gateway.receive() for _ in range(5)]
    assert responses == [Pubrec(7), Pubcomp(7), Pubrec(7), Pubcomp(7), Pubrec(7)]
    assert server.consumer.messages == [message] * 3
    assert (await load_stored(server)).unreleased_ids == [(1, 7)]


async def test_a_message_repeated_after_a_restart_is_delivered_once(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS, clean=False)
    gateway = await server.gateway(clean=False)
    await publish_qos2(gateway, 7)
    (message,) = await expect_messages(viewer, b"7")
    viewer.send(Puback(message.packet_id))
    assert await viewer.receive_until_pong() == []
    await server.restart()
    viewer = await server.client("viewer", clean=False)
    gateway = await server.gateway(clean=False)
    await publish_qos2(gateway, 7, dup=True)
    assert await viewer.receive_until_pong() == []
    await send_pubrel(gateway, 7)
    await server.restart()
    viewer = await server.client("viewer", clean=False)
    gateway = await server.gateway(clean=False)
    await publish_qos2(gateway, 7)
    await expect_messages(viewer, b"7")
    assert [message.payload for message in server.consumer.messages] == [b"7", b"7"]


async def test_a_pubrel_on_another_connection_gets_a_pubcomp(server: RunningBroker) -> None:
    gateway = await server.gateway(clean=False)
    await publish_qos2(gateway, 7)
    gateway.abort()
    gateway = await server.gateway(clean=False)
    await send_pubrel(gateway, 7)
    await send_pubrel(gateway, 7)
    await send_pubrel(gateway, MAX_PACKET_ID)
    assert session_of(server, G).unreleased_ids == set()
    assert (await load_stored(server)).unreleased_ids == []
    gateway.abort()
    await server.restart()
    gateway = await server.gateway(clean=False)
    await send_pubrel(gateway, 7)


async def test_an_unknown_pubrel_of_a_clean_session_gets_a_pubcomp(server: RunningBroker) -> None:
    gateway = await server.gateway()
    await publish_qos2(gateway, 7)
    gateway.abort()
    gateway = await server.gateway()
    await send_pubrel(gateway, 7)


async def test_a_clean_session_discards_unreleased_packet_ids(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS)
    gateway = await server.gateway(clean=False)
    await publish_qos2(gateway, 7)
    gateway.abort()
    gateway = await server.gateway(clean=True)
    await publish_qos2(gateway, 7, dup=True)
    await expect_messages(viewer, b"7", b"7")
    assert (await load_stored(server)).unreleased_ids == []


async def test_publishers_have_separate_packet_ids(server: RunningBroker) -> None:
    other = "02005e000002"
    viewer = await server.subscriber("viewer", REPORTS)
    await publish_qos2(await server.gateway(clean=False), 7)
    gateway = await server.gateway(other, clean=False)
    gateway.send(Publish(TOPIC.replace(G, other), b"other", 2, packet_id=7))
    assert await gateway.expect(Pubrec) == Pubrec(7)
    await expect_messages(viewer, b"7", b"other")


async def test_a_packet_id_may_be_used_at_qos_1_and_2_at_once(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS)
    gateway = await server.gateway()
    await publish_qos2(gateway, 1)
    await publish(gateway, b"at 1")
    await send_pubrel(gateway, 1)
    await expect_messages(viewer, b"1", b"at 1")


@CLEAN_AND_PERSISTENT
async def test_a_pubrec_and_a_pubcomp_follow_the_commit(server: RunningBroker, *, clean: bool) -> None:
    gateway = await server.gateway(clean=clean)
    server.consumer.open.clear()
    gateway.send(Publish(TOPIC, b"7", 2, packet_id=7))
    assert await gateway.receive_until_pong() == []
    assert (await load_stored(server)).unreleased_ids == []
    server.consumer.open.set()
    assert await gateway.expect(Pubrec) == Pubrec(7)
    assert (await load_stored(server)).unreleased_ids == ([] if clean else [(1, 7)])
    if not clean:
        server.consumer.open.clear()
        gateway.send(Pubrel(7))
        assert await gateway.receive_until_pong() == []
        server.consumer.open.set()
        assert await gateway.expect(Pubcomp) == Pubcomp(7)
        assert (await load_stored(server)).unreleased_ids == []


async def test_pubrecs_are_sent_in_the_order_of_their_messages(server: RunningBroker) -> None:
    gateway = await server.gateway()
    packet_ids = [5, 3, MAX_PACKET_ID, 1, 3, 4]
    gateway.send(*(Publish(TOPIC, b"{}", 2, packet_id=n) for n in packet_ids[:3]))
    gateway.send(*(Publish(request(), b"{}", 2, packet_id=n) for n in packet_ids[3:]))
    assert [(await gateway.expect(Pubrec)).packet_id for _ in packet_ids] == packet_ids


async def publish_qos2(gateway: RawClient, packet_id: int, *, dup: bool = False) -> None:
    """Publish the packet identifier as payload at QoS 2, and wait for PUBREC."""
    gateway.send(Publish(TOPIC, b"%d" % packet_id, 2, dup=dup, packet_id=packet_id))
    assert await gateway.expect(Pubrec) == Pubrec(packet_id)


async def send_pubrel(gateway: RawClient, packet_id: int) -> None:
    """Release a packet identifier, and wait for PUBCOMP."""
    gateway.send(Pubrel(packet_id))
    assert await gateway.expect(Pubcomp) == Pubcomp(packet_id)
