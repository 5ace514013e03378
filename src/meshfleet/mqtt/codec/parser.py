"""A stream of bytes to packets, wherever the network cut it.

The loop in `_sprint` is a hot path: at many thousand messages a second every line of it counts. It reads
PUBLISH and PUBACK in place, with one look-up for all that the first byte says and one for the topic. Where
something is rare, incomplete or wrong it stops, and the careful way takes over.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct, unpack
from typing import TYPE_CHECKING, Final

from meshfleet.errors.protocol import MalformedPacket, PacketTooLarge, WireError
from meshfleet.mqtt.codec.decoder import decode_publish
from meshfleet.mqtt.codec.packets import MAX_REMAINING_LENGTH, OversizedPublish, Packet, Puback, Publish
from meshfleet.mqtt.codec.topic_names import DECODED_TOPICS, decode_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.mqtt.codec.decoder import PacketDecoder

_PUBLISH_HEAD: Final = Struct(">BBBH")
"""The front of a PUBLISH with a length of two bytes: first byte, length, length of the topic."""

_PUBACK: Final = 0x40
_PUBLISH_QOS1: Final = 0x32
_PUBACK_BYTE: Final = b"\x40"
_PUBACK_HEAD: Final = 0x4002

_Flags = Mapping[int, tuple[int, bool, bool]]
"""QoS, retain and dup, for every first byte that a PUBLISH may have."""

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
"""By the highest QoS that is taken."""


_MAX_PUBLISH_HEADER_BYTES: Final = 2 + 0xFFFF + 2
"""Bytes in front of the payload of a PUBLISH: the length of a topic, the topic, an id."""


class PacketParser:
    """Collects bytes until they are packets.

    It holds at most one packet that is not complete, of at most `limit` bytes behind its fixed header; a
    longer one is a fault as soon as its length is known, before its body comes. Who cannot afford to lose the
    connection over it lets the payload of a long message be passed over instead: see `Oversized`.
    """

    __slots__ = (
        "_bytes_needed",
        "_bytes_to_skip",
        "_decoders",
        "_incomplete",
        "_publish_flags",
        "_skip_oversized",
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
        self._decoders = decoders
        self._publish_flags = _PUBLISH_FLAGS[highest_qos]
        self._skip_oversized = skip_oversized
        self._bytes_to_skip = 0
        self._incomplete = bytearray()
        self._bytes_needed = 0
        self.limit = limit
        self.fault: WireError | None = None

    def feed(self, data: bytes) -> list[Packet]:
        """The packets that are complete now. What was legal in front of a fault still comes, once.

        Look at `fault` afterwards: when it is set, the stream cannot be understood any further.
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
            at, self._bytes_needed = self._parse(data, packets)
        except WireError as fault:
            # Without its traceback, which would keep the bytes and the packets of this call alive.
            self.fault = type(fault)(fault.field, fault.reason)
        else:
            if at < len(data):
                self._incomplete += data[at:]
        return packets

    def parse_pubacks(self, data: bytes) -> Sequence[int] | None:
        """The ids of PUBACKs when there is nothing else in `data`; None: feed it.

        Who publishes reads hardly anything else. This way a hundred cost as much as one.
        """
        if data[:1] != _PUBACK_BYTE or len(data) % 4 or self._incomplete or self._bytes_to_skip:
            return None
        words = unpack(f">{len(data) // 2}H", data)
        heads, ids = words[::2], words[1::2]
        if heads.count(_PUBACK_HEAD) < len(heads) or 0 in ids or self.limit < 2 or self.fault is not None:
            return None
        return ids

    def parse_single_publish(self, data: bytes) -> Publish | None:
        """The message when there is one at QoS 1, and nothing else in `data`; None: feed it.

        A broker of many gateways reads hardly anything else: each has one thing to say at a time.
        """
        size = len(data)
        if size < _PUBLISH_HEAD.size or self._incomplete or self._bytes_to_skip or self.fault is not None:
            return None
        first, low, high, length = _PUBLISH_HEAD.unpack_from(data)
        if low < 0x80:
            front, stop, length = 4, 2 + low, high << 8 | length >> 8
        else:
            front, stop = 5, 3 + (low & 0x7F | high << 7)
        middle = front + length
        if (
            first != _PUBLISH_QOS1
            or stop != size
            or middle + 2 > size
            or size > self.limit
            or high > 0x7F < low
        ):
            return None
        raw = data[front:middle]
        packet_id = data[middle] << 8 | data[middle + 1]
        try:
            topic = DECODED_TOPICS.get(raw) or decode_topic(raw)
        except WireError:
            return None
        if not packet_id:
            return None
        qos, retain, dup = self._publish_flags[first]
        return Publish(topic, data[middle + 2 :], qos, retain, dup, packet_id)

    def _parse(self, data: bytes, packets: list[Packet]) -> tuple[int, int]:
        """Append the packets of `data`; where the first incomplete one begins, and what bytes it needs."""
        at = 0
        while True:
            at = self._parse_fast(data, at, packets)
            length = self._parse_length(data, at)
            if length is None:
                return at, 0
            remaining, body = length
            stop = body + remaining
            if remaining > self.limit:
                need = self._parse_oversized(
                    data[at : body + _MAX_PUBLISH_HEADER_BYTES], body - at, stop - at, packets
                )
                if need:
                    return at, need
                self._bytes_to_skip = max(0, stop - len(data))
            elif stop > len(data):
                return at, stop - at
            else:
                packets.append(self._decode_packet(data[at], data[body:stop]))
            at = min(stop, len(data))

    def _parse_fast(self, data: bytes, at: int, packets: list[Packet]) -> int:
        """Append each PUBLISH and PUBACK up to where something begins that wants a closer look."""
        end, limit, flags_of, head = len(data), self.limit, self._publish_flags.get, _PUBLISH_HEAD.unpack_from
        append, known, message = packets.append, DECODED_TOPICS.get, Publish
        while end - at >= _PUBLISH_HEAD.size:
            first, low, high, size = head(data, at)
            flags = flags_of(first)
            if flags is None:
                packet_id = high << 8 | size >> 8
                if first != _PUBACK or low != 2 or not packet_id:
                    break
                append(Puback(packet_id))
                at += 4
                continue
            if low < 0x80:  # one byte of length: what follows begins one earlier than the head says
                topic, stop, size = at + 4, at + 2 + low, high << 8 | size >> 8
            else:
                topic, stop = at + 5, at + 3 + (low & 0x7F | high << 7)
            qos, retain, dup = flags
            middle = topic + size
            payload = middle + 2 if qos else middle
            if payload > stop or stop > end or stop - at > limit or high > 0x7F < low:
                break
            packet_id = data[middle] << 8 | data[middle + 1] if qos else 0
            if qos and not packet_id:
                break
            raw = data[topic:middle]
            append(message(known(raw) or decode_topic(raw), data[payload:stop], qos, retain, dup, packet_id))
            at = stop
        return at

    def _parse_length(self, data: bytes, at: int) -> tuple[int, int] | None:
        """The remaining length of what begins here, and where its body does; None when they are not here."""
        if len(data) - at < 2:
            return None
        if data[at] not in self._publish_flags and data[at] not in self._decoders:
            raise self._unexpected(data[at])
        remaining = 0
        for place, byte in enumerate(data[at + 1 : at + 5]):
            remaining |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                return remaining, at + place + 2
        if len(data) - at < 5:
            return None
        raise MalformedPacket("packet", "its length takes more than four bytes")

    def _decode_packet(self, first: int, body: bytes) -> Packet:
        flags = self._publish_flags.get(first)
        return self._decoders[first].decode(body) if flags is None else decode_publish(body, *flags)

    def _parse_oversized(self, data: bytes, body: int, stop: int, packets: list[Packet]) -> int:
        """Append a message without its payload; or how many bytes that needs, when they are not all here."""
        if data[0] not in self._publish_flags or not self._skip_oversized:
            raise PacketTooLarge("packet", f"{stop - body} bytes are more than {self.limit}")
        qos, retain, dup = self._publish_flags[data[0]]
        middle = body + 2 + int.from_bytes(data[body : body + 2])
        payload = middle + 2 if qos else middle
        if payload > stop:
            raise MalformedPacket("PUBLISH topic", "is cut off")
        if len(data) < body + 2 or len(data) < payload:
            return max(body + 2, payload)
        packet_id = int.from_bytes(data[middle:payload])
        if qos and not packet_id:
            raise MalformedPacket("PUBLISH id", "is 0")  # [MQTT-2.3.1-1]
        topic = decode_topic(data[body + 2 : middle])
        packets.append(OversizedPublish(topic, b"", qos, retain, dup, packet_id, stop - payload))
        return 0

    def _unexpected(self, first: int) -> MalformedPacket:
        if first in _PUBLISH_FLAGS[-1]:
            return MalformedPacket("PUBLISH qos", f"{first >> 1 & 3} was not asked for")
        return MalformedPacket("packet", f"none begins with {first:#04x} in this direction")
