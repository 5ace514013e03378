"""What ends a connection, and only that one; and what does not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from meshfleet.errors import DatabaseUnavailable
from meshfleet.mqtt.broker.outgoing_message import MESSAGE_OVERHEAD_BYTES
from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import (
    Connack,
    ConnectReturnCode,
    Puback,
    Publish,
    Pubrec,
    Suback,
    Subscribe,
    Will,
)
from tests.mqtt.broker.messages import (
    acknowledge,
    expect_messages,
    numbered_payloads,
    publish,
    receive_messages,
)
from tests.mqtt.broker.raw_client import RawClient
from tests.mqtt.broker.running_broker import REPORTS, G, connect, report, with_fresh_broker
from tests.mqtt.codec.streams import SERVERS_ONLY, add_fixed_header, encode_field
from tests.row_tables import each_row

if TYPE_CHECKING:
    from tests.mqtt.broker.running_broker import RunningBroker

pytestmark = pytest.mark.anyio

OTHER = "02005e000002"
TOPIC = encode_field(report().encode())

MALFORMED = {
    "1.5.3-1 a topic that is no UTF-8": add_fixed_header("30", "0001 ff"),
    "1.5.3-1 a filter with a surrogate": add_fixed_header("82", "0001 0003 eda080 00"),
    "1.5.3-2 a topic with U+0000": add_fixed_header("30", f"{encode_field(b'a' + bytes(1))}"),
    "1.5.3-2 a filter with U+0000": add_fixed_header("82", f"0001 {encode_field(bytes(1))} 00"),
    "2.2.2-2 PUBACK with a flag": "41020001",
    "2.2.2-2 PINGREQ with a flag": "c100",
    "2.2.2-2 CONNECT with a flag": "1100",
    "2.2.2-2 type 0": "0000",
    "2.2.2-2 type 15": "f000",
    "2.3.1-1 a message with the id 0": add_fixed_header("32", f"{TOPIC} 0000"),
    "3.3.1-2 a repetition at QoS 0": add_fixed_header("38", TOPIC),
    "3.3.1-4 QoS 3": add_fixed_header("36", f"{TOPIC} 0001"),
    "3.3.2-2 a topic with a wildcard": add_fixed_header("30", encode_field(b"mt/+")),
    "3.6.1-1 PUBREL with other flags": "60020001",
    "3.8.1-1 SUBSCRIBE with other flags": add_fixed_header("80", f"0001 {TOPIC} 00"),
    "3.8.3-3 SUBSCRIBE without a filter": add_fixed_header("82", "0001"),
    "3.8.3-4 a wish for QoS 3": add_fixed_header("82", f"0001 {TOPIC} 03"),
    "3.8.3-4 a wish with a reserved bit": add_fixed_header("82", f"0001 {TOPIC} 04"),
    "3.10.1-1 UNSUBSCRIBE with other flags": add_fixed_header("a0", f"0001 {TOPIC}"),
    "3.10.3-2 UNSUBSCRIBE without a filter": add_fixed_header("a2", "0001"),
    "3.14.1-1 DISCONNECT with a flag": "e100",
    "4.7.3-1 an empty topic": add_fixed_header("30", "0000"),
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
async def test_a_malformed_packet_closes_the_connection(stage: RunningBroker, raw: str) -> None:
    neighbour = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway()
    gateway.send(bytes.fromhex(raw))
    assert await gateway.receive_until_closed() == []
    assert gateway.bytes == encode_packet(Connack())
    assert await neighbour.receive_until_pong() == []
    assert len(stage.broker.connections) == 1


@each_row("raw", [pytest.param(row, id=name) for name, row in OUT_OF_TURN.items()])
async def test_a_packet_out_of_turn_closes_the_connection(stage: RunningBroker, raw: str) -> None:
    neighbour = await stage.client("viewer")
    gateway = await stage.gateway()
    gateway.send(bytes.fromhex(raw))
    assert await gateway.receive_until_closed() == []
    assert await neighbour.receive_until_pong() == []
    assert len(stage.broker.connections) == 1


@each_row("raw", ["36020001", "e100", "50020001", "10020000"])
@with_fresh_broker
async def test_what_stands_before_a_fault_counts_and_what_stands_behind_does_not(
    stage: RunningBroker, raw: str
) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.gateway(will=Will(report(), b"will", 1))
    before, behind = [Publish(report(), text, 1, packet_id=1) for text in (b"before", b"behind")]
    gateway.send(before, bytes.fromhex(raw), behind)
    assert {type(packet) for packet in await gateway.receive_until_closed()} <= {Puback}
    await expect_messages(viewer, b"before", b"will")
    await stage.until(lambda: len(stage.consumer.messages) == 2)
    assert [message.payload for message in stage.consumer.messages] == [b"before", b"will"]


async def test_a_puback_that_nobody_waits_for_does_no_harm(stage: RunningBroker) -> None:
    gateway = await stage.gateway()
    gateway.send(Puback(1), Puback(65_535), Puback(1))
    assert await gateway.receive_until_pong() == []


@pytest.mark.parametrize("slow_seconds", [0])
@pytest.mark.parametrize(
    "limits", [BrokerLimits(queue_bytes=50 * (len(report()) + 5 + MESSAGE_OVERHEAD_BYTES), in_flight=10)]
)
@pytest.mark.parametrize("clean", [True, False])
async def test_a_client_that_does_not_keep_up_is_cut_off(stage: RunningBroker, *, clean: bool) -> None:
    slow = await stage.subscriber("viewer-1", REPORTS, clean=clean)
    quick = await stage.subscriber("viewer-2", REPORTS)
    slow.pause_reading()
    gateway = await stage.gateway()
    for payload in numbered_payloads(60):
        await publish(gateway, payload)
        await acknowledge(quick, *await expect_messages(quick, payload))
    await stage.until(lambda: not stage.broker.connections.of_account("user viewer-1"))
    await publish(gateway, b"afterwards")
    await expect_messages(quick, b"afterwards")
    back = await stage.raw_client()
    back.send(connect("viewer-1", clean=clean))
    assert await back.expect(Connack) == Connack(session_present=not clean)
    if not clean:  # what was promised first is kept, and the rest comes as it is acknowledged
        first = await receive_messages(back, 10)
        assert [(each.payload, each.dup) for each in first] == [
            (each, True) for each in numbered_payloads(10)
        ]
        assert await back.receive_until_pong() == []
        back.send(*[Puback(each.packet_id) for each in first])
        rest = await receive_messages(back, 10)
        assert [each.payload for each in rest] == numbered_payloads(10, start=10)


@pytest.mark.parametrize("slow_seconds", [0])
@pytest.mark.parametrize("limits", [BrokerLimits(queue_bytes=100_000)])
async def test_a_client_that_reads_nothing_at_qos_0_is_cut_off(stage: RunningBroker) -> None:
    slow = await stage.subscriber("viewer-1", REPORTS, qos=0)
    quick = await stage.subscriber("viewer-2", REPORTS, qos=0)
    slow.pause_reading()
    gateway = await stage.gateway()
    for _ in range(500):
        if not stage.broker.connections.of_account("user viewer-1"):
            break
        gateway.send(Publish(report(), bytes(200_000)))
        assert len((await quick.expect(Publish)).payload) == 200_000
    assert not stage.broker.connections.of_account("user viewer-1")
    assert await quick.receive_until_pong() == []


async def test_a_client_that_is_stuck_is_cut_off(stage: RunningBroker) -> None:
    stuck = await stage.subscriber("viewer", REPORTS, qos=0)
    stuck.pause_reading()
    (connection,) = stage.broker.connections
    gateway = await stage.gateway()
    for _ in range(500):
        gateway.send(Publish(report(), bytes(100_000)))
        assert await gateway.receive_until_pong() == []
        if not connection.is_writable:
            break
    assert not connection.is_writable
    connection.check_deadlines(asyncio.get_running_loop().time())
    assert await gateway.receive_until_pong() == []
    assert connection.is_open
    connection.check_deadlines(asyncio.get_running_loop().time() + 60)
    await stage.until(lambda: len(stage.broker.connections) == 1)


async def test_a_flood_of_pings_holds_up_nobody(stage: RunningBroker) -> None:
    flooding = await stage.client("viewer")
    flooding.pause_reading()
    flooding.send(b"\xc0\x00" * 1_000_000)
    neighbour = await stage.client("viewer-2")
    for _ in range(100):
        assert await neighbour.receive_until_pong() == []


async def test_while_the_database_is_away_answers_wait_for_it(stage: RunningBroker) -> None:
    gateway = await stage.gateway()
    lasting = await stage.client("viewer", clean=False)
    stage.consumer.open.clear()
    gateway.send(Publish(report(), b"1", 1, packet_id=1), Publish(report(), b"2", 2, packet_id=2))
    lasting.send(Subscribe(3, ((REPORTS, 1),)))
    assert await gateway.receive_until_pong() == await lasting.receive_until_pong() == []
    stage.consumer.failures = [DatabaseUnavailable("away"), DatabaseUnavailable("still away")]
    stage.consumer.open.set()
    assert await gateway.expect(Puback) == Puback(1)
    assert stage.consumer.failures == []
    assert await gateway.expect(Pubrec) == Pubrec(2)
    assert await lasting.expect(Suback) == Suback(3, (1,))
    assert [message.payload for message in stage.consumer.messages] == [b"1", b"2"]
    assert await gateway.receive_until_pong() == await lasting.receive_until_pong() == []


async def test_what_is_said_while_the_database_is_away_is_committed_once_and_in_order(
    stage: RunningBroker,
) -> None:
    gateway = await stage.gateway()
    stage.consumer.failures = [DatabaseUnavailable("away")] * 3
    for number, payload in enumerate(numbered_payloads(30), 1):
        gateway.send(Publish(report(), payload, 1, packet_id=number))
        await stage.client("viewer")  # each time through all of the broker, which goes on
    assert [await gateway.expect(Puback) for _ in range(30)] == [Puback(number) for number in range(1, 31)]
    assert [message.payload for message in stage.consumer.messages] == numbered_payloads(30)


async def test_while_the_door_has_no_database_clients_are_told_to_come_later(stage: RunningBroker) -> None:
    stage.authenticator.failures = [DatabaseUnavailable("away")]
    early = await stage.raw_client()
    early.send(connect(G))
    assert await early.receive_until_closed() == [Connack(code=ConnectReturnCode.SERVER_UNAVAILABLE)]
    assert await (await stage.gateway()).receive_until_pong() == []


async def test_who_gives_up_while_the_database_is_away_gets_no_answer_later(stage: RunningBroker) -> None:
    gateway = await stage.gateway(OTHER)
    stage.consumer.open.clear()
    gateway.send(Publish(report(OTHER), b"1", 1, packet_id=1))
    assert await gateway.receive_until_pong() == []
    gateway.reset()
    await stage.until(lambda: len(stage.broker.connections) == 0)
    again = await stage.gateway(OTHER)
    again.send(Publish(report(OTHER), b"2", 1, packet_id=2))
    assert await again.receive_until_pong() == []
    stage.consumer.open.set()
    assert await again.expect(Puback) == Puback(2)
    assert [message.payload for message in stage.consumer.messages] == [b"1", b"2"]
    assert await again.receive_until_pong() == []


async def test_a_stop_commits_what_was_taken_though_nobody_can_be_told(stage: RunningBroker) -> None:
    gateway = await RawClient.open(stage.port)  # which the stage does not know, and does not cut off
    gateway.send(connect(G))
    await gateway.expect(Connack)
    stage.consumer.open.clear()
    for number, payload in enumerate(numbered_payloads(5), 1):
        gateway.send(Publish(report(), payload, 1, packet_id=number))
        assert await gateway.receive_until_pong() == []
    stopping = asyncio.create_task(stage.restart())
    assert await gateway.receive_until_closed() == []
    stage.consumer.open.set()
    await stopping
    assert [message.payload for message in stage.consumer.messages] == numbered_payloads(5)
    await gateway.close()
