"""When the database is slower than the publishers, they wait: nothing piles up, and nothing is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.codec.packets import Puback, Publish, Pubrec
from tests.mqtt.broker.messages import TOPIC, publish
from tests.mqtt.broker.running_broker import report, with_fresh_broker
from tests.row_tables import each_row

if TYPE_CHECKING:
    from tests.mqtt.broker.raw_client import RawClient
    from tests.mqtt.broker.running_broker import RunningBroker

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

FULL = 2 * 1024 * 1024
"""Bytes of a round after which publishers wait."""
SIZE = 60_000
"""Bytes of a payload."""
COUNT = 40
"""Messages of one publisher."""
MACS = [f"02005e0001{n:02x}" for n in range(4)]
ROOM = FULL + len(MACS) * (64 * 1024 + SIZE)
"""What a round may hold: its limit, and of each publisher a last read with the rest of a message."""


@pytest.fixture
def round_bytes() -> int:
    return FULL


def numbers(batch: list[Publish], mac: str) -> list[int]:
    return [int(message.payload[:5]) for message in batch if message.topic == report(mac)]


async def push(stage: RunningBroker, mac: str, qos: int) -> RawClient:
    """Somebody who sends more than a round holds, all at once."""
    gateway = await stage.gateway(mac)
    for n in range(1, COUNT + 1):
        packet_id = n if qos else 0
        gateway.send(Publish(report(mac), (b"%05d" % n).ljust(SIZE), qos, packet_id=packet_id))
    return gateway


@each_row("qos", [0, 1, 2])
@with_fresh_broker
async def test_publishers_wait_for_a_consumer_that_is_held(stage: RunningBroker, qos: int) -> None:
    assert len(MACS) * COUNT * SIZE > 4 * FULL
    stage.consumer.open.clear()
    gateways = [await push(stage, mac, qos) for mac in MACS]
    await stage.until(lambda: stage.broker.held_publishers == len(MACS))
    neighbour = await stage.client("viewer")
    for _ in range(100):
        assert await neighbour.receive_until_pong() == []  # time for everything that wants to be read
    assert FULL < stage.broker.uncommitted_bytes <= ROOM
    stage.consumer.open.set()
    for gateway in gateways if qos else ():
        kind = Puback if qos == 1 else Pubrec
        assert [await gateway.receive() for _ in range(COUNT)] == [kind(n) for n in range(1, COUNT + 1)]
    await stage.until(lambda: len(stage.consumer.messages) == len(MACS) * COUNT)
    for gateway in gateways:
        assert await gateway.receive_until_pong() == []
    for mac in MACS:
        assert numbers(stage.consumer.messages, mac) == [*range(1, COUNT + 1)]
    assert max(sum(len(each.payload) for each in batch) for batch in stage.consumer.batches) <= ROOM


async def test_a_publisher_that_leaves_while_it_waits_is_no_trouble(stage: RunningBroker) -> None:
    stage.consumer.open.clear()
    gateways = [await push(stage, mac, 1) for mac in MACS]
    await stage.until(lambda: stage.broker.held_publishers == len(MACS))
    for gateway in gateways[:2]:
        gateway.abort()
    newcomer = await stage.gateway()
    stage.consumer.open.set()
    await publish(newcomer, b"{}")
    for gateway in gateways[2:]:
        assert [(await gateway.expect(Puback)).packet_id for _ in range(COUNT)] == [*range(1, COUNT + 1)]
    for mac in MACS[:2]:
        come = numbers(stage.consumer.messages, mac)
        assert come == [*range(1, len(come) + 1)]
    assert stage.consumer.messages.count(Publish(TOPIC, b"{}", 1, packet_id=1)) == 1


async def test_small_messages_fill_a_round_too(stage: RunningBroker) -> None:
    """Of a publisher that sends no more than it may in a second."""
    gateway = await stage.gateway()
    stage.consumer.open.clear()
    for n in range(1, 1501):
        gateway.send(Publish(TOPIC, b"%05d" % n, 1, packet_id=n))
    assert await gateway.receive_until_pong() == []
    stage.consumer.open.set()
    assert [(await gateway.expect(Puback)).packet_id for _ in range(1500)] == [*range(1, 1501)]
    assert [int(message.payload) for message in stage.consumer.messages] == [*range(1, 1501)]
