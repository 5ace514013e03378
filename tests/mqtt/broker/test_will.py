"""Will messages: published for a client whose connection ends without DISCONNECT."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.codec.packets import (
    Connack,
    ConnectReturnCode,
    Disconnect,
    Pingreq,
    Puback,
    Publish,
    Pubrec,
    Suback,
    Subscribe,
    Will,
)
from tests.mqtt.broker.raw_client import RawClient
from tests.mqtt.broker.running_broker import (
    REPORTS,
    D,
    Denial,
    G,
    connect,
    report,
    request,
    with_fresh_broker,
)
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.mqtt.broker.running_broker import RunningBroker

pytestmark = pytest.mark.anyio

WILL = Will(report(kind="heartbeat"), b"gone", 1)
OTHER = "02005e000002"


async def reset(_: RunningBroker, client: RawClient) -> None:
    client.reset()


async def close(_: RunningBroker, client: RawClient) -> None:
    await client.close()


async def half_close(_: RunningBroker, client: RawClient) -> None:
    client.send_eof()


async def send_reserved_packet(_: RunningBroker, client: RawClient) -> None:
    client.send(b"\xf0\x00")


async def send_disconnect_with_flag(_: RunningBroker, client: RawClient) -> None:
    client.send(b"\xe1\x00")


async def send_disconnect_with_body(_: RunningBroker, client: RawClient) -> None:
    client.send(b"\xe0\x01\x00")


async def connect_twice(_: RunningBroker, client: RawClient) -> None:
    client.send(connect(G))


async def send_unexpected_pubrec(_: RunningBroker, client: RawClient) -> None:
    client.send(Pubrec(1))


async def publish_forbidden(_: RunningBroker, client: RawClient) -> None:
    client.send(Publish(report(OTHER), b"{}", 1, packet_id=1))


async def send_incomplete_packet(_: RunningBroker, client: RawClient) -> None:
    client.send(b"\xe0")
    await client.close()


async def exceed_keep_alive(server: RunningBroker, _: RawClient) -> None:
    long_after = asyncio.get_running_loop().time() + 1_000_000
    for connection in server.broker.connections:
        if connection.keep_alive:
            connection.check_deadlines(long_after)
            connection.check_deadlines(2 * long_after)


async def connect_again(server: RunningBroker, _: RawClient) -> None:
    await server.gateway()


ENDINGS = [
    reset,
    close,
    half_close,
    send_reserved_packet,
    send_disconnect_with_flag,
    send_disconnect_with_body,
    connect_twice,
    send_unexpected_pubrec,
    publish_forbidden,
    send_incomplete_packet,
    exceed_keep_alive,
    connect_again,
]


async def publish_marker(server: RunningBroker) -> None:
    """Publish a marker: a message that did not arrive before it will not arrive."""
    gateway = await server.gateway(OTHER)
    gateway.send(Publish(report(OTHER), b"marker", 1, packet_id=1))
    await gateway.expect(Puback)


async def receive_until_marker(viewer: RawClient) -> list[Publish]:
    """Return the messages before the marker."""
    messages = []
    while (message := await viewer.expect(Publish)).payload != b"marker":
        messages.append(message)
    return messages


@each_row("end", ENDINGS)
@each_row("clean", [True, False])
@with_fresh_broker
async def test_a_will_is_published_however_the_connection_ends(
    server: RunningBroker, end: Callable[[RunningBroker, RawClient], Awaitable[None]], *, clean: bool
) -> None:
    viewer = await server.subscriber("viewer", REPORTS)
    gateway = await server.gateway(will=WILL, clean=clean, keep_alive=10)
    await gateway.receive_until_pong()
    await end(server, gateway)
    assert await viewer.expect(Publish) == Publish(WILL.topic, b"gone", 1, packet_id=1)
    await publish_marker(server)
    assert await receive_until_marker(viewer) == []
    assert [message.payload for message in server.consumer.messages] == [b"gone", b"marker"]


async def test_an_orderly_stop_of_the_broker_publishes_wills(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS, clean=False)
    viewer.send(Disconnect())
    await viewer.receive_until_closed()
    gateway = await RawClient.open(server.port)  # unknown to the server fixture, which would abort it
    gateway.send(connect(G, will=Will(WILL.topic, b"gone", 1, retain=True)))
    await gateway.expect(Connack)
    await server.restart()
    assert await gateway.receive_until_closed() == []
    await gateway.close()
    assert [message.payload for message in server.consumer.messages] == [b"gone"]
    viewer = await server.client("viewer", clean=False)
    message = await viewer.expect(Publish)
    assert (message.topic, message.payload, message.retain) == (WILL.topic, b"gone", False)
    assert len(server.broker.retained) == 1


@each_row("retain", [False, True])
@each_row("qos", [0, 1, 2])
@with_fresh_broker
async def test_a_will_has_its_qos_and_retain_flag(server: RunningBroker, qos: int, *, retain: bool) -> None:
    viewer = await server.subscriber("viewer", REPORTS)
    gateway = await server.gateway(will=Will(WILL.topic, b"gone", qos, retain))
    gateway.abort()
    message = await viewer.expect(Publish)
    assert (message.payload, message.qos, message.retain) == (b"gone", min(qos, 1), False)
    await server.until(lambda: len(server.consumer.messages) == 1)
    assert server.consumer.messages == [Publish(WILL.topic, b"gone", qos, retain)]
    later = await server.client("viewer-2")
    later.send(Subscribe(1, ((REPORTS, 1),)))
    retained = [each for each in await later.receive_until_pong() if isinstance(each, Publish)]
    assert [(each.payload, each.qos, each.retain) for each in retained] == [
        (b"gone", min(qos, 1), True)
    ] * retain


async def test_an_empty_will_is_published(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS)
    (await server.gateway(will=Will(WILL.topic, b"", 0, retain=True))).abort()
    assert await viewer.expect(Publish) == Publish(WILL.topic, b"")
    assert len(server.broker.retained) == 0


async def test_a_will_is_published_once(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS)
    (await server.gateway(will=WILL, clean=False)).abort()
    assert (await viewer.expect(Publish)).payload == b"gone"
    (await server.gateway(clean=False)).abort()
    await server.until(lambda: len(server.broker.connections) == 1)
    await publish_marker(server)
    assert await receive_until_marker(viewer) == []


async def test_the_will_of_a_replaced_connection_is_published_before_packets_of_the_next_one(
    server: RunningBroker,
) -> None:
    viewer = await server.subscriber("viewer", REPORTS)
    await server.gateway(will=WILL)
    again = await server.raw_client()
    again.send(connect(G, will=Will(WILL.topic, b"gone again", 1)), Publish(report(), b"new", 1, packet_id=1))
    assert [(await viewer.expect(Publish)).payload for _ in range(2)] == [b"gone", b"new"]
    await again.expect(Connack)
    await again.expect(Puback)
    again.abort()
    assert (await viewer.expect(Publish)).payload == b"gone again"


@pytest.mark.parametrize("clean", [True, False])
async def test_a_client_that_connects_again_gets_its_own_will_if_its_session_is_persistent(
    server: RunningBroker, *, clean: bool
) -> None:
    old = await server.gateway(will=WILL, clean=False)
    old.send(Subscribe(1, ((f"mt/gateway/{G}/#", 1),)))
    await old.expect(Suback)
    new = await server.gateway(clean=clean)
    assert await new.receive_until_pong() == ([] if clean else [Publish(WILL.topic, b"gone", 1, packet_id=1)])
    assert await old.receive_until_closed() == []


@each_row("tail", [b"", b"\xf0\x00", b"\xe0"])
@with_fresh_broker
async def test_the_will_of_a_client_that_sent_disconnect_is_not_published(
    server: RunningBroker, tail: bytes
) -> None:
    viewer = await server.subscriber("viewer", REPORTS)
    gateway = await server.gateway(will=WILL)
    gateway.send(Disconnect(), tail)
    assert await gateway.receive_until_closed() == []
    quick = await server.raw_client()
    quick.send(connect(G, will=WILL), Pingreq(), Disconnect(), tail)
    await quick.receive_until_closed()
    await publish_marker(server)
    assert await receive_until_marker(viewer) == []


async def test_without_a_will_nothing_is_published(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS)
    (await server.gateway()).abort()
    await server.until(lambda: len(server.broker.connections) == 1)
    await publish_marker(server)
    assert await receive_until_marker(viewer) == []


@each_row(
    ("user", "topic"),
    [(G, report(OTHER)), (G, request(OTHER)), ("viewer", report()), ("operator", report())],
)
@with_fresh_broker
async def test_a_forbidden_will_is_refused_and_recorded(server: RunningBroker, user: str, topic: str) -> None:
    viewer = await server.subscriber("viewer-2", REPORTS)
    client = await server.raw_client()
    client.send(connect(user, will=Will(topic, b"forged", 1)))
    assert await client.receive_until_closed() == [Connack(code=ConnectReturnCode.NOT_AUTHORIZED)]
    kind = "gateway" if user == G else "user"
    assert server.authenticator.denials == [Denial(f"{kind} {user}", "will", topic)]
    await publish_marker(server)
    assert await receive_until_marker(viewer) == []


async def test_a_will_that_is_a_request_reaches_its_gateway_and_is_not_retained(
    server: RunningBroker,
) -> None:
    gateway = await server.gateway()
    gateway.send(Subscribe(1, ((f"mt/gateway/{G}/request/#", 1),)))
    await gateway.expect(Suback)
    operator = await server.client("operator", will=Will(request(), b"{}", 1, retain=True))
    operator.abort()
    assert (await gateway.expect(Publish)).topic == request()
    assert len(server.broker.retained) == 0


async def test_the_wills_of_many_clients_lost_at_once_are_all_published(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS)
    macs = [f"02005e01{number:04x}" for number in range(60)]
    gateways = [await server.gateway(mac, will=Will(report(mac, D), mac.encode(), 1)) for mac in macs]
    for gateway in gateways:
        gateway.abort()
    assert {(await viewer.expect(Publish)).payload.decode() for _ in macs} == set(macs)
    await server.until(lambda: len(server.broker.connections) == 1)
    await publish_marker(server)
    assert await receive_until_marker(viewer) == []
