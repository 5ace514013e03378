"""What ends a connection, and only that one; and what does not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from meshfleet.broker.letters import OVERHEAD
from meshfleet.errors import DatabaseUnavailable
from meshfleet.settings import Limits
from meshfleet.wire.mqtt.encoder import encode
from meshfleet.wire.mqtt.packets import (
    Accept,
    Connack,
    Puback,
    Publish,
    Pubrec,
    Suback,
    Subscribe,
    Will,
)
from tests.broker.mail import acknowledge, arrive, messages, numbered, publish
from tests.broker.raw import Raw
from tests.broker.stage import REPORTS, G, afresh, connect, report
from tests.tables import each_row
from tests.wire.mqtt.streams import SERVERS_ONLY, field, framed

if TYPE_CHECKING:
    from tests.broker.stage import Stage

pytestmark = pytest.mark.anyio

OTHER = "02005e000002"
TOPIC = field(report().encode())

MALFORMED = {
    "1.5.3-1 a topic that is no UTF-8": framed("30", "0001 ff"),
    "1.5.3-1 a filter with a surrogate": framed("82", "0001 0003 eda080 00"),
    "1.5.3-2 a topic with U+0000": framed("30", f"{field(b'a' + bytes(1))}"),
    "1.5.3-2 a filter with U+0000": framed("82", f"0001 {field(bytes(1))} 00"),
    "2.2.2-2 PUBACK with a flag": "41020001",
    "2.2.2-2 PINGREQ with a flag": "c100",
    "2.2.2-2 CONNECT with a flag": "1100",
    "2.2.2-2 type 0": "0000",
    "2.2.2-2 type 15": "f000",
    "2.3.1-1 a message with the id 0": framed("32", f"{TOPIC} 0000"),
    "3.3.1-2 a repetition at QoS 0": framed("38", TOPIC),
    "3.3.1-4 QoS 3": framed("36", f"{TOPIC} 0001"),
    "3.3.2-2 a topic with a wildcard": framed("30", field(b"mt/+")),
    "3.6.1-1 PUBREL with other flags": "60020001",
    "3.8.1-1 SUBSCRIBE with other flags": framed("80", f"0001 {TOPIC} 00"),
    "3.8.3-3 SUBSCRIBE without a filter": framed("82", "0001"),
    "3.8.3-4 a wish for QoS 3": framed("82", f"0001 {TOPIC} 03"),
    "3.8.3-4 a wish with a reserved bit": framed("82", f"0001 {TOPIC} 04"),
    "3.10.1-1 UNSUBSCRIBE with other flags": framed("a0", f"0001 {TOPIC}"),
    "3.10.3-2 UNSUBSCRIBE without a filter": framed("a2", "0001"),
    "3.14.1-1 DISCONNECT with a flag": "e100",
    "4.7.3-1 an empty topic": framed("30", "0000"),
    "4.8.0-1 PUBACK that is cut off": "400100",
    "4.8.0-1 PUBACK with the id 0": "40020000",
    "4.8.0-1 PINGREQ with a body": "c00100",
    "4.8.0-1 a length of five bytes": "30ffffffff01",
    "4.8.0-1 SUBSCRIBE beyond the limit": "82ffffff7f",
    "4.8.0-1 a topic longer than its packet": "3003 ffff61",
}

OUT_OF_TURN = {
    "PUBREC": "50020001",
    "PUBCOMP": "70020001",
    **SERVERS_ONLY,
}


@each_row("raw", [pytest.param(row, id=name) for name, row in MALFORMED.items()])
async def test_a_malformed_packet_closes_the_connection(stage: Stage, raw: str) -> None:
    neighbour = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway()
    gateway.send(bytes.fromhex(raw))
    assert await gateway.until_end() == []
    assert gateway.bytes == encode(Connack())
    assert await neighbour.until_pong() == []
    assert len(stage.broker.crowd) == 1


@each_row("raw", [pytest.param(row, id=name) for name, row in OUT_OF_TURN.items()])
async def test_a_packet_out_of_turn_closes_the_connection(stage: Stage, raw: str) -> None:
    neighbour = await stage.client("viewer")
    gateway = await stage.gateway()
    gateway.send(bytes.fromhex(raw))
    assert await gateway.until_end() == []
    assert await neighbour.until_pong() == []
    assert len(stage.broker.crowd) == 1


@each_row("raw", ["36020001", "e100", "50020001", "10020000"])
@afresh
async def test_what_stands_before_a_fault_counts_and_what_stands_behind_does_not(
    stage: Stage, raw: str
) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway(will=Will(report(), b"will", 1))
    before, behind = [Publish(report(), text, 1, packet_id=1) for text in (b"before", b"behind")]
    gateway.send(before, bytes.fromhex(raw), behind)
    assert {type(packet) for packet in await gateway.until_end()} <= {Puback}
    await arrive(viewer, b"before", b"will")
    await stage.until(lambda: len(stage.consumer.messages) == 2)
    assert [message.payload for message in stage.consumer.messages] == [b"before", b"will"]


async def test_a_puback_that_nobody_waits_for_does_no_harm(stage: Stage) -> None:
    gateway = await stage.gateway()
    gateway.send(Puback(1), Puback(65_535), Puback(1))
    assert await gateway.until_pong() == []


@pytest.mark.parametrize("slow_seconds", [0])
@pytest.mark.parametrize("limits", [Limits(queue_bytes=50 * (len(report()) + 5 + OVERHEAD), in_flight=10)])
@pytest.mark.parametrize("clean", [True, False])
async def test_a_client_that_does_not_keep_up_is_cut_off(stage: Stage, *, clean: bool) -> None:
    slow = await stage.subscriber("viewer-1", REPORTS, clean=clean)
    quick = await stage.subscriber("viewer-2", REPORTS)
    slow.hold()
    gateway = await stage.gateway()
    for payload in numbered(60):
        await publish(gateway, payload)
        await acknowledge(quick, *await arrive(quick, payload))
    await stage.until(lambda: not stage.broker.crowd.of("user viewer-1"))
    await publish(gateway, b"afterwards")
    await arrive(quick, b"afterwards")
    back = await stage.stranger()
    back.send(connect("viewer-1", clean=clean))
    assert await back.expect(Connack) == Connack(session_present=not clean)
    if not clean:  # what was promised first is kept, and the rest comes as it is acknowledged
        first = await messages(back, 10)
        assert [(each.payload, each.dup) for each in first] == [(each, True) for each in numbered(10)]
        assert await back.until_pong() == []
        back.send(*[Puback(each.packet_id) for each in first])
        rest = await messages(back, 10)
        assert [each.payload for each in rest] == numbered(10, start=10)


@pytest.mark.parametrize("slow_seconds", [0])
@pytest.mark.parametrize("limits", [Limits(queue_bytes=100_000)])
async def test_a_client_that_reads_nothing_at_qos_0_is_cut_off(stage: Stage) -> None:
    slow = await stage.subscriber("viewer-1", REPORTS, qos=0)
    quick = await stage.subscriber("viewer-2", REPORTS, qos=0)
    slow.hold()
    gateway = await stage.gateway()
    for _ in range(500):
        if not stage.broker.crowd.of("user viewer-1"):
            break
        gateway.send(Publish(report(), bytes(200_000)))
        assert len((await quick.expect(Publish)).payload) == 200_000
    assert not stage.broker.crowd.of("user viewer-1")
    assert await quick.until_pong() == []


async def test_a_client_that_is_stuck_is_cut_off(stage: Stage) -> None:
    stuck = await stage.subscriber("viewer", REPORTS, qos=0)
    stuck.hold()
    (connection,) = stage.broker.crowd
    gateway = await stage.gateway()
    for _ in range(500):
        gateway.send(Publish(report(), bytes(100_000)))
        assert await gateway.until_pong() == []
        if not connection.writable:
            break
    assert not connection.writable
    connection.check(asyncio.get_running_loop().time())
    assert await gateway.until_pong() == []
    assert connection.is_open
    connection.check(asyncio.get_running_loop().time() + 60)
    await stage.until(lambda: len(stage.broker.crowd) == 1)


async def test_a_flood_of_pings_holds_up_nobody(stage: Stage) -> None:
    flooding = await stage.client("viewer")
    flooding.hold()
    flooding.send(b"\xc0\x00" * 1_000_000)
    neighbour = await stage.client("viewer-2")
    for _ in range(100):
        assert await neighbour.until_pong() == []


async def test_while_the_database_is_away_answers_wait_for_it(stage: Stage) -> None:
    gateway = await stage.gateway()
    lasting = await stage.client("viewer", clean=False)
    stage.consumer.open.clear()
    gateway.send(Publish(report(), b"1", 1, packet_id=1), Publish(report(), b"2", 2, packet_id=2))
    lasting.send(Subscribe(3, ((REPORTS, 1),)))
    assert await gateway.until_pong() == await lasting.until_pong() == []
    stage.consumer.failures = [DatabaseUnavailable("away"), DatabaseUnavailable("still away")]
    stage.consumer.open.set()
    assert await gateway.expect(Puback) == Puback(1)
    assert stage.consumer.failures == []
    assert await gateway.expect(Pubrec) == Pubrec(2)
    assert await lasting.expect(Suback) == Suback(3, (1,))
    assert [message.payload for message in stage.consumer.messages] == [b"1", b"2"]
    assert await gateway.until_pong() == await lasting.until_pong() == []


async def test_what_is_said_while_the_database_is_away_is_committed_once_and_in_order(stage: Stage) -> None:
    gateway = await stage.gateway()
    stage.consumer.failures = [DatabaseUnavailable("away")] * 3
    for number, payload in enumerate(numbered(30), 1):
        gateway.send(Publish(report(), payload, 1, packet_id=number))
        await stage.client("viewer")  # each time through all of the broker, which goes on
    assert [await gateway.expect(Puback) for _ in range(30)] == [Puback(number) for number in range(1, 31)]
    assert [message.payload for message in stage.consumer.messages] == numbered(30)


async def test_while_the_door_has_no_database_clients_are_told_to_come_later(stage: Stage) -> None:
    stage.door.failures = [DatabaseUnavailable("away")]
    early = await stage.stranger()
    early.send(connect(G))
    assert await early.until_end() == [Connack(code=Accept.SERVER_UNAVAILABLE)]
    assert await (await stage.gateway()).until_pong() == []


async def test_who_gives_up_while_the_database_is_away_gets_no_answer_later(stage: Stage) -> None:
    gateway = await stage.gateway(OTHER)
    stage.consumer.open.clear()
    gateway.send(Publish(report(OTHER), b"1", 1, packet_id=1))
    assert await gateway.until_pong() == []
    gateway.reset()
    await stage.until(lambda: len(stage.broker.crowd) == 0)
    again = await stage.gateway(OTHER)
    again.send(Publish(report(OTHER), b"2", 1, packet_id=2))
    assert await again.until_pong() == []
    stage.consumer.open.set()
    assert await again.expect(Puback) == Puback(2)
    assert [message.payload for message in stage.consumer.messages] == [b"1", b"2"]
    assert await again.until_pong() == []


async def test_a_stop_commits_what_was_taken_though_nobody_can_be_told(stage: Stage) -> None:
    gateway = await Raw.open(stage.port)  # which the stage does not know, and does not cut off
    gateway.send(connect(G))
    await gateway.expect(Connack)
    stage.consumer.open.clear()
    for number, payload in enumerate(numbered(5), 1):
        gateway.send(Publish(report(), payload, 1, packet_id=number))
        assert await gateway.until_pong() == []
    stopping = asyncio.create_task(stage.restart())
    assert await gateway.until_end() == []
    stage.consumer.open.set()
    await stopping
    assert [message.payload for message in stage.consumer.messages] == numbered(5)
    await gateway.close()
