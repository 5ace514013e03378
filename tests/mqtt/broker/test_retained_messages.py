"""Retained messages: which clients receive them, and how they are replaced and deleted."""

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

OTHER_TOPIC = report(kind="heartbeat")
"""Another topic that REPORTS matches."""
TOO_LARGE = bytes(0x1_0001)


async def test_a_retained_message_outlives_the_session_of_its_publisher(server: RunningBroker) -> None:
    gateway = await server.gateway(clean=True)
    await publish(gateway, b"kept", retain=True)
    gateway.send(Disconnect())
    await gateway.receive_until_closed()
    assert await receive_retained(server) == [(TOPIC, b"kept")]
    await server.gateway(clean=True)
    assert await receive_retained(server) == [(TOPIC, b"kept")]
    await server.restart()
    assert await receive_retained(server) == [(TOPIC, b"kept")]


@each_row("restarted", [False, True])
@each_row("qos", [0, 1, 2])
@with_fresh_broker
async def test_a_later_subscriber_receives_the_retained_message(
    server: RunningBroker, qos: int, *, restarted: bool
) -> None:
    gateway = await server.gateway()
    gateway.send(Publish(TOPIC, b"kept", qos, retain=True, packet_id=1 if qos else 0))
    await publish(gateway, b"{}", topic=request(), retain=True)
    if restarted:
        await server.restart()
    for requested in (0, 1, 2):
        (message,) = await subscribe(await server.client(f"viewer-{requested}"), (REPORTS, requested))
        granted = min(qos, requested, 1)
        assert message == Publish(TOPIC, b"kept", granted, retain=True, packet_id=granted)
    again = await server.gateway()
    messages = await subscribe(again, (f"mt/gateway/{G}/#", 1))
    assert [message.topic for message in messages] == [TOPIC]


async def test_a_request_with_the_retain_flag_is_delivered_and_not_retained(server: RunningBroker) -> None:
    gateway = await server.gateway()
    assert await subscribe(gateway, (f"mt/gateway/{G}/request/#", 1), ("mt/gateways/#", 1)) == []
    operator = await server.client("operator")
    for topic in (request(), f"mt/gateways/request/{D}/read/8000"):
        await publish(operator, b"{}", topic=topic, retain=True)
        (message,) = await expect_messages(gateway, b"{}")
        assert (message.topic, message.retain) == (topic, False)
    assert len(server.broker.retained) == 0
    assert (await load_stored(server)).retained == {}


async def test_a_new_subscription_receives_the_last_message_of_each_topic(server: RunningBroker) -> None:
    gateway = await server.gateway()
    for topic in (TOPIC, OTHER_TOPIC):
        await publish(gateway, b"old", f"new {topic}".encode(), topic=topic, retain=True)
    outside = f"mt/gateway/{G}/response/{D}/read/8000"
    await publish(gateway, b"not asked for", topic=outside, retain=True)
    received = await subscribe(await server.client("viewer"), (REPORTS, 1))
    expected = {(topic, f"new {topic}".encode()) for topic in (TOPIC, OTHER_TOPIC)}
    assert {(message.topic, message.payload) for message in received} == expected
    assert len(received) == 2
    assert all(message.retain for message in received)


async def test_a_message_at_qos_0_replaces_the_retained_one(server: RunningBroker) -> None:
    gateway = await server.gateway()
    await publish(gateway, b"old", retain=True)
    gateway.send(Publish(TOPIC, b"new", retain=True))
    await publish(gateway, b"a round later", topic=OTHER_TOPIC)
    (message,) = await subscribe(await server.client("viewer"), (REPORTS, 1))
    assert message == Publish(TOPIC, b"new", retain=True)
    await server.restart()
    assert await receive_retained(server) == [(TOPIC, b"new")]


@each_row("qos", [0, 1, 2])
@with_fresh_broker
async def test_a_message_beyond_the_limits_deletes_the_retained_one(server: RunningBroker, qos: int) -> None:
    viewer = await server.subscriber("viewer", REPORTS)
    gateway = await server.gateway()
    await publish(gateway, b"old", retain=True)
    gateway.send(Publish(TOPIC, TOO_LARGE, qos, retain=True, packet_id=9 if qos else 0))
    await expect_messages(viewer, b"old", TOO_LARGE)
    assert await receive_retained(server) == []
    await server.restart()
    assert await receive_retained(server) == []


