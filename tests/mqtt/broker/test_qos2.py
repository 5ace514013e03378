"""Messages at QoS 2, which the broker takes and never sends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.codec.packets import MAX_PACKET_ID, Puback, Pubcomp, Publish, Pubrec, Pubrel
from tests.mqtt.broker.messages import TOPIC, expect_messages, load_stored, publish, session_of
from tests.mqtt.broker.running_broker import REPORTS, G, request, response, with_fresh_broker
from tests.row_tables import each_row

if TYPE_CHECKING:
    from tests.mqtt.broker.raw_client import RawClient
    from tests.mqtt.broker.running_broker import RunningBroker

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("clean", [True, False])
"""Of the publisher's session."""


@BOTH
@each_row("topic", [TOPIC, response()])
@each_row("packet_id", [1, 0x1234, MAX_PACKET_ID])
@with_fresh_broker
async def test_a_message_is_received_released_and_completed(
    stage: RunningBroker, packet_id: int, topic: str, *, clean: bool
) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, "mt/gateway/+/response/#")
    gateway = await stage.gateway(clean=clean)
    gateway.send(Publish(topic, b"{}", 2, packet_id=packet_id))
    assert await gateway.expect(Pubrec) == Pubrec(packet_id)
    gateway.send(Pubrel(packet_id))
    assert await gateway.expect(Pubcomp) == Pubcomp(packet_id)
    assert gateway.bytes[-8:] == b"\x50\x02" + packet_id.to_bytes(2) + b"\x70\x02" + packet_id.to_bytes(2)
    assert await gateway.receive_until_pong() == []
    await expect_messages(viewer, b"{}")
    assert len(stage.consumer.messages) == (topic == TOPIC)


@BOTH
@each_row("dup", [False, True])
@with_fresh_broker
async def test_a_repetition_before_the_release_is_passed_on_once(
    stage: RunningBroker, *, dup: bool, clean: bool
) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway(clean=clean)
    await receive(gateway, 7)
    await receive(gateway, 7, dup=dup)
    await receive(gateway, 8)
    await expect_messages(viewer, b"7", b"8")
    assert [message.payload for message in stage.consumer.messages] == [b"7", b"8"]


