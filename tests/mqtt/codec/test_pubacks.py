"""The short way of PUBACKs says what the long one says, or nothing."""

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
def test_a_run_of_pubacks_is_read_in_one_go(packet_ids: list[int]) -> None:
    assert list(PacketParser(FROM_SERVERS).parse_pubacks(encode_pubacks(packet_ids)) or ()) == packet_ids


@given(st.binary(max_size=40) | ids.map(encode_pubacks))
def test_whatever_it_reads_the_long_way_reads_too(data: bytes) -> None:
    landed = PacketParser(FROM_SERVERS).parse_pubacks(data)
    if landed is not None:
        assert PacketParser(FROM_SERVERS).feed(data) == [Puback(packet_id) for packet_id in landed]


@given(ids, st.integers(1, 3))
def test_what_is_cut_mixed_or_wrong_is_left_to_the_long_way(packet_ids: list[int], cut: int) -> None:
    data = encode_pubacks(packet_ids)
    for other in (b"", data[:-cut], data[cut:], data + MESSAGE, MESSAGE + data, data + b"\x40\x02\0\0"):
        assert PacketParser(FROM_SERVERS).parse_pubacks(other) is None


def test_in_the_middle_of_a_packet_nothing_is_read() -> None:
    parser = PacketParser(FROM_SERVERS)
    data = encode_pubacks([5, 6])
    assert parser.feed(data[:2]) == []
    assert parser.parse_pubacks(data) is None
    long = PacketParser(FROM_SERVERS, limit=100, skip_oversized=True)
    huge = encode_packet(Publish("t", bytes(1000), 1, packet_id=7))
    assert len(long.feed(huge[:200])) == 1
    assert long.parse_pubacks(data) is None


def test_behind_a_fault_nothing_is_read() -> None:
    parser = PacketParser(FROM_SERVERS)
    parser.feed(b"\xf0\0")
    assert parser.fault is not None
    assert parser.parse_pubacks(encode_pubacks([5])) is None
