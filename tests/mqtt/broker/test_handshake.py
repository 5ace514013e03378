"""Between CONNECT and CONNACK: clients that send early, slowly, give up, or connect all at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from meshfleet.errors import DatabaseUnavailable
from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import (
    Connack,
    Connect,
    ConnectReturnCode,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
)
from tests.mqtt.broker.messages import expect_messages, load_stored, numbered_payloads, publish
from tests.mqtt.broker.raw_client import RawClient
from tests.mqtt.broker.running_broker import PASSWORD, REPORTS, G, connect, report, with_fresh_broker
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.mqtt.broker.running_broker import RunningBroker

pytestmark = pytest.mark.anyio

EARLY_PACKETS = [
    Subscribe(1, ((f"mt/gateway/{G}/request/#", 1),)),
    Publish(report(), b"at 0"),
    Publish(report(), b"at 1", 1, packet_id=2),
    Publish(report(), b"at 2", 2, packet_id=3),
    Pubrel(3),
    Unsubscribe(4, (f"mt/gateway/{G}/request/#",)),
    Pingreq(),
]
RESPONSES = {Suback(1, (1,)), Puback(2), Pubrec(3), Pubcomp(3), Unsuback(4), Pingresp()}


async def send_held_connect(
    server: RunningBroker, client: RawClient, packet: Connect, *more: bytes
) -> asyncio.Event:
    """Send CONNECT and wait until its authentication is held. Setting the event continues it."""
    server.authenticator.holds = True
    count = len(server.authenticator.waiting)
    client.send(packet, *more)
    await server.until(lambda: len(server.authenticator.waiting) > count)
    return server.authenticator.waiting[-1]


@pytest.mark.parametrize("clean", [True, False])
async def test_a_client_need_not_wait_for_the_connack(server: RunningBroker, *, clean: bool) -> None:
    gateway = await server.raw_client()
    gateway.send(connect(G, clean=clean), *EARLY_PACKETS)
    assert await gateway.expect(Connack) == Connack()
    assert {await gateway.receive() for _ in RESPONSES} == RESPONSES
    assert [message.payload for message in server.consumer.messages] == [b"at 0", b"at 1", b"at 2"]
    assert await gateway.receive_until_pong() == []
    assert all(not session.subscriptions and not session.unreleased_ids for session in server.broker.sessions)


@pytest.mark.parametrize("clean", [True, False])
async def test_a_packet_stream_may_be_split_anywhere(server: RunningBroker, *, clean: bool) -> None:
    stream = b"".join(map(encode_packet, [connect(G, clean=clean), *EARLY_PACKETS]))
    neighbor = await server.client("viewer")
    for position in range(1, len(stream), 3):
        gateway = await server.raw_client()
        gateway.send(stream[:position])
        await neighbor.receive_until_pong()  # so the broker has read the first part by itself
        gateway.send(stream[position:])
        assert await gateway.expect(Connack) == Connack(session_present=not clean and position > 1)
        assert {await gateway.receive() for _ in RESPONSES} == RESPONSES
        gateway.send(Disconnect())
        assert await gateway.receive_until_closed() == []
    assert len(server.consumer.messages) == 3 * len(range(1, len(stream), 3))


async def test_a_connect_in_single_bytes_is_accepted_and_does_not_delay_others(server: RunningBroker) -> None:
    slow = await server.raw_client()
    neighbor = await server.client("viewer")
    for byte in b"".join(map(encode_packet, [connect(G), *EARLY_PACKETS])):
        slow.send(bytes([byte]))
        assert await neighbor.receive_until_pong() == []
    assert await slow.expect(Connack) == Connack()
    assert {await slow.receive() for _ in RESPONSES} == RESPONSES


async def test_many_messages_sent_right_after_connect_are_all_handled_in_order(
    server: RunningBroker,
) -> None:
    payloads = [payload + bytes(200) for payload in numbered_payloads(1500)]
    gateway = await server.raw_client()
    gateway.send(
        connect(G, clean=False),
        *[Publish(report(), payload, 1, packet_id=number) for number, payload in enumerate(payloads, 1)],
    )
    assert await gateway.expect(Connack) == Connack()
    assert [(await gateway.expect(Puback)).packet_id for _ in payloads] == list(range(1, 1501))
    assert [message.payload for message in server.consumer.messages] == payloads


async def test_packets_wait_while_their_client_is_being_authenticated(server: RunningBroker) -> None:
    gateway = await server.raw_client()
    turn = await send_held_connect(server, gateway, connect(G))
    server.authenticator.holds = False
    neighbor = await server.client("viewer")
    for packet in EARLY_PACKETS:
        gateway.send(packet)
        await neighbor.receive_until_pong()
    assert server.consumer.messages == []
    turn.set()
    assert await gateway.expect(Connack) == Connack()
    assert {await gateway.receive() for _ in RESPONSES} == RESPONSES


async def test_a_client_being_authenticated_does_not_delay_others(server: RunningBroker) -> None:
    gateway = await server.raw_client()
    turn = await send_held_connect(server, gateway, connect(G))
    server.authenticator.holds = False
    viewer = await server.client("viewer")
    assert await viewer.receive_until_pong() == []
    turn.set()
    await gateway.expect(Connack)


@each_row("malformed", [b"\xf0\x00", b"\x36\x02\x00\x01", encode_packet(Connect(""))])
@with_fresh_broker
async def test_malformed_bytes_right_after_connect_close_the_connection(
    server: RunningBroker, malformed: bytes
) -> None:
    viewer = await server.subscriber("viewer", REPORTS)
    gateway = await server.raw_client()
    gateway.send(connect(G), malformed, Publish(report(), b"behind"))
    assert await gateway.receive_until_closed() in ([], [Connack()])
    await server.until(lambda: len(server.broker.connections) == 1)
    await publish(await server.gateway(), b"marker")
    await expect_messages(viewer, b"marker")


async def test_a_client_closed_during_authentication_is_not_accepted_later(server: RunningBroker) -> None:
    gateway = await server.raw_client()
    turn = await send_held_connect(server, gateway, connect(G, clean=False), b"\xf0\x00")
    assert await gateway.receive_until_closed() == []
    turn.set()
    server.authenticator.holds = False
    viewer = await server.client("viewer")
    assert await viewer.receive_until_pong() == []
    assert [session.account for session in server.broker.sessions] == ["user viewer"]
    assert server.broker.connections.find_by_account(f"gateway {G}") == []


@each_row("disconnect", [RawClient.abort, RawClient.reset, RawClient.send_eof])
@each_row("clean", [True, False])
@with_fresh_broker
async def test_a_client_that_disconnects_during_authentication_leaves_no_connection(
    server: RunningBroker, disconnect: Callable[[RawClient], None], *, clean: bool
) -> None:
    gateway = await server.raw_client()
    turn = await send_held_connect(server, gateway, connect(G, clean=clean))
    disconnect(gateway)
    turn.set()
    await server.until(lambda: len(server.broker.connections) == 0)
    sessions = list(server.broker.sessions)
    assert [session.connection for session in sessions] == ([] if clean else [None])
    assert all(session.left_at is not None for session in sessions)
    server.authenticator.holds = False
    again = await server.raw_client()
    again.send(connect(G, clean=False))
    assert await again.expect(Connack) == Connack(session_present=not clean)
    assert await again.receive_until_pong() == []


async def test_a_client_can_be_refused_after_it_disconnected(server: RunningBroker) -> None:
    gateway = await server.raw_client()
    turn = await send_held_connect(server, gateway, connect(G, password=b"wrong"))
    gateway.reset()
    turn.set()
    await server.until(lambda: len(server.broker.connections) == 0)
    server.authenticator.holds = False
    assert await (await server.gateway()).receive_until_pong() == []


async def test_the_will_of_a_refused_client_is_not_published(
    server: RunningBroker,
) -> None:
    viewer = await server.subscriber("viewer", REPORTS)
    gateway = await server.raw_client()
    turn = await send_held_connect(server, gateway, connect(G, will=Will(report(), b"will", 1)))
    server.authenticator.failures = [DatabaseUnavailable("away")]
    turn.set()
    assert await gateway.receive_until_closed() == [Connack(code=ConnectReturnCode.SERVER_UNAVAILABLE)]
    server.authenticator.holds = False
    await publish(await server.gateway(), b"marker")
    await expect_messages(viewer, b"marker")


@each_row("qos", [0, 1, 2])
@with_fresh_broker
async def test_packets_sent_before_a_half_close_are_handled(server: RunningBroker, qos: int) -> None:
    viewer = await server.subscriber("viewer", REPORTS)
    gateway = await server.raw_client()
    gateway.send(connect(G), Publish(report(), b"in one", qos, packet_id=qos))
    gateway.send_eof()
    await expect_messages(viewer, b"in one")
    accepted = await server.gateway()
    server.consumer.open.clear()
    accepted.send(Publish(report(), b"last words", qos, packet_id=qos))
    accepted.send_eof()
    assert await accepted.receive_until_closed() == []
    server.consumer.open.set()
    await expect_messages(viewer, b"last words")
    await server.until(lambda: len(server.consumer.messages) == 2)


async def test_the_broker_can_stop_while_clients_are_being_authenticated(server: RunningBroker) -> None:
    clients = [await RawClient.open(server.port) for _ in range(3)]
    for number, client in enumerate(clients):
        await send_held_connect(server, client, connect(f"viewer-{number}", clean=False))
    server.authenticator.holds = False
    await server.restart()
    for client in clients:
        assert await client.receive_until_closed() == []
        await client.close()
    assert (await load_stored(server)).sessions == {}
    assert await (await server.client("viewer")).receive_until_pong() == []


async def test_the_broker_can_stop_while_a_session_is_being_committed(server: RunningBroker) -> None:
    server.consumer.open.clear()
    gateway = await RawClient.open(server.port)
    gateway.send(connect(G, clean=False))
    await server.until(lambda: len(server.broker.sessions) == 1)
    stopping = asyncio.create_task(server.restart())
    assert await gateway.receive_until_closed() == []
    server.consumer.open.set()
    await stopping
    await gateway.close()
    assert [row.account for row in (await load_stored(server)).sessions.values()] == [f"gateway {G}"]


@pytest.mark.parametrize("clean", [True, False])
async def test_many_clients_that_connect_at_once_are_accepted(server: RunningBroker, *, clean: bool) -> None:
    macs = [f"02005e02{number:04x}" for number in range(200)]
    gateways = await asyncio.gather(*[server.gateway(mac, clean=clean) for mac in macs])
    for mac, gateway in zip(macs, gateways, strict=True):
        gateway.send(Publish(report(mac), mac.encode(), 1, packet_id=1))
    await asyncio.gather(*[gateway.expect(Puback) for gateway in gateways])
    assert {message.payload.decode() for message in server.consumer.messages} == set(macs)
    assert len(server.broker.connections) == len(server.broker.sessions) == len(macs)
    for gateway in gateways:
        gateway.abort()
    await server.until(lambda: len(server.broker.connections) == 0)
    assert len(server.broker.sessions) == (0 if clean else len(macs))


async def test_many_clients_resume_their_sessions_after_a_restart(server: RunningBroker) -> None:
    macs = [f"02005e02{number:04x}" for number in range(200)]
    for gateway in await asyncio.gather(*[server.gateway(mac, clean=False) for mac in macs]):
        gateway.send(Subscribe(1, ((f"mt/gateway/{G}/#", 1), ("mt/gateways/#", 1))))
        assert await gateway.expect(Suback) == Suback(1, (0x80, 1))
    await server.restart()
    clients = [await server.raw_client() for _ in macs]
    for mac, client in zip(macs, clients, strict=True):
        client.send(connect(mac, clean=False))
    for client in clients:
        assert await client.expect(Connack) == Connack(session_present=True)
    await server.broker.publish(f"mt/gateways/request/{G}/read/8000", b"{}")
    for client in clients:
        await expect_messages(client, b"{}")


@pytest.mark.parametrize("limits", [BrokerLimits(connections_per_account=7)])
@pytest.mark.parametrize("clean", [True, False])
async def test_of_many_clients_of_one_account_as_many_are_accepted_as_the_limit_allows(
    server: RunningBroker, *, clean: bool
) -> None:
    clients = [await server.raw_client() for _ in range(20)]
    for number, client in enumerate(clients):
        client.send(connect("viewer", client_id=f"{number}", clean=clean))
    codes = [(await client.expect(Connack)).code for client in clients]
    assert sorted(codes) == [ConnectReturnCode.ACCEPTED] * 7 + [ConnectReturnCode.SERVER_UNAVAILABLE] * 13
    assert len(server.broker.connections) == len(server.broker.sessions) == 7
    await server.restart()
    assert len(server.broker.sessions) == (0 if clean else 7)


@pytest.mark.parametrize("limits", [BrokerLimits(failed_connections=1000)])
async def test_a_gateway_is_accepted_while_many_clients_are_refused(server: RunningBroker) -> None:
    clients = [await server.raw_client() for _ in range(200)]
    for number, client in enumerate(clients):
        client.send(Connect("", user=f"viewer-{number}", password=PASSWORD[: number % 7]), Pingreq())
    assert await (await server.gateway()).receive_until_pong() == []
    for client in clients:
        assert await client.receive_until_closed() == [Connack(code=ConnectReturnCode.BAD_CREDENTIALS)]
    await server.until(lambda: len(server.broker.connections) == 1)
    assert len(server.broker.sessions) == 1
