"""Who says nothing for too long is cut off, by a clock that the test reads out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import Connack, Connect, Pingreq, Pingresp, Puback, Publish, Subscribe
from tests.mqtt.broker.messages import publish
from tests.mqtt.broker.running_broker import REPORTS, G, connect, report, with_fresh_broker
from tests.row_tables import each_row

if TYPE_CHECKING:
    from meshfleet.mqtt.broker.connection import ServerConnection
    from tests.mqtt.broker.running_broker import RunningBroker

pytestmark = pytest.mark.anyio

LATER = 1_000_000.0
"""A moment of the test's own clock."""


@pytest.fixture
def sweep_seconds() -> float:
    """Here only the test tells the time."""
    return 3600.0


def only(stage: RunningBroker) -> ServerConnection:
    """The broker's end of the only connection."""
    (connection,) = stage.broker.connections
    return connection


@each_row("keep_alive", [1, 10, 65_535])
@with_fresh_broker
async def test_a_client_that_is_silent_for_one_and_a_half_keep_alives_is_cut_off(
    stage: RunningBroker, keep_alive: int
) -> None:
    gateway = await stage.gateway(keep_alive=keep_alive)
    connection = only(stage)
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
    "spoken",
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
async def test_every_packet_is_a_sign_of_life(stage: RunningBroker, spoken: object) -> None:
    gateway = await stage.gateway(keep_alive=10)
    connection = only(stage)
    for number in range(3):
        connection.check_deadlines(LATER + 15 * number)
        assert not connection.has_received
        gateway.send(*(spoken if isinstance(spoken, list) else [spoken]))
        await stage.until(lambda: connection.has_received)
    connection.check_deadlines(LATER + 45)
    assert connection.is_open


async def test_a_part_of_a_packet_is_no_sign_of_life(stage: RunningBroker) -> None:
    gateway = await stage.gateway(keep_alive=10)
    connection = only(stage)
    connection.check_deadlines(LATER)
    for byte in encode_packet(Publish(report(), b"x" * 20))[:-1]:
        gateway.send(bytes([byte]))
        await asyncio.sleep(0)
    await (await stage.client("viewer")).receive_until_pong()  # so the broker has read what was sent before
    connection.check_deadlines(LATER + 16)
    assert await gateway.receive_until_closed() == []


async def test_what_the_broker_sends_is_no_sign_of_life(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, keep_alive=10)
    connection = only(stage)
    connection.check_deadlines(LATER)
    await publish(await stage.gateway(), b"{}")
    await viewer.expect(Publish)
    connection.check_deadlines(LATER + 16)
    assert await viewer.receive_until_closed() == []


async def test_a_slow_admission_changes_nothing(stage: RunningBroker) -> None:
    stage.authenticator.holds = True
    gateway = await stage.raw_client()
    gateway.send(connect(G, keep_alive=10))
    await stage.until(lambda: len(stage.authenticator.waiting) == 1)
    connection = only(stage)
    for number in range(100):
        connection.check_deadlines(LATER + number)
    stage.authenticator.waiting[0].set()
    assert await gateway.expect(Connack) == Connack()
    connection.check_deadlines(LATER + 1000)
    connection.check_deadlines(LATER + 1015)
    assert connection.is_open
    connection.check_deadlines(LATER + 1016)
    assert await gateway.receive_until_closed() == []


async def test_a_slow_commit_before_the_connack_changes_nothing(stage: RunningBroker) -> None:
    stage.consumer.open.clear()
    gateway = await stage.raw_client()
    gateway.send(connect(G, keep_alive=1, clean=False))
    await stage.until(lambda: len(stage.broker.sessions) == 1)
    connection = only(stage)
    for number in range(100):
        connection.check_deadlines(LATER + number)
    stage.consumer.open.set()
    assert await gateway.expect(Connack) == Connack()
    assert await gateway.receive_until_pong() == []


async def test_who_waits_for_a_puback_has_to_ping(stage: RunningBroker) -> None:
    gateway = await stage.gateway(keep_alive=10)
    connection = only(stage)
    stage.consumer.open.clear()
    gateway.send(Publish(report(), b"{}", 1, packet_id=1))
    assert await gateway.receive_until_pong() == []
    connection.check_deadlines(LATER)
    connection.check_deadlines(LATER + 16)
    assert await gateway.receive_until_closed() == []
    stage.consumer.open.set()
    await stage.until(lambda: len(stage.consumer.messages) == 1)


