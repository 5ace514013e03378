"""PUBLISH: flags, packet identifier, payload and resending; and PUBACKs of many messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from meshfleet.errors.protocol import MalformedPacket
from meshfleet.mqtt.codec.decoder import FROM_CLIENTS, FROM_SERVERS, PacketDecoder
from meshfleet.mqtt.codec.encoder import encode_packet, encode_pubacks, encode_publish, set_dup_flag
from meshfleet.mqtt.codec.packets import Pingreq, Puback, Publish
from meshfleet.mqtt.codec.parser import PacketParser
from tests.mqtt.codec.strategies import packet_ids, publishes, repeatable
from tests.mqtt.codec.streams import Outcome, parse_fault, parse_hex, parse_pieces
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Mapping


A1 = Publish("a", b"x", qos=1, packet_id=1)


@each_row(
    ("raw", "packet"),
    [
        ("3003 000161", Publish("a", b"")),
        ("3004 000161 00", Publish("a", b"\0")),
        ("3104 000161 78", Publish("a", b"x", retain=True)),
        ("3206 000161 0001 78", A1),
        ("3306 000161 0001 78", replace(A1, retain=True)),
        ("3a06 000161 0001 78", replace(A1, dup=True)),
        ("3b06 000161 0001 78", replace(A1, retain=True, dup=True)),
        ("3205 000161 0100", replace(A1, payload=b"", packet_id=256)),
        ("3405 000161 ffff", Publish("a", b"", qos=2, packet_id=65_535)),
        ("3505 000161 00ff", Publish("a", b"", qos=2, retain=True, packet_id=255)),
        ("3c05 000161 0002", Publish("a", b"", qos=2, dup=True, packet_id=2)),
        ("3d05 000161 0002", Publish("a", b"", qos=2, retain=True, dup=True, packet_id=2)),
    ],
)
@each_row("decoders", [FROM_CLIENTS, FROM_SERVERS])
def test_a_publish_is_decoded_and_encoded(
    raw: str, packet: Publish, decoders: Mapping[int, PacketDecoder]
) -> None:
    assert parse_hex(raw, decoders) == [packet]
    assert encode_packet(packet) == bytes.fromhex(raw)


@each_row("first", ["36", "37", "3e", "3f"])
def test_qos_3_is_refused(first: str) -> None:
    parse_fault(f"{first}05 000161 0001")  # [MQTT-3.3.1-4]


@each_row("first", ["38", "39"])
def test_the_dup_flag_at_qos_0_is_refused(first: str) -> None:
    parse_fault(f"{first}03 000161")  # [MQTT-3.3.1-2]


@each_row(
    ("raw", "text"),
    [
        ("3000", "PUBLISH topic: is truncated"),
        ("300100", "PUBLISH topic: is truncated"),
        ("3002 0000", "PUBLISH topic: is empty"),  # [MQTT-4.7.3-1]
        ("3003 000261", "PUBLISH topic: is truncated"),
        ("3003 ffff61", "PUBLISH topic: is truncated"),
        ("3004 0000 0001", "PUBLISH topic: is empty"),
        ("3204 0000 0001", "PUBLISH topic: is empty"),
        ("3205 000161 0000", "PUBLISH id: is 0"),  # [MQTT-2.3.1-1]
        ("3405 000161 0000", "PUBLISH id: is 0"),
        ("3d05 000161 0000", "PUBLISH id: is 0"),
        ("3203 000161", "PUBLISH id: is truncated"),
        ("3204 000161 00", "PUBLISH id: is truncated"),
        ("3003 000123", "PUBLISH topic: '#' has a wildcard"),  # [MQTT-3.3.2-2]
        ("3205 00012b 0001", "PUBLISH topic: '+' has a wildcard"),
    ],
)
def test_a_publish_that_violates_a_rule_is_refused(raw: str, text: str) -> None:
    assert str(parse_fault(raw)) == text


@each_row("raw", ["3003 000261", "3203 000161", "3204 000161 00", "3000", "300100"])
def test_a_truncated_publish_does_not_read_the_next_packet(raw: str) -> None:
    assert parse_fault(f"{raw} 3003 000161").field.startswith("PUBLISH")


@each_row(
    ("message", "text"),
    [
        (Publish("a", b"", dup=True), "PUBLISH dup: must not be set at QoS 0"),
        (Publish("a", b"", qos=3, packet_id=1), "PUBLISH qos: 3 is not a QoS"),
        (Publish("a", b"", qos=-1, packet_id=1), "PUBLISH qos: -1 is not a QoS"),
        (Publish("a", b"", qos=1), "PUBLISH id: 0 is not 1 to 65535"),
        (Publish("a", b"", qos=2, packet_id=-1), "PUBLISH id: -1 is not 1 to 65535"),
        (Publish("a", b"", qos=2, packet_id=65_536), "PUBLISH id: 65536 is not 1 to 65535"),
        (Publish("", b""), "PUBLISH topic: is empty"),
        (Publish("a/+", b""), "PUBLISH topic: 'a/+' has a wildcard"),
    ],
)
def test_a_publish_that_violates_a_rule_is_not_encoded(message: Publish, text: str) -> None:
    for _ in range(2):  # the cache must not change the second result
        with pytest.raises(MalformedPacket) as caught:
            encode_packet(message)
        assert str(caught.value) == text


@given(publishes, packet_ids)
def test_a_message_is_encoded_with_the_given_packet_id(message: Publish, packet_id: int) -> None:
    expected = replace(message, packet_id=packet_id, dup=False) if message.qos else message
    assert parse_pieces(FROM_CLIENTS, [encode_publish(message, packet_id)]) == Outcome([expected])


def test_a_message_above_qos_0_is_not_encoded_without_a_packet_id() -> None:
    for packet_id in (0, 65_536):
        with pytest.raises(MalformedPacket, match=r"^PUBLISH id: "):
            encode_publish(A1, packet_id)
    assert encode_publish(Publish("a", b"x"), 0) == bytes.fromhex("3004 000161 78")


@given(repeatable)
def test_a_resent_message_differs_only_in_its_dup_flag(message: Publish) -> None:
    raw = encode_publish(message, message.packet_id)
    resent = encode_publish(message, message.packet_id, dup=True)
    assert resent == set_dup_flag(raw) == set_dup_flag(resent)
    assert parse_pieces(FROM_SERVERS, [resent]) == Outcome([replace(message, dup=True)])


def test_a_message_at_qos_0_is_not_encoded_with_the_dup_flag() -> None:
    with pytest.raises(MalformedPacket, match=r"^PUBLISH dup: must not be set at QoS 0"):
        encode_publish(Publish("a", b""), 1, dup=True)


@each_row(
    ("highest", "valid"),
    [(0, "30 31"), (1, "30 31 32 33 3a 3b"), (2, "30 31 32 33 34 35 3a 3b 3c 3d")],
)
def test_a_parser_accepts_no_higher_qos_than_configured(highest: int, valid: str) -> None:
    accepted = bytearray()
    for first in range(0x30, 0x40):
        parser = PacketParser(FROM_SERVERS, highest_qos=highest)
        packets = parser.feed(bytes((first,)) + bytes.fromhex("05 000161 0001"))
        assert len(packets) == (parser.fault is None)
        accepted += bytes((first,)) * len(packets)
    assert accepted == bytes.fromhex(valid)


@given(st.lists(packet_ids, max_size=20))
def test_pubacks_encoded_together_are_the_same_as_one_by_one(ids: list[int]) -> None:
    raw = encode_pubacks(ids)
    assert raw == b"".join(encode_packet(Puback(packet_id)) for packet_id in ids)
    assert parse_pieces(FROM_SERVERS, [raw]) == Outcome([Puback(packet_id) for packet_id in ids])


def test_pubacks_are_encoded_to_these_bytes() -> None:
    assert encode_pubacks([]) == b""
    assert encode_pubacks([1, 0xFFFF, 1]) == bytes.fromhex("40020001 4002ffff 40020001")


@each_row("ids", [[0], [1, 0], [65_536], [-1, 1]])
def test_a_puback_without_a_valid_packet_id_is_not_encoded(ids: list[int]) -> None:
    with pytest.raises(MalformedPacket, match=r"^PUBACK id: "):
        encode_pubacks(ids)


def test_the_payload_may_look_like_packets() -> None:
    inner = encode_packet(A1) * 3
    assert parse_hex((encode_packet(Publish("a", inner)) + b"\xc0\x00").hex()) == [
        Publish("a", inner),
        Pingreq(),
    ]
