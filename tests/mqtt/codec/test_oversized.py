"""The payload of a message above the limit can be skipped instead of ending the stream."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshfleet.errors.protocol import MalformedPacket, PacketTooLarge
from meshfleet.mqtt.codec.decoder import FROM_SERVERS
from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import OversizedPublish, Packet, Pingresp, Puback, Publish, Suback
from meshfleet.mqtt.codec.parser import PacketParser
from tests.mqtt.codec.strategies import from_servers, pieces
from tests.mqtt.codec.streams import assert_memory_below
from tests.row_tables import each_row

LIMIT = 100


def _skipping_parser() -> PacketParser:
    return PacketParser(FROM_SERVERS, limit=LIMIT, skip_oversized=True)


def _expected(packet: Packet) -> Packet:
    """Return the packet as the parser returns it: a message above the limit has no payload."""
    if not isinstance(packet, Publish) or len(encode_packet(packet)) <= LIMIT:
        return packet
    return OversizedPublish(
        packet.topic, b"", packet.qos, packet.retain, packet.dup, packet.packet_id, len(packet.payload)
    )


# The limit does not include the fixed header, so packets close to it are left out.
_short_or_message = from_servers.filter(
    lambda packet: isinstance(packet, Publish) or len(encode_packet(packet)) <= LIMIT
).filter(lambda packet: not LIMIT < len(encode_packet(packet)) < LIMIT + 5)


@given(st.lists(_short_or_message, max_size=4), st.data())
def test_any_split_yields_all_packets_and_oversized_messages_without_payload(
    packets: list[Packet], data: st.DataObject
) -> None:
    parser = _skipping_parser()
    found = [
        packet
        for piece in data.draw(pieces(b"".join(map(encode_packet, packets))))
        for packet in parser.feed(piece)
    ]
    assert parser.fault is None
    assert found == list(map(_expected, packets))


def test_a_skipped_payload_is_not_kept() -> None:
    parser = _skipping_parser()
    raw = encode_packet(Publish("a", bytes(1_000_000), 1, packet_id=7))
    assert parser.feed(raw[:20]) == [OversizedPublish("a", b"", 1, packet_id=7, size=1_000_000)]
    with assert_memory_below(20_000):
        for position in range(20, len(raw) - 10, 50_000):
            assert parser.feed(raw[position : min(position + 50_000, len(raw) - 10)]) == []
    assert parser.feed(raw[-10:] + encode_packet(Puback(1))) == [Puback(1)]


@each_row(
    ("raw", "field"),
    [
        ("32 e807 03e8" + "61" * 1000, "PUBLISH topic"),  # no packet identifier after the topic
        ("32 e907 0001 61 0000" + "00" * 1000, "PUBLISH id"),
        ("30 e907 0001 23" + "00" * 1000, "PUBLISH topic"),
        ("30 e907 0000" + "00" * 1000, "PUBLISH topic"),
    ],
)
def test_a_malformed_oversized_message_is_a_fault(raw: str, field: str) -> None:
    stream = bytes.fromhex(raw)
    whole, split = _skipping_parser(), _skipping_parser()
    assert whole.feed(stream) == []
    for byte in stream:
        if split.fault is None:
            assert split.feed(bytes((byte,))) == []
    assert isinstance(whole.fault, MalformedPacket)
    assert whole.fault.field == field
    assert str(split.fault) == str(whole.fault)


def test_any_other_oversized_packet_is_a_fault() -> None:
    parser = _skipping_parser()
    assert parser.feed(encode_packet(Pingresp()) + encode_packet(Suback(1, (0,) * 200))) == [Pingresp()]
    assert isinstance(parser.fault, PacketTooLarge)
