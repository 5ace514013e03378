"""parse_single_publish returns what the full parser returns, or None."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshfleet.mqtt.codec.decoder import FROM_CLIENTS
from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import Pingreq, Publish
from meshfleet.mqtt.codec.parser import PacketParser
from tests.protocol.strategies import damaged
from tests.row_tables import each_row

MESSAGE = encode_packet(Publish("t", b"payload", 1, packet_id=7))
PING = encode_packet(Pingreq())


@each_row("size", [0, 1, 122, 123, 16_378])  # remaining lengths of one byte end at 122, of two at 16,378
def test_a_single_message_is_parsed(size: int) -> None:
    for packet_id in (1, 255, 256, 65_535):
        message = Publish("t", bytes(size), 1, packet_id=packet_id)
        parser = PacketParser(FROM_CLIENTS)
        assert parser.parse_single_publish(encode_packet(message)) == message
        assert parser.feed(PING) == [Pingreq()]


@given(st.binary(max_size=40).map(lambda raw: b"\x32" + raw) | damaged(MESSAGE))
def test_the_full_parser_returns_the_same_message(data: bytes) -> None:
    message = PacketParser(FROM_CLIENTS).parse_single_publish(data)
    if message is not None:
        assert PacketParser(FROM_CLIENTS).feed(data) == [message]


@each_row(
    "data",
    [
        b"",
        *(MESSAGE[:position] for position in range(1, len(MESSAGE))),
        *(MESSAGE[position:] for position in range(1, len(MESSAGE))),
        *(MESSAGE + PING, PING + MESSAGE, MESSAGE + MESSAGE, MESSAGE + b"\0"),
        encode_packet(Publish("t", b"payload")),
        encode_packet(Publish("t", b"payload", 1, retain=True, packet_id=7)),
        encode_packet(Publish("t", b"payload", 1, dup=True, packet_id=7)),
        encode_packet(Publish("t", b"payload", 2, packet_id=7)),
        encode_packet(Publish("t", bytes(16_379), 1, packet_id=7)),
        bytes.fromhex("32 06 0001 74 0000 00"),  # the packet identifier is 0
        bytes.fromhex("32 05 0000 0007 00"),  # the topic is empty
        bytes.fromhex("32 06 0001 23 0007 00"),  # the topic is #
        bytes.fromhex("32 06 0001 ff 0007 00"),  # the topic is not UTF-8
        bytes.fromhex("32 05 0003 616263"),  # no packet identifier
        bytes.fromhex("32 05 0002 6162 07"),  # half a packet identifier
        bytes.fromhex("32 05 0009 6162 07"),  # the topic ends after the packet
    ],
)
def test_anything_else_is_left_to_the_full_parser(data: bytes) -> None:
    assert PacketParser(FROM_CLIENTS).parse_single_publish(data) is None


def test_a_message_above_the_limit_is_left_to_the_full_parser() -> None:
    assert PacketParser(FROM_CLIENTS, limit=len(MESSAGE)).parse_single_publish(MESSAGE) is not None
    assert PacketParser(FROM_CLIENTS, limit=len(MESSAGE) - 3).parse_single_publish(MESSAGE) is None


def test_nothing_is_parsed_within_a_packet_and_after_a_fault() -> None:
    waiting = PacketParser(FROM_CLIENTS)
    assert waiting.feed(MESSAGE[:5]) == []
    assert waiting.parse_single_publish(MESSAGE) is None
    skipping = PacketParser(FROM_CLIENTS, limit=100, skip_oversized=True)
    assert len(skipping.feed(encode_packet(Publish("t", bytes(1000), 1, packet_id=7))[:200])) == 1
    assert skipping.parse_single_publish(MESSAGE) is None
    faulty = PacketParser(FROM_CLIENTS)
    faulty.feed(b"\xf0\0")
    assert faulty.fault is not None
    assert faulty.parse_single_publish(MESSAGE) is None
