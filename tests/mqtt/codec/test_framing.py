"""Fixed header: types, flags, directions, and the remaining length [MQTT-2.2]."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.errors.protocol import MalformedPacket
from meshfleet.mqtt.codec import packets
from meshfleet.mqtt.codec.decoder import FROM_CLIENTS, FROM_SERVERS, PacketDecoder
from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.parser import PacketParser
from tests.mqtt.codec.streams import (
    CLIENTS_ONLY,
    SERVERS_ONLY,
    SHORT,
    add_fixed_header,
    parse_fault,
    parse_hex,
)
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


PUBLISHES = "30 31 32 33 34 35 3a 3b 3c 3d"


@each_row(
    ("decoders", "valid"),
    [
        (FROM_CLIENTS, f"10 {PUBLISHES} 40 50 62 70 82 a2 c0 e0"),
        (FROM_SERVERS, f"20 {PUBLISHES} 40 50 62 70 90 b0 d0"),
    ],
)
def test_only_these_first_bytes_start_a_packet(decoders: Mapping[int, PacketDecoder], valid: str) -> None:
    def starts_packet(first: int) -> bool:
        parser = PacketParser(decoders)
        assert parser.feed(bytes((first, 0x7F))) == []
        return parser.fault is None

    assert bytes(first for first in range(0x100) if starts_packet(first)) == bytes.fromhex(valid)


@each_row(("name", "raw", "decoders"), SHORT)
def test_a_reserved_flag_is_refused_whatever_the_body(
    name: str, raw: str, decoders: Mapping[int, PacketDecoder]
) -> None:
    packet = bytearray.fromhex(raw)
    valid_flags = packet[0] & 0x0F
    assert valid_flags == (2 if name in {"PUBREL", "SUBSCRIBE", "UNSUBSCRIBE"} else 0)
    for flags in range(0x10):
        if flags != valid_flags:  # [MQTT-2.2.2-2]
            packet[0] = packet[0] & 0xF0 | flags
            assert str(parse_fault(packet.hex(), decoders)) == (
                f"packet: no packet in this direction starts with {packet[0]:#04x}"
            )


@each_row(
    ("raw", "decoders"),
    [
        *[(raw, FROM_SERVERS) for raw in CLIENTS_ONLY.values()],
        *[(raw, FROM_CLIENTS) for raw in SERVERS_ONLY.values()],
    ],
)
def test_a_packet_in_the_wrong_direction_is_refused(raw: str, decoders: Mapping[int, PacketDecoder]) -> None:
    assert type(parse_fault(raw, decoders)) is MalformedPacket


@each_row(("name", "raw", "decoders"), SHORT)
def test_bytes_after_the_end_of_a_packet_are_refused(
    name: str, raw: str, decoders: Mapping[int, PacketDecoder]
) -> None:
    packet = bytes.fromhex(raw)
    fault = parse_fault(add_fixed_header(packet[:1].hex(), packet[2:].hex() + "03"), decoders)
    assert fault.field.startswith(name)


@each_row(("name", "raw", "decoders"), [short for short in SHORT if bytes.fromhex(short[1])[1]])
def test_a_body_that_ends_too_early_is_refused(
    name: str, raw: str, decoders: Mapping[int, PacketDecoder]
) -> None:
    packet = bytes.fromhex(raw)
    for end in range(2, len(packet)):
        fault = parse_fault(add_fixed_header(packet[:1].hex(), packet[2:end].hex()), decoders)
        assert fault.field.startswith(name)


@each_row(
    ("raw", "packet"),
    [
        ("e0 8000", packets.Disconnect()),
        ("e0 808000", packets.Disconnect()),
        ("e0 80808000", packets.Disconnect()),
        ("40 8200 0001", packets.Puback(1)),
        ("40 828000 0001", packets.Puback(1)),
        ("40 82808000 0001", packets.Puback(1)),
        ("30 83808000 000161", packets.Publish("a", b"")),
        ("62 8200 ffff", packets.Pubrel(65_535)),
    ],
)
def test_a_length_may_take_more_bytes_than_it_needs(raw: str, packet: packets.Packet) -> None:
    assert parse_hex(raw + "c000") == [packet, packets.Pingreq()]


@each_row("first", ["10", "30", "32", "40", "82", "c0"])
@each_row("length", ["80808080", "80808080 00", "80808080 01", "ffffffff", "ffffffff 7f"])
def test_a_length_of_five_bytes_is_refused_at_the_fourth(first: str, length: str) -> None:
    assert str(parse_fault(first + length)) == "packet: the remaining length takes more than four bytes"


@each_row("raw", ["", "30", "30 80", "30 8080", "30 808080", "30 ff", "30 ffffff7f", "c0"])
def test_the_parser_waits_for_the_rest_of_a_header_or_body(raw: str) -> None:
    assert parse_hex(raw) == []


@each_row(
    ("remaining", "length"),
    [
        (3, "03"),
        (127, "7f"),
        (128, "8001"),
        (16_383, "ff7f"),
        (16_384, "808001"),
        (2_097_151, "ffff7f"),
        (2_097_152, "80808001"),
    ],
)
def test_a_length_is_encoded_in_as_few_bytes_as_possible(remaining: int, length: str) -> None:
    message = packets.Publish("a", bytes(remaining - 3))
    raw = encode_packet(message)
    assert raw[:8].startswith(bytes.fromhex(f"30 {length} 000161"))
    assert PacketParser(FROM_SERVERS).feed(raw) == [message]


class _FakeLengthBytes(bytes):
    """Bytes that pretend to be longer than a test could allocate."""

    length = 0

    def __len__(self) -> int:
        return self.length


@each_row(("qos", "rest"), [(0, 3), (1, 5), (2, 5)])
def test_a_packet_may_be_as_long_as_the_maximum_remaining_length_and_no_longer(qos: int, rest: int) -> None:
    payload = _FakeLengthBytes()
    message = packets.Publish("a", payload, qos, packet_id=7)
    payload.length = packets.MAX_REMAINING_LENGTH - rest
    assert encode_packet(message)[1:5] == b"\xff\xff\xff\x7f"
    payload.length += 1
    with pytest.raises(MalformedPacket, match="268435456 bytes are more than 268435455"):
        encode_packet(message)


@each_row(
    ("packet", "raw"),
    [
        (packets.Connack(session_present=True), "20020100"),
        (packets.Puback(0x1234), "40021234"),
        (packets.Pubrec(0x1234), "50021234"),
        (packets.Pubrel(0x1234), "62021234"),
        (packets.Pubcomp(0x1234), "70021234"),
        (packets.Subscribe(0x1234, (("a/#", 1), ("+", 2))), "820c 1234 0003612f23 01 00012b 02"),
        (packets.Suback(0x1234, (0, 1, 2, 0x80)), "9006 1234 00010280"),
        (packets.Unsubscribe(0x1234, ("a/#", "+")), "a20a 1234 0003612f23 00012b"),
        (packets.Unsuback(0x1234), "b0021234"),
        (packets.Pingreq(), "c000"),
        (packets.Pingresp(), "d000"),
        (packets.Disconnect(), "e000"),
    ],
)
def test_packets_are_encoded_to_these_bytes(packet: packets.Packet, raw: str) -> None:
    assert encode_packet(packet) == bytes.fromhex(raw)


IDS: list[tuple[str, str, Callable[[int], packets.Packet], Mapping[int, PacketDecoder]]] = [
    ("40", "", packets.Puback, FROM_CLIENTS),
    ("40", "", packets.Puback, FROM_SERVERS),
    ("50", "", packets.Pubrec, FROM_CLIENTS),
    ("62", "", packets.Pubrel, FROM_CLIENTS),
    ("70", "", packets.Pubcomp, FROM_CLIENTS),
    ("82", "000161 00", lambda packet_id: packets.Subscribe(packet_id, (("a", 0),)), FROM_CLIENTS),
    ("90", "00", lambda packet_id: packets.Suback(packet_id, (0,)), FROM_SERVERS),
    ("a2", "000161", lambda packet_id: packets.Unsubscribe(packet_id, ("a",)), FROM_CLIENTS),
    ("b0", "", packets.Unsuback, FROM_SERVERS),
]


@each_row(("first", "rest", "create", "decoders"), IDS)
def test_a_packet_id_is_1_to_65535(
    first: str, rest: str, create: Any, decoders: Mapping[int, PacketDecoder]
) -> None:
    for packet_id in (1, 0xFF, 0x100, 0xFFFF):
        raw = add_fixed_header(first, f"{packet_id:04x}{rest}")
        assert parse_hex(raw, decoders) == [create(packet_id)]
        assert encode_packet(create(packet_id)) == bytes.fromhex(raw)
    name = type(create(1)).__name__.upper()
    assert str(parse_fault(add_fixed_header(first, f"0000{rest}"), decoders)) == f"{name} id: is 0"
    for packet_id in (0, -1, 0x10000):
        with pytest.raises(MalformedPacket, match=f"^{name} id: {packet_id} is not 1 to 65535"):
            encode_packet(create(packet_id))
