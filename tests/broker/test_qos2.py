"""Messages at QoS 2, which the broker takes and never sends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.wire.mqtt.packets import LARGEST_ID, Puback, Pubcomp, Publish, Pubrec, Pubrel
from tests.broker.mail import TOPIC, arrive, publish, session_of, written
from tests.broker.stage import REPORTS, G, afresh, request, response
from tests.tables import each_row

if TYPE_CHECKING:
    from tests.broker.raw import Raw
    from tests.broker.stage import Stage

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("clean", [True, False])
"""Of the publisher's session."""


@BOTH
@each_row("topic", [TOPIC, response()])
@each_row("packet_id", [1, 0x1234, LARGEST_ID])
@afresh
async def test_a_message_is_received_released_and_completed(
    stage: Stage, packet_id: int, topic: str, *, clean: bool
) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, "mt/gateway/+/response/#")
    gateway = await stage.gateway(clean=clean)
    gateway.send(Publish(topic, b"{}", 2, packet_id=packet_id))
    assert await gateway.expect(Pubrec) == Pubrec(packet_id)
    gateway.send(Pubrel(packet_id))
    assert await gateway.expect(Pubcomp) == Pubcomp(packet_id)
    assert gateway.bytes[-8:] == b"\x50\x02" + packet_id.to_bytes(2) + b"\x70\x02" + packet_id.to_bytes(2)
    assert await gateway.until_pong() == []
    await arrive(viewer, b"{}")
    assert len(stage.consumer.messages) == (topic == TOPIC)


@BOTH
@each_row("dup", [False, True])
@afresh
async def test_a_repetition_before_the_release_is_passed_on_once(
    stage: Stage, *, dup: bool, clean: bool
) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway(clean=clean)
    await receive(gateway, 7)
    await receive(gateway, 7, dup=dup)
    await receive(gateway, 8)
    await arrive(viewer, b"7", b"8")
    assert [message.payload for message in stage.consumer.messages] == [b"7", b"8"]


async def test_a_repetition_in_the_same_round_is_passed_on_once(stage: Stage) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway(clean=False)
    stage.consumer.open.clear()
    first = Publish(TOPIC, b"7", 2, packet_id=7)
    gateway.send(first, Publish(TOPIC, b"7", 2, dup=True, packet_id=7))
    assert await gateway.until_pong() == []
    gateway.cut()
    gateway = await stage.gateway(clean=False)
    gateway.send(Publish(TOPIC, b"7", 2, dup=True, packet_id=7))
    assert await gateway.until_pong() == []
    stage.consumer.open.set()
    assert await gateway.expect(Pubrec) == Pubrec(7)
    await arrive(viewer, b"7")
    assert stage.consumer.messages == [first]


@BOTH
async def test_the_same_packet_id_after_its_pubcomp_is_a_new_message(stage: Stage, *, clean: bool) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway(clean=clean)
    for dup in (False, False, True):
        await receive(gateway, 7, dup=dup)
        await release(gateway, 7)
    await arrive(viewer, b"7", b"7", b"7")
    assert len(stage.consumer.messages) == 3


async def test_a_message_behind_its_own_release_is_a_new_one(stage: Stage) -> None:
    """All in one piece, so in one round."""
    gateway = await stage.gateway(clean=False)
    message = Publish(TOPIC, b"7", 2, packet_id=7)
    gateway.send(message, Pubrel(7), message, Pubrel(7), message)
    answers = [await gateway.receive() for _ in range(5)]
    assert answers == [Pubrec(7), Pubcomp(7), Pubrec(7), Pubcomp(7), Pubrec(7)]
    assert stage.consumer.messages == [message] * 3
    assert (await written(stage)).received == [(1, 7)]


async def test_a_repetition_after_a_kill_is_passed_on_once(stage: Stage) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, clean=False)
    gateway = await stage.gateway(clean=False)
    await receive(gateway, 7)
    (message,) = await arrive(viewer, b"7")
    viewer.send(Puback(message.packet_id))
    assert await viewer.until_pong() == []
    await stage.restart()
    viewer = await stage.client("viewer", clean=False)
    gateway = await stage.gateway(clean=False)
    await receive(gateway, 7, dup=True)
    assert await viewer.until_pong() == []
    await release(gateway, 7)
    await stage.restart()
    viewer = await stage.client("viewer", clean=False)
    gateway = await stage.gateway(clean=False)
    await receive(gateway, 7)
    await arrive(viewer, b"7")
    assert [message.payload for message in stage.consumer.messages] == [b"7", b"7"]


