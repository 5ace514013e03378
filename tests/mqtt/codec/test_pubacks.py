"""parse_pubacks returns what the full parser returns, or None."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshfleet.mqtt.codec.decoder import FROM_SERVERS
from meshfleet.mqtt.codec.encoder import encode_packet, encode_pubacks
from meshfleet.mqtt.codec.packets import Puback, Publish
from meshfleet.mqtt.codec.parser import PacketParser

ids = st.lists(st.integers(1, 0xFFFF), min_size=1, max_size=300)
MESSAGE = encode_packet(Publish("t", b"payload", 1, packet_id=7))


@given(ids)
def test_several_pubacks_are_parsed(packet_ids: list[int]) -> None:
    assert list(PacketParser(FROM_SERVERS).parse_pubacks(encode_pubacks(packet_ids)) or ()) == packet_ids


@given(st.binary(max_size=40) | ids.map(encode_pubacks))
def test_the_full_parser_returns_the_same_pubacks(data: bytes) -> None:
    packet_ids = PacketParser(FROM_SERVERS).parse_pubacks(data)
    if packet_ids is not None:
        assert PacketParser(FROM_SERVERS).feed(data) == [Puback(packet_id) for packet_id in packet_ids]


@given(ids, st.integers(1, 3))
def test_truncated_mixed_or_invalid_data_is_left_to_the_full_parser(packet_ids: list[int], cut: int) -> None:
    data = encode_pubacks(packet_ids)
    for other in (b"", data[:-cut], data[cut:], data + MESSAGE, MESSAGE + data, data + b"\x40\x02\0\0"):
        assert PacketParser(FROM_SERVERS).parse_pubacks(other) is None


def test_nothing_is_parsed_within_a_packet() -> None:
    parser = PacketParser(FROM_SERVERS)
    data = encode_pubacks([5, 6])
    assert parser.feed(data[:2]) == []
    assert parser.parse_pubacks(data) is None
    skipping = PacketParser(FROM_SERVERS, limit=100, skip_oversized=True)
    oversized = encode_packet(Publish("t", bytes(1000), 1, packet_id=7))
    assert len(skipping.feed(oversized[:200])) == 1
    assert skipping.parse_pubacks(data) is None


def test_nothing_is_parsed_after_a_fault() -> None:
    parser = PacketParser(FROM_SERVERS)
    parser.feed(b"\xf0\0")
    assert parser.fault is not None
    assert parser.parse_pubacks(encode_pubacks([5])) is None
