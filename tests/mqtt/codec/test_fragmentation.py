"""A stream yields the same packets and the same fault wherever the network splits it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshfleet.errors.protocol import MalformedInput, MalformedPacket, PacketTooLarge, UnsupportedProtocol
from meshfleet.mqtt.codec.decoder import FROM_CLIENTS
from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import Disconnect, Packet, Pingreq, Puback, Publish, Pubrel, Subscribe
from meshfleet.mqtt.codec.parser import PacketParser
from tests.examples import examples
from tests.mqtt.codec.strategies import SentPackets, pieces, sent_packets
from tests.mqtt.codec.streams import parse_pieces
from tests.row_tables import each_row

PACKETS: list[Packet] = [
    Publish("a", b"x" * 200, qos=1, packet_id=1),
    Puback(0x4002),
    Pingreq(),
    Subscribe(7, (("+/#", 2), ("é", 0))),
    Publish("b", b""),
    Pubrel(65_535),
    Disconnect(),
]
INVALID = {
    "00 00": MalformedPacket,  # a reserved type
    "36 05 000161 0001": MalformedPacket,  # QoS 3
    "40 02 0000": MalformedPacket,  # packet identifier 0
    "40 03 0001 00": MalformedPacket,  # too long
    "30 ff ff ff ff": MalformedPacket,  # a length of five bytes
    "30 03 0001 23": MalformedPacket,  # a wildcard in a topic name
    "30 03 0002 61": MalformedPacket,  # a topic longer than its packet
    "82 06 0001 0001 61 03": MalformedPacket,
    "10 0d 00044d515454 05 02 003c 00 0000": UnsupportedProtocol,
}


@settings(max_examples=examples(60))
@given(sent_packets(), st.sampled_from(["", *INVALID]) | st.binary(max_size=8).map(bytes.hex), st.data())
def test_any_split_gives_the_same(sent: SentPackets, end: str, data: st.DataObject) -> None:
    stream = sent.stream + bytes.fromhex(end)
    whole = parse_pieces(sent.decoders, [stream])
    assert whole.packets[: len(sent.packets)] == sent.packets
    assert parse_pieces(sent.decoders, data.draw(pieces(stream))) == whole


@each_row("end", ["", *INVALID])
def test_a_split_at_every_byte_gives_the_same(end: str) -> None:
    stream = b"".join(map(encode_packet, PACKETS)) + bytes.fromhex(end)
    whole = parse_pieces(FROM_CLIENTS, [stream])
    assert whole.packets == PACKETS
    assert whole.error is INVALID.get(end)
    assert parse_pieces(FROM_CLIENTS, [bytes((byte,)) for byte in stream]) == whole
    for position in range(len(stream) + 1):
        assert parse_pieces(FROM_CLIENTS, [stream[:position], stream[position:]]) == whole


def test_a_packet_is_returned_with_its_last_byte() -> None:
    parser = PacketParser(FROM_CLIENTS)
    for packet in PACKETS:
        raw = encode_packet(packet)
        assert [parser.feed(bytes((byte,))) for byte in raw] == [*[[]] * (len(raw) - 1), [packet]]


def test_an_empty_piece_changes_nothing() -> None:
    parser = PacketParser(FROM_CLIENTS)
    assert [parser.feed(piece) for piece in (b"", b"\x40", b"", b"\x02\x00", b"", b"\x01", b"")] == [
        *[[]] * 5,
        [Puback(1)],
        [],
    ]


@each_row(("raw", "error"), INVALID.items())
@each_row("before", [0, 1, 4])
def test_valid_packets_before_a_fault_are_returned_and_none_after_it(
    raw: str, error: type[MalformedInput], before: int
) -> None:
    stream = b"".join(
        [*map(encode_packet, PACKETS[:before]), bytes.fromhex(raw), *map(encode_packet, PACKETS[before:])]
    )
    outcome = parse_pieces(FROM_CLIENTS, [stream])
    assert outcome.packets == PACKETS[:before]
    assert outcome.error is error
    assert parse_pieces(FROM_CLIENTS, [stream[:-5], stream[-5:]]) == outcome


@each_row("more", [b"", b"\xc0\x00", b"\x00"])
def test_feeding_after_a_fault_raises_it(more: bytes) -> None:
    parser = PacketParser(FROM_CLIENTS)
    assert parser.feed(b"\xc0\x00\x00\x00") == [Pingreq()]
    for _ in range(2):
        with pytest.raises(MalformedPacket, match="starts with 0x00") as caught:
            parser.feed(more)
        assert caught.value is parser.fault


def test_a_length_above_the_limit_is_the_same_fault_in_any_split() -> None:
    stream = bytes.fromhex("c000 30 ffffff7f")
    for cut in range(len(stream) + 1):
        parser = PacketParser(FROM_CLIENTS, limit=1000)
        packets = parser.feed(stream[:cut])
        if parser.fault is None:
            packets += parser.feed(stream[cut:])
        assert packets == [Pingreq()]
        assert type(parser.fault) is PacketTooLarge
        assert str(parser.fault) == "packet: 268435455 bytes are more than 1000"


def test_two_parsers_share_nothing() -> None:
    one, other = PacketParser(FROM_CLIENTS), PacketParser(FROM_CLIENTS)
    assert one.feed(b"\x40\x02\x00") == other.feed(b"\x62\x02") == []
    assert other.feed(b"\x00\x02") == [Pubrel(2)]
    assert one.feed(b"\x01") == [Puback(1)]