async def test_deleting_a_retained_message_that_does_not_exist_writes_nothing(server: RunningBroker) -> None:
    failure = DatabaseUnavailable("a write now would fail")
    server.consumer.failures.append(failure)
    await server.broker.publish(response(), b"", retain=True)
    assert server.consumer.failures == [failure]


@pytest.mark.parametrize("size", [0xFFFF, 0x1_0000])
async def test_a_message_of_64_kib_is_retained(server: RunningBroker, size: int) -> None:
    await publish(await server.gateway(), bytes(size), retain=True)
    await server.restart()
    assert await receive_retained(server) == [(TOPIC, bytes(size))]


@pytest.mark.parametrize("qos", [0, 1])
async def test_existing_subscribers_receive_the_message_without_the_retain_flag(
    server: RunningBroker, qos: int
) -> None:
    viewer = await server.subscriber("viewer", REPORTS, qos=qos)
    absent = await server.subscriber("viewer-2", REPORTS, clean=False)
    await absent.close()
    gateway = await server.gateway()
    await publish(gateway, b"{}", retain=True)
    (message,) = await expect_messages(viewer, b"{}")
    assert message == Publish(TOPIC, b"{}", qos, packet_id=qos)
    absent = await server.client("viewer-2", clean=False)
    (message,) = await expect_messages(absent, b"{}")
    assert not message.retain


async def test_the_retain_flag_of_a_queued_message_survives_a_restart(server: RunningBroker) -> None:
    await publish(await server.gateway(), b"old", retain=True)
    viewer = await server.client("viewer", clean=False)
    (message,) = await subscribe(viewer, (REPORTS, 1))
    assert message.retain
    await server.restart()
    viewer = await server.client("viewer", clean=False)
    (again,) = await expect_messages(viewer, b"old")
    assert (again.retain, again.dup, again.packet_id) == (True, True, message.packet_id)


@each_row("qos", [0, 1, 2])
@with_fresh_broker
async def test_an_empty_message_is_delivered_and_deletes_the_retained_one(
    server: RunningBroker, qos: int
) -> None:
    viewer = await server.subscriber("viewer", REPORTS)
    gateway = await server.gateway()
    await publish(gateway, b"old", retain=True)
    await publish(gateway, b"another", topic=OTHER_TOPIC, retain=True)
    gateway.send(Publish(TOPIC, b"", qos, retain=True, packet_id=5 if qos else 0))
    received = await expect_messages(viewer, b"old", b"another", b"")
    assert [message.retain for message in received] == [False] * 3
    assert await receive_retained(server) == [(OTHER_TOPIC, b"another")]
    await server.restart()
    assert await receive_retained(server) == [(OTHER_TOPIC, b"another")]


@each_row("qos", [0, 1, 2])
@with_fresh_broker
async def test_an_empty_message_is_not_retained(server: RunningBroker, qos: int) -> None:
    gateway = await server.gateway()
    gateway.send(Publish(TOPIC, b"", qos, retain=True, packet_id=5 if qos else 0))
    await server.until(lambda: len(server.consumer.messages) == 1)
    assert len(server.broker.retained) == 0
    assert await receive_retained(server) == []
    await server.restart()
    assert len(server.broker.retained) == 0
    assert (await load_stored(server)).retained == {}


@each_row("payload", [b"passing", b"", TOO_LARGE])
@each_row("qos", [0, 1, 2])
@with_fresh_broker
async def test_a_message_without_the_retain_flag_does_not_change_the_retained_one(
    server: RunningBroker, qos: int, payload: bytes
) -> None:
    gateway = await server.gateway()
    await publish(gateway, b"kept", retain=True)
    gateway.send(Publish(TOPIC, payload, qos, packet_id=5 if qos else 0))
    gateway.send(Publish(OTHER_TOPIC, payload, qos, packet_id=6 if qos else 0))
    await server.until(lambda: len(server.consumer.messages) == 3)
    assert await receive_retained(server) == [(TOPIC, b"kept")]
    await server.restart()
    assert await receive_retained(server) == [(TOPIC, b"kept")]


