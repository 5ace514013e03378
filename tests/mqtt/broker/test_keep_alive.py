"""Clients that send nothing for too long are closed, by a clock that the test controls."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import Connack, Connect, Pingreq, Pingresp, Puback, Publish, Subscribe
from tests.mqtt.broker.messages import publish
from tests.mqtt.broker.running_broker import REPORTS, G, RunningBroker, connect, report, with_fresh_broker
from tests.row_tables import each_row

if TYPE_CHECKING:
    from meshfleet.mqtt.broker.connection import ServerConnection

pytestmark = pytest.mark.anyio

LATER = 1_000_000.0
"""A time of the clock of the test."""


@pytest.fixture
def sweep_seconds() -> float:
    """Return an interval so long that only the tests check deadlines."""
    return 3600.0


def only_connection(server: RunningBroker) -> ServerConnection:
    """Return the broker's side of the only connection."""
    (connection,) = server.broker.connections
    return connection


@each_row("keep_alive", [1, 10, 65_535])
@with_fresh_broker
async def test_a_client_that_is_silent_for_one_and_a_half_keep_alives_is_closed(
    server: RunningBroker, keep_alive: int
) -> None:
    gateway = await server.gateway(keep_alive=keep_alive)
    connection = only_connection(server)
    connection.check_deadlines(LATER)
    connection.check_deadlines(LATER + 1.5 * keep_alive)
    assert connection.is_open
    assert await gateway.receive_until_pong() == []
    connection.check_deadlines(LATER + 1.5 * keep_alive)
    connection.check_deadlines(LATER + 3 * keep_alive)
    assert connection.is_open
    connection.check_deadlines(LATER + 3 * keep_alive + 0.1)
    assert await gateway.receive_until_closed() == []


@pytest.mark.parametrize(
    "packets",
    [
        Publish(report(), b"{}"),
        Publish(report(), b"{}", 1, packet_id=1),
        Publish(report(), b"{}", 2, packet_id=1),
        Subscribe(1, ((f"mt/gateway/{G}/#", 1),)),
        Puback(1),
        Pingreq(),
        [Puback(1), Puback(2)],
        [Publish(report(), b"{}", 1, packet_id=1), Publish(report(), b"{}", 1, packet_id=2)],
    ],
    ids=str,
)
async def test_every_packet_resets_the_keep_alive(server: RunningBroker, packets: object) -> None:
    gateway = await server.gateway(keep_alive=10)
    connection = only_connection(server)
    for number in range(3):
        connection.check_deadlines(LATER + 15 * number)
        assert not connection.has_received
        gateway.send(*(packets if isinstance(packets, list) else [packets]))
        await server.until(lambda: connection.has_received)
    connection.check_deadlines(LATER + 45)
    assert connection.is_open


async def test_an_incomplete_packet_does_not_reset_the_keep_alive(server: RunningBroker) -> None:
    gateway = await server.gateway(keep_alive=10)
    connection = only_connection(server)
    connection.check_deadlines(LATER)
    for byte in encode_packet(Publish(report(), b"x" * 20))[:-1]:
        gateway.send(bytes([byte]))
        await asyncio.sleep(0)
    await (await server.client("viewer")).receive_until_pong()  # so the broker has read the bytes sent before
    connection.check_deadlines(LATER + 16)
    assert await gateway.receive_until_closed() == []


async def test_packets_of_the_broker_do_not_reset_the_keep_alive(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS, keep_alive=10)
    connection = only_connection(server)
    connection.check_deadlines(LATER)
    await publish(await server.gateway(), b"{}")
    await viewer.expect(Publish)
    connection.check_deadlines(LATER + 16)
    assert await viewer.receive_until_closed() == []


async def test_a_slow_authentication_does_not_close_the_connection(server: RunningBroker) -> None:
    server.authenticator.holds = True
    gateway = await server.raw_client()
    gateway.send(connect(G, keep_alive=10))
    await server.until(lambda: len(server.authenticator.waiting) == 1)
    connection = only_connection(server)
    for number in range(100):
        connection.check_deadlines(LATER + number)
    server.authenticator.waiting[0].set()
    assert await gateway.expect(Connack) == Connack()
    connection.check_deadlines(LATER + 1000)
    connection.check_deadlines(LATER + 1015)
    assert connection.is_open
    connection.check_deadlines(LATER + 1016)
    assert await gateway.receive_until_closed() == []


async def test_a_slow_commit_before_the_connack_does_not_close_the_connection(server: RunningBroker) -> None:
    server.consumer.open.clear()
    gateway = await server.raw_client()
    gateway.send(connect(G, keep_alive=1, clean=False))
    await server.until(lambda: len(server.broker.sessions) == 1)
    connection = only_connection(server)
    for number in range(100):
        connection.check_deadlines(LATER + number)
    server.consumer.open.set()
    assert await gateway.expect(Connack) == Connack()
    assert await gateway.receive_until_pong() == []


