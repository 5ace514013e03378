"""The packets of MQTT 3.1.1. Encoder and decoder check the values of packets, the classes do not."""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct

MAX_PACKET_ID = 0xFFFF
"""Highest packet identifier; the lowest is 1."""

MAX_REMAINING_LENGTH = 268_435_455
"""Maximum bytes after the fixed header: the largest number that its four length bytes can encode."""

SUBACK_FAILURE = 0x80
"""Return code of a SUBACK for a filter that is not granted."""


class ConnectReturnCode(IntEnum):
    """Return code of a CONNACK."""

    ACCEPTED = 0
    UNACCEPTABLE_PROTOCOL = 1
    IDENTIFIER_REJECTED = 2
    SERVER_UNAVAILABLE = 3
    BAD_CREDENTIALS = 4
    NOT_AUTHORIZED = 5


class Packet(Struct, frozen=True, gc=False):
    """Base class of all packets. They cannot form cycles, so the garbage collector need not track them."""


class Will(Struct, frozen=True, gc=False):
    """Will message of a CONNECT, which the server publishes if the client disconnects without DISCONNECT."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False


class Connect(Packet, frozen=True, gc=False):
    """First packet of a client. Its `repr` omits the credentials."""

    client_id: str
    clean: bool = True
    """Clean session flag."""
    keep_alive: int = 0
    """Keep alive in seconds; 0 turns it off."""
    will: Will | None = None
    user: str | None = None
    password: bytes | None = None

    def __repr__(self) -> str:
        return f"Connect({self.client_id!r}, clean={self.clean}, keep_alive={self.keep_alive}, …)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("client_id", self.client_id), ("clean", self.clean), ("keep_alive", self.keep_alive)]


class Connack(Packet, frozen=True, gc=False):
    """Response to CONNECT."""

    session_present: bool = False
    code: ConnectReturnCode = ConnectReturnCode.ACCEPTED


class Publish(Packet, frozen=True, gc=False):
    """Message. `packet_id` is 0 at QoS 0, which sends no packet identifier."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0


class OversizedPublish(Publish, frozen=True, gc=False):
    """Message larger than the receiver accepts: its payload was skipped and is empty here."""

    size: int = 0
    """Bytes of the skipped payload."""


class Puback(Packet, frozen=True, gc=False):
    """Acknowledgement of a QoS 1 message."""

    packet_id: int


class Pubrec(Packet, frozen=True, gc=False):
    """QoS 2, first response: the message was received."""

    packet_id: int


class Pubrel(Packet, frozen=True, gc=False):
    """QoS 2, second packet of the sender: releases the packet identifier."""

    packet_id: int


class Pubcomp(Packet, frozen=True, gc=False):
    """QoS 2, last response: the delivery is complete."""

    packet_id: int


class Subscribe(Packet, frozen=True, gc=False):
    """Request for subscriptions: filters, each with the maximum QoS."""

    packet_id: int
    filters: tuple[tuple[str, int], ...]


class Suback(Packet, frozen=True, gc=False):
    """Response to SUBSCRIBE: for each filter the granted QoS, or `SUBACK_FAILURE`."""

    packet_id: int
    codes: tuple[int, ...]


class Unsubscribe(Packet, frozen=True, gc=False):
    """Request to remove subscriptions."""

    packet_id: int
    filters: tuple[str, ...]


class Unsuback(Packet, frozen=True, gc=False):
    """Response to UNSUBSCRIBE."""

    packet_id: int


class Pingreq(Packet, frozen=True, gc=False):
    """Keep alive packet of a client."""


class Pingresp(Packet, frozen=True, gc=False):
    """Response to PINGREQ."""


class Disconnect(Packet, frozen=True, gc=False):
    """Regular end of a connection: the will message is not published."""


def packet_name(packet: Packet) -> str:
    """Return the name of a packet as the MQTT standard writes it: CONNECT, PUBLISH."""
    return "PUBLISH" if isinstance(packet, Publish) else type(packet).__name__.upper()
