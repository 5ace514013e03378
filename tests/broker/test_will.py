"""Wills: what the broker publishes for a client that went without a word."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from meshfleet.wire.mqtt.packets import (
    Accept,
    Connack,
    Disconnect,
    Pingreq,
    Puback,
    Publish,
    Pubrec,
    Suback,
    Subscribe,
    Will,
)
from tests.broker.raw import Raw
from tests.broker.stage import REPORTS, D, Forbidden, G, afresh, connect, report, request
from tests.tables import each_row

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.broker.stage import Stage

pytestmark = pytest.mark.anyio

WILL = Will(report(kind="heartbeat"), b"gone", 1)
OTHER = "02005e000002"


async def reset(_: Stage, client: Raw) -> None:
    client.reset()


async def close(_: Stage, client: Raw) -> None:
    await client.close()


async def finish(_: Stage, client: Raw) -> None:
    client.finish()


async def break_the_rules(_: Stage, client: Raw) -> None:
    client.send(b"\xf0\x00")


async def disconnect_wrongly(_: Stage, client: Raw) -> None:
    client.send(b"\xe1\x00")


async def disconnect_with_a_body(_: Stage, client: Raw) -> None:
    client.send(b"\xe0\x01\x00")


async def connect_twice(_: Stage, client: Raw) -> None:
    client.send(connect(G))


async def answer_nothing(_: Stage, client: Raw) -> None:
    client.send(Pubrec(1))


async def publish_elsewhere(_: Stage, client: Raw) -> None:
    client.send(Publish(report(OTHER), b"{}", 1, packet_id=1))


async def stop_in_a_packet(_: Stage, client: Raw) -> None:
    client.send(b"\xe0")
    await client.close()


async def say_nothing(stage: Stage, _: Raw) -> None:
    long_after = asyncio.get_running_loop().time() + 1_000_000
    for connection in stage.broker.crowd:
        if connection.keep_alive:
            connection.check(long_after)
            connection.check(2 * long_after)


async def come_again(stage: Stage, _: Raw) -> None:
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


async def mark(stage: Stage) -> None:
    """Publish a marker: what did not come before it does not come."""
    gateway = await stage.gateway(OTHER)
    gateway.send(Publish(report(OTHER), b"marker", 1, packet_id=1))
    await gateway.expect(Puback)


async def come(viewer: Raw) -> list[Publish]:
    """The messages in front of the marker."""
    messages = []
    while (message := await viewer.expect(Publish)).payload != b"marker":
        messages.append(message)
    return messages


@each_row("end", ENDINGS)
@each_row("clean", [True, False])
@afresh
async def test_a_will_is_published_however_the_connection_ends(
    stage: Stage, end: Callable[[Stage, Raw], Awaitable[None]], *, clean: bool
) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway(will=WILL, clean=clean, keep_alive=10)
    await gateway.until_pong()
    await end(stage, gateway)
    assert await viewer.expect(Publish) == Publish(WILL.topic, b"gone", 1, packet_id=1)
    await mark(stage)
    assert await come(viewer) == []
    assert [message.payload for message in stage.consumer.messages] == [b"gone", b"marker"]


async def test_an_orderly_stop_publishes_wills(stage: Stage) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, clean=False)
    viewer.send(Disconnect())
    await viewer.until_end()
    gateway = await Raw.open(stage.port)  # which the stage does not know, and does not cut off
    gateway.send(connect(G, will=Will(WILL.topic, b"gone", 1, retain=True)))
    await gateway.expect(Connack)
    await stage.restart()
    assert await gateway.until_end() == []
    await gateway.close()
    assert [message.payload for message in stage.consumer.messages] == [b"gone"]
    viewer = await stage.client("viewer", clean=False)
    message = await viewer.expect(Publish)
    assert (message.topic, message.payload, message.retain) == (WILL.topic, b"gone", False)
    assert len(stage.broker.retained) == 1


@each_row("retain", [False, True])
@each_row("qos", [0, 1, 2])
@afresh
async def test_a_will_has_the_qos_and_the_mark_it_was_given(stage: Stage, qos: int, *, retain: bool) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway(will=Will(WILL.topic, b"gone", qos, retain))
    gateway.cut()
    message = await viewer.expect(Publish)
    assert (message.payload, message.qos, message.retain) == (b"gone", min(qos, 1), False)
    await stage.until(lambda: len(stage.consumer.messages) == 1)
    assert stage.consumer.messages == [Publish(WILL.topic, b"gone", qos, retain)]
    later = await stage.client("viewer-2")
    later.send(Subscribe(1, ((REPORTS, 1),)))
    kept = [each for each in await later.until_pong() if isinstance(each, Publish)]
    assert [(each.payload, each.qos, each.retain) for each in kept] == [(b"gone", min(qos, 1), True)] * retain


async def test_an_empty_will_is_a_will(stage: Stage) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    (await stage.gateway(will=Will(WILL.topic, b"", 0, retain=True))).cut()
    assert await viewer.expect(Publish) == Publish(WILL.topic, b"")
    assert len(stage.broker.retained) == 0


async def test_a_will_is_published_once(stage: Stage) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    (await stage.gateway(will=WILL, clean=False)).cut()
    assert (await viewer.expect(Publish)).payload == b"gone"
    (await stage.gateway(clean=False)).cut()
    await stage.until(lambda: len(stage.broker.crowd) == 1)
    await mark(stage)
    assert await come(viewer) == []


async def test_a_will_that_is_taken_over_is_published_before_anything_of_the_next_connection(
    stage: Stage,
) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    await stage.gateway(will=WILL)
    again = await stage.stranger()
    again.send(connect(G, will=Will(WILL.topic, b"gone again", 1)), Publish(report(), b"new", 1, packet_id=1))
    assert [(await viewer.expect(Publish)).payload for _ in range(2)] == [b"gone", b"new"]
    await again.expect(Connack)
    await again.expect(Puback)
    again.cut()
    assert (await viewer.expect(Publish)).payload == b"gone again"


@pytest.mark.parametrize("clean", [True, False])
async def test_who_takes_over_gets_the_will_of_its_older_connection_if_its_session_lasts(
    stage: Stage, *, clean: bool
) -> None:
    old = await stage.gateway(will=WILL, clean=False)
    old.send(Subscribe(1, ((f"mt/gateway/{G}/#", 1),)))
    await old.expect(Suback)
    new = await stage.gateway(clean=clean)
    assert await new.until_pong() == ([] if clean else [Publish(WILL.topic, b"gone", 1, packet_id=1)])
    assert await old.until_end() == []


@each_row("tail", [b"", b"\xf0\x00", b"\xe0"])
@afresh
async def test_a_client_that_takes_its_leave_leaves_no_will(stage: Stage, tail: bytes) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway(will=WILL)
    gateway.send(Disconnect(), tail)
    assert await gateway.until_end() == []
    quick = await stage.stranger()
    quick.send(connect(G, will=WILL), Pingreq(), Disconnect(), tail)
    await quick.until_end()
    await mark(stage)
    assert await come(viewer) == []


async def test_without_a_will_nothing_is_published(stage: Stage) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    (await stage.gateway()).cut()
    await stage.until(lambda: len(stage.broker.crowd) == 1)
    await mark(stage)
    assert await come(viewer) == []


@each_row(
    ("user", "topic"),
    [(G, report(OTHER)), (G, request(OTHER)), ("viewer", report()), ("operator", report())],
)
@afresh
async def test_a_forbidden_will_is_refused_and_taken_note_of(stage: Stage, user: str, topic: str) -> None:
    viewer = await stage.subscriber("viewer-2", REPORTS)
    client = await stage.stranger()
    client.send(connect(user, will=Will(topic, b"forged", 1)))
    assert await client.until_end() == [Connack(code=Accept.NOT_AUTHORIZED)]
    kind = "gateway" if user == G else "user"
    assert stage.door.forbidden_deeds == [Forbidden(f"{kind} {user}", "will", topic)]
    await mark(stage)
    assert await come(viewer) == []


async def test_a_will_that_is_a_request_reaches_its_gateway_and_is_not_retained(stage: Stage) -> None:
    gateway = await stage.gateway()
    gateway.send(Subscribe(1, ((f"mt/gateway/{G}/request/#", 1),)))
    await gateway.expect(Suback)
    operator = await stage.client("operator", will=Will(request(), b"{}", 1, retain=True))
    operator.cut()
    assert (await gateway.expect(Publish)).topic == request()
    assert len(stage.broker.retained) == 0


async def test_the_wills_of_many_that_are_lost_at_once_all_come(stage: Stage) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    macs = [f"02005e01{number:04x}" for number in range(60)]
    gateways = [await stage.gateway(mac, will=Will(report(mac, D), mac.encode(), 1)) for mac in macs]
    for gateway in gateways:
        gateway.cut()
    assert {(await viewer.expect(Publish)).payload.decode() for _ in macs} == set(macs)
    await stage.until(lambda: len(stage.broker.crowd) == 1)
    await mark(stage)
    assert await come(viewer) == []
