"""Wills: what the broker publishes for a client that went without a word."""

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


async def finish(_: RunningBroker, client: RawClient) -> None:
    client.send_eof()


async def break_the_rules(_: RunningBroker, client: RawClient) -> None:
    client.send(b"\xf0\x00")


async def disconnect_wrongly(_: RunningBroker, client: RawClient) -> None:
    client.send(b"\xe1\x00")


async def disconnect_with_a_body(_: RunningBroker, client: RawClient) -> None:
    client.send(b"\xe0\x01\x00")


async def connect_twice(_: RunningBroker, client: RawClient) -> None:
    client.send(connect(G))


async def answer_nothing(_: RunningBroker, client: RawClient) -> None:
    client.send(Pubrec(1))


async def publish_elsewhere(_: RunningBroker, client: RawClient) -> None:
    client.send(Publish(report(OTHER), b"{}", 1, packet_id=1))


async def stop_in_a_packet(_: RunningBroker, client: RawClient) -> None:
    client.send(b"\xe0")
    await client.close()


async def say_nothing(stage: RunningBroker, _: RawClient) -> None:
    long_after = asyncio.get_running_loop().time() + 1_000_000
    for connection in stage.broker.connections:
        if connection.keep_alive:
            connection.check_deadlines(long_after)
            connection.check_deadlines(2 * long_after)


async def come_again(stage: RunningBroker, _: RawClient) -> None:
    await stage.gateway()


ENDINGS = [
    reset,
    close,
    finish,
    break_the_rules,
    disconnect_wrongly,
    disconnect_with_a_body,
    connect_twice,
    answer_nothing,
    publish_elsewhere,
    stop_in_a_packet,
    say_nothing,
    come_again,
]


async def mark(stage: RunningBroker) -> None:
    """Publish a marker: what did not come before it does not come."""
    gateway = await stage.gateway(OTHER)
    gateway.send(Publish(report(OTHER), b"marker", 1, packet_id=1))
    await gateway.expect(Puback)


async def come(viewer: RawClient) -> list[Publish]:
    """The messages in front of the marker."""
    messages = []
    while (message := await viewer.expect(Publish)).payload != b"marker":
        messages.append(message)
    return messages


@each_row("end", ENDINGS)
@each_row("clean", [True, False])
@with_fresh_broker
async def test_a_will_is_published_however_the_connection_ends(
    stage: RunningBroker, end: Callable[[RunningBroker, RawClient], Awaitable[None]], *, clean: bool
) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway(will=WILL, clean=clean, keep_alive=10)
    await gateway.receive_until_pong()
    await end(stage, gateway)
    assert await viewer.expect(Publish) == Publish(WILL.topic, b"gone", 1, packet_id=1)
    await mark(stage)
    assert await come(viewer) == []
    assert [message.payload for message in stage.consumer.messages] == [b"gone", b"marker"]


async def test_an_orderly_stop_publishes_wills(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, clean=False)
    viewer.send(Disconnect())
    await viewer.receive_until_closed()
    gateway = await RawClient.open(stage.port)  # which the stage does not know, and does not cut off
    gateway.send(connect(G, will=Will(WILL.topic, b"gone", 1, retain=True)))
    await gateway.expect(Connack)
    await stage.restart()
    assert await gateway.receive_until_closed() == []
    await gateway.close()
    assert [message.payload for message in stage.consumer.messages] == [b"gone"]
    viewer = await stage.client("viewer", clean=False)
    message = await viewer.expect(Publish)
    assert (message.topic, message.payload, message.retain) == (WILL.topic, b"gone", False)
    assert len(stage.broker.retained) == 1


@each_row("retain", [False, True])
@each_row("qos", [0, 1, 2])
@with_fresh_broker
async def test_a_will_has_the_qos_and_the_mark_it_was_given(
    stage: RunningBroker, qos: int, *, retain: bool
) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway(will=Will(WILL.topic, b"gone", qos, retain))
    gateway.abort()
    message = await viewer.expect(Publish)
    assert (message.payload, message.qos, message.retain) == (b"gone", min(qos, 1), False)
    await stage.until(lambda: len(stage.consumer.messages) == 1)
    assert stage.consumer.messages == [Publish(WILL.topic, b"gone", qos, retain)]
    later = await stage.client("viewer-2")
    later.send(Subscribe(1, ((REPORTS, 1),)))
    kept = [each for each in await later.receive_until_pong() if isinstance(each, Publish)]
    assert [(each.payload, each.qos, each.retain) for each in kept] == [(b"gone", min(qos, 1), True)] * retain


