"""Between CONNECT and CONNACK: clients that hurry, dribble, give up, or come all at once."""

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

EVERYTHING = [
    Subscribe(1, ((f"mt/gateway/{G}/request/#", 1),)),
    Publish(report(), b"at 0"),
    Publish(report(), b"at 1", 1, packet_id=2),
    Publish(report(), b"at 2", 2, packet_id=3),
    Pubrel(3),
    Unsubscribe(4, (f"mt/gateway/{G}/request/#",)),
    Pingreq(),
]
ANSWERS = {Suback(1, (1,)), Puback(2), Pubrec(3), Pubcomp(3), Unsuback(4), Pingresp()}


async def waiting(stage: RunningBroker, client: RawClient, packet: Connect, *more: bytes) -> asyncio.Event:
    """Let somebody say who it is, and wait at the door; the event lets it in."""
    stage.authenticator.holds = True
    count = len(stage.authenticator.waiting)
    client.send(packet, *more)
    await stage.until(lambda: len(stage.authenticator.waiting) > count)
    return stage.authenticator.waiting[-1]


@pytest.mark.parametrize("clean", [True, False])
async def test_a_client_need_not_wait_for_the_connack(stage: RunningBroker, *, clean: bool) -> None:
    gateway = await stage.raw_client()
    gateway.send(connect(G, clean=clean), *EVERYTHING)
    assert await gateway.expect(Connack) == Connack()
    assert {await gateway.receive() for _ in ANSWERS} == ANSWERS
    assert [message.payload for message in stage.consumer.messages] == [b"at 0", b"at 1", b"at 2"]
    assert await gateway.receive_until_pong() == []
    assert all(not session.subscriptions and not session.unreleased_ids for session in stage.broker.sessions)


@pytest.mark.parametrize("clean", [True, False])
async def test_a_stream_may_be_cut_anywhere(stage: RunningBroker, *, clean: bool) -> None:
    stream = b"".join(map(encode_packet, [connect(G, clean=clean), *EVERYTHING]))
    neighbour = await stage.client("viewer")
    for place in range(1, len(stream), 3):
        gateway = await stage.raw_client()
        gateway.send(stream[:place])
        await neighbour.receive_until_pong()  # so the broker has read the first part alone
        gateway.send(stream[place:])
        assert await gateway.expect(Connack) == Connack(session_present=not clean and place > 1)
        assert {await gateway.receive() for _ in ANSWERS} == ANSWERS
        gateway.send(Disconnect())
        assert await gateway.receive_until_closed() == []
    assert len(stage.consumer.messages) == 3 * len(range(1, len(stream), 3))


async def test_a_connect_in_single_bytes_is_taken_and_holds_up_nobody(stage: RunningBroker) -> None:
    slow = await stage.raw_client()
    neighbour = await stage.client("viewer")
    for byte in b"".join(map(encode_packet, [connect(G), *EVERYTHING])):
        slow.send(bytes([byte]))
        assert await neighbour.receive_until_pong() == []
    assert await slow.expect(Connack) == Connack()
    assert {await slow.receive() for _ in ANSWERS} == ANSWERS


async def test_many_messages_right_behind_a_connect_are_all_taken_in_their_order(
    stage: RunningBroker,
) -> None:
    payloads = [payload + bytes(200) for payload in numbered_payloads(1500)]
    gateway = await stage.raw_client()
    gateway.send(
        connect(G, clean=False),
        *[Publish(report(), payload, 1, packet_id=number) for number, payload in enumerate(payloads, 1)],
    )
    assert await gateway.expect(Connack) == Connack()
    assert [(await gateway.expect(Puback)).packet_id for _ in payloads] == list(range(1, 1501))
    assert [message.payload for message in stage.consumer.messages] == payloads


async def test_what_comes_while_a_client_waits_at_the_door_waits_too(stage: RunningBroker) -> None:
    gateway = await stage.raw_client()
    turn = await waiting(stage, gateway, connect(G))
    stage.authenticator.holds = False
    neighbour = await stage.client("viewer")
    for packet in EVERYTHING:
        gateway.send(packet)
        await neighbour.receive_until_pong()
    assert stage.consumer.messages == []
    turn.set()
    assert await gateway.expect(Connack) == Connack()
    assert {await gateway.receive() for _ in ANSWERS} == ANSWERS


