"""Incremental parser of MQTT packets. The received byte stream may be split anywhere.

The loop in `_parse_fast` is a hot path: at many thousand messages per second every line of it counts. It
parses PUBLISH and PUBACK in place, with one look-up for the flags of the first byte and one for the topic. At
a rare, incomplete or malformed packet it stops, and the strict decoder continues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct, unpack
from typing import Final

from meshfleet.errors.protocol import MalformedInput, MalformedPacket, PacketTooLarge
from meshfleet.mqtt.codec.decoder import PacketDecoder, decode_publish
from meshfleet.mqtt.codec.packets import MAX_REMAINING_LENGTH, OversizedPublish, Packet, Puback, Publish
from meshfleet.mqtt.codec.topic_names import DECODED_TOPICS, decode_topic

_PUBLISH_HEAD: Final = Struct(">BBBH")
"""First five bytes of a PUBLISH whose remaining length takes two bytes: first byte, remaining length (2),
topic length (2)."""

_PUBACK: Final = 0x40
_PUBLISH_QOS1: Final = 0x32
_PUBACK_BYTE: Final = b"\x40"
_PUBACK_HEAD: Final = 0x4002

_Flags = Mapping[int, tuple[int, bool, bool]]
"""Mapping from the first byte of a PUBLISH to its QoS, retain flag and dup flag."""

_PUBLISH_FLAGS: Final[tuple[_Flags, ...]] = tuple(
    {
        0x30 | dup << 3 | qos << 1 | retain: (qos, bool(retain), bool(dup))
        for dup in (0, 1)
        for qos in range(highest + 1)
        for retain in (0, 1)
        if qos or not dup  # [MQTT-3.3.1-2]
    }
    for highest in (0, 1, 2)
)
"""Flags by the first byte of a PUBLISH. The index in the tuple is the highest QoS that a parser accepts."""


_MAX_PUBLISH_HEADER_BYTES: Final = 2 + 0xFFFF + 2
"""Maximum bytes between fixed header and payload of a PUBLISH: topic length, topic, packet identifier."""


class PacketParser:
    """Parses MQTT packets from received bytes, and buffers an incomplete packet until the rest arrives.

    A packet with more than `limit` bytes after its fixed header is invalid, and so is a PUBLISH above
    `highest_qos`. With `skip_oversized`, a PUBLISH beyond `limit` is valid: its payload is skipped, and
    `feed` returns an `OversizedPublish`.
    """

    __slots__ = (
        "_bytes_needed",
        "_bytes_to_skip",
        "_incomplete",
        "_publish_flags",
        "_skip_oversized",
        "decoders",
        "fault",
        "limit",
    )

    def __init__(
        self,
        decoders: Mapping[int, PacketDecoder],
        *,
        limit: int = MAX_REMAINING_LENGTH,
        highest_qos: int = 2,
        skip_oversized: bool = False,
    ) -> None:
        self.decoders = decoders
        self._publish_flags = _PUBLISH_FLAGS[highest_qos]
        self._skip_oversized = skip_oversized
        self._bytes_to_skip = 0
        self._incomplete = bytearray()
        self._bytes_needed = 0
        """Number of bytes that `_incomplete` must hold before parsing can succeed; 0 if unknown."""
        self.limit = limit
        self.fault: MalformedInput | None = None
        """Error because of which the byte stream cannot be parsed any further, or None."""

    def feed(self, data: bytes) -> list[Packet]:
        """Parse received bytes, and return the packets that are complete.

        If the bytes are invalid, set `fault` and return the valid packets before the fault. The next call
        raises the fault.
        """
        if self.fault is not None:
            raise self.fault.with_traceback(None)
        if self._bytes_to_skip:
            skipped = min(self._bytes_to_skip, len(data))
            self._bytes_to_skip -= skipped
            data = data[skipped:]
        if self._incomplete:
            self._incomplete += data
            if len(self._incomplete) < self._bytes_needed:
                return []
            data = bytes(self._incomplete)
            self._incomplete = bytearray()
        packets: list[Packet] = []
        try:
            position = self._parse_packets(data, packets)
        except MalformedInput as fault:
            # Drop the traceback, which would keep the bytes and the packets of this call alive.
            self.fault = type(fault)(fault.field, fault.reason)
        else:
            if position < len(data):
                self._incomplete += data[position:]
        return packets

    def parse_pubacks(self, data: bytes) -> Sequence[int] | None:
        """Return the packet identifiers if `data` holds only whole PUBACKs, else None: call `feed` instead.

        A publisher receives hardly anything but PUBACKs: parsing a hundred of them costs as much as one.
        """
        if data[:1] != _PUBACK_BYTE or len(data) % 4 or self._incomplete or self._bytes_to_skip:
            return None
        words = unpack(f">{len(data) // 2}H", data)
        headers, packet_ids = words[::2], words[1::2]
        if (
            headers.count(_PUBACK_HEAD) < len(headers)
            or 0 in packet_ids
            or self.limit < 2
            or self.fault is not None
        ):
            return None
        return packet_ids

    def parse_single_publish(self, data: bytes) -> Publish | None:
        """Return the message if `data` is exactly one QoS 1 PUBLISH, else None: call `feed` instead.

        Most reads of a broker hold one PUBLISH, because each gateway sends one message at a time.
        """
        size = len(data)
        if size < _PUBLISH_HEAD.size or self._incomplete or self._bytes_to_skip or self.fault is not None:
            return None
        first, low, high, length = _PUBLISH_HEAD.unpack_from(data)
        if low < 0x80:
            topic_start, end, length = 4, 2 + low, high << 8 | length >> 8
        else:
            topic_start, end = 5, 3 + (low & 0x7F | high << 7)
        topic_end = topic_start + length
        if (
            first != _PUBLISH_QOS1
            or end != size
            or topic_end + 2 > size
            or size > self.limit
            or high > 0x7F < low
        ):
            return None
        raw = data[topic_start:topic_end]
        packet_id = data[topic_end] << 8 | data[topic_end + 1]
        try:
            topic = DECODED_TOPICS.get(raw) or decode_topic(raw)
        except MalformedInput:
            return None
        if not packet_id:
            return None
        qos, retain, dup = self._publish_flags[first]
        return Publish(topic, data[topic_end + 2 :], qos, retain, dup, packet_id)

    def _parse_packets(self, data: bytes, packets: list[Packet]) -> int:
        """Append the complete packets of `data` to `packets`.

        Return the index in `data` at which an incomplete packet starts, or the length of `data` if there is
        none. Set `_bytes_needed` for the incomplete packet.
        """
        self._bytes_needed = position = 0
        while True:
            position = self._parse_fast(data, position, packets)
            length = self._parse_length(data, position)
            if length is None:
                return position
            remaining, body = length
            end = body + remaining
            if remaining > self.limit:
                needed = self._parse_oversized(
                    data[position : body + _MAX_PUBLISH_HEADER_BYTES],
                    body - position,
                    end - position,
                    packets,
                )
                if needed:
                    self._bytes_needed = needed
                    return position
                self._bytes_to_skip = max(0, end - len(data))
            elif end > len(data):
                self._bytes_needed = end - position
                return position
            else:
                packets.append(self._decode_packet(data[position], data[body:end]))
            position = min(end, len(data))

    def _parse_fast(self, data: bytes, position: int, packets: list[Packet]) -> int:
        """Append the PUBLISH and PUBACK packets of `data` from `position` on to `packets`.

        Return the index of the first packet that needs the strict decoder.
        """
        data_end, limit = len(data), self.limit
        flags_of, unpack_head = self._publish_flags.get, _PUBLISH_HEAD.unpack_from
        append, cached_topic, publish = packets.append, DECODED_TOPICS.get, Publish
        while data_end - position >= _PUBLISH_HEAD.size:
            first, low, high, size = unpack_head(data, position)
            flags = flags_of(first)
            if flags is None:
                packet_id = high << 8 | size >> 8
                if first != _PUBACK or low != 2 or not packet_id:
                    break
                append(Puback(packet_id))
                position += 4
                continue
            if low < 0x80:  # a remaining length of one byte: the topic length starts one byte earlier
                topic_start, end, size = position + 4, position + 2 + low, high << 8 | size >> 8
            else:
                topic_start, end = position + 5, position + 3 + (low & 0x7F | high << 7)
            qos, retain, dup = flags
            topic_end = topic_start + size
            payload_start = topic_end + 2 if qos else topic_end
            if payload_start > end or end > data_end or end - position > limit or high > 0x7F < low:
                break
            packet_id = data[topic_end] << 8 | data[topic_end + 1] if qos else 0
            if qos and not packet_id:
                break
            raw = data[topic_start:topic_end]
            append(
                publish(
                    cached_topic(raw) or decode_topic(raw),
                    data[payload_start:end],
                    qos,
                    retain,
                    dup,
                    packet_id,
                )
            )
            position = end
        return position

    def _parse_length(self, data: bytes, position: int) -> tuple[int, int] | None:
        """Return the remaining length of the packet at `position`, and the index at which its body starts.

        Return None if `data` ends before the remaining length is complete.
        """
        if len(data) - position < 2:
            return None
        if data[position] not in self._publish_flags and data[position] not in self.decoders:
            raise self._build_unexpected_packet_error(data[position])
        remaining = 0
        for index, byte in enumerate(data[position + 1 : position + 5]):
            remaining |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                return remaining, position + index + 2
        if len(data) - position < 5:
            return None
        raise MalformedPacket("packet", "the remaining length takes more than four bytes")

    def _decode_packet(self, first: int, body: bytes) -> Packet:
        flags = self._publish_flags.get(first)
        return self.decoders[first].decode(body) if flags is None else decode_publish(body, *flags)

    def _parse_oversized(self, data: bytes, body_start: int, end: int, packets: list[Packet]) -> int:
        """Append an oversized PUBLISH, which `data` starts with, to `packets` without its payload.

        `body_start` and `end` are the indexes at which its body starts and the packet ends. Return 0. If
        `data` ends before the payload starts, append nothing, and return how many bytes `data` must have.
        """
        if data[0] not in self._publish_flags or not self._skip_oversized:
            raise PacketTooLarge("packet", f"{end - body_start} bytes are more than {self.limit}")
        qos, retain, dup = self._publish_flags[data[0]]
        topic_start = body_start + 2
        topic_end = topic_start + int.from_bytes(data[body_start:topic_start])
        payload_start = topic_end + 2 if qos else topic_end
        if payload_start > end:
            raise MalformedPacket("PUBLISH topic", "is truncated")
        if len(data) < topic_start or len(data) < payload_start:
            return max(topic_start, payload_start)
        packet_id = int.from_bytes(data[topic_end:payload_start])
        if qos and not packet_id:
            raise MalformedPacket("PUBLISH id", "is 0")  # [MQTT-2.3.1-1]
        topic = decode_topic(data[topic_start:topic_end])
        packets.append(OversizedPublish(topic, b"", qos, retain, dup, packet_id, end - payload_start))
        return 0

    def _build_unexpected_packet_error(self, first: int) -> MalformedPacket:
        if first in _PUBLISH_FLAGS[-1]:
            return MalformedPacket("PUBLISH qos", f"{first >> 1 & 3} is higher than accepted")
        return MalformedPacket("packet", f"no packet in this direction starts with {first:#04x}")
