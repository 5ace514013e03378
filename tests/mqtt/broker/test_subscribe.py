"""SUBSCRIBE and UNSUBSCRIBE: their responses, and the messages of subscriptions."""

from __future__ import annotations

import pytest

from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.mqtt.codec.packets import (
    MAX_PACKET_ID,
    SUBACK_FAILURE,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from tests.mqtt.broker.messages import (
    TOPIC,
    acknowledge,
    expect_messages,
    load_stored,
    numbered_payloads,
    publish,
    receive_messages,
    session_of,
    subscribe,
)
from tests.mqtt.broker.running_broker import REPORTS, D, G, RunningBroker, report, request, with_fresh_broker
from tests.row_tables import each_row

pytestmark = pytest.mark.anyio

RESPONSES = "mt/gateway/+/response/#"


@each_row("clean", [True, False])
@each_row("packet_id", [1, MAX_PACKET_ID])
@with_fresh_broker
async def test_a_subscription_is_acknowledged_with_its_packet_id(
    server: RunningBroker, packet_id: int, *, clean: bool
) -> None:
    viewer = await server.client("viewer", clean=clean)
    viewer.send(Subscribe(packet_id, ((REPORTS, 1),)))
    assert await viewer.expect(Suback) == Suback(packet_id, (1,))
    assert viewer.bytes[-5:] == b"\x90\x03" + packet_id.to_bytes(2) + b"\x01"
    assert await viewer.receive_until_pong() == []


@each_row("clean", [True, False])
@each_row("packet_id", [1, MAX_PACKET_ID])
@with_fresh_broker
async def test_an_unsubscription_is_acknowledged_with_its_packet_id(
    server: RunningBroker, packet_id: int, *, clean: bool
) -> None:
    viewer = await server.subscriber("viewer", REPORTS, clean=clean)
    viewer.send(Unsubscribe(packet_id, (REPORTS,)))
    assert await viewer.expect(Unsuback) == Unsuback(packet_id)
    assert viewer.bytes[-4:] == b"\xb0\x02" + packet_id.to_bytes(2)
    assert await viewer.receive_until_pong() == []


@pytest.mark.parametrize("backwards", [False, True])
async def test_overlapping_filters_deliver_at_the_highest_granted_qos(
    server: RunningBroker, *, backwards: bool
) -> None:
    viewer = await server.client("viewer")
    filters = [(REPORTS, 0), (TOPIC, 1), (f"mt/gateway/{G}/device/+/+/+", 0)]
    await subscribe(viewer, *(reversed(filters) if backwards else filters))
    gateway = await server.gateway()
    await publish(gateway, b"{}")
    assert [message.qos for message in await expect_messages(viewer, b"{}")] == [1]
    viewer.send(Unsubscribe(2, (TOPIC,)))
    await viewer.expect(Unsuback)
    await publish(gateway, b"{}")
    assert [message.qos for message in await expect_messages(viewer, b"{}")] == [0]


async def test_the_same_filter_again_replaces_the_subscription(server: RunningBroker) -> None:
    viewer = await server.client("viewer", clean=False)
    gateway = await server.gateway()
    for qos in (1, 0, 1):
        await subscribe(viewer, (REPORTS, qos))
        await publish(gateway, b"{}")
        received = await expect_messages(viewer, b"{}")
        assert [message.qos for message in received] == [qos]
        assert session_of(server, "viewer").subscriptions == {REPORTS: qos}
        assert (await load_stored(server)).subscriptions == [(1, REPORTS, qos)]


async def test_no_message_is_lost_while_a_subscription_is_replaced(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS)
    gateway = await server.gateway()
    received: list[bytes] = []
    for n, payload in enumerate(numbered_payloads(300), 1):
        gateway.send(Publish(TOPIC, payload, 1, packet_id=n))
        viewer.send(Subscribe(n, ((REPORTS, 1 + n % 2),)))
        if n % 7 == 0:
            await gateway.receive_until_pong()  # so that both clients alternate
    while len(received) < 300:
        packet = await viewer.receive()
        assert isinstance(packet, Suback | Publish), packet
        if isinstance(packet, Publish):
            received.append(packet.payload)
            viewer.send(Puback(packet.packet_id))
    assert received == numbered_payloads(300)


async def test_several_filters_get_one_suback_with_their_codes_in_order(server: RunningBroker) -> None:
    viewer = await server.client("viewer")
    filters = ((REPORTS, 0), (f"mt/gateway/{G}/#", 1), (RESPONSES, 1))
    viewer.send(Subscribe(0x0102, filters))
    assert await viewer.expect(Suback) == Suback(0x0102, (0, SUBACK_FAILURE, 1))
    assert viewer.bytes.endswith(b"\x90\x05\x01\x02\x00\x80\x01")
    viewer.send(Subscribe(3, filters[::-1]))
    assert await viewer.expect(Suback) == Suback(3, (1, SUBACK_FAILURE, 0))
    assert await viewer.receive_until_pong() == []


@each_row(
    "forbidden",
    [
        "#",
        "+/gateway/#",
        "mt/#",
        "mt/+/+/device/#",
        f"mt/gateway/{G}/#",
        f"mt/gateway/{G}/+/{D}/read/8000",
        request(),
        "mt/gateway/+/request/#",
        "mt/gateways/#",
        "mt/gateway/any/device/#",
        "$SYS/#",
        "meshtech/diagnostics/#",
    ],
)
@with_fresh_broker
async def test_a_forbidden_filter_gets_0x80_and_the_others_are_granted(
    server: RunningBroker, forbidden: str
) -> None:
    viewer = await server.client("viewer")
    viewer.send(Subscribe(1, ((REPORTS, 1), (forbidden, 1), (RESPONSES, 1))))
    assert await viewer.expect(Suback) == Suback(1, (1, SUBACK_FAILURE, 1))
    gateway = await server.gateway()
    await publish(gateway, b"other", topic=request())
    await publish(gateway, b"report")
    await publish(gateway, b"response", topic=f"mt/gateway/{G}/response/{D}/read/8000")
    await expect_messages(viewer, b"report", b"response")
    assert [(each.action, each.topic) for each in server.authenticator.denials] == [("subscribe", forbidden)]


async def test_a_request_for_qos_2_is_granted_1(server: RunningBroker) -> None:
    viewer = await server.client("viewer")
    viewer.send(Subscribe(1, ((REPORTS, 2),)))
    assert await viewer.expect(Suback) == Suback(1, (1,))
    before = len(viewer.bytes)
    gateway = await server.gateway()
    gateway.send(Publish(TOPIC, b"{}", 2, packet_id=1))
    await receive_messages(viewer, 1)
    assert viewer.bytes[before] == 0x32


@each_row("requested", [0, 1, 2])
@each_row("qos", [0, 1, 2])
@with_fresh_broker
async def test_a_message_is_delivered_at_the_lower_of_its_qos_and_the_granted_one(
    server: RunningBroker, qos: int, requested: int
) -> None:
    viewer = await server.subscriber("viewer", REPORTS, qos=requested)
    gateway = await server.gateway()
    gateway.send(Publish(TOPIC, b"{}", qos, packet_id=1 if qos else 0))
    (message,) = await expect_messages(viewer, b"{}")
    assert message.qos == min(qos, requested, 1)
    assert bool(message.packet_id) == bool(message.qos)


@each_row(
    "another",
    [
        "mt/gateway/+/device/+",
        "mt/gateway/+/device/+/#",
        "mt/gateway/+/device",
        "mt/gateway/+/device/",
        "mt/gateway/#",
        "mt/gateway/+/DEVICE/#",
        f"mt/gateway/{G}/device/#",
        TOPIC,
        "#",
    ],
)
@with_fresh_broker
async def test_only_an_identical_filter_is_unsubscribed(server: RunningBroker, another: str) -> None:
    viewer = await server.subscriber("viewer", REPORTS)
    gateway = await server.gateway()
    viewer.send(Unsubscribe(2, (another,)))
    assert await viewer.expect(Unsuback) == Unsuback(2)
    await publish(gateway, b"still")
    await expect_messages(viewer, b"still")
    viewer.send(Unsubscribe(3, (REPORTS,)))
    assert await viewer.expect(Unsuback) == Unsuback(3)
    await publish(gateway, b"gone")
    assert await viewer.receive_until_pong() == []


@each_row("clean", [True, False])
@each_row("qos", [0, 1])
@with_fresh_broker
async def test_no_new_message_is_delivered_after_an_unsuback(
    server: RunningBroker, qos: int, *, clean: bool
) -> None:
    viewer = await server.subscriber("viewer", REPORTS, qos=qos, clean=clean)
    gateway = await server.gateway()
    viewer.send(Unsubscribe(2, (REPORTS,)))
    await viewer.expect(Unsuback)
    await publish(gateway, b"late")
    assert await viewer.receive_until_pong() == []
    viewer.abort()
    viewer = await server.client("viewer", clean=clean)
    await publish(gateway, b"later")
    assert await viewer.receive_until_pong() == []


async def test_a_delivery_that_began_before_an_unsubscribe_is_completed(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS, clean=False)
    gateway = await server.gateway()
    await publish(gateway, b"begun")
    (begun,) = await expect_messages(viewer, b"begun")
    viewer.send(Unsubscribe(2, (REPORTS,)))
    await viewer.expect(Unsuback)
    viewer.abort()
    viewer = await server.client("viewer", clean=False)
    (again,) = await expect_messages(viewer, b"begun")
    assert (again.packet_id, again.dup) == (begun.packet_id, True)
    await acknowledge(viewer, again)
    viewer.abort()
    viewer = await server.client("viewer", clean=False)
    assert await viewer.receive_until_pong() == []


@each_row("unknown", [REPORTS, "#", "not/subscribed", "$SYS/#", "/", "x" * 2000])
@with_fresh_broker
async def test_an_unknown_filter_gets_an_unsuback(server: RunningBroker, unknown: str) -> None:
    viewer = await server.client("viewer", clean=False)
    viewer.send(Unsubscribe(77, (unknown,)))
    assert await viewer.expect(Unsuback) == Unsuback(77)
    assert await viewer.receive_until_pong() == []


async def test_several_filters_get_one_unsuback(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS, TOPIC, RESPONSES, clean=False)
    gateway = await server.gateway()
    viewer.send(Unsubscribe(9, (TOPIC, "unknown", REPORTS, TOPIC)))
    assert await viewer.expect(Unsuback) == Unsuback(9)
    await publish(gateway, b"gone")
    await publish(gateway, b"left", topic=f"mt/gateway/{G}/response/{D}/read/8000")
    await expect_messages(viewer, b"left")
    assert (await load_stored(server)).subscriptions == [(1, RESPONSES, 1)]


async def test_the_same_filter_twice_in_one_packet_is_one_subscription(server: RunningBroker) -> None:
    viewer = await server.client("viewer")
    viewer.send(Subscribe(1, ((REPORTS, 1), (REPORTS, 0))))
    assert await viewer.expect(Suback) == Suback(1, (1, 0))
    gateway = await server.gateway()
    await publish(gateway, b"{}")
    assert [message.qos for message in await expect_messages(viewer, b"{}")] == [0]


async def test_subscriptions_and_their_removal_survive_a_restart(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS, RESPONSES, clean=False)
    await subscribe(viewer, (TOPIC, 0))
    viewer.send(Unsubscribe(2, (REPORTS,)))
    await viewer.expect(Unsuback)
    await server.restart()
    viewer = await server.client("viewer", clean=False)
    gateway = await server.gateway()
    await publish(gateway, b"unsubscribed", topic=report(kind="heartbeat"))
    await publish(gateway, b"at 0")
    await publish(gateway, b"at 1", topic=f"mt/gateway/{G}/response/{D}/read/8000")
    received = await expect_messages(viewer, b"at 0", b"at 1")
    assert [message.qos for message in received] == [0, 1]


@pytest.mark.parametrize("limits", [BrokerLimits(subscriptions=2)])
async def test_a_client_has_no_more_subscriptions_than_the_limit(server: RunningBroker) -> None:
    viewer = await server.client("viewer")
    viewer.send(Subscribe(1, ((REPORTS, 1), (TOPIC, 1), (RESPONSES, 1), (REPORTS, 0))))
    assert await viewer.expect(Suback) == Suback(1, (1, 1, SUBACK_FAILURE, 0))
    viewer.send(Unsubscribe(2, (TOPIC,)), Subscribe(3, ((RESPONSES, 1),)))
    assert await viewer.expect(Unsuback) == Unsuback(2)
    assert await viewer.expect(Suback) == Suback(3, (1,))


@each_row(
    ("topic_filter", "code"),
    [
        ("mt/gateway/+/device/" + "x" * 1004, 1),
        ("mt/gateway/+/device/" + "x" * 1005, SUBACK_FAILURE),
        ("mt/gateway/+/device/" + "ä" * 503, SUBACK_FAILURE),
        ("mt/gateway/+/device" + "/+" * 28, 1),
        ("mt/gateway/+/device" + "/+" * 29, SUBACK_FAILURE),
    ],
)
@with_fresh_broker
async def test_a_filter_that_is_too_long_or_too_deep_is_refused(
    server: RunningBroker, topic_filter: str, code: int
) -> None:
    viewer = await server.client("viewer", clean=False)
    viewer.send(Subscribe(1, ((topic_filter, 1),)))
    assert await viewer.expect(Suback) == Suback(1, (code,))
    assert len((await load_stored(server)).subscriptions) == (code == 1)
