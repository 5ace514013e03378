"""Encodes MQTT packets.

A value that violates the standard raises `MalformedPacket`, so that no invalid packet is sent.
"""

from __future__ import annotations

from functools import lru_cache
from struct import pack
from typing import TYPE_CHECKING, Any, Final

from meshfleet.errors.protocol import MalformedPacket
from meshfleet.mqtt.codec import packets
from meshfleet.mqtt.codec.packets import MAX_PACKET_ID, MAX_REMAINING_LENGTH, SUBACK_FAILURE
from meshfleet.mqtt.codec.topic_names import (
    ENCODED_TOPICS,
    check_filter,
    encode_binary,
    encode_text,
    encode_topic,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PROTOCOL_HEADER: Final = b"\x00\x04MQTT\x04"
"""Protocol name and level of MQTT 3.1.1, at the start of every CONNECT."""

PINGREQ: Final = b"\xc0\x00"
PINGRESP: Final = b"\xd0\x00"
DISCONNECT: Final = b"\xe0\x00"

_QOS: Final = (0, 1, 2)
_PUBACK_HEADER: Final = 0x4002
_MAX_KEEP_ALIVE_SECONDS: Final = 0xFFFF
_CACHED_HEADERS: Final = 4_096

_DUP: Final = 0x08


def encode_packet(packet: packets.Packet) -> bytes:
    """Encode an MQTT packet of any type."""
    encoder = _ENCODERS.get(type(packet))
    if encoder is None:
        raise MalformedPacket("packet", f"{type(packet).__name__} cannot be encoded")
    return encoder(packet)


def encode_publish(message: packets.Publish, packet_id: int, *, dup: bool = False) -> bytes:
    """Encode a PUBLISH with `packet_id` and `dup`; ignore the packet identifier and dup flag of `message`."""
    topic = ENCODED_TOPICS.get(message.topic) or encode_topic(message.topic)
    payload, qos = message.payload, message.qos
    if not qos:
        if dup:
            raise MalformedPacket("PUBLISH dup", "must not be set at QoS 0")  # [MQTT-3.3.1-2]
        return _encode_fixed_header(0x30 | message.retain, len(topic) + len(payload)) + topic + payload
    if qos not in _QOS:
        raise MalformedPacket("PUBLISH qos", f"{qos} is not a QoS")
    first = 0x30 | qos << 1 | message.retain | dup << 3
    return (
        _encode_fixed_header(first, len(topic) + 2 + len(payload))
        + topic
        + _encode_packet_id(packet_id, "PUBLISH")
        + payload
    )


def encode_publish_header(topic: str, payload_size: int, *, retain: bool = False) -> bytes:
    """Encode the bytes of a QoS 1 PUBLISH that precede its packet identifier.

    All subscribers of a message share these bytes; only the packet identifier differs.
    """
    encoded_topic = ENCODED_TOPICS.get(topic) or encode_topic(topic)
    return _encode_fixed_header(0x32 | retain, len(encoded_topic) + 2 + payload_size) + encoded_topic


def set_dup_flag(packet: bytes) -> bytes:
    """Return an encoded PUBLISH with the dup flag set [MQTT-3.3.1-1]."""
    return bytes((packet[0] | _DUP,)) + packet[1:]


def encode_pubacks(packet_ids: Sequence[int]) -> bytes:
    """Encode a PUBACK for each packet identifier."""
    if packet_ids and not 0 < min(packet_ids) <= max(packet_ids) <= MAX_PACKET_ID:
        raise MalformedPacket("PUBACK id", f"is not 1 to {MAX_PACKET_ID}")
    words = [_PUBACK_HEADER] * (2 * len(packet_ids))
    words[1::2] = packet_ids
    return pack(f">{len(words)}H", *words)


@lru_cache(_CACHED_HEADERS)
def _encode_fixed_header(first_byte: int, remaining_length: int) -> bytes:
    """Encode the fixed header of a packet: first byte and remaining length."""
    if remaining_length > MAX_REMAINING_LENGTH:
        raise MalformedPacket("packet", f"{remaining_length} bytes are more than {MAX_REMAINING_LENGTH}")
    header = bytearray((first_byte,))
    while remaining_length > 0x7F:
        header.append(remaining_length & 0x7F | 0x80)
        remaining_length >>= 7
    header.append(remaining_length)
    return bytes(header)


def _prepend_fixed_header(first_byte: int, body: bytes) -> bytes:
    """Return a whole packet: the fixed header with this first byte, then the body."""
    return _encode_fixed_header(first_byte, len(body)) + body


def _encode_packet_id(packet_id: int, packet: str) -> bytes:
    if not 0 < packet_id <= MAX_PACKET_ID:
        raise MalformedPacket(f"{packet} id", f"{packet_id} is not 1 to {MAX_PACKET_ID}")  # [MQTT-2.3.1-1]
    return packet_id.to_bytes(2)


def _check_qos(qos: int, field: str) -> None:
    if qos not in _QOS:
        raise MalformedPacket(field, f"{qos} is not a QoS")


def _encode_connect(packet: packets.Connect) -> bytes:
    if not 0 <= packet.keep_alive <= _MAX_KEEP_ALIVE_SECONDS:
        raise MalformedPacket(
            "CONNECT keep alive", f"{packet.keep_alive} is not 0 to {_MAX_KEEP_ALIVE_SECONDS} seconds"
        )
    if not packet.client_id and not packet.clean:
        raise MalformedPacket("CONNECT client id", "is empty, which needs a clean session")  # [MQTT-3.1.3-7]
    if packet.user is None and packet.password is not None:
        raise MalformedPacket("CONNECT password", "needs a user name")  # [MQTT-3.1.2-22]
    flags = packet.clean << 1
    tail = encode_text(packet.client_id, "CONNECT client id")
    if packet.will is not None:
        flags |= _encode_will_flags(packet.will)
        tail += encode_topic(packet.will.topic, "CONNECT will topic")
        tail += encode_binary(packet.will.payload, "CONNECT will payload")
    if packet.user is not None:
        flags |= 0x80
        tail += encode_text(packet.user, "CONNECT user name")
    if packet.password is not None:
        flags |= 0x40
        tail += encode_binary(packet.password, "CONNECT password")
    return _prepend_fixed_header(
        0x10, PROTOCOL_HEADER + bytes((flags,)) + packet.keep_alive.to_bytes(2) + tail
    )


def _encode_will_flags(will: packets.Will) -> int:
    _check_qos(will.qos, "CONNECT will qos")
    return 0x04 | will.qos << 3 | will.retain << 5


def _encode_connack(packet: packets.Connack) -> bytes:
    if packet.session_present and packet.code != packets.ConnectReturnCode.ACCEPTED:
        # [MQTT-3.2.2-4]
        raise MalformedPacket("CONNACK session present", "must be 0 if the connection is refused")
    return bytes((0x20, 2, packet.session_present, packet.code))


def _encode_subscribe(packet: packets.Subscribe) -> bytes:
    if not packet.filters:
        raise MalformedPacket("SUBSCRIBE filters", "are missing")  # [MQTT-3.8.3-3]
    parts = [_encode_packet_id(packet.packet_id, "SUBSCRIBE")]
    for topic_filter, qos in packet.filters:
        _check_qos(qos, "SUBSCRIBE qos")
        parts += _encode_filter(topic_filter, "SUBSCRIBE filter"), bytes((qos,))
    return _prepend_fixed_header(0x82, b"".join(parts))


def _encode_suback(packet: packets.Suback) -> bytes:
    if not packet.codes:
        raise MalformedPacket("SUBACK codes", "are missing")
    if any(code not in _QOS and code != SUBACK_FAILURE for code in packet.codes):
        raise MalformedPacket("SUBACK code", "is neither a QoS nor 128")  # [MQTT-3.9.3-2]
    return _prepend_fixed_header(0x90, _encode_packet_id(packet.packet_id, "SUBACK") + bytes(packet.codes))


def _encode_unsubscribe(packet: packets.Unsubscribe) -> bytes:
    if not packet.filters:
        raise MalformedPacket("UNSUBSCRIBE filters", "are missing")  # [MQTT-3.10.3-2]
    filters = [_encode_filter(topic_filter, "UNSUBSCRIBE filter") for topic_filter in packet.filters]
    return _prepend_fixed_header(0xA2, _encode_packet_id(packet.packet_id, "UNSUBSCRIBE") + b"".join(filters))


def _encode_filter(topic_filter: str, field: str) -> bytes:
    check_filter(topic_filter, field)
    return encode_text(topic_filter, field)


def _make_id_only_encoder(first: int, name: str) -> Callable[[Any], bytes]:
    """Return an encoder for a packet type whose body is only a packet identifier."""
    return lambda packet: bytes((first, 2)) + _encode_packet_id(packet.packet_id, name)


_ENCODERS: Final[dict[type[packets.Packet], Callable[[Any], bytes]]] = {
    packets.Connect: _encode_connect,
    packets.Connack: _encode_connack,
    packets.Publish: lambda packet: encode_publish(packet, packet.packet_id, dup=packet.dup),
    packets.Puback: _make_id_only_encoder(0x40, "PUBACK"),
    packets.Pubrec: _make_id_only_encoder(0x50, "PUBREC"),
    packets.Pubrel: _make_id_only_encoder(0x62, "PUBREL"),
    packets.Pubcomp: _make_id_only_encoder(0x70, "PUBCOMP"),
    packets.Subscribe: _encode_subscribe,
    packets.Suback: _encode_suback,
    packets.Unsubscribe: _encode_unsubscribe,
    packets.Unsuback: _make_id_only_encoder(0xB0, "UNSUBACK"),
    packets.Pingreq: lambda _: PINGREQ,
    packets.Pingresp: lambda _: PINGRESP,
    packets.Disconnect: lambda _: DISCONNECT,
}
