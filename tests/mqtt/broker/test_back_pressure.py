"""Publishers wait when the database is slower than they are: nothing piles up, and nothing is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.codec.packets import Puback, Publish, Pubrec
from tests.mqtt.broker.messages import TOPIC, publish
from tests.mqtt.broker.running_broker import RunningBroker, report, with_fresh_broker
from tests.row_tables import each_row

if TYPE_CHECKING:
    from tests.mqtt.broker.raw_client import RawClient

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

BATCH_LIMIT = 2 * 1024 * 1024
"""Bytes of a commit batch after which publishers wait."""
SIZE = 60_000
"""Bytes of a payload."""
COUNT = 40
"""Messages of one publisher."""
MACS = [f"02005e0001{n:02x}" for n in range(4)]
MAX_BATCH_BYTES = BATCH_LIMIT + len(MACS) * (64 * 1024 + SIZE)
"""Maximum bytes of a batch: its limit, and for each publisher one more read with the rest of a message."""


@pytest.fixture
def max_batch_bytes() -> int:
    return BATCH_LIMIT


def payload_numbers(batch: list[Publish], mac: str) -> list[int]:
    return [int(message.payload[:5]) for message in batch if message.topic == report(mac)]


async def publish_many(server: RunningBroker, mac: str, qos: int) -> RawClient:
    """Connect a gateway and send more than a batch holds, all at once."""
    gateway = await server.gateway(mac)
    for n in range(1, COUNT + 1):
        packet_id = n if qos else 0
        gateway.send(Publish(report(mac), (b"%05d" % n).ljust(SIZE), qos, packet_id=packet_id))
    return gateway


@each_row("qos", [0, 1, 2])
@with_fresh_broker
async def test_publishers_wait_while_the_consumer_is_blocked(server: RunningBroker, qos: int) -> None:
    assert len(MACS) * COUNT * SIZE > 4 * BATCH_LIMIT
    server.consumer.open.clear()
    gateways = [await publish_many(server, mac, qos) for mac in MACS]
    await server.until(lambda: server.broker.held_publishers == len(MACS))
    neighbor = await server.client("viewer")
    for _ in range(100):
        # Gives the broker time to read everything it would read.
        assert await neighbor.receive_until_pong() == []
    assert BATCH_LIMIT < server.broker.uncommitted_bytes <= MAX_BATCH_BYTES
    server.consumer.open.set()
    for gateway in gateways if qos else ():
        kind = Puback if qos == 1 else Pubrec
        assert [await gateway.receive() for _ in range(COUNT)] == [kind(n) for n in range(1, COUNT + 1)]
    await server.until(lambda: len(server.consumer.messages) == len(MACS) * COUNT)
    for gateway in gateways:
        assert await gateway.receive_until_pong() == []
    for mac in MACS:
        assert payload_numbers(server.consumer.messages, mac) == [*range(1, COUNT + 1)]
    assert (
        max(sum(len(each.payload) for each in batch) for batch in server.consumer.batches) <= MAX_BATCH_BYTES
    )


async def test_a_publisher_may_disconnect_while_it_waits(server: RunningBroker) -> None:
    server.consumer.open.clear()
    gateways = [await publish_many(server, mac, 1) for mac in MACS]
    await server.until(lambda: server.broker.held_publishers == len(MACS))
    for gateway in gateways[:2]:
        gateway.abort()
    newcomer = await server.gateway()
    server.consumer.open.set()
    await publish(newcomer, b"{}")
    for gateway in gateways[2:]:
        assert [(await gateway.expect(Puback)).packet_id for _ in range(COUNT)] == [*range(1, COUNT + 1)]
    for mac in MACS[:2]:
        received = payload_numbers(server.consumer.messages, mac)
        assert received == [*range(1, len(received) + 1)]
    assert server.consumer.messages.count(Publish(TOPIC, b"{}", 1, packet_id=1)) == 1


async def test_small_messages_fill_a_batch_too(server: RunningBroker) -> None:
    """Publish no more messages than a client may send in a second."""
    gateway = await server.gateway()
    server.consumer.open.clear()
    for n in range(1, 1501):
        gateway.send(Publish(TOPIC, b"%05d" % n, 1, packet_id=n))
    assert await gateway.receive_until_pong() == []
    server.consumer.open.set()
    assert [(await gateway.expect(Puback)).packet_id for _ in range(1500)] == [*range(1, 1501)]
    assert [int(message.payload) for message in server.consumer.messages] == [*range(1, 1501)]