async def test_a_release_on_another_connection_is_completed(stage: Stage) -> None:
    gateway = await stage.gateway(clean=False)
    await receive(gateway, 7)
    gateway.cut()
    gateway = await stage.gateway(clean=False)
    await release(gateway, 7)
    await release(gateway, 7)
    await release(gateway, LARGEST_ID)
    assert session_of(stage, G).received == set()
    assert (await written(stage)).received == []
    gateway.cut()
    await stage.restart()
    gateway = await stage.gateway(clean=False)
    await release(gateway, 7)


async def test_an_unknown_release_of_a_clean_session_is_completed(stage: Stage) -> None:
    gateway = await stage.gateway()
    await receive(gateway, 7)
    gateway.cut()
    gateway = await stage.gateway()
    await release(gateway, 7)


async def test_a_clean_session_forgets_what_was_not_released(stage: Stage) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway(clean=False)
    await receive(gateway, 7)
    gateway.cut()
    gateway = await stage.gateway(clean=True)
    await receive(gateway, 7, dup=True)
    await arrive(viewer, b"7", b"7")
    assert (await written(stage)).received == []


async def test_the_packet_ids_of_two_publishers_are_two(stage: Stage) -> None:
    other = "02005e000002"
    viewer = await stage.subscriber("viewer", REPORTS)
    await receive(await stage.gateway(clean=False), 7)
    gateway = await stage.gateway(other, clean=False)
    gateway.send(Publish(TOPIC.replace(G, other), b"other", 2, packet_id=7))
    assert await gateway.expect(Pubrec) == Pubrec(7)
    await arrive(viewer, b"7", b"other")


async def test_one_packet_id_at_qos_1_and_2_is_two_messages(stage: Stage) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway()
    await receive(gateway, 1)
    await publish(gateway, b"at 1")
    await release(gateway, 1)
    await arrive(viewer, b"1", b"at 1")


@BOTH
async def test_a_pubrec_and_a_pubcomp_follow_the_commit(stage: Stage, *, clean: bool) -> None:
    gateway = await stage.gateway(clean=clean)
    stage.consumer.open.clear()
    gateway.send(Publish(TOPIC, b"7", 2, packet_id=7))
    assert await gateway.until_pong() == []
    assert (await written(stage)).received == []
    stage.consumer.open.set()
    assert await gateway.expect(Pubrec) == Pubrec(7)
    assert (await written(stage)).received == ([] if clean else [(1, 7)])
    if not clean:
        stage.consumer.open.clear()
        gateway.send(Pubrel(7))
        assert await gateway.until_pong() == []
        stage.consumer.open.set()
        assert await gateway.expect(Pubcomp) == Pubcomp(7)
        assert (await written(stage)).received == []


async def test_pubrecs_come_in_the_order_of_their_messages(stage: Stage) -> None:
    gateway = await stage.gateway()
    ids = [5, 3, LARGEST_ID, 1, 3, 4]
    gateway.send(*(Publish(TOPIC, b"{}", 2, packet_id=n) for n in ids[:3]))
    gateway.send(*(Publish(request(), b"{}", 2, packet_id=n) for n in ids[3:]))
    assert [(await gateway.expect(Pubrec)).packet_id for _ in ids] == ids


async def receive(gateway: Raw, packet_id: int, *, dup: bool = False) -> None:
    """Publish the packet id at QoS 2, and wait until the broker has it."""
    gateway.send(Publish(TOPIC, b"%d" % packet_id, 2, dup=dup, packet_id=packet_id))
    assert await gateway.expect(Pubrec) == Pubrec(packet_id)


async def release(gateway: Raw, packet_id: int) -> None:
    """Let go of it."""
    gateway.send(Pubrel(packet_id))
    assert await gateway.expect(Pubcomp) == Pubcomp(packet_id)
