"""Classes for the packets of MQTT 3.1.1. Encoder and decoder check the values, the classes do not."""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct

MAX_PACKET_ID = 0xFFFF
"""Highest packet identifier; the lowest is 1."""

MAX_REMAINING_LENGTH = 268_435_455
"""Maximum bytes of a packet after its fixed header: the most that four length bytes can encode."""

SUBACK_FAILURE = 0x80
"""Return code in a SUBACK for a topic filter that the server refuses."""


class ConnectReturnCode(IntEnum):
    """Return code of a CONNACK."""

    ACCEPTED = 0
    UNACCEPTABLE_PROTOCOL = 1
    IDENTIFIER_REJECTED = 2
    SERVER_UNAVAILABLE = 3
    BAD_CREDENTIALS = 4
    NOT_AUTHORIZED = 5


class Packet(Struct, frozen=True, gc=False):
    """Base class of all MQTT packets. Packets form no reference cycles, so they need no garbage collector."""


class Will(Struct, frozen=True, gc=False):
    """Will message of a CONNECT, which the server publishes if the client disconnects without DISCONNECT."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False


class Connect(Packet, frozen=True, gc=False):
    """CONNECT, the first packet of a client. The `repr` omits user name and password."""

    client_id: str
    clean: bool = True
    """Clean session flag. If True, the server discards an older session of the client at this CONNECT, and
    the new session at the disconnect."""
    keep_alive: int = 0
    """Keep alive interval in seconds; 0 turns the keep alive off."""
    will: Will | None = None
    user: str | None = None
    password: bytes | None = None

    def __repr__(self) -> str:
        return f"Connect({self.client_id!r}, clean={self.clean}, keep_alive={self.keep_alive}, …)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("client_id", self.client_id), ("clean", self.clean), ("keep_alive", self.keep_alive)]


class Connack(Packet, frozen=True, gc=False):
    """CONNACK, the response of the server to CONNECT."""

    session_present: bool = False
    code: ConnectReturnCode = ConnectReturnCode.ACCEPTED


class Publish(Packet, frozen=True, gc=False):
    """PUBLISH, a message. `packet_id` is 0 at QoS 0: such a message has no packet identifier."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0


class OversizedPublish(Publish, frozen=True, gc=False):
    """PUBLISH that is larger than the receiver accepts: the parser skipped the payload and left it empty."""

    size: int = 0
    """Size of the skipped payload in bytes."""


class Puback(Packet, frozen=True, gc=False):
    """PUBACK, the acknowledgement of a QoS 1 message."""

    packet_id: int


class Pubrec(Packet, frozen=True, gc=False):
    """PUBREC, the first response to a QoS 2 message: the message was received."""

    packet_id: int


class Pubrel(Packet, frozen=True, gc=False):
    """PUBREL, which the sender of a QoS 2 message sends to release the packet identifier."""

    packet_id: int


class Pubcomp(Packet, frozen=True, gc=False):
    """PUBCOMP, the last response to a QoS 2 message: the delivery is complete."""

    packet_id: int


class Subscribe(Packet, frozen=True, gc=False):
    """SUBSCRIBE, a request for subscriptions: topic filters, each with the maximum QoS."""

    packet_id: int
    filters: tuple[tuple[str, int], ...]


class Suback(Packet, frozen=True, gc=False):
    """SUBACK, the response to SUBSCRIBE: for each topic filter the granted QoS, or `SUBACK_FAILURE`."""

    packet_id: int
    codes: tuple[int, ...]


class Unsubscribe(Packet, frozen=True, gc=False):
    """UNSUBSCRIBE, a request to remove the subscriptions to topic filters."""

    packet_id: int
    filters: tuple[str, ...]


class Unsuback(Packet, frozen=True, gc=False):
    """UNSUBACK, the response to UNSUBSCRIBE."""

    packet_id: int


class Pingreq(Packet, frozen=True, gc=False):
    """PINGREQ, the keep alive packet of a client."""


class Pingresp(Packet, frozen=True, gc=False):
    """PINGRESP, the response of the server to PINGREQ."""


class Disconnect(Packet, frozen=True, gc=False):
    """DISCONNECT, the regular end of a connection: the server does not publish the will message."""


def packet_name(packet: Packet) -> str:
    """Return the name of a packet as the MQTT standard writes it: CONNECT, PUBLISH."""
    return "PUBLISH" if isinstance(packet, Publish) else type(packet).__name__.upper()
