"""What becomes of a message: its answer, and who gets it."""

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
async def test_a_packet_id_is_not_used_again_before_its_puback(stage: RunningBroker, *, clean: bool) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, clean=clean)
    gateway = await stage.gateway()
    await publish(gateway, b"held")
    (held,) = await expect_messages(viewer, b"held")
    assert held.packet_id == 1
    advance_packet_ids(stage, "viewer", MAX_PACKET_ID - 1)
    await publish(gateway, b"a", b"b", b"queued")
    a, b = await expect_messages(viewer, b"a", b"b")
    assert [a.packet_id, b.packet_id] == [MAX_PACKET_ID, 2]
    advance_packet_ids(stage, "viewer", MAX_PACKET_ID)
    await publish(gateway, b"same id")
    viewer.send(Puback(a.packet_id), Puback(b.packet_id))
    (queued,) = await expect_messages(viewer, b"queued")
    assert queued.packet_id == 3
    viewer.send(Puback(held.packet_id))  # which the next one waited for
    assert [message.packet_id for message in await expect_messages(viewer, b"same id")] == [1]


@each_row("topic", [TOPIC, response()])
@each_row("clean", [True, False])
@with_fresh_broker
async def test_a_message_gets_the_answer_of_its_qos_with_its_packet_id(
    stage: RunningBroker, topic: str, *, clean: bool
) -> None:
    gateway = await stage.gateway(clean=clean)
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
async def test_the_mark_of_a_repetition_is_not_passed_on(stage: RunningBroker, qos: int) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway()
    gateway.send(Publish(TOPIC, b"again", qos, retain=True, dup=True, packet_id=1))
    (message,) = await receive_messages(viewer, 1)
    assert message == Publish(TOPIC, b"again", 1, packet_id=message.packet_id)
    (retained,) = await subscribe(await stage.client("viewer-2"), (REPORTS, 1))
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
        ("operator", request(device="everybody")),
    ],
)
@with_fresh_broker
async def test_a_forbidden_message_closes_the_connection(
    stage: RunningBroker, user: str, topic: str, qos: int
) -> None:
    viewer = await stage.subscriber("viewer-2", REPORTS, f"mt/gateway/{OTHER}/response/#")
    other = await stage.subscriber(OTHER, f"mt/gateway/{OTHER}/#", "mt/gateways/#")
    heard: list[Publish] = []
    stage.broker.subscribe("#", heard.append)
    culprit = await stage.client(user)
    culprit.send(Publish(topic, b"{}", qos, retain=True, packet_id=7 if qos else 0))
    assert await culprit.receive_until_closed() == []
    assert await viewer.receive_until_pong() == []
    assert await other.receive_until_pong() == []
    assert heard == []
    assert stage.consumer.messages == []
    assert len(stage.broker.retained) == 0
    assert [(each.action, each.topic) for each in stage.authenticator.denials] == [("publish", topic)]


async def test_what_came_before_a_forbidden_message_counts_and_what_comes_behind_it_does_not(
    stage: RunningBroker,
) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway()
    gateway.send(
        Publish(TOPIC, b"before", 1, packet_id=1),
        Publish(report(OTHER), b"forbidden", 1, packet_id=2),
        Publish(TOPIC, b"behind", 1, packet_id=3),
        Subscribe(4, ((f"mt/gateway/{G}/#", 1),)),
    )
    assert await gateway.receive_until_closed() in ([], [Puback(1)])
    await expect_messages(viewer, b"before")
    await stage.until(lambda: bool(stage.consumer.messages))
    assert [message.payload for message in stage.consumer.messages] == [b"before"]


async def test_a_message_at_qos_0_is_passed_on_once(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, clean=False)
    gateway = await stage.gateway()
    before = len(viewer.bytes)
    gateway.send(Publish(TOPIC, b"once"))
    assert await viewer.expect(Publish) == Publish(TOPIC, b"once")
    assert viewer.bytes[before] == 0x30
    viewer.abort()
    viewer = await stage.client("viewer", clean=False)
    assert await viewer.receive_until_pong() == []
    assert (await load_stored(stage)).messages == []
    await stage.until(lambda: len(stage.consumer.messages) == 1)


async def test_a_message_at_qos_0_does_not_wait_for_an_absent_client(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, clean=False)
    await viewer.close()
    await stage.until(lambda: session_of(stage, "viewer").connection is None)
    gateway = await stage.gateway()
    gateway.send(Publish(TOPIC, b"missed"))
    await publish(gateway, b"kept")
    viewer = await stage.client("viewer", clean=False)
    await expect_messages(viewer, b"kept")


async def test_a_puback_follows_the_commit(stage: RunningBroker) -> None:
    gateway = await stage.gateway()
    stage.consumer.open.clear()
    gateway.send(Publish(TOPIC, b"{}", 1, packet_id=7))
    for _ in range(3):
        assert await gateway.receive_until_pong() == []
    assert stage.consumer.messages == []
    stage.consumer.open.set()
    assert await gateway.expect(Puback) == Puback(7)
    assert stage.consumer.messages == [Publish(TOPIC, b"{}", 1, packet_id=7)]
    assert await gateway.receive_until_pong() == []


