"""Faults that close one connection and no other, and events that close none."""

from __future__ import annotations

import asyncio

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
from tests.mqtt.broker.running_broker import REPORTS, G, RunningBroker, connect, report, with_fresh_broker
from tests.mqtt.codec.streams import SERVERS_ONLY, add_fixed_header, encode_field
from tests.row_tables import each_row

pytestmark = pytest.mark.anyio

OTHER = "02005e000002"
TOPIC = encode_field(report().encode())

MALFORMED = {
    "1.5.3-1 a topic that is not UTF-8": add_fixed_header("30", "0001 ff"),
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
    "3.8.3-4 a request for QoS 3": add_fixed_header("82", f"0001 {TOPIC} 03"),
    "3.8.3-4 a requested QoS with a reserved bit": add_fixed_header("82", f"0001 {TOPIC} 04"),
    "3.10.1-1 UNSUBSCRIBE with other flags": add_fixed_header("a0", f"0001 {TOPIC}"),
    "3.10.3-2 UNSUBSCRIBE without a filter": add_fixed_header("a2", "0001"),
    "3.14.1-1 DISCONNECT with a flag": "e100",
    "4.7.3-1 an empty topic": add_fixed_header("30", "0000"),
    "4.8.0-1 a truncated PUBACK": "400100",
    "4.8.0-1 PUBACK with the id 0": "40020000",
    "4.8.0-1 PINGREQ with a body": "c00100",
    "4.8.0-1 a length of five bytes": "30ffffffff01",
    "4.8.0-1 SUBSCRIBE beyond the limit": "82ffffff7f",
    "4.8.0-1 a topic longer than its packet": "3003 ffff61",
}

UNEXPECTED = {
    "PUBREC": "50020001",
    "PUBCOMP": "70020001",
    **SERVERS_ONLY,
}


@each_row("raw", [pytest.param(row, id=name) for name, row in MALFORMED.items()])
async def test_a_malformed_packet_closes_the_connection(server: RunningBroker, raw: str) -> None:
    neighbor = await server.subscriber("viewer", REPORTS)
    gateway = await server.gateway()
    gateway.send(bytes.fromhex(raw))
    assert await gateway.receive_until_closed() == []
    assert gateway.bytes == encode_packet(Connack())
    assert await neighbor.receive_until_pong() == []
    assert len(server.broker.connections) == 1


@each_row("raw", [pytest.param(row, id=name) for name, row in UNEXPECTED.items()])
async def test_an_unexpected_packet_closes_the_connection(server: RunningBroker, raw: str) -> None:
    neighbor = await server.client("viewer")
    gateway = await server.gateway()
    gateway.send(bytes.fromhex(raw))
    assert await gateway.receive_until_closed() == []
    assert await neighbor.receive_until_pong() == []
    assert len(server.broker.connections) == 1


@each_row("raw", ["36020001", "e100", "50020001", "10020000"])
@with_fresh_broker
async def test_packets_before_a_fault_are_handled_and_later_ones_are_not(
    server: RunningBroker, raw: str
) -> None:
    viewer = await server.subscriber("viewer", REPORTS)
    gateway = await server.gateway(will=Will(report(), b"will", 1))
    before, behind = [Publish(report(), text, 1, packet_id=1) for text in (b"before", b"behind")]
    gateway.send(before, bytes.fromhex(raw), behind)
    assert {type(packet) for packet in await gateway.receive_until_closed()} <= {Puback}
    await expect_messages(viewer, b"before", b"will")
    await server.until(lambda: len(server.consumer.messages) == 2)
    assert [message.payload for message in server.consumer.messages] == [b"before", b"will"]


async def test_an_unexpected_puback_is_ignored(server: RunningBroker) -> None:
    gateway = await server.gateway()
    gateway.send(Puback(1), Puback(65_535), Puback(1))
    assert await gateway.receive_until_pong() == []


@pytest.mark.parametrize("slow_seconds", [0])
@pytest.mark.parametrize(
    "limits", [BrokerLimits(queue_bytes=50 * (len(report()) + 5 + MESSAGE_OVERHEAD_BYTES), in_flight=10)]
)
@pytest.mark.parametrize("clean", [True, False])
async def test_a_client_that_does_not_keep_up_is_cut_off(server: RunningBroker, *, clean: bool) -> None:
    slow = await server.subscriber("viewer-1", REPORTS, clean=clean)
    quick = await server.subscriber("viewer-2", REPORTS)
    slow.pause_reading()
    gateway = await server.gateway()
    for payload in numbered_payloads(60):
        await publish(gateway, payload)
        await acknowledge(quick, *await expect_messages(quick, payload))
    await server.until(lambda: not server.broker.connections.find_by_account("user viewer-1"))
    await publish(gateway, b"afterwards")
    await expect_messages(quick, b"afterwards")
    resumed = await server.raw_client()
    resumed.send(connect("viewer-1", clean=clean))
    assert await resumed.expect(Connack) == Connack(session_present=not clean)
    if not clean:  # queued messages are kept, and sent as earlier ones are acknowledged
        first = await receive_messages(resumed, 10)
        assert [(each.payload, each.dup) for each in first] == [
            (each, True) for each in numbered_payloads(10)
        ]
        assert await resumed.receive_until_pong() == []
        resumed.send(*[Puback(each.packet_id) for each in first])
        rest = await receive_messages(resumed, 10)
        assert [each.payload for each in rest] == numbered_payloads(10, start=10)