async def test_a_client_that_waits_for_a_puback_has_to_ping(server: RunningBroker) -> None:
    gateway = await server.gateway(keep_alive=10)
    connection = only_connection(server)
    server.consumer.open.clear()
    gateway.send(Publish(report(), b"{}", 1, packet_id=1))
    assert await gateway.receive_until_pong() == []
    connection.check_deadlines(LATER)
    connection.check_deadlines(LATER + 16)
    assert await gateway.receive_until_closed() == []
    server.consumer.open.set()
    await server.until(lambda: len(server.consumer.messages) == 1)


async def test_without_a_keep_alive_a_silent_client_stays(server: RunningBroker) -> None:
    gateway = await server.gateway(keep_alive=0)
    connection = only_connection(server)
    for number in range(10):
        connection.check_deadlines(LATER * 1000**number)
    assert await gateway.receive_until_pong() == []


async def test_a_pingreq_gets_a_pingresp(server: RunningBroker) -> None:
    gateway = await server.gateway()
    gateway.send(b"\xc0\x00")
    await gateway.receive()
    assert gateway.bytes == bytes.fromhex("20020000 d000")
    gateway.send(b"\xc0\x00" * 50)
    for _ in range(50):
        await gateway.receive()
    assert gateway.bytes == bytes.fromhex("20020000") + 51 * bytes.fromhex("d000")


async def test_a_connection_without_a_connect_is_closed(server: RunningBroker) -> None:
    unauthenticated = await server.raw_client()
    await server.until(lambda: len(server.broker.connections) == 1)
    connection, now = only_connection(server), asyncio.get_running_loop().time()
    connection.check_deadlines(now)
    assert connection.is_open
    connection.check_deadlines(now + server.limits.connect_seconds + 1)
    assert await unauthenticated.receive_until_closed() == []
    assert len(server.broker.connections) == 0


async def test_a_connect_that_is_sent_too_slowly_is_closed(server: RunningBroker) -> None:
    unauthenticated = await server.raw_client()
    await server.until(lambda: len(server.broker.connections) == 1)
    connection, now = only_connection(server), asyncio.get_running_loop().time()
    incomplete = encode_packet(connect("viewer", keep_alive=60))[:-1]
    for number, byte in enumerate(incomplete):
        unauthenticated.send(bytes([byte]))
        await asyncio.sleep(0)
        connection.check_deadlines(now + (server.limits.connect_seconds - 1) * number / len(incomplete))
        assert connection.is_open
    connection.check_deadlines(now + server.limits.connect_seconds + 1)
    assert await unauthenticated.receive_until_closed() == []
    assert unauthenticated.bytes == b""


@each_row("keep_alive", [0, 600])
@with_fresh_broker
async def test_the_connect_timeout_does_not_apply_to_accepted_clients(
    server: RunningBroker, keep_alive: int
) -> None:
    gateway = await server.gateway(keep_alive=keep_alive)
    connection = only_connection(server)
    now = asyncio.get_running_loop().time()
    connection.check_deadlines(now + 1)
    connection.check_deadlines(now + server.limits.connect_seconds + 100)
    assert await gateway.receive_until_pong() == []


async def test_a_refused_client_that_does_not_close_is_removed_by_the_broker(server: RunningBroker) -> None:
    unauthenticated = await server.raw_client()
    unauthenticated.pause_reading()
    unauthenticated.send(Connect("x", user="viewer", password=b"wrong"))
    await server.until(lambda: len(server.broker.connections) == 0)


@pytest.mark.parametrize("sweep_seconds", [0.1])
async def test_the_broker_checks_deadlines_periodically(server: RunningBroker) -> None:
    silent = await server.gateway(keep_alive=1)
    lasting = await server.client("viewer")
    assert await silent.receive_until_closed() == []
    assert await lasting.receive_until_pong() == []


@pytest.mark.parametrize("sweep_seconds", [0.1])
async def test_a_client_that_pinged_before_a_late_check_is_not_closed(server: RunningBroker) -> None:
    gateway = await server.gateway(keep_alive=600)
    connection, ping = only_connection(server), encode_packet(Pingreq())
    # No await before the second ping: the broker could check the deadline before it reads the socket.
    connection.data_received(ping)
    connection.check_deadlines(-LATER)  # the next packet was due long ago
    connection.data_received(ping)
    # Wait for the next check of the broker.
    await server.until(lambda: not (connection.has_received and connection.is_open))
    assert connection.is_open
    assert [await gateway.receive(), await gateway.receive()] == [Pingresp(), Pingresp()]
    assert await gateway.receive_until_pong() == []