async def test_a_repetition_in_the_same_round_is_passed_on_once(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway(clean=False)
    stage.consumer.open.clear()
    first = Publish(TOPIC, b"7", 2, packet_id=7)
    gateway.send(first, Publish(TOPIC, b"7", 2, dup=True, packet_id=7))
    assert await gateway.receive_until_pong() == []
    gateway.abort()
    gateway = await stage.gateway(clean=False)
    gateway.send(Publish(TOPIC, b"7", 2, dup=True, packet_id=7))
    assert await gateway.receive_until_pong() == []
    stage.consumer.open.set()
    assert await gateway.expect(Pubrec) == Pubrec(7)
    await expect_messages(viewer, b"7")
    assert stage.consumer.messages == [first]


@BOTH
async def test_the_same_packet_id_after_its_pubcomp_is_a_new_message(
    stage: RunningBroker, *, clean: bool
) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway(clean=clean)
    for dup in (False, False, True):
        await receive(gateway, 7, dup=dup)
        await release(gateway, 7)
    await expect_messages(viewer, b"7", b"7", b"7")
    assert len(stage.consumer.messages) == 3


async def test_a_message_behind_its_own_release_is_a_new_one(stage: RunningBroker) -> None:
    """All in one piece, so in one round."""
    gateway = await stage.gateway(clean=False)
    message = Publish(TOPIC, b"7", 2, packet_id=7)
    gateway.send(message, Pubrel(7), message, Pubrel(7), message)
    answers = [await gateway.receive() for _ in range(5)]
    assert answers == [Pubrec(7), Pubcomp(7), Pubrec(7), Pubcomp(7), Pubrec(7)]
    assert stage.consumer.messages == [message] * 3
    assert (await load_stored(stage)).unreleased_ids == [(1, 7)]


async def test_a_repetition_after_a_kill_is_passed_on_once(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, clean=False)
    gateway = await stage.gateway(clean=False)
    await receive(gateway, 7)
    (message,) = await expect_messages(viewer, b"7")
    viewer.send(Puback(message.packet_id))
    assert await viewer.receive_until_pong() == []
    await stage.restart()
    viewer = await stage.client("viewer", clean=False)
    gateway = await stage.gateway(clean=False)
    await receive(gateway, 7, dup=True)
    assert await viewer.receive_until_pong() == []
    await release(gateway, 7)
    await stage.restart()
    viewer = await stage.client("viewer", clean=False)
    gateway = await stage.gateway(clean=False)
    await receive(gateway, 7)
    await expect_messages(viewer, b"7")
    assert [message.payload for message in stage.consumer.messages] == [b"7", b"7"]


async def test_a_release_on_another_connection_is_completed(stage: RunningBroker) -> None:
    gateway = await stage.gateway(clean=False)
    await receive(gateway, 7)
    gateway.abort()
    gateway = await stage.gateway(clean=False)
    await release(gateway, 7)
    await release(gateway, 7)
    await release(gateway, MAX_PACKET_ID)
    assert session_of(stage, G).unreleased_ids == set()
    assert (await load_stored(stage)).unreleased_ids == []
    gateway.abort()
    await stage.restart()
    gateway = await stage.gateway(clean=False)
    await release(gateway, 7)


async def test_an_unknown_release_of_a_clean_session_is_completed(stage: RunningBroker) -> None:
    gateway = await stage.gateway()
    await receive(gateway, 7)
    gateway.abort()
    gateway = await stage.gateway()
    await release(gateway, 7)


async def test_a_clean_session_forgets_what_was_not_released(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway(clean=False)
    await receive(gateway, 7)
    gateway.abort()
    gateway = await stage.gateway(clean=True)
    await receive(gateway, 7, dup=True)
    await expect_messages(viewer, b"7", b"7")
    assert (await load_stored(stage)).unreleased_ids == []


async def test_the_packet_ids_of_two_publishers_are_two(stage: RunningBroker) -> None:
    other = "02005e000002"
    viewer = await stage.subscriber("viewer", REPORTS)
    await receive(await stage.gateway(clean=False), 7)
    gateway = await stage.gateway(other, clean=False)
    gateway.send(Publish(TOPIC.replace(G, other), b"other", 2, packet_id=7))
    assert await gateway.expect(Pubrec) == Pubrec(7)
    await expect_messages(viewer, b"7", b"other")


async def test_one_packet_id_at_qos_1_and_2_is_two_messages(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway()
    await receive(gateway, 1)
    await publish(gateway, b"at 1")
    await release(gateway, 1)
    await expect_messages(viewer, b"1", b"at 1")


@BOTH
async def test_a_pubrec_and_a_pubcomp_follow_the_commit(stage: RunningBroker, *, clean: bool) -> None:
    gateway = await stage.gateway(clean=clean)
    stage.consumer.open.clear()
    gateway.send(Publish(TOPIC, b"7", 2, packet_id=7))
    assert await gateway.receive_until_pong() == []
    assert (await load_stored(stage)).unreleased_ids == []
    stage.consumer.open.set()
    assert await gateway.expect(Pubrec) == Pubrec(7)
    assert (await load_stored(stage)).unreleased_ids == ([] if clean else [(1, 7)])
    if not clean:
        stage.consumer.open.clear()
        gateway.send(Pubrel(7))
        assert await gateway.receive_until_pong() == []
        stage.consumer.open.set()
        assert await gateway.expect(Pubcomp) == Pubcomp(7)
        assert (await load_stored(stage)).unreleased_ids == []


async def test_pubrecs_come_in_the_order_of_their_messages(stage: RunningBroker) -> None:
    gateway = await stage.gateway()
    ids = [5, 3, MAX_PACKET_ID, 1, 3, 4]
    gateway.send(*(Publish(TOPIC, b"{}", 2, packet_id=n) for n in ids[:3]))
    gateway.send(*(Publish(request(), b"{}", 2, packet_id=n) for n in ids[3:]))
    assert [(await gateway.expect(Pubrec)).packet_id for _ in ids] == ids


async def receive(gateway: RawClient, packet_id: int, *, dup: bool = False) -> None:
    """Publish the packet id at QoS 2, and wait until the broker has it."""
    gateway.send(Publish(TOPIC, b"%d" % packet_id, 2, dup=dup, packet_id=packet_id))
    assert await gateway.expect(Pubrec) == Pubrec(packet_id)


async def release(gateway: RawClient, packet_id: int) -> None:
    """Let go of it."""
    gateway.send(Pubrel(packet_id))
    assert await gateway.expect(Pubcomp) == Pubcomp(packet_id)