async def test_the_same_packet_id_after_its_puback_is_a_new_message(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway(clean=False)
    for dup in (False, True):
        gateway.send(Publish(TOPIC, b"{}", 1, dup=dup, packet_id=5))
        assert await gateway.expect(Puback) == Puback(5)
    first, second = await expect_messages(viewer, b"{}", b"{}")
    assert first.packet_id != second.packet_id
    assert len(stage.consumer.messages) == 2


async def test_the_same_packet_id_before_its_puback_is_acknowledged_each_time(stage: RunningBroker) -> None:
    gateway = await stage.gateway()
    gateway.send(Publish(TOPIC, b"a", 1, packet_id=5), Publish(TOPIC, b"b", 1, packet_id=5))
    assert [await gateway.expect(Puback) for _ in range(2)] == [Puback(5), Puback(5)]
    assert [message.payload for message in stage.consumer.messages] == [b"a", b"b"]


@pytest.mark.parametrize("topic", [TOPIC, response()], ids=["report", "response"])
async def test_a_message_reaches_everybody_who_asked_for_it(stage: RunningBroker, topic: str) -> None:
    place = topic.split("/")[3]
    wildcard = await stage.subscriber("viewer", f"mt/gateway/+/{place}/#")
    exact = await stage.subscriber("operator", topic, clean=False)
    absent = await stage.subscriber("admin", f"mt/gateway/{G}/{place}/+/+/+", clean=False)
    await absent.close()
    other = await stage.subscriber("viewer-2", f"mt/gateway/{OTHER}/{place}/#", f"{topic}/more")
    gateway = await stage.gateway()
    await publish(gateway, b"news", topic=topic)
    await expect_messages(wildcard, b"news")
    await expect_messages(exact, b"news")
    assert await other.receive_until_pong() == []
    await expect_messages(await stage.client("admin", clean=False), b"news")


async def test_a_gateway_hears_itself_when_it_asks_for_it(stage: RunningBroker) -> None:
    gateway = await stage.subscriber(G, f"mt/gateway/{G}/#")
    gateway.send(Publish(TOPIC, b"echo"))
    await expect_messages(gateway, b"echo")


@each_row("qos", [0, 1, 2])
@with_fresh_broker
async def test_a_message_right_before_a_disconnect_arrives(stage: RunningBroker, qos: int) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway()
    gateway.send(Publish(TOPIC, b"last words", qos, packet_id=1 if qos else 0), Disconnect())
    await gateway.receive_until_closed()
    await expect_messages(viewer, b"last words")
    await stage.until(lambda: len(stage.consumer.messages) == 1)


@each_row("size", [0, 1, 125, 126, 127, 128, 16_383, 16_384, 200_000])
@with_fresh_broker
async def test_a_payload_arrives_as_it_was_sent(stage: RunningBroker, size: int) -> None:
    payload = bytes(n % 251 for n in range(size))
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway()
    for qos in (0, 1, 2):
        gateway.send(Publish(TOPIC, payload, qos, packet_id=1 if qos else 0))
        await expect_messages(viewer, payload)
    await stage.until(lambda: [each.payload for each in stage.consumer.messages] == [payload] * 3)


@each_row(
    ("user", "wanted"),
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
async def test_who_begins_or_ends_to_listen_between_two_reports_changes_where_they_go(
    stage: RunningBroker, user: str, wanted: str
) -> None:
    """Reports that only the consumer wants take a shorter way."""
    gateway = await stage.client(G, client_id=G.upper()) if user == G else await stage.gateway()
    await publish(gateway, b"alone")
    heard: list[bytes] = []
    if user == "service":
        listener = stage.broker.subscribe(wanted, lambda message: heard.append(message.payload))
        await publish(gateway, b"heard", b"heard too")
        stage.broker.unsubscribe(wanted, listener)
    else:
        client = await stage.client(user.lower(), client_id=user)
        await subscribe(client, (wanted, 1))
        await publish(gateway, b"heard", b"heard too")
        heard += [message.payload for message in await expect_messages(client, b"heard", b"heard too")]
        client.abort()
        await stage.until(lambda: len(stage.broker.sessions) == 1)
    await publish(gateway, b"alone again")
    assert heard == [b"heard", b"heard too"]
    assert [message.payload for message in stage.consumer.messages] == [
        b"alone",
        b"heard",
        b"heard too",
        b"alone again",
    ]


@each_row("character", ["\x01", "\x1f", "\x7f", "\x9f", "\ufdd0", "\uffff"])
@each_row("retain", [True, False])
@with_fresh_broker
async def test_a_topic_that_makes_clients_hang_up_reaches_the_consumer_alone(
    stage: RunningBroker, character: str, *, retain: bool
) -> None:
    topic = report(kind=f"event/{character}")
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway()
    gateway.send(Publish(topic, b"{}", 1, retain, packet_id=7))
    assert await gateway.expect(Puback) == Puback(7)
    assert [message.topic for message in stage.consumer.messages] == [topic]
    assert await viewer.receive_until_pong() == []
    assert len(stage.broker.retained) == 0


async def test_a_topic_may_have_any_other_character(stage: RunningBroker) -> None:
    topic = report(kind="event/tür 東京 ☕ \u200d\xa0")
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway()
    gateway.send(Publish(topic, b"{}", 1, packet_id=7))
    assert (await viewer.expect(Publish)).topic == topic
