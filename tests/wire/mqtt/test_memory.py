"""A hostile peer gets no more memory and no more work than its packets deserve."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.errors import MalformedPacket, PacketTooLarge
from meshfleet.wire.mqtt import names
from meshfleet.wire.mqtt.decoder import FROM_CLIENTS, Shape
from meshfleet.wire.mqtt.encoder import encode
from meshfleet.wire.mqtt.packets import Pingreq, Publish, Unsubscribe
from meshfleet.wire.mqtt.parser import Parser
from tests.tables import each_row
from tests.wire.mqtt.streams import kept_less_than

if TYPE_CHECKING:
    from collections.abc import Iterator

MEBIBYTE = 1 << 20
REMEMBERED = 16_384
"""More names than this are never remembered."""


@pytest.fixture
def _nothing_known() -> Iterator[None]:
    names.KNOWN.clear()
    names.SPELT.clear()
    yield
    names.KNOWN.clear()
    names.SPELT.clear()


@each_row("first", ["10", "30", "32", "40", "82", "c0"])
@each_row(("limit", "length"), [(0, "01"), (100, "65"), (127, "8001"), (1000, "ffffff7f")])
def test_a_length_above_the_limit_is_a_fault_before_the_body_comes(
    first: str, limit: int, length: str
) -> None:
    header = bytes.fromhex(first + length)
    parser = Parser(FROM_CLIENTS, limit=limit)
    assert parser.feed(header[:-1]) == [] == parser.feed(header[-1:])
    assert type(parser.fault) is PacketTooLarge
    with pytest.raises(PacketTooLarge):
        parser.feed(b"\0")


@each_row("limit", [3, 127, 128, 20_000])
def test_a_packet_as_long_as_the_limit_is_taken(limit: int) -> None:
    raw = encode(Publish("a", bytes(limit - 3)))
    assert Parser(FROM_CLIENTS, limit=limit).feed(raw) == [Publish("a", bytes(limit - 3))]
    short = Parser(FROM_CLIENTS, limit=limit - 1)
    assert short.feed(b"\xc0\x00" + raw) == [Pingreq()]
    assert type(short.fault) is PacketTooLarge


def test_a_promised_length_takes_no_memory() -> None:
    parser = Parser(FROM_CLIENTS)
    with kept_less_than(10_000):
        assert parser.feed(bytes.fromhex("30 ffffff7f 0001 61")) == []
    assert parser.fault is None


class _Counted(dict[int, Shape]):
    """Knows how often a packet was begun to be read."""

    asked = 0

    def __contains__(self, first: object) -> bool:
        self.asked += 1
        return super().__contains__(first)


def test_a_packet_that_comes_byte_by_byte_is_looked_at_only_while_its_length_comes_and_at_its_end() -> None:
    shapes = _Counted(FROM_CLIENTS)
    parser = Parser(shapes)
    packet = Unsubscribe(1, ("x" * 50_000,))
    raw = encode(packet)
    assert all(parser.feed(raw[at : at + 1]) == [] for at in range(len(raw) - 1))
    assert parser.feed(raw[-1:]) == [packet]
    assert shapes.asked <= 5


def test_a_parser_keeps_nothing_of_the_packets_it_gave_away() -> None:
    parser = Parser(FROM_CLIENTS)
    raw = encode(Publish("a", bytes(MEBIBYTE)))
    with kept_less_than(MEBIBYTE // 10):  # other threads of the process may need a little meanwhile
        for at in range(0, len(raw), 50_000):
            parser.feed(raw[at : at + 50_000])
        parser.feed(raw + raw[:10])


@each_row("end", ["00 00", "40 02 0000", "30 03 0001 ff"])
def test_a_fault_keeps_nothing_of_the_stream_that_it_ended(end: str) -> None:
    raw = encode(Publish("a", bytes(MEBIBYTE))) + bytes.fromhex(end)
    parser = Parser(FROM_CLIENTS)
    with kept_less_than(100_000):
        for at in range(0, len(raw), 500_000):
            parser.feed(raw[at : at + 500_000])
    assert isinstance(parser.fault, MalformedPacket)


def test_a_fault_does_not_grow_when_it_is_raised_again() -> None:
    parser = Parser(FROM_CLIENTS)
    parser.feed(b"\x00\x00")
    lengths = []
    for _ in range(3):
        with pytest.raises(MalformedPacket) as caught:
            parser.feed(b"")
        lengths.append(len(caught.traceback))
    assert lengths == lengths[:1] * 3


def _remembered() -> tuple[int, int]:
    return len(names.KNOWN), len(names.SPELT)


@pytest.mark.usefixtures("_nothing_known")
def test_only_so_many_names_are_remembered_of_what_is_read() -> None:
    parser = Parser(FROM_CLIENTS)
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
        encode(Publish(f"{number}", b""))
        assert len(names.SPELT) <= REMEMBERED
    known, spelt = _remembered()
    assert 0 < known == spelt <= REMEMBERED


@pytest.mark.usefixtures("_nothing_known")
@each_row("letter", ["x", "é"])
def test_a_long_name_is_not_remembered(letter: str) -> None:
    for length in (129, 257, 1000, 30_000):
        message = Publish(letter * length, b"")
        assert Parser(FROM_CLIENTS).feed(encode(message)) == [message]
    assert all(len(raw) <= 256 for raw in names.KNOWN)
    assert all(len(raw) <= 258 for raw in names.SPELT.values())
    assert len(names.KNOWN) == len(names.SPELT) <= 1


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
        Parser(FROM_CLIENTS).feed(bytes.fromhex(raw))
    for topic in ("#", "\0", "\ud800", "", "x" * 65_536):
        with pytest.raises(MalformedPacket):
            encode(Publish(topic, b""))
    assert _remembered() == (0, 0)
