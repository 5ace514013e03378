"""What most tests of messages do: publish and be sure of it, read so many, acknowledge them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.mqtt.broker import load_stored_state
from meshfleet.mqtt.codec.packets import MAX_PACKET_ID, Puback, Publish, Suback, Subscribe
from tests.mqtt.broker.running_broker import report

if TYPE_CHECKING:
    from meshfleet.mqtt.broker import StoredState
    from meshfleet.mqtt.broker.session import MqttSession
    from meshfleet.mqtt.codec.packets import Packet
    from tests.mqtt.broker.raw_client import RawClient
    from tests.mqtt.broker.running_broker import RunningBroker

TOPIC = report()
"""Where most of them go."""


async def publish(client: RawClient, *payloads: bytes, topic: str = TOPIC, retain: bool = False) -> None:
    """Publish at QoS 1, and wait for each PUBACK: then the broker has passed everything on."""
    ids = range(1, len(payloads) + 1)
    client.send(
        *(Publish(topic, payload, 1, retain, packet_id=n) for n, payload in zip(ids, payloads, strict=True))
    )
    for packet_id in ids:
        assert await client.expect(Puback) == Puback(packet_id)


async def receive_messages(client: RawClient, count: int) -> list[Publish]:
    """The next packets, which must be messages."""
    return [await client.expect(Publish) for _ in range(count)]


async def expect_messages(client: RawClient, *payloads: bytes) -> list[Publish]:
    """The next packets, which must be messages with these payloads, and there must be no more."""
    come = await receive_messages(client, len(payloads))
    assert [message.payload for message in come] == list(payloads)
    assert await client.receive_until_pong() == []
    return come


async def acknowledge(client: RawClient, *come: Publish) -> None:
    """Acknowledge messages, and wait until the broker has heard it."""
    client.send(*(Puback(message.packet_id) for message in come))
    assert await client.receive_until_pong() == []


async def subscribe(client: RawClient, *filters: tuple[str, int]) -> list[Publish]:
    """Subscribe, and tell which messages came with it: they may come before the SUBACK."""
    client.send(Subscribe(1, filters))
    come = []
    while isinstance(packet := await client.receive(), Publish):
        come.append(packet)
    assert packet == Suback(1, tuple(min(qos, 1) for _, qos in filters))
    for more in await client.receive_until_pong():
        assert isinstance(more, Publish), more
        come.append(more)
    return come


def numbered_payloads(count: int, start: int = 0) -> list[bytes]:
    """Payloads that tell their order."""
    return [b"%05d" % n for n in range(start, start + count)]


def payloads_of(packets: list[Packet]) -> list[bytes]:
    """Of the messages among packets."""
    return [packet.payload for packet in packets if isinstance(packet, Publish)]


def session_of(stage: RunningBroker, client_id: str) -> MqttSession:
    """What the broker knows of a client."""
    (session,) = [each for each in stage.broker.sessions if each.client_id == client_id]
    return session


def advance_packet_ids(stage: RunningBroker, client_id: str, last_id: int) -> None:
    """Continue as if a client had been sent, and had acknowledged, messages up to this packet id."""
    session = session_of(stage, client_id)
    turns = session._last_position // MAX_PACKET_ID + 1  # noqa: SLF001 # in place of 65,000 messages
    session._last_position = turns * MAX_PACKET_ID + last_id - 1  # noqa: SLF001


async def load_stored(stage: RunningBroker) -> StoredState:
    """What the database has of the broker, seen on a connection of its own."""
    return await stage.database.read(load_stored_state)
