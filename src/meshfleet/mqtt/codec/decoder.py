"""Decodes single MQTT packets with all checks. `PacketParser` decodes the most frequent types faster."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from meshfleet.errors import quote_input
from meshfleet.errors.protocol import MalformedPacket, UnsupportedProtocol
from meshfleet.mqtt.codec import packets
from meshfleet.mqtt.codec.topic_names import check_filter, decode_text, decode_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PROTOCOL_LEVEL: Final = 4
_MAX_FILTERS: Final = 1000
"""Maximum topic filters in one SUBSCRIBE or UNSUBSCRIBE: checking more would delay other clients."""
_MAX_HOME_ASSISTANT_FILTERS: Final = 20_000
"""Maximum topic filters in one packet of Home Assistant, which before 2024.6 sent those of all entities at
once."""
_HIGHEST_QOS: Final = 2


class _BodyReader:
    """Reads the fields of a packet body in order, or raises `MalformedPacket` for an invalid field.

    `packet` is the name of the packet type, and `field` the name of a field, for the error.
    """

    def __init__(self, raw: bytes, packet: str) -> None:
        self._raw = raw
        self._at = 0
        self._packet = packet

    def __bool__(self) -> bool:
        return self._at < len(self._raw)

    def read_bytes(self, count: int, field: str) -> bytes:
        end = self._at + count
        if end > len(self._raw):
            raise MalformedPacket(f"{self._packet} {field}", "is truncated")
        part = self._raw[self._at : end]
        self._at = end
        return part

    def read_byte(self, field: str) -> int:
        return self.read_bytes(1, field)[0]

    def read_uint16(self, field: str) -> int:
        return int.from_bytes(self.read_bytes(2, field))

    def read_packet_id(self) -> int:
        packet_id = self.read_uint16("id")
        if packet_id == 0:
            raise MalformedPacket(f"{self._packet} id", "is 0")  # [MQTT-2.3.1-1]
        return packet_id

    def read_binary(self, field: str) -> bytes:
        return self.read_bytes(self.read_uint16(field), field)

    def read_text(self, field: str) -> str:
        return decode_text(self.read_binary(field), f"{self._packet} {field}")

    def read_topic(self, field: str) -> str:
        return decode_topic(self.read_binary(field), f"{self._packet} {field}")

    def read_filter(self) -> str:
        topic_filter = self.read_text("filter")
        check_filter(topic_filter, f"{self._packet} filter")
        return topic_filter

    def read_rest(self) -> bytes:
        return self.read_bytes(len(self._raw) - self._at, "payload")

    def check_end(self) -> None:
        if self:
            raise MalformedPacket(self._packet, f"has {len(self._raw) - self._at} bytes too many")


def _decode_connect(body: _BodyReader) -> packets.Connect:
    _check_protocol(body)
    flags = body.read_byte("flags")
    _check_connect_flags(flags)
    keep_alive = body.read_uint16("keep alive")
    client_id = body.read_text("client id")
    will = _decode_will(flags, body) if flags & 0x04 else None
    user = body.read_text("user name") if flags & 0x80 else None
    password = body.read_binary("password") if flags & 0x40 else None
    return packets.Connect(client_id, bool(flags & 0x02), keep_alive, will, user, password)


def _check_protocol(body: _BodyReader) -> None:
    name = body.read_binary("protocol name")
    level = body.read_byte("protocol level")
    if (name, level) == (b"MQTT", _PROTOCOL_LEVEL):
        return
    if name in {b"MQTT", b"MQIsdp"}:  # another version, refused with a CONNACK [MQTT-3.1.2-2]
        version = {3: "MQTT 3.1", 5: "MQTT 5"}.get(level, f"protocol level {level}")
        raise UnsupportedProtocol("CONNECT protocol", f"{version} is not supported, use MQTT 3.1.1")
    raise MalformedPacket("CONNECT protocol name", f"{quote_input(name)} is not MQTT")  # [MQTT-3.1.2-1]


def _check_connect_flags(flags: int) -> None:
    if flags & 0x01:
        raise MalformedPacket("CONNECT flags", "have the reserved bit set")  # [MQTT-3.1.2-3]
    if not flags & 0x04 and flags & 0x38:
        # [MQTT-3.1.2-11]
        raise MalformedPacket("CONNECT flags", "describe a will message without the will flag")
    if flags >> 3 & 3 > _HIGHEST_QOS:
        raise MalformedPacket("CONNECT will qos", "3 is not a QoS")  # [MQTT-3.1.2-14]
    if flags & 0xC0 == 0x40:  # a password without a user name
        raise MalformedPacket("CONNECT password", "needs a user name")  # [MQTT-3.1.2-22]


def _decode_will(flags: int, body: _BodyReader) -> packets.Will:
    topic = body.read_topic("will topic")
    return packets.Will(topic, body.read_binary("will payload"), flags >> 3 & 3, bool(flags & 0x20))


def _decode_connack(body: _BodyReader) -> packets.Connack:
    flags, code = body.read_byte("flags"), body.read_byte("return code")
    if flags > 1:
        raise MalformedPacket("CONNACK flags", "have a reserved bit set")
    if code > max(packets.ConnectReturnCode):
        raise MalformedPacket("CONNACK return code", f"{code} is reserved")
    if flags and code:
        # [MQTT-3.2.2-4]
        raise MalformedPacket("CONNACK session present", "must be 0 if the connection is refused")
    return packets.Connack(bool(flags), packets.ConnectReturnCode(code))


def _decode_subscribe(body: _BodyReader, *, most: int = _MAX_FILTERS) -> packets.Subscribe:
    packet_id, filters = body.read_packet_id(), []
    while body:
        topic_filter, qos = body.read_filter(), body.read_byte("qos")
        if qos > _HIGHEST_QOS:
            raise MalformedPacket("SUBSCRIBE qos", f"{qos} is not a QoS")  # [MQTT-3.8.3-4]
        filters.append((topic_filter, qos))
        _check_filter_count(filters, most, "SUBSCRIBE filters")
    if not filters:
        raise MalformedPacket("SUBSCRIBE filters", "are missing")  # [MQTT-3.8.3-3]
    return packets.Subscribe(packet_id, tuple(filters))


def _decode_suback(body: _BodyReader) -> packets.Suback:
    packet_id, codes = body.read_packet_id(), []
    while body:
        code = body.read_byte("code")
        if code > _HIGHEST_QOS and code != packets.SUBACK_FAILURE:
            raise MalformedPacket("SUBACK code", f"{code} is neither a QoS nor 128")  # [MQTT-3.9.3-2]
        codes.append(code)
    if not codes:
        raise MalformedPacket("SUBACK codes", "are missing")
    return packets.Suback(packet_id, tuple(codes))


def _check_filter_count(filters: list[Any], most: int, field: str) -> None:
    if len(filters) > most:
        raise MalformedPacket(field, f"are more than {most}")


def _decode_unsubscribe(body: _BodyReader, *, most: int = _MAX_FILTERS) -> packets.Unsubscribe:
    packet_id, filters = body.read_packet_id(), []
    while body:
        filters.append(body.read_filter())
        _check_filter_count(filters, most, "UNSUBSCRIBE filters")
    if not filters:
        raise MalformedPacket("UNSUBSCRIBE filters", "are missing")  # [MQTT-3.10.3-2]
    return packets.Unsubscribe(packet_id, tuple(filters))


def decode_publish(raw: bytes, qos: int, retain: bool, dup: bool) -> packets.Publish:  # noqa: FBT001 # flags of the fixed header
    """Decode the body of a PUBLISH, given the flags from the first byte of the packet."""
    body = _BodyReader(raw, "PUBLISH")
    topic = body.read_topic("topic")
    packet_id = body.read_packet_id() if qos else 0
    return packets.Publish(topic, body.read_rest(), qos, retain, dup, packet_id)


class PacketDecoder:
    """Decodes the bodies of one MQTT packet type. The first byte of a packet selects the decoder."""

    __slots__ = ("_read", "name")

    def __init__(self, name: str, read: Callable[[_BodyReader], packets.Packet]) -> None:
        self.name = name
        self._read = read

    def decode(self, raw: bytes) -> packets.Packet:
        """Decode the body of a packet. Raise `MalformedPacket` if a value is invalid or bytes remain."""
        body = _BodyReader(raw, self.name)
        packet = self._read(body)
        body.check_end()
        return packet


_EITHER_DIRECTION: Final = {
    0x40: PacketDecoder("PUBACK", lambda body: packets.Puback(body.read_packet_id())),
    0x50: PacketDecoder("PUBREC", lambda body: packets.Pubrec(body.read_packet_id())),
    0x62: PacketDecoder("PUBREL", lambda body: packets.Pubrel(body.read_packet_id())),
    0x70: PacketDecoder("PUBCOMP", lambda body: packets.Pubcomp(body.read_packet_id())),
}

FROM_CLIENTS: Final[Mapping[int, PacketDecoder]] = {
    **_EITHER_DIRECTION,
    0x10: PacketDecoder("CONNECT", _decode_connect),
    0x82: PacketDecoder("SUBSCRIBE", _decode_subscribe),
    0xA2: PacketDecoder("UNSUBSCRIBE", _decode_unsubscribe),
    0xC0: PacketDecoder("PINGREQ", lambda _: packets.Pingreq()),
    0xE0: PacketDecoder("DISCONNECT", lambda _: packets.Disconnect()),
}
"""Decoders of the packets that a server may receive, by the first byte of the fixed header."""

FROM_HOME_ASSISTANT: Final[Mapping[int, PacketDecoder]] = {
    **FROM_CLIENTS,
    0x82: PacketDecoder("SUBSCRIBE", partial(_decode_subscribe, most=_MAX_HOME_ASSISTANT_FILTERS)),
    0xA2: PacketDecoder("UNSUBSCRIBE", partial(_decode_unsubscribe, most=_MAX_HOME_ASSISTANT_FILTERS)),
}
"""Packets of clients that may put more filters into one packet."""

FROM_SERVERS: Final[Mapping[int, PacketDecoder]] = {
    **_EITHER_DIRECTION,
    0x20: PacketDecoder("CONNACK", _decode_connack),
    0x90: PacketDecoder("SUBACK", _decode_suback),
    0xB0: PacketDecoder("UNSUBACK", lambda body: packets.Unsuback(body.read_packet_id())),
    0xD0: PacketDecoder("PINGRESP", lambda _: packets.Pingresp()),
}
"""Decoders of the packets that a client may receive, by the first byte of the fixed header."""
