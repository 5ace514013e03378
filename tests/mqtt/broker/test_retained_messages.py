"""Retained messages: who gets them, and how they go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.errors import DatabaseUnavailable
from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.mqtt.codec.packets import Disconnect, Puback, Publish, Suback, Subscribe
from tests.mqtt.broker.messages import (
    TOPIC,
    expect_messages,
    load_stored,
    numbered_payloads,
    publish,
    receive_messages,
    session_of,
    subscribe,
)
from tests.mqtt.broker.running_broker import REPORTS, D, G, report, request, response, with_fresh_broker
from tests.row_tables import each_row

if TYPE_CHECKING:
    from tests.mqtt.broker.running_broker import RunningBroker

pytestmark = pytest.mark.anyio

ELSEWHERE = report(kind="heartbeat")
"""Another topic that REPORTS matches."""
TOO_LARGE = bytes(0x1_0001)


async def test_a_retained_message_outlives_the_session_of_its_publisher(stage: RunningBroker) -> None:
    gateway = await stage.gateway(clean=True)
    await publish(gateway, b"kept", retain=True)
    gateway.send(Disconnect())
    await gateway.receive_until_closed()
    assert await what_is_retained(stage) == [(TOPIC, b"kept")]
    await stage.gateway(clean=True)
    assert await what_is_retained(stage) == [(TOPIC, b"kept")]
    await stage.restart()
    assert await what_is_retained(stage) == [(TOPIC, b"kept")]


@each_row("restarted", [False, True])
@each_row("qos", [0, 1, 2])
@with_fresh_broker
async def test_a_later_subscriber_gets_what_was_retained(
    stage: RunningBroker, qos: int, *, restarted: bool
) -> None:
    gateway = await stage.gateway()
    gateway.send(Publish(TOPIC, b"kept", qos, retain=True, packet_id=1 if qos else 0))
    await publish(gateway, b"{}", topic=request(), retain=True)
    if restarted:
        await stage.restart()
    for wanted in (0, 1, 2):
        (message,) = await subscribe(await stage.client(f"viewer-{wanted}"), (REPORTS, wanted))
        granted = min(qos, wanted, 1)
        assert message == Publish(TOPIC, b"kept", granted, retain=True, packet_id=granted)
    again = await stage.gateway()
    own = await subscribe(again, (f"mt/gateway/{G}/#", 1))
    assert [message.topic for message in own] == [TOPIC]


async def test_a_request_to_be_retained_is_delivered_and_not_retained(stage: RunningBroker) -> None:
    gateway = await stage.gateway()
    assert await subscribe(gateway, (f"mt/gateway/{G}/request/#", 1), ("mt/gateways/#", 1)) == []
    operator = await stage.client("operator")
    for topic in (request(), f"mt/gateways/request/{D}/read/8000"):
        await publish(operator, b"{}", topic=topic, retain=True)
        (message,) = await expect_messages(gateway, b"{}")
        assert (message.topic, message.retain) == (topic, False)
    assert len(stage.broker.retained) == 0
    assert (await load_stored(stage)).retained == {}


async def test_a_new_subscription_brings_the_last_message_of_each_topic(stage: RunningBroker) -> None:
    gateway = await stage.gateway()
    for topic in (TOPIC, ELSEWHERE):
        await publish(gateway, b"old", f"new {topic}".encode(), topic=topic, retain=True)
    outside = f"mt/gateway/{G}/response/{D}/read/8000"
    await publish(gateway, b"not asked for", topic=outside, retain=True)
    come = await subscribe(await stage.client("viewer"), (REPORTS, 1))
    expected = {(topic, f"new {topic}".encode()) for topic in (TOPIC, ELSEWHERE)}
    assert {(message.topic, message.payload) for message in come} == expected
    assert len(come) == 2
    assert all(message.retain for message in come)


async def test_a_message_at_qos_0_takes_the_place_of_what_was_retained(stage: RunningBroker) -> None:
    gateway = await stage.gateway()
    await publish(gateway, b"old", retain=True)
    gateway.send(Publish(TOPIC, b"new", retain=True))
    await publish(gateway, b"a round later", topic=ELSEWHERE)
    (message,) = await subscribe(await stage.client("viewer"), (REPORTS, 1))
    assert message == Publish(TOPIC, b"new", retain=True)
    await stage.restart()
    assert await what_is_retained(stage) == [(TOPIC, b"new")]


@each_row("qos", [0, 1, 2])
@with_fresh_broker
async def test_a_message_without_a_place_drops_what_was_retained(stage: RunningBroker, qos: int) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway()
    await publish(gateway, b"old", retain=True)
    gateway.send(Publish(TOPIC, TOO_LARGE, qos, retain=True, packet_id=9 if qos else 0))
    await expect_messages(viewer, b"old", TOO_LARGE)
    assert await what_is_retained(stage) == []
    await stage.restart()
    assert await what_is_retained(stage) == []


async def test_where_nothing_was_retained_there_is_nothing_to_take_back(stage: RunningBroker) -> None:
    is_away = DatabaseUnavailable("whoever writes now has to wait")
    stage.consumer.failures.append(is_away)
    await stage.broker.publish(response(), b"", retain=True)
    assert stage.consumer.failures == [is_away]


@pytest.mark.parametrize("size", [0xFFFF, 0x1_0000])
async def test_a_message_of_64_kib_is_retained(stage: RunningBroker, size: int) -> None:
    await publish(await stage.gateway(), bytes(size), retain=True)
    await stage.restart()
    assert await what_is_retained(stage) == [(TOPIC, bytes(size))]


@pytest.mark.parametrize("qos", [0, 1])
async def test_who_subscribed_before_gets_the_message_without_the_mark(
    stage: RunningBroker, qos: int
) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, qos=qos)
    absent = await stage.subscriber("viewer-2", REPORTS, clean=False)
    await absent.close()
    gateway = await stage.gateway()
    await publish(gateway, b"{}", retain=True)
    (message,) = await expect_messages(viewer, b"{}")
    assert message == Publish(TOPIC, b"{}", qos, packet_id=qos)
    absent = await stage.client("viewer-2", clean=False)
    (message,) = await expect_messages(absent, b"{}")
    assert not message.retain


async def test_the_mark_outlives_the_service_where_it_was_given(stage: RunningBroker) -> None:
    await publish(await stage.gateway(), b"old", retain=True)
    viewer = await stage.client("viewer", clean=False)
    (message,) = await subscribe(viewer, (REPORTS, 1))
    assert message.retain
    await stage.restart()
    viewer = await stage.client("viewer", clean=False)
    (again,) = await expect_messages(viewer, b"old")
    assert (again.retain, again.dup, again.packet_id) == (True, True, message.packet_id)


@each_row("qos", [0, 1, 2])
@with_fresh_broker
async def test_an_empty_message_is_delivered_and_removes_what_was_retained(
    stage: RunningBroker, qos: int
) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway()
    await publish(gateway, b"old", retain=True)
    await publish(gateway, b"another", topic=ELSEWHERE, retain=True)
    gateway.send(Publish(TOPIC, b"", qos, retain=True, packet_id=5 if qos else 0))
    come = await expect_messages(viewer, b"old", b"another", b"")
    assert [message.retain for message in come] == [False] * 3
    assert await what_is_retained(stage) == [(ELSEWHERE, b"another")]
    await stage.restart()
    assert await what_is_retained(stage) == [(ELSEWHERE, b"another")]


@each_row("qos", [0, 1, 2])
@with_fresh_broker
async def test_an_empty_message_is_not_retained(stage: RunningBroker, qos: int) -> None:
    gateway = await stage.gateway()
    gateway.send(Publish(TOPIC, b"", qos, retain=True, packet_id=5 if qos else 0))
    await stage.until(lambda: len(stage.consumer.messages) == 1)
    assert len(stage.broker.retained) == 0
    assert await what_is_retained(stage) == []
    await stage.restart()
    assert len(stage.broker.retained) == 0
    assert (await load_stored(stage)).retained == {}


@each_row("payload", [b"passing", b"", TOO_LARGE])
@each_row("qos", [0, 1, 2])
@with_fresh_broker
async def test_an_ordinary_message_leaves_what_is_retained_alone(
    stage: RunningBroker, qos: int, payload: bytes
) -> None:
    gateway = await stage.gateway()
    await publish(gateway, b"kept", retain=True)
    gateway.send(Publish(TOPIC, payload, qos, packet_id=5 if qos else 0))
    gateway.send(Publish(ELSEWHERE, payload, qos, packet_id=6 if qos else 0))
    await stage.until(lambda: len(stage.consumer.messages) == 3)
    assert await what_is_retained(stage) == [(TOPIC, b"kept")]
    await stage.restart()
    assert await what_is_retained(stage) == [(TOPIC, b"kept")]


@pytest.mark.parametrize("clean", [True, False])
async def test_the_same_filter_again_brings_what_was_retained_again(
    stage: RunningBroker, *, clean: bool
) -> None:
    await publish(await stage.gateway(), b"kept", retain=True)
    viewer = await stage.client("viewer", clean=clean)
    for n in range(1, 4):
        (message,) = await subscribe(viewer, (REPORTS, 1))
        assert message == Publish(TOPIC, b"kept", 1, retain=True, packet_id=n)
    assert session_of(stage, "viewer").subscriptions == {REPORTS: 1}


async def test_a_resumed_session_does_not_get_again_what_was_retained(stage: RunningBroker) -> None:
    await publish(await stage.gateway(), b"kept", retain=True)
    viewer = await stage.client("viewer", clean=False)
    assert len(await subscribe(viewer, (REPORTS, 0))) == 1
    viewer.abort()
    viewer = await stage.client("viewer", clean=False)
    assert await viewer.receive_until_pong() == []
    await stage.restart()
    viewer = await stage.client("viewer", clean=False)
    assert await viewer.receive_until_pong() == []


async def test_a_refused_filter_brings_nothing(stage: RunningBroker) -> None:
    await publish(await stage.gateway(), b"kept", retain=True)
    other = await stage.client("02005e000002")
    other.send(Subscribe(1, ((REPORTS, 1),)))
    assert (await other.expect(Suback)).codes == (0x80,)
    assert await other.receive_until_pong() == []


@pytest.mark.parametrize("limits", [BrokerLimits(retained=20)])
async def test_what_is_beyond_the_limits_is_delivered_and_not_retained(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway()
    for n in range(4):
        await publish(gateway, b"%d" % n, topic=report(kind=f"event/{n}"), retain=True)
    await expect_messages(viewer, b"0", b"1", b"2", b"3")  # a tenth of all places is for one account
    assert {payload for _, payload in await what_is_retained(stage)} == {b"0", b"1"}
    await publish(gateway, b"", topic=report(kind="event/0"), retain=True)
    await publish(gateway, b"new", topic=report(kind="event/3"), retain=True)
    await publish(gateway, b"newer", topic=report(kind="event/1"), retain=True)
    await publish(gateway, b"too long", topic=report(kind="x" * 1024), retain=True)
    assert {payload for _, payload in await what_is_retained(stage)} == {b"new", b"newer"}
    await stage.restart()
    assert {payload for _, payload in await what_is_retained(stage)} == {b"new", b"newer"}
    gateway = await stage.gateway()
    await publish(gateway, b"one more", topic=report(kind="event/4"), retain=True)
    assert len(stage.broker.retained) == 2


@pytest.mark.parametrize("limits", [BrokerLimits(queue_bytes=10_000, in_flight=5)])
async def test_more_retained_messages_than_a_queue_holds_do_not_cut_a_new_subscriber_off(
    stage: RunningBroker,
) -> None:
    gateway = await stage.gateway()
    for n, payload in enumerate(numbered_payloads(20)):
        await publish(gateway, payload, topic=report(kind=f"event/{n}"), retain=True)
    viewer = await stage.client("viewer")
    viewer.send(Subscribe(1, ((REPORTS, 1),)))
    for message in await receive_messages(viewer, 5):
        viewer.send(Puback(message.packet_id))
    assert isinstance(await viewer.receive(), Publish | Suback)
    assert all(isinstance(packet, Publish | Suback) for packet in await viewer.receive_until_pong())


async def what_is_retained(stage: RunningBroker) -> list[tuple[str, bytes]]:
    """What somebody new gets, which must be what is written down."""
    viewer = await stage.client("viewer-new")
    come = await subscribe(viewer, (REPORTS, 1))
    assert all(message.retain for message in come)
    found = [(message.topic, message.payload) for message in come]
    viewer.send(Disconnect())
    await viewer.receive_until_closed()
    await publish(await stage.client("02005e0000ff"), b"", topic=report("02005e0000ff"))  # a commit
    saved = (await load_stored(stage)).retained
    assert sorted(found) == sorted((topic, row.payload) for topic, row in saved.items())
    return found