async def test_who_waits_at_the_door_holds_up_nobody(stage: RunningBroker) -> None:
    gateway = await stage.raw_client()
    turn = await waiting(stage, gateway, connect(G))
    stage.authenticator.holds = False
    viewer = await stage.client("viewer")
    assert await viewer.receive_until_pong() == []
    turn.set()
    await gateway.expect(Connack)


@each_row("behind", [b"\xf0\x00", b"\x36\x02\x00\x01", encode_packet(Connect(""))])
@with_fresh_broker
async def test_rubbish_right_behind_a_connect_ends_the_connection(
    stage: RunningBroker, behind: bytes
) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.raw_client()
    gateway.send(connect(G), behind, Publish(report(), b"behind"))
    assert await gateway.receive_until_closed() in ([], [Connack()])
    await stage.until(lambda: len(stage.broker.connections) == 1)
    await publish(await stage.gateway(), b"marker")
    await expect_messages(viewer, b"marker")


async def test_who_was_cut_off_at_the_door_is_not_let_in_afterwards(stage: RunningBroker) -> None:
    gateway = await stage.raw_client()
    turn = await waiting(stage, gateway, connect(G, clean=False), b"\xf0\x00")
    assert await gateway.receive_until_closed() == []
    turn.set()
    stage.authenticator.holds = False
    viewer = await stage.client("viewer")
    assert await viewer.receive_until_pong() == []
    assert [session.account for session in stage.broker.sessions] == ["user viewer"]
    assert stage.broker.connections.of_account(f"gateway {G}") == []


@each_row("leave", [RawClient.abort, RawClient.reset, RawClient.send_eof])
@each_row("clean", [True, False])
@with_fresh_broker
async def test_a_client_that_goes_while_it_is_being_admitted_leaves_nothing_open(
    stage: RunningBroker, leave: Callable[[RawClient], None], *, clean: bool
) -> None:
    gateway = await stage.raw_client()
    turn = await waiting(stage, gateway, connect(G, clean=clean))
    leave(gateway)
    turn.set()
    await stage.until(lambda: len(stage.broker.connections) == 0)
    sessions = list(stage.broker.sessions)
    assert [session.connection for session in sessions] == ([] if clean else [None])
    assert all(session.left_at is not None for session in sessions)
    stage.authenticator.holds = False
    again = await stage.raw_client()
    again.send(connect(G, clean=False))
    assert await again.expect(Connack) == Connack(session_present=not clean)
    assert await again.receive_until_pong() == []


async def test_a_client_that_is_refused_after_it_went_does_no_harm(stage: RunningBroker) -> None:
    gateway = await stage.raw_client()
    turn = await waiting(stage, gateway, connect(G, password=b"wrong"))
    gateway.reset()
    turn.set()
    await stage.until(lambda: len(stage.broker.connections) == 0)
    stage.authenticator.holds = False
    assert await (await stage.gateway()).receive_until_pong() == []


async def test_the_will_of_who_waits_at_the_door_is_not_published_if_it_is_refused(
    stage: RunningBroker,
) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.raw_client()
    turn = await waiting(stage, gateway, connect(G, will=Will(report(), b"will", 1)))
    stage.authenticator.failures = [DatabaseUnavailable("away")]
    turn.set()
    assert await gateway.receive_until_closed() == [Connack(code=ConnectReturnCode.SERVER_UNAVAILABLE)]
    stage.authenticator.holds = False
    await publish(await stage.gateway(), b"marker")
    await expect_messages(viewer, b"marker")


@each_row("qos", [0, 1, 2])
@with_fresh_broker
async def test_what_a_client_said_before_it_closed_its_half_is_carried_out(
    stage: RunningBroker, qos: int
) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    gateway = await stage.raw_client()
    gateway.send(connect(G), Publish(report(), b"in one", qos, packet_id=qos))
    gateway.send_eof()
    await expect_messages(viewer, b"in one")
    known = await stage.gateway()
    stage.consumer.open.clear()
    known.send(Publish(report(), b"last words", qos, packet_id=qos))
    known.send_eof()
    assert await known.receive_until_closed() == []
    stage.consumer.open.set()
    await expect_messages(viewer, b"last words")
    await stage.until(lambda: len(stage.consumer.messages) == 2)