@pytest.mark.parametrize("slow_seconds", [0])
@pytest.mark.parametrize("limits", [BrokerLimits(queue_bytes=100_000)])
async def test_a_client_that_reads_nothing_at_qos_0_is_cut_off(server: RunningBroker) -> None:
    slow = await server.subscriber("viewer-1", REPORTS, qos=0)
    quick = await server.subscriber("viewer-2", REPORTS, qos=0)
    slow.pause_reading()
    gateway = await server.gateway()
    for _ in range(500):
        if not server.broker.connections.find_by_account("user viewer-1"):
            break
        gateway.send(Publish(report(), bytes(200_000)))
        assert len((await quick.expect(Publish)).payload) == 200_000
    assert not server.broker.connections.find_by_account("user viewer-1")
    assert await quick.receive_until_pong() == []


async def test_a_client_that_is_stuck_is_cut_off(server: RunningBroker) -> None:
    stuck = await server.subscriber("viewer", REPORTS, qos=0)
    stuck.pause_reading()
    (connection,) = server.broker.connections
    gateway = await server.gateway()
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
    await server.until(lambda: len(server.broker.connections) == 1)


async def test_a_flood_of_pings_does_not_delay_other_clients(server: RunningBroker) -> None:
    flooding = await server.client("viewer")
    flooding.pause_reading()
    flooding.send(b"\xc0\x00" * 1_000_000)
    neighbor = await server.client("viewer-2")
    for _ in range(100):
        assert await neighbor.receive_until_pong() == []


async def test_acknowledgements_wait_while_the_database_is_unavailable(server: RunningBroker) -> None:
    gateway = await server.gateway()
    lasting = await server.client("viewer", clean=False)
    server.consumer.open.clear()
    gateway.send(Publish(report(), b"1", 1, packet_id=1), Publish(report(), b"2", 2, packet_id=2))
    lasting.send(Subscribe(3, ((REPORTS, 1),)))
    assert await gateway.receive_until_pong() == await lasting.receive_until_pong() == []
    server.consumer.failures = [DatabaseUnavailable("away"), DatabaseUnavailable("still away")]
    server.consumer.open.set()
    assert await gateway.expect(Puback) == Puback(1)
    assert server.consumer.failures == []
    assert await gateway.expect(Pubrec) == Pubrec(2)
    assert await lasting.expect(Suback) == Suback(3, (1,))
    assert [message.payload for message in server.consumer.messages] == [b"1", b"2"]
    assert await gateway.receive_until_pong() == await lasting.receive_until_pong() == []


async def test_messages_received_while_the_database_is_unavailable_are_committed_once_and_in_order(
    server: RunningBroker,
) -> None:
    gateway = await server.gateway()
    server.consumer.failures = [DatabaseUnavailable("away")] * 3
    for number, payload in enumerate(numbered_payloads(30), 1):
        gateway.send(Publish(report(), payload, 1, packet_id=number))
        await server.client("viewer")  # proves that the broker still serves clients
    assert [await gateway.expect(Puback) for _ in range(30)] == [Puback(number) for number in range(1, 31)]
    assert [message.payload for message in server.consumer.messages] == numbered_payloads(30)


async def test_clients_get_return_code_3_while_authentication_has_no_database(server: RunningBroker) -> None:
    server.authenticator.failures = [DatabaseUnavailable("away")]
    early = await server.raw_client()
    early.send(connect(G))
    assert await early.receive_until_closed() == [Connack(code=ConnectReturnCode.SERVER_UNAVAILABLE)]
    assert await (await server.gateway()).receive_until_pong() == []


async def test_a_client_that_left_while_the_database_was_unavailable_gets_no_late_acknowledgement(
    server: RunningBroker,
) -> None:
    gateway = await server.gateway(OTHER)
    server.consumer.open.clear()
    gateway.send(Publish(report(OTHER), b"1", 1, packet_id=1))
    assert await gateway.receive_until_pong() == []
    gateway.reset()
    await server.until(lambda: len(server.broker.connections) == 0)
    again = await server.gateway(OTHER)
    again.send(Publish(report(OTHER), b"2", 1, packet_id=2))
    assert await again.receive_until_pong() == []
    server.consumer.open.set()
    assert await again.expect(Puback) == Puback(2)
    assert [message.payload for message in server.consumer.messages] == [b"1", b"2"]
    assert await again.receive_until_pong() == []


async def test_a_stop_commits_received_messages_although_they_cannot_be_acknowledged(
    server: RunningBroker,
) -> None:
    gateway = await RawClient.open(server.port)  # unknown to the server fixture, which would abort it
    gateway.send(connect(G))
    await gateway.expect(Connack)
    server.consumer.open.clear()
    for number, payload in enumerate(numbered_payloads(5), 1):
        gateway.send(Publish(report(), payload, 1, packet_id=number))
        assert await gateway.receive_until_pong() == []
    stopping = asyncio.create_task(server.restart())
    assert await gateway.receive_until_closed() == []
    server.consumer.open.set()
    await stopping
    assert [message.payload for message in server.consumer.messages] == numbered_payloads(5)
    await gateway.close()
