"""A stream of bytes to packets, wherever the network cut it.

The loop in `_parse` is a hot path: at many thousand messages a second every line of it counts. So PUBLISH
and PUBACK are read in place, with one look-up for all that the first byte says and one for the topic;
everything else goes the readable way through `decoder`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from meshfleet.errors import MalformedPacket, PacketTooLarge, WireError
from meshfleet.wire.mqtt.names import KNOWN, read_topic
from meshfleet.wire.mqtt.packets import LARGEST_REMAINING, Packet, Puback, Publish

if TYPE_CHECKING:
    from meshfleet.wire.mqtt.decoder import Shape

_PUBACK: Final = 0x40

_Flags = Mapping[int, tuple[int, bool, bool]]
"""QoS, retain and dup, for every first byte that a PUBLISH may have."""

_PUBLISH: Final[tuple[_Flags, ...]] = tuple(
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


class Parser:
    """Collects bytes until they are packets.

    It holds at most one packet that is not complete, of at most `limit` bytes behind its fixed header; a
    longer one is a fault as soon as its length is known, before its body comes.
    """

    __slots__ = ("_held", "_need", "_publish", "_shapes", "fault", "limit")

    def __init__(
        self, shapes: Mapping[int, Shape], *, limit: int = LARGEST_REMAINING, highest_qos: int = 2
    ) -> None:
        self._shapes = shapes
        self._publish = _PUBLISH[highest_qos]
        self._held = bytearray()
        self._need = 0
        self.limit = limit
        self.fault: WireError | None = None

    def feed(self, data: bytes) -> list[Packet]:
        """The packets that are complete now. What was legal in front of a fault still comes, once.

        Look at `fault` afterwards: when it is set, the stream cannot be understood any further.
        """
        if self.fault is not None:
            raise self.fault.with_traceback(None)
        if self._held:
            self._held += data
            if len(self._held) < self._need:
                return []
            data = bytes(self._held)
            self._held = bytearray()
        packets: list[Packet] = []
        try:
            at, self._need = self._parse(data, packets)
        except WireError as fault:
            # Without its traceback, which would keep the bytes and the packets of this call alive.
            self.fault = type(fault)(fault.field, fault.reason)
        else:
            if at < len(data):
                self._held += data[at:]
        return packets

    def _parse(self, data: bytes, packets: list[Packet]) -> tuple[int, int]:  # noqa: C901, PLR0912 # see above
        """Append the packets of `data`; where the first incomplete one begins, and what bytes it needs."""
        at, end = 0, len(data)
        shapes, limit, publish = self._shapes, self.limit, self._publish.get
        append, known, message = packets.append, KNOWN.get, Publish
        while end - at > 1:
            first = data[at]
            remaining = data[at + 1]
            body = at + 2
            flags = publish(first)
            if flags is None and first not in shapes:
                raise self._unexpected(first)
            if remaining > 0x7F:  # more bytes of length follow: most often one
                if body < end and data[body] < 0x80:
                    remaining += (data[body] << 7) - 0x80
                    body += 1
                elif (length := _length(data, at + 1)) is None:
                    break
                else:
                    remaining, body = length
            if remaining > limit:
                raise PacketTooLarge("packet", f"{remaining} bytes are more than {limit}")
            stop = body + remaining
            if stop > end:
                return at, stop - at
            if flags is not None:
                if remaining < 2:
                    raise MalformedPacket("PUBLISH topic", "is cut off")
                qos, retain, dup = flags
                middle = body + 2 + (data[body] << 8 | data[body + 1])
                if middle > stop:
                    raise MalformedPacket("PUBLISH topic", "is cut off")
                raw = data[body + 2 : middle]
                if not qos:
                    append(message(known(raw) or read_topic(raw), data[middle:stop], qos, retain))
                else:
                    if middle + 2 > stop:
                        raise MalformedPacket("PUBLISH id", "is cut off")
                    packet_id = data[middle] << 8 | data[middle + 1]
                    if not packet_id:
                        raise MalformedPacket("PUBLISH id", "is 0")  # [MQTT-2.3.1-1]
                    topic = known(raw) or read_topic(raw)
                    append(message(topic, data[middle + 2 : stop], qos, retain, dup, packet_id))
            elif first == _PUBACK and remaining == 2 and (data[body] or data[body + 1]):
                append(Puback(data[body] << 8 | data[body + 1]))
            else:
                append(shapes[first].decode(data[body:stop]))
            at = stop
        return at, 0

    def _unexpected(self, first: int) -> MalformedPacket:
        if first in _PUBLISH[-1]:
            return MalformedPacket("PUBLISH qos", f"{first >> 1 & 3} was not asked for")
        return MalformedPacket("packet", f"none begins with {first:#04x} in this direction")


def _length(data: bytes, at: int) -> tuple[int, int] | None:
    """A remaining length of several bytes, and where the body begins; None when it is not complete."""
    remaining = 0
    for shift, byte in enumerate(data[at : at + 4]):
        remaining |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:  # the last one
            return remaining, at + shift + 1
    if len(data) - at >= 4:  # and the fourth still asks for more
        raise MalformedPacket("packet", "its length takes more than four bytes")
    return None