async def test_an_empty_will_is_a_will(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    (await stage.gateway(will=Will(WILL.topic, b"", 0, retain=True))).abort()
    assert await viewer.expect(Publish) == Publish(WILL.topic, b"")
    assert len(stage.broker.retained) == 0


async def test_a_will_is_published_once(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    (await stage.gateway(will=WILL, clean=False)).abort()
    assert (await viewer.expect(Publish)).payload == b"gone"
    (await stage.gateway(clean=False)).abort()
    await stage.until(lambda: len(stage.broker.connections) == 1)
    await mark(stage)
    assert await come(viewer) == []


async def test_a_will_that_is_taken_over_is_published_before_anything_of_the_next_connection(
    stage: RunningBroker,
) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    await stage.gateway(will=WILL)
    again = await stage.raw_client()
    again.send(connect(G, will=Will(WILL.topic, b"gone again", 1)), Publish(report(), b"new", 1, packet_id=1))
    assert [(await viewer.expect(Publish)).payload for _ in range(2)] == [b"gone", b"new"]
    await again.expect(Connack)
    await again.expect(Puback)
    again.abort()
    assert (await viewer.expect(Publish)).payload == b"gone again"


@pytest.mark.parametrize("clean", [True, False])
async def test_who_takes_over_gets_the_will_of_its_older_connection_if_its_session_lasts(
    stage: RunningBroker, *, clean: bool
) -> None:
    old = await stage.gateway(will=WILL, clean=False)
    old.send(Subscribe(1, ((f"mt/gateway/{G}/#", 1),)))
    await old.expect(Suback)
    new = await stage.gateway(clean=clean)
    assert await new.receive_until_pong() == ([] if clean else [Publish(WILL.topic, b"gone", 1, packet_id=1)])
    assert await old.receive_until_closed() == []


@each_row("tail", [b"", b"\xf0\x00", b"\xe0"])
@with_fresh_broker
async def test_a_client_that_takes_its_leave_leaves_no_will(stage: RunningBroker, tail: bytes) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway(will=WILL)
    gateway.send(Disconnect(), tail)
    assert await gateway.receive_until_closed() == []
    quick = await stage.raw_client()
    quick.send(connect(G, will=WILL), Pingreq(), Disconnect(), tail)
    await quick.receive_until_closed()
    await mark(stage)
    assert await come(viewer) == []


async def test_without_a_will_nothing_is_published(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    (await stage.gateway()).abort()
    await stage.until(lambda: len(stage.broker.connections) == 1)
    await mark(stage)
    assert await come(viewer) == []


@each_row(
    ("user", "topic"),
    [(G, report(OTHER)), (G, request(OTHER)), ("viewer", report()), ("operator", report())],
)
@with_fresh_broker
async def test_a_forbidden_will_is_refused_and_taken_note_of(
    stage: RunningBroker, user: str, topic: str
) -> None:
    viewer = await stage.subscriber("viewer-2", REPORTS)
    client = await stage.raw_client()
    client.send(connect(user, will=Will(topic, b"forged", 1)))
    assert await client.receive_until_closed() == [Connack(code=ConnectReturnCode.NOT_AUTHORIZED)]
    kind = "gateway" if user == G else "user"
    assert stage.authenticator.denials == [Denial(f"{kind} {user}", "will", topic)]
    await mark(stage)
    assert await come(viewer) == []


async def test_a_will_that_is_a_request_reaches_its_gateway_and_is_not_retained(stage: RunningBroker) -> None:
    gateway = await stage.gateway()
    gateway.send(Subscribe(1, ((f"mt/gateway/{G}/request/#", 1),)))
    await gateway.expect(Suback)
    operator = await stage.client("operator", will=Will(request(), b"{}", 1, retain=True))
    operator.abort()
    assert (await gateway.expect(Publish)).topic == request()
    assert len(stage.broker.retained) == 0


async def test_the_wills_of_many_that_are_lost_at_once_all_come(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    macs = [f"02005e01{number:04x}" for number in range(60)]
    gateways = [await stage.gateway(mac, will=Will(report(mac, D), mac.encode(), 1)) for mac in macs]
    for gateway in gateways:
        gateway.abort()
    assert {(await viewer.expect(Publish)).payload.decode() for _ in macs} == set(macs)
    await stage.until(lambda: len(stage.broker.connections) == 1)
    await mark(stage)
    assert await come(viewer) == []
