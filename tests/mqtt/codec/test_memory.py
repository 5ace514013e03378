"""A hostile peer gets no more memory and no more work than its packets deserve."""

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
REMEMBERED = 16_384
"""More names than this are never remembered."""


@pytest.fixture
def _nothing_known() -> Iterator[None]:
    topic_names.DECODED_TOPICS.clear()
    topic_names.ENCODED_TOPICS.clear()
    yield
    topic_names.DECODED_TOPICS.clear()
    topic_names.ENCODED_TOPICS.clear()


@each_row("first", ["10", "30", "32", "40", "82", "c0"])
@each_row(("limit", "length"), [(0, "01"), (100, "65"), (127, "8001"), (1000, "ffffff7f")])
def test_a_length_above_the_limit_is_a_fault_before_the_body_comes(
    first: str, limit: int, length: str
) -> None:
    header = bytes.fromhex(first + length)
    parser = PacketParser(FROM_CLIENTS, limit=limit)
    assert parser.feed(header[:-1]) == [] == parser.feed(header[-1:])
    assert type(parser.fault) is PacketTooLarge
    with pytest.raises(PacketTooLarge):
        parser.feed(b"\0")


@each_row("limit", [3, 127, 128, 20_000])
def test_a_packet_as_long_as_the_limit_is_taken(limit: int) -> None:
    raw = encode_packet(Publish("a", bytes(limit - 3)))
    assert PacketParser(FROM_CLIENTS, limit=limit).feed(raw) == [Publish("a", bytes(limit - 3))]
    short = PacketParser(FROM_CLIENTS, limit=limit - 1)
    assert short.feed(b"\xc0\x00" + raw) == [Pingreq()]
    assert type(short.fault) is PacketTooLarge


def test_a_promised_length_takes_no_memory() -> None:
    parser = PacketParser(FROM_CLIENTS)
    with assert_memory_below(10_000):
        assert parser.feed(bytes.fromhex("30 ffffff7f 0001 61")) == []
    assert parser.fault is None


class _Counted(dict[int, PacketDecoder]):
    """Knows how often a packet was begun to be read."""

    asked = 0

    def __contains__(self, first: object) -> bool:
        self.asked += 1
        return super().__contains__(first)


def test_a_packet_that_comes_byte_by_byte_is_looked_at_only_while_its_length_comes_and_at_its_end() -> None:
    shapes = _Counted(FROM_CLIENTS)
    parser = PacketParser(shapes)
    packet = Unsubscribe(1, ("x" * 50_000,))
    raw = encode_packet(packet)
    assert all(parser.feed(raw[at : at + 1]) == [] for at in range(len(raw) - 1))
    assert parser.feed(raw[-1:]) == [packet]
    assert shapes.asked <= 5


def test_a_parser_keeps_nothing_of_the_packets_it_gave_away() -> None:
    parser = PacketParser(FROM_CLIENTS)
    raw = encode_packet(Publish("a", bytes(MEBIBYTE)))
    with assert_memory_below(MEBIBYTE // 10):  # other threads of the process may need a little meanwhile
        for at in range(0, len(raw), 50_000):
            parser.feed(raw[at : at + 50_000])
        parser.feed(raw + raw[:10])


@each_row("end", ["00 00", "40 02 0000", "30 03 0001 ff"])
def test_a_fault_keeps_nothing_of_the_stream_that_it_ended(end: str) -> None:
    raw = encode_packet(Publish("a", bytes(MEBIBYTE))) + bytes.fromhex(end)
    parser = PacketParser(FROM_CLIENTS)
    with assert_memory_below(100_000):
        for at in range(0, len(raw), 500_000):
            parser.feed(raw[at : at + 500_000])
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


def _remembered() -> tuple[int, int]:
    return len(topic_names.DECODED_TOPICS), len(topic_names.ENCODED_TOPICS)


@pytest.mark.usefixtures("_nothing_known")
def test_only_so_many_names_are_remembered_of_what_is_read() -> None:
    parser = PacketParser(FROM_CLIENTS)
    most = 0
    for start in range(0, 2 * REMEMBERED + 5000, 1000):
        topics = [f"{number}".encode() for number in range(start, start + 1000)]
        raw = b"".join(bytes((0x30, 2 + len(topic))) + len(topic).to_bytes(2) + topic for topic in topics)
        assert len(parser.feed(raw)) == 1000
        known, spelt = _remembered()
        assert known == spelt <= REMEMBERED
        most = max(most, known)
    assert most > REMEMBERED / 2


@pytest.mark.usefixtures("_nothing_known")
def test_only_so_many_names_are_remembered_of_what_is_written() -> None:
    for number in range(REMEMBERED + 1000):
        encode_packet(Publish(f"{number}", b""))
        assert len(topic_names.ENCODED_TOPICS) <= REMEMBERED
    known, spelt = _remembered()
    assert 0 < known == spelt <= REMEMBERED


@pytest.mark.usefixtures("_nothing_known")
@each_row("letter", ["x", "é"])
def test_a_long_name_is_not_remembered(letter: str) -> None:
    for length in (129, 257, 1000, 30_000):
        message = Publish(letter * length, b"")
        assert PacketParser(FROM_CLIENTS).feed(encode_packet(message)) == [message]
    assert all(len(raw) <= 256 for raw in topic_names.DECODED_TOPICS)
    assert all(len(raw) <= 258 for raw in topic_names.ENCODED_TOPICS.values())
    assert len(topic_names.DECODED_TOPICS) == len(topic_names.ENCODED_TOPICS) <= 1


@pytest.mark.usefixtures("_nothing_known")
def test_nothing_that_was_refused_is_remembered() -> None:
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
    assert _remembered() == (0, 0)