async def test_the_broker_stops_while_clients_are_being_admitted(stage: RunningBroker) -> None:
    strangers = [await RawClient.open(stage.port) for _ in range(3)]
    for number, stranger in enumerate(strangers):
        await waiting(stage, stranger, connect(f"viewer-{number}", clean=False))
    stage.authenticator.holds = False
    await stage.restart()
    for stranger in strangers:
        assert await stranger.receive_until_closed() == []
        await stranger.close()
    assert (await load_stored(stage)).sessions == {}
    assert await (await stage.client("viewer")).receive_until_pong() == []


async def test_the_broker_stops_while_a_session_is_being_written_down(stage: RunningBroker) -> None:
    stage.consumer.open.clear()
    gateway = await RawClient.open(stage.port)
    gateway.send(connect(G, clean=False))
    await stage.until(lambda: len(stage.broker.sessions) == 1)
    stopping = asyncio.create_task(stage.restart())
    assert await gateway.receive_until_closed() == []
    stage.consumer.open.set()
    await stopping
    await gateway.close()
    assert [row.account for row in (await load_stored(stage)).sessions.values()] == [f"gateway {G}"]


@pytest.mark.parametrize("clean", [True, False])
async def test_a_wave_of_clients_is_let_in(stage: RunningBroker, *, clean: bool) -> None:
    macs = [f"02005e02{number:04x}" for number in range(200)]
    gateways = await asyncio.gather(*[stage.gateway(mac, clean=clean) for mac in macs])
    for mac, gateway in zip(macs, gateways, strict=True):
        gateway.send(Publish(report(mac), mac.encode(), 1, packet_id=1))
    await asyncio.gather(*[gateway.expect(Puback) for gateway in gateways])
    assert {message.payload.decode() for message in stage.consumer.messages} == set(macs)
    assert len(stage.broker.connections) == len(stage.broker.sessions) == len(macs)
    for gateway in gateways:
        gateway.abort()
    await stage.until(lambda: len(stage.broker.connections) == 0)
    assert len(stage.broker.sessions) == (0 if clean else len(macs))


async def test_a_wave_comes_back_after_a_restart_and_finds_its_sessions(stage: RunningBroker) -> None:
    macs = [f"02005e02{number:04x}" for number in range(200)]
    for gateway in await asyncio.gather(*[stage.gateway(mac, clean=False) for mac in macs]):
        gateway.send(Subscribe(1, ((f"mt/gateway/{G}/#", 1), ("mt/gateways/#", 1))))
        assert await gateway.expect(Suback) == Suback(1, (0x80, 1))
    await stage.restart()
    strangers = [await stage.raw_client() for _ in macs]
    for mac, stranger in zip(macs, strangers, strict=True):
        stranger.send(connect(mac, clean=False))
    for stranger in strangers:
        assert await stranger.expect(Connack) == Connack(session_present=True)
    await stage.broker.publish(f"mt/gateways/request/{G}/read/8000", b"{}")
    for stranger in strangers:
        await expect_messages(stranger, b"{}")


@pytest.mark.parametrize("limits", [BrokerLimits(connections_per_account=7)])
@pytest.mark.parametrize("clean", [True, False])
async def test_of_a_wave_of_one_account_as_many_are_let_in_as_it_may_have(
    stage: RunningBroker, *, clean: bool
) -> None:
    clients = [await stage.raw_client() for _ in range(20)]
    for number, client in enumerate(clients):
        client.send(connect("viewer", client_id=f"{number}", clean=clean))
    codes = [(await client.expect(Connack)).code for client in clients]
    assert sorted(codes) == [ConnectReturnCode.ACCEPTED] * 7 + [ConnectReturnCode.SERVER_UNAVAILABLE] * 13
    assert len(stage.broker.connections) == len(stage.broker.sessions) == 7
    await stage.restart()
    assert len(stage.broker.sessions) == (0 if clean else 7)


@pytest.mark.parametrize("limits", [BrokerLimits(failed_connections=1000)])
async def test_a_wave_of_strangers_and_one_who_belongs(stage: RunningBroker) -> None:
    strangers = [await stage.raw_client() for _ in range(200)]
    for number, stranger in enumerate(strangers):
        stranger.send(Connect("", user=f"viewer-{number}", password=PASSWORD[: number % 7]), Pingreq())
    assert await (await stage.gateway()).receive_until_pong() == []
    for stranger in strangers:
        assert await stranger.receive_until_closed() == [Connack(code=ConnectReturnCode.BAD_CREDENTIALS)]
    await stage.until(lambda: len(stage.broker.connections) == 1)
    assert len(stage.broker.sessions) == 1