@pytest.mark.parametrize("clean", [True, False])
async def test_subscribing_again_to_the_same_filter_resends_retained_messages(
    server: RunningBroker, *, clean: bool
) -> None:
    await publish(await server.gateway(), b"kept", retain=True)
    viewer = await server.client("viewer", clean=clean)
    for n in range(1, 4):
        (message,) = await subscribe(viewer, (REPORTS, 1))
        assert message == Publish(TOPIC, b"kept", 1, retain=True, packet_id=n)
    assert session_of(server, "viewer").subscriptions == {REPORTS: 1}


async def test_a_resumed_session_does_not_receive_retained_messages_again(server: RunningBroker) -> None:
    await publish(await server.gateway(), b"kept", retain=True)
    viewer = await server.client("viewer", clean=False)
    assert len(await subscribe(viewer, (REPORTS, 0))) == 1
    viewer.abort()
    viewer = await server.client("viewer", clean=False)
    assert await viewer.receive_until_pong() == []
    await server.restart()
    viewer = await server.client("viewer", clean=False)
    assert await viewer.receive_until_pong() == []


async def test_a_refused_filter_receives_no_retained_messages(server: RunningBroker) -> None:
    await publish(await server.gateway(), b"kept", retain=True)
    other = await server.client("02005e000002")
    other.send(Subscribe(1, ((REPORTS, 1),)))
    assert (await other.expect(Suback)).codes == (0x80,)
    assert await other.receive_until_pong() == []


@pytest.mark.parametrize("limits", [BrokerLimits(retained=20)])
async def test_messages_beyond_the_limits_are_delivered_and_not_retained(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS)
    gateway = await server.gateway()
    for n in range(4):
        await publish(gateway, b"%d" % n, topic=report(kind=f"event/{n}"), retain=True)
    await expect_messages(viewer, b"0", b"1", b"2", b"3")  # one account may retain a tenth of all
    assert {payload for _, payload in await receive_retained(server)} == {b"0", b"1"}
    await publish(gateway, b"", topic=report(kind="event/0"), retain=True)
    await publish(gateway, b"new", topic=report(kind="event/3"), retain=True)
    await publish(gateway, b"newer", topic=report(kind="event/1"), retain=True)
    await publish(gateway, b"too long", topic=report(kind="x" * 1024), retain=True)
    assert {payload for _, payload in await receive_retained(server)} == {b"new", b"newer"}
    await server.restart()
    assert {payload for _, payload in await receive_retained(server)} == {b"new", b"newer"}
    gateway = await server.gateway()
    await publish(gateway, b"one more", topic=report(kind="event/4"), retain=True)
    assert len(server.broker.retained) == 2


@pytest.mark.parametrize("limits", [BrokerLimits(queue_bytes=10_000, in_flight=5)])
async def test_more_retained_messages_than_a_queue_holds_do_not_cut_a_new_subscriber_off(
    server: RunningBroker,
) -> None:
    gateway = await server.gateway()
    for n, payload in enumerate(numbered_payloads(20)):
        await publish(gateway, payload, topic=report(kind=f"event/{n}"), retain=True)
    viewer = await server.client("viewer")
    viewer.send(Subscribe(1, ((REPORTS, 1),)))
    for message in await receive_messages(viewer, 5):
        viewer.send(Puback(message.packet_id))
    assert isinstance(await viewer.receive(), Publish | Suback)
    assert all(isinstance(packet, Publish | Suback) for packet in await viewer.receive_until_pong())


async def receive_retained(server: RunningBroker) -> list[tuple[str, bytes]]:
    """Return the retained messages that a new client receives, and compare them with the database."""
    viewer = await server.client("viewer-new")
    received = await subscribe(viewer, (REPORTS, 1))
    assert all(message.retain for message in received)
    found = [(message.topic, message.payload) for message in received]
    viewer.send(Disconnect())
    await viewer.receive_until_closed()
    await publish(await server.client("02005e0000ff"), b"", topic=report("02005e0000ff"))  # forces a commit
    stored = (await load_stored(server)).retained
    assert sorted(found) == sorted((topic, row.payload) for topic, row in stored.items())
    return found
