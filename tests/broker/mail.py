"""What most tests of messages do: publish and be sure of it, read so many, acknowledge them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.broker import load
from meshfleet.wire.mqtt.packets import LARGEST_ID, Puback, Publish, Suback, Subscribe
from tests.broker.stage import report

if TYPE_CHECKING:
    from meshfleet.broker import Saved
    from meshfleet.broker.session import Session
    from meshfleet.wire.mqtt.packets import Packet
    from tests.broker.raw import Raw
    from tests.broker.stage import Stage

TOPIC = report()
"""Where most of them go."""


async def publish(client: Raw, *payloads: bytes, topic: str = TOPIC, retain: bool = False) -> None:
    """Publish at QoS 1, and wait for each PUBACK: then the broker has passed everything on."""
    ids = range(1, len(payloads) + 1)
    client.send(
        *(Publish(topic, payload, 1, retain, packet_id=n) for n, payload in zip(ids, payloads, strict=True))
    )
    for packet_id in ids:
        assert await client.expect(Puback) == Puback(packet_id)


async def messages(client: Raw, count: int) -> list[Publish]:
    """The next packets, which must be messages."""
    return [await client.expect(Publish) for _ in range(count)]


async def arrive(client: Raw, *payloads: bytes) -> list[Publish]:
    """The next packets, which must be messages with these payloads, and there must be no more."""
    come = await messages(client, len(payloads))
    assert [message.payload for message in come] == list(payloads)
    assert await client.until_pong() == []
    return come


async def acknowledge(client: Raw, *come: Publish) -> None:
    """Acknowledge messages, and wait until the broker has heard it."""
    client.send(*(Puback(message.packet_id) for message in come))
    assert await client.until_pong() == []


async def subscribe(client: Raw, *filters: tuple[str, int]) -> list[Publish]:
    """Subscribe, and tell which messages came with it: they may come before the SUBACK."""
    client.send(Subscribe(1, filters))
    come = []
    while isinstance(packet := await client.receive(), Publish):
        come.append(packet)
    assert packet == Suback(1, tuple(min(qos, 1) for _, qos in filters))
    for more in await client.until_pong():
        assert isinstance(more, Publish), more
        come.append(more)
    return come


def numbered(count: int, start: int = 0) -> list[bytes]:
    """Payloads that tell their order."""
    return [b"%05d" % n for n in range(start, start + count)]


def payloads(packets: list[Packet]) -> list[bytes]:
    """Of the messages among packets."""
    return [packet.payload for packet in packets if isinstance(packet, Publish)]


def session_of(stage: Stage, client_id: str) -> Session:
    """What the broker knows of a client."""
    (session,) = [each for each in stage.broker.sessions if each.client_id == client_id]
    return session


def go_round(stage: Stage, client_id: str, last_id: int) -> None:
    """Continue as if a client had been sent, and had acknowledged, messages up to this packet id."""
    session = session_of(stage, client_id)
    turns = session._last_position // LARGEST_ID + 1  # noqa: SLF001 # in place of 65,000 messages
    session._last_position = turns * LARGEST_ID + last_id - 1  # noqa: SLF001


async def written(stage: Stage) -> Saved:
    """What the database has of the broker, seen on a connection of its own."""
    return await stage.database.read(load)