async def test_without_a_keep_alive_a_silent_client_stays(stage: RunningBroker) -> None:
    gateway = await stage.gateway(keep_alive=0)
    connection = only(stage)
    for number in range(10):
        connection.check_deadlines(LATER * 1000**number)
    assert await gateway.receive_until_pong() == []


async def test_a_ping_is_answered(stage: RunningBroker) -> None:
    gateway = await stage.gateway()
    gateway.send(b"\xc0\x00")
    await gateway.receive()
    assert gateway.bytes == bytes.fromhex("20020000 d000")
    gateway.send(b"\xc0\x00" * 50)
    for _ in range(50):
        await gateway.receive()
    assert gateway.bytes == bytes.fromhex("20020000") + 51 * bytes.fromhex("d000")


async def test_who_never_says_who_it_is_is_cut_off(stage: RunningBroker) -> None:
    stranger = await stage.raw_client()
    await stage.until(lambda: len(stage.broker.connections) == 1)
    connection, now = only(stage), asyncio.get_running_loop().time()
    connection.check_deadlines(now)
    assert connection.is_open
    connection.check_deadlines(now + stage.limits.connect_seconds + 1)
    assert await stranger.receive_until_closed() == []
    assert len(stage.broker.connections) == 0


async def test_a_dribbled_connect_is_cut_off(stage: RunningBroker) -> None:
    stranger = await stage.raw_client()
    await stage.until(lambda: len(stage.broker.connections) == 1)
    connection, now = only(stage), asyncio.get_running_loop().time()
    dribble = encode_packet(connect("viewer", keep_alive=60))[:-1]
    for number, byte in enumerate(dribble):
        stranger.send(bytes([byte]))
        await asyncio.sleep(0)
        connection.check_deadlines(now + (stage.limits.connect_seconds - 1) * number / len(dribble))
        assert connection.is_open
    connection.check_deadlines(now + stage.limits.connect_seconds + 1)
    assert await stranger.receive_until_closed() == []
    assert stranger.bytes == b""


@each_row("keep_alive", [0, 600])
@with_fresh_broker
async def test_the_time_for_a_connect_does_not_limit_who_was_admitted(
    stage: RunningBroker, keep_alive: int
) -> None:
    gateway = await stage.gateway(keep_alive=keep_alive)
    connection = only(stage)
    now = asyncio.get_running_loop().time()
    connection.check_deadlines(now + 1)
    connection.check_deadlines(now + stage.limits.connect_seconds + 100)
    assert await gateway.receive_until_pong() == []


async def test_a_refused_client_that_stays_is_gone_for_the_broker(stage: RunningBroker) -> None:
    stranger = await stage.raw_client()
    stranger.pause_reading()
    stranger.send(Connect("x", user="viewer", password=b"wrong"))
    await stage.until(lambda: len(stage.broker.connections) == 0)


@pytest.mark.parametrize("sweep_seconds", [0.1])
async def test_the_broker_looks_at_its_own_clock_unasked(stage: RunningBroker) -> None:
    silent = await stage.gateway(keep_alive=1)
    lasting = await stage.client("viewer")
    assert await silent.receive_until_closed() == []
    assert await lasting.receive_until_pong() == []


@pytest.mark.parametrize("sweep_seconds", [0.1])
async def test_a_client_that_is_due_but_has_pinged_is_passed_over(stage: RunningBroker) -> None:
    gateway = await stage.gateway(keep_alive=600)
    connection, ping = only(stage), encode_packet(Pingreq())
    # Up to the second ping nothing waits: the broker could look at its clock before it reads a socket.
    connection.data_received(ping)
    connection.check_deadlines(-LATER)  # the next packet was due long ago
    connection.data_received(ping)
    await stage.until(
        lambda: not (connection.has_received and connection.is_open)
    )  # until the broker has looked
    assert connection.is_open
    assert [await gateway.receive(), await gateway.receive()] == [Pingresp(), Pingresp()]
    assert await gateway.receive_until_pong() == []
