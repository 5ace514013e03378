"""The packets of MQTT 3.1.1. What a struct holds is checked where it becomes bytes, or was made from them."""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct

MAX_PACKET_ID = 0xFFFF
"""Packet ids are 1 to this."""

MAX_REMAINING_LENGTH = 268_435_455
"""Bytes behind the fixed header: as many as four bytes of remaining length can say."""

SUBACK_FAILURE = 0x80
"""What a SUBACK says instead of a QoS for a filter that is not granted."""


class ConnectReturnCode(IntEnum):
    """The return code of a CONNACK: what becomes of a CONNECT."""

    ACCEPTED = 0
    UNACCEPTABLE_PROTOCOL = 1
    IDENTIFIER_REJECTED = 2
    SERVER_UNAVAILABLE = 3
    BAD_CREDENTIALS = 4
    NOT_AUTHORIZED = 5


class Packet(Struct, frozen=True, gc=False):
    """Anything that travels in one piece. None of them can hold itself, so the collector need not look."""


class Will(Struct, frozen=True, gc=False):
    """What the server publishes for a client that went without a word. Part of a CONNECT."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False


class Connect(Packet, frozen=True, gc=False):
    """A client introduces itself. Its credentials are left out where it is shown."""

    client_id: str
    clean: bool = True
    keep_alive: int = 0
    """Seconds; 0 turns it off."""
    will: Will | None = None
    user: str | None = None
    password: bytes | None = None

    def __repr__(self) -> str:
        return f"Connect({self.client_id!r}, clean={self.clean}, keep_alive={self.keep_alive}, …)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("client_id", self.client_id), ("clean", self.clean), ("keep_alive", self.keep_alive)]


class Connack(Packet, frozen=True, gc=False):
    """The server's answer to a CONNECT."""

    session_present: bool = False
    code: ConnectReturnCode = ConnectReturnCode.ACCEPTED


class Publish(Packet, frozen=True, gc=False):
    """A message. `packet_id` is 0 at QoS 0, where it does not travel."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0


class OversizedPublish(Publish, frozen=True, gc=False):
    """A message larger than the receiver takes: its payload was passed over and is empty here."""

    size: int = 0
    """Bytes that the payload had."""


class Puback(Packet, frozen=True, gc=False):
    """QoS 1: the receiver has taken charge of the message."""

    packet_id: int


class Pubrec(Packet, frozen=True, gc=False):
    """QoS 2, first answer: received."""

    packet_id: int


class Pubrel(Packet, frozen=True, gc=False):
    """QoS 2, the sender lets go of the message."""

    packet_id: int


class Pubcomp(Packet, frozen=True, gc=False):
    """QoS 2, last answer: complete."""

    packet_id: int


class Subscribe(Packet, frozen=True, gc=False):
    """The filters a client asks for, each with the highest QoS it wants."""

    packet_id: int
    filters: tuple[tuple[str, int], ...]


class Suback(Packet, frozen=True, gc=False):
    """What was granted, filter by filter: a QoS, or `REFUSED`."""

    packet_id: int
    codes: tuple[int, ...]


class Unsubscribe(Packet, frozen=True, gc=False):
    """The filters a client no longer wants."""

    packet_id: int
    filters: tuple[str, ...]


class Unsuback(Packet, frozen=True, gc=False):
    """The server has forgotten the filters."""

    packet_id: int


class Pingreq(Packet, frozen=True, gc=False):
    """A client says that it lives."""


class Pingresp(Packet, frozen=True, gc=False):
    """And the server, that it lives too."""


class Disconnect(Packet, frozen=True, gc=False):
    """A client takes its leave: no will is published."""
