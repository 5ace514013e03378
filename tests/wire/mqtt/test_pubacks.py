"""The short way of PUBACKs says what the long one says, or nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshfleet.wire.mqtt.decoder import FROM_SERVERS
from meshfleet.wire.mqtt.encoder import encode, pubacks
from meshfleet.wire.mqtt.packets import Puback, Publish
from meshfleet.wire.mqtt.parser import Parser

ids = st.lists(st.integers(1, 0xFFFF), min_size=1, max_size=300)
MESSAGE = encode(Publish("t", b"payload", 1, packet_id=7))


@given(ids)
def test_a_run_of_pubacks_is_read_in_one_go(packet_ids: list[int]) -> None:
    assert list(Parser(FROM_SERVERS).pubacks(pubacks(packet_ids)) or ()) == packet_ids


@given(st.binary(max_size=40) | ids.map(pubacks))
def test_whatever_it_reads_the_long_way_reads_too(data: bytes) -> None:
    landed = Parser(FROM_SERVERS).pubacks(data)
    if landed is not None:
        assert Parser(FROM_SERVERS).feed(data) == [Puback(packet_id) for packet_id in landed]


@given(ids, st.integers(1, 3))
def test_what_is_cut_mixed_or_wrong_is_left_to_the_long_way(packet_ids: list[int], cut: int) -> None:
    data = pubacks(packet_ids)
    for other in (b"", data[:-cut], data[cut:], data + MESSAGE, MESSAGE + data, data + b"\x40\x02\0\0"):
        assert Parser(FROM_SERVERS).pubacks(other) is None


def test_in_the_middle_of_a_packet_nothing_is_read() -> None:
    parser = Parser(FROM_SERVERS)
    data = pubacks([5, 6])
    assert parser.feed(data[:2]) == []
    assert parser.pubacks(data) is None
    long = Parser(FROM_SERVERS, limit=100, pass_over=True)
    huge = encode(Publish("t", bytes(1000), 1, packet_id=7))
    assert len(long.feed(huge[:200])) == 1
    assert long.pubacks(data) is None


def test_behind_a_fault_nothing_is_read() -> None:
    parser = Parser(FROM_SERVERS)
    parser.feed(b"\xf0\0")
    assert parser.fault is not None
    assert parser.pubacks(pubacks([5])) is None
