"""A hostile peer causes no more memory use and no more work than its packets need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.errors.protocol import MalformedPacket, PacketTooLarge
from meshfleet.mqtt.codec import topic_names
from meshfleet.mqtt.codec.decoder import FROM_CLIENTS, PacketDecoder
from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import Pingreq, Publish, Unsubscribe
from meshfleet.mqtt.codec.parser import PacketParser
from tests.mqtt.codec.streams import assert_memory_below
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Iterator

MEBIBYTE = 1 << 20
MAX_CACHED_TOPICS = 16_384
"""Maximum number of cached topic names."""


@pytest.fixture
def _empty_topic_cache() -> Iterator[None]:
    topic_names.DECODED_TOPICS.clear()
    topic_names.ENCODED_TOPICS.clear()
    yield
    topic_names.DECODED_TOPICS.clear()
    topic_names.ENCODED_TOPICS.clear()


@each_row("first", ["10", "30", "32", "40", "82", "c0"])
@each_row(("limit", "length"), [(0, "01"), (100, "65"), (127, "8001"), (1000, "ffffff7f")])
def test_a_length_above_the_limit_is_a_fault_before_the_body_arrives(
    first: str, limit: int, length: str
) -> None:
    header = bytes.fromhex(first + length)
    parser = PacketParser(FROM_CLIENTS, limit=limit)
    assert parser.feed(header[:-1]) == [] == parser.feed(header[-1:])
    assert type(parser.fault) is PacketTooLarge
    with pytest.raises(PacketTooLarge):
        parser.feed(b"\0")


@each_row("limit", [3, 127, 128, 20_000])
def test_a_packet_as_long_as_the_limit_is_accepted(limit: int) -> None:
    raw = encode_packet(Publish("a", bytes(limit - 3)))
    assert PacketParser(FROM_CLIENTS, limit=limit).feed(raw) == [Publish("a", bytes(limit - 3))]
    short = PacketParser(FROM_CLIENTS, limit=limit - 1)
    assert short.feed(b"\xc0\x00" + raw) == [Pingreq()]
    assert type(short.fault) is PacketTooLarge


def test_an_announced_length_uses_no_memory() -> None:
    parser = PacketParser(FROM_CLIENTS)
    with assert_memory_below(10_000):
        assert parser.feed(bytes.fromhex("30 ffffff7f 0001 61")) == []
    assert parser.fault is None


class _CountingDecoders(dict[int, PacketDecoder]):
    """Decoders that count how often the start of a packet was looked up."""

    lookups = 0

    def __contains__(self, first: object) -> bool:
        self.lookups += 1
        return super().__contains__(first)


def test_a_packet_in_single_bytes_is_parsed_only_while_its_length_arrives_and_at_its_end() -> None:
    decoders = _CountingDecoders(FROM_CLIENTS)
    parser = PacketParser(decoders)
    packet = Unsubscribe(1, ("x" * 50_000,))
    raw = encode_packet(packet)
    assert all(parser.feed(raw[position : position + 1]) == [] for position in range(len(raw) - 1))
    assert parser.feed(raw[-1:]) == [packet]
    assert decoders.lookups <= 5


def test_a_parser_keeps_nothing_of_returned_packets() -> None:
    parser = PacketParser(FROM_CLIENTS)
    raw = encode_packet(Publish("a", bytes(MEBIBYTE)))
    with assert_memory_below(MEBIBYTE // 10):  # other threads of the process may allocate a little meanwhile
        for position in range(0, len(raw), 50_000):
            parser.feed(raw[position : position + 50_000])
        parser.feed(raw + raw[:10])


@each_row("end", ["00 00", "40 02 0000", "30 03 0001 ff"])
def test_a_fault_keeps_nothing_of_its_stream(end: str) -> None:
    raw = encode_packet(Publish("a", bytes(MEBIBYTE))) + bytes.fromhex(end)
    parser = PacketParser(FROM_CLIENTS)
    with assert_memory_below(100_000):
        for position in range(0, len(raw), 500_000):
            parser.feed(raw[position : position + 500_000])
    assert isinstance(parser.fault, MalformedPacket)


def test_a_fault_does_not_grow_when_it_is_raised_again() -> None:
    parser = PacketParser(FROM_CLIENTS)
    parser.feed(b"\x00\x00")
    lengths = []
    for _ in range(3):
        with pytest.raises(MalformedPacket) as caught:
            parser.feed(b"")
        lengths.append(len(caught.traceback))
    assert lengths == lengths[:1] * 3


def _cached_counts() -> tuple[int, int]:
    return len(topic_names.DECODED_TOPICS), len(topic_names.ENCODED_TOPICS)


@pytest.mark.usefixtures("_empty_topic_cache")
def test_the_number_of_cached_topics_is_limited_while_decoding() -> None:
    parser = PacketParser(FROM_CLIENTS)
    maximum = 0
    for start in range(0, 2 * MAX_CACHED_TOPICS + 5000, 1000):
        topics = [f"{number}".encode() for number in range(start, start + 1000)]
        raw = b"".join(bytes((0x30, 2 + len(topic))) + len(topic).to_bytes(2) + topic for topic in topics)
        assert len(parser.feed(raw)) == 1000
        decoded, encoded = _cached_counts()
        assert decoded == encoded <= MAX_CACHED_TOPICS
        maximum = max(maximum, decoded)
    assert maximum > MAX_CACHED_TOPICS / 2


@pytest.mark.usefixtures("_empty_topic_cache")
def test_the_number_of_cached_topics_is_limited_while_encoding() -> None:
    for number in range(MAX_CACHED_TOPICS + 1000):
        encode_packet(Publish(f"{number}", b""))
        assert len(topic_names.ENCODED_TOPICS) <= MAX_CACHED_TOPICS
    decoded, encoded = _cached_counts()
    assert 0 < decoded == encoded <= MAX_CACHED_TOPICS


@pytest.mark.usefixtures("_empty_topic_cache")
@each_row("character", ["x", "é"])
def test_a_long_topic_is_not_cached(character: str) -> None:
    for length in (129, 257, 1000, 30_000):
        message = Publish(character * length, b"")
        assert PacketParser(FROM_CLIENTS).feed(encode_packet(message)) == [message]
    assert all(len(raw) <= 256 for raw in topic_names.DECODED_TOPICS)
    assert all(len(raw) <= 258 for raw in topic_names.ENCODED_TOPICS.values())
    assert len(topic_names.DECODED_TOPICS) == len(topic_names.ENCODED_TOPICS) <= 1


@pytest.mark.usefixtures("_empty_topic_cache")
def test_refused_topics_are_not_cached() -> None:
    for raw in (
        "3003 000123",
        "3003 0001ff",
        "3002 0000",
        "3003 000100",
        "8206 0001 000161 00",
        "3003 000261",
    ):
        PacketParser(FROM_CLIENTS).feed(bytes.fromhex(raw))
    for topic in ("#", "\0", "\ud800", "", "x" * 65_536):
        with pytest.raises(MalformedPacket):
            encode_packet(Publish(topic, b""))
    assert _cached_counts() == (0, 0)
