"""PUBLISH: its acknowledgement, and the clients that receive the message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.mqtt.codec.packets import MAX_PACKET_ID, Disconnect, Puback, Publish, Pubrec, Subscribe
from tests.mqtt.broker.messages import (
    TOPIC,
    advance_packet_ids,
    expect_messages,
    load_stored,
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

OTHER = "02005e000002"
"""Another gateway."""


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("limits", [BrokerLimits(in_flight=3)])
async def test_a_packet_id_is_not_used_again_before_its_puback(server: RunningBroker, *, clean: bool) -> None:
    viewer = await server.subscriber("viewer", REPORTS, clean=clean)
    gateway = await server.gateway()
    await publish(gateway, b"held")
    (held,) = await expect_messages(viewer, b"held")
    assert held.packet_id == 1
    advance_packet_ids(server, "viewer", MAX_PACKET_ID - 1)
    await publish(gateway, b"a", b"b", b"queued")
    a, b = await expect_messages(viewer, b"a", b"b")
    assert [a.packet_id, b.packet_id] == [MAX_PACKET_ID, 2]
    advance_packet_ids(server, "viewer", MAX_PACKET_ID)
    await publish(gateway, b"same id")
    viewer.send(Puback(a.packet_id), Puback(b.packet_id))
    (queued,) = await expect_messages(viewer, b"queued")
    assert queued.packet_id == 3
    viewer.send(Puback(held.packet_id))  # the next message waited for it
    assert [message.packet_id for message in await expect_messages(viewer, b"same id")] == [1]


@each_row("topic", [TOPIC, response()])
@each_row("clean", [True, False])
@with_fresh_broker
async def test_a_message_gets_the_acknowledgement_of_its_qos_with_its_packet_id(
    server: RunningBroker, topic: str, *, clean: bool
) -> None:
    gateway = await server.gateway(clean=clean)
    for at_1, at_2 in [(1, MAX_PACKET_ID), (MAX_PACKET_ID, 1), (0x1234, 0x3412), (9, 9)]:
        gateway.send(
            Publish(topic, b"0"),
            Publish(topic, b"1", 1, packet_id=at_1),
            Publish(topic, b"2", 2, packet_id=at_2),
        )
        assert await gateway.expect(Puback) == Puback(at_1)
        assert await gateway.expect(Pubrec) == Pubrec(at_2)
        assert await gateway.receive_until_pong() == []


@pytest.mark.parametrize("qos", [1, 2])
async def test_the_dup_flag_is_not_forwarded(server: RunningBroker, qos: int) -> None:
    viewer = await server.subscriber("viewer", REPORTS)
    gateway = await server.gateway()
    gateway.send(Publish(TOPIC, b"again", qos, retain=True, dup=True, packet_id=1))
    (message,) = await receive_messages(viewer, 1)
    assert message == Publish(TOPIC, b"again", 1, packet_id=message.packet_id)
    (retained,) = await subscribe(await server.client("viewer-2"), (REPORTS, 1))
    assert (retained.payload, retained.dup) == (b"again", False)


@each_row("qos", [0, 1, 2])
@each_row(
    ("user", "topic"),
    [
        (G, report(OTHER)),
        (G, f"mt/gateway/{G}"),
        (G, f"mt/gateway/{G}x/device/{D}/heartbeat"),
        (G, f"mt/gateway/{G.upper()}/device/{D}/heartbeat"),
        (G, f"mt/gateways/request/{D}/read/8000"),
        (G, "$SYS/broker/version"),
        ("viewer", TOPIC),
        ("viewer", request()),
        ("operator", TOPIC),
        ("operator", request(device="any")),
    ],
)
@with_fresh_broker
async def test_a_forbidden_message_closes_the_connection(
    server: RunningBroker, user: str, topic: str, qos: int
) -> None:
    viewer = await server.subscriber("viewer-2", REPORTS, f"mt/gateway/{OTHER}/response/#")
    other = await server.subscriber(OTHER, f"mt/gateway/{OTHER}/#", "mt/gateways/#")
    delivered: list[Publish] = []
    server.broker.subscribe("#", delivered.append)
    publisher = await server.client(user)
    publisher.send(Publish(topic, b"{}", qos, retain=True, packet_id=7 if qos else 0))
    assert await publisher.receive_until_closed() == []
    assert await viewer.receive_until_pong() == []
    assert await other.receive_until_pong() == []
    assert delivered == []
    assert server.consumer.messages == []
    assert len(server.broker.retained) == 0
    assert [(each.action, each.topic) for each in server.authenticator.denials] == [("publish", topic)]


async def test_packets_before_a_forbidden_message_are_handled_and_later_ones_are_not(
    server: RunningBroker,
) -> None:
    viewer = await server.subscriber("viewer", REPORTS)
    gateway = await server.gateway()
    gateway.send(
        Publish(TOPIC, b"before", 1, packet_id=1),
        Publish(report(OTHER), b"forbidden", 1, packet_id=2),
        Publish(TOPIC, b"behind", 1, packet_id=3),
        Subscribe(4, ((f"mt/gateway/{G}/#", 1),)),
    )
    assert await gateway.receive_until_closed() in ([], [Puback(1)])
    await expect_messages(viewer, b"before")
    await server.until(lambda: bool(server.consumer.messages))
    assert [message.payload for message in server.consumer.messages] == [b"before"]


async def test_a_message_at_qos_0_is_delivered_once(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS, clean=False)
    gateway = await server.gateway()
    before = len(viewer.bytes)
    gateway.send(Publish(TOPIC, b"once"))
    assert await viewer.expect(Publish) == Publish(TOPIC, b"once")
    assert viewer.bytes[before] == 0x30
    viewer.abort()
    viewer = await server.client("viewer", clean=False)
    assert await viewer.receive_until_pong() == []
    assert (await load_stored(server)).messages == []
    await server.until(lambda: len(server.consumer.messages) == 1)


async def test_a_message_at_qos_0_does_not_wait_for_an_absent_client(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS, clean=False)
    await viewer.close()
    await server.until(lambda: session_of(server, "viewer").connection is None)
    gateway = await server.gateway()
    gateway.send(Publish(TOPIC, b"missed"))
    await publish(gateway, b"kept")
    viewer = await server.client("viewer", clean=False)
    await expect_messages(viewer, b"kept")


async def test_a_puback_follows_the_commit(server: RunningBroker) -> None:
    gateway = await server.gateway()
    server.consumer.open.clear()
    gateway.send(Publish(TOPIC, b"{}", 1, packet_id=7))
    for _ in range(3):
        assert await gateway.receive_until_pong() == []
    assert server.consumer.messages == []
    server.consumer.open.set()
    assert await gateway.expect(Puback) == Puback(7)
    assert server.consumer.messages == [Publish(TOPIC, b"{}", 1, packet_id=7)]
    assert await gateway.receive_until_pong() == []


async def test_the_same_packet_id_after_its_puback_is_a_new_message(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS)
    gateway = await server.gateway(clean=False)
    for dup in (False, True):
        gateway.send(Publish(TOPIC, b"{}", 1, dup=dup, packet_id=5))
        assert await gateway.expect(Puback) == Puback(5)
    first, second = await expect_messages(viewer, b"{}", b"{}")
    assert first.packet_id != second.packet_id
    assert len(server.consumer.messages) == 2


async def test_the_same_packet_id_before_its_puback_is_acknowledged_each_time(server: RunningBroker) -> None:
    gateway = await server.gateway()
    gateway.send(Publish(TOPIC, b"a", 1, packet_id=5), Publish(TOPIC, b"b", 1, packet_id=5))
    assert [await gateway.expect(Puback) for _ in range(2)] == [Puback(5), Puback(5)]
    assert [message.payload for message in server.consumer.messages] == [b"a", b"b"]


@pytest.mark.parametrize("topic", [TOPIC, response()], ids=["report", "response"])
async def test_a_message_reaches_every_subscriber(server: RunningBroker, topic: str) -> None:
    kind = topic.split("/")[3]
    wildcard = await server.subscriber("viewer", f"mt/gateway/+/{kind}/#")
    exact = await server.subscriber("operator", topic, clean=False)
    absent = await server.subscriber("admin", f"mt/gateway/{G}/{kind}/+/+/+", clean=False)
    await absent.close()
    other = await server.subscriber("viewer-2", f"mt/gateway/{OTHER}/{kind}/#", f"{topic}/more")
    gateway = await server.gateway()
    await publish(gateway, b"news", topic=topic)
    await expect_messages(wildcard, b"news")
    await expect_messages(exact, b"news")
    assert await other.receive_until_pong() == []
    await expect_messages(await server.client("admin", clean=False), b"news")


async def test_a_gateway_receives_its_own_messages_if_it_subscribed(server: RunningBroker) -> None:
    gateway = await server.subscriber(G, f"mt/gateway/{G}/#")
    gateway.send(Publish(TOPIC, b"echo"))
    await expect_messages(gateway, b"echo")


@each_row("qos", [0, 1, 2])
@with_fresh_broker
async def test_a_message_right_before_a_disconnect_arrives(server: RunningBroker, qos: int) -> None:
    viewer = await server.subscriber("viewer", REPORTS)
    gateway = await server.gateway()
    gateway.send(Publish(TOPIC, b"last words", qos, packet_id=1 if qos else 0), Disconnect())
    await gateway.receive_until_closed()
    await expect_messages(viewer, b"last words")
    await server.until(lambda: len(server.consumer.messages) == 1)


@each_row("size", [0, 1, 125, 126, 127, 128, 16_383, 16_384, 200_000])
@with_fresh_broker
async def test_a_payload_arrives_as_it_was_sent(server: RunningBroker, size: int) -> None:
    payload = bytes(n % 251 for n in range(size))
    viewer = await server.subscriber("viewer", REPORTS)
    gateway = await server.gateway()
    for qos in (0, 1, 2):
        gateway.send(Publish(TOPIC, payload, qos, packet_id=1 if qos else 0))
        await expect_messages(viewer, payload)
    await server.until(lambda: [each.payload for each in server.consumer.messages] == [payload] * 3)


@each_row(
    ("user", "topic_filter"),
    [
        ("viewer", REPORTS),
        ("viewer", TOPIC),
        ("viewer", f"mt/gateway/+/device/{D}/#"),
        ("viewer", f"mt/gateway/{G}/device/+/+/8100"),
        (f"{G}", f"mt/gateway/{G}/#"),
        (f"{G.upper()}", f"mt/gateway/{G}/+/{D}/measurement/+"),
        ("service", "#"),
        ("service", "+/gateway/#"),
        ("service", f"+/+/+/+/{D}/+/+"),
    ],
)
@with_fresh_broker
async def test_a_subscription_or_its_end_takes_effect_between_two_reports(
    server: RunningBroker, user: str, topic_filter: str
) -> None:
    """Check the fast path of reports that only the consumer receives."""
    gateway = await server.client(G, client_id=G.upper()) if user == G else await server.gateway()
    await publish(gateway, b"alone")
    delivered: list[bytes] = []
    if user == "service":
        subscriber = server.broker.subscribe(topic_filter, lambda message: delivered.append(message.payload))
        await publish(gateway, b"heard", b"heard too")
        server.broker.unsubscribe(topic_filter, subscriber)
    else:
        client = await server.client(user.lower(), client_id=user)
        await subscribe(client, (topic_filter, 1))
        await publish(gateway, b"heard", b"heard too")
        delivered += [message.payload for message in await expect_messages(client, b"heard", b"heard too")]
        client.abort()
        await server.until(lambda: len(server.broker.sessions) == 1)
    await publish(gateway, b"alone again")
    assert delivered == [b"heard", b"heard too"]
    assert [message.payload for message in server.consumer.messages] == [
        b"alone",
        b"heard",
        b"heard too",
        b"alone again",
    ]


@each_row("character", ["\x01", "\x1f", "\x7f", "\x9f", "\ufdd0", "\uffff"])
@each_row("retain", [True, False])
@with_fresh_broker
async def test_a_topic_with_disallowed_characters_reaches_only_the_consumer(
    server: RunningBroker, character: str, *, retain: bool
) -> None:
    topic = report(kind=f"event/{character}")
    viewer = await server.subscriber("viewer", REPORTS)
    gateway = await server.gateway()
    gateway.send(Publish(topic, b"{}", 1, retain, packet_id=7))
    assert await gateway.expect(Puback) == Puback(7)
    assert [message.topic for message in server.consumer.messages] == [topic]
    assert await viewer.receive_until_pong() == []
    assert len(server.broker.retained) == 0


async def test_a_topic_may_have_any_other_character(server: RunningBroker) -> None:
    topic = report(kind="event/tür 東京 ☕ \u200d\xa0")
    viewer = await server.subscriber("viewer", REPORTS)
    gateway = await server.gateway()
    gateway.send(Publish(topic, b"{}", 1, packet_id=7))
    assert (await viewer.expect(Publish)).topic == topic
