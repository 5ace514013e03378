"""Steps of most message tests: publish and wait for PUBACK, receive messages, acknowledge them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.mqtt.broker import StoredState, load_stored_state
from meshfleet.mqtt.codec.packets import MAX_PACKET_ID, Packet, Puback, Publish, Suback, Subscribe
from tests.mqtt.broker.running_broker import RunningBroker, report

if TYPE_CHECKING:
    from meshfleet.mqtt.broker.session import MqttSession
    from tests.mqtt.broker.raw_client import RawClient

TOPIC = report()
"""Topic of most messages."""


async def publish(client: RawClient, *payloads: bytes, topic: str = TOPIC, retain: bool = False) -> None:
    """Publish at QoS 1 and wait for each PUBACK: then the broker has routed every message."""
    packet_ids = range(1, len(payloads) + 1)
    client.send(
        *(
            Publish(topic, payload, 1, retain, packet_id=packet_id)
            for packet_id, payload in zip(packet_ids, payloads, strict=True)
        )
    )
    for packet_id in packet_ids:
        assert await client.expect(Puback) == Puback(packet_id)


async def receive_messages(client: RawClient, count: int) -> list[Publish]:
    """Return the next packets, which must be messages."""
    return [await client.expect(Publish) for _ in range(count)]


async def expect_messages(client: RawClient, *payloads: bytes) -> list[Publish]:
    """Receive messages with these payloads and no others."""
    messages = await receive_messages(client, len(payloads))
    assert [message.payload for message in messages] == list(payloads)
    assert await client.receive_until_pong() == []
    return messages


async def acknowledge(client: RawClient, *messages: Publish) -> None:
    """Acknowledge messages, and wait until the broker has read the PUBACKs."""
    client.send(*(Puback(message.packet_id) for message in messages))
    assert await client.receive_until_pong() == []


async def subscribe(client: RawClient, *filters: tuple[str, int]) -> list[Publish]:
    """Subscribe, and return the retained messages that arrived: some may arrive before the SUBACK."""
    client.send(Subscribe(1, filters))
    messages = []
    while isinstance(packet := await client.receive(), Publish):
        messages.append(packet)
    assert packet == Suback(1, tuple(min(qos, 1) for _, qos in filters))
    for packet in await client.receive_until_pong():
        assert isinstance(packet, Publish), packet
        messages.append(packet)
    return messages


def numbered_payloads(count: int, start: int = 0) -> list[bytes]:
    """Return payloads that show their order."""
    return [b"%05d" % n for n in range(start, start + count)]


def payloads_of(packets: list[Packet]) -> list[bytes]:
    """Return the payloads of the messages among packets."""
    return [packet.payload for packet in packets if isinstance(packet, Publish)]


def session_of(server: RunningBroker, client_id: str) -> MqttSession:
    """Return the session of a client."""
    (session,) = [session for session in server.broker.sessions if session.client_id == client_id]
    return session


def advance_packet_ids(server: RunningBroker, client_id: str, last_id: int) -> None:
    """Continue as if the client had acknowledged messages up to this packet identifier."""
    session = session_of(server, client_id)
    rounds = session._last_position // MAX_PACKET_ID + 1  # noqa: SLF001 # in place of 65,000 messages
    session._last_position = rounds * MAX_PACKET_ID + last_id - 1  # noqa: SLF001


async def load_stored(server: RunningBroker) -> StoredState:
    """Load the persisted state of the broker."""
    return await server.database.read(load_stored_state)
