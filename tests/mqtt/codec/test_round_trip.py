"""Every valid packet survives encoding and decoding; everything else raises a MalformedPacket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from meshfleet.errors.protocol import MalformedPacket
from meshfleet.mqtt.codec.decoder import FROM_CLIENTS, FROM_SERVERS, PacketDecoder
from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import Connect, Packet
from meshfleet.mqtt.codec.parser import PacketParser
from tests.examples import examples
from tests.mqtt.codec.strategies import SentPackets, from_clients, from_servers, sent_packets
from tests.mqtt.codec.streams import SHORT, Outcome, parse_hex, parse_pieces
from tests.protocol.strategies import damaged
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Mapping


FIRST_BYTES = sorted({*FROM_CLIENTS, *FROM_SERVERS, *range(0x30, 0x40)})


@given(from_clients)
def test_every_packet_of_a_client_survives_encoding_and_decoding(packet: Packet) -> None:
    assert parse_pieces(FROM_CLIENTS, [encode_packet(packet)]) == Outcome([packet])


@given(from_servers)
def test_every_packet_of_a_server_survives_encoding_and_decoding(packet: Packet) -> None:
    assert parse_pieces(FROM_SERVERS, [encode_packet(packet)]) == Outcome([packet])


@each_row(("name", "raw", "decoders"), SHORT)
def test_a_decoded_packet_is_encoded_to_the_same_bytes(
    name: str, raw: str, decoders: Mapping[int, PacketDecoder]
) -> None:
    (packet,) = parse_hex(raw, decoders)
    assert type(packet).__name__.upper() == name
    assert encode_packet(packet) == bytes.fromhex(raw)


def _check_decodes_or_faults(decoders: Mapping[int, PacketDecoder], stream: bytes) -> None:
    parser = PacketParser(decoders)
    packets = parser.feed(stream)
    assert parser.fault is None or isinstance(parser.fault, MalformedPacket)
    for packet in packets:
        # A server must decode this one to refuse it with a CONNACK [MQTT-3.1.3-8]; a client must not send it.
        if not (isinstance(packet, Connect) and not packet.client_id and not packet.clean):
            assert parse_pieces(decoders, [encode_packet(packet)]) == Outcome([packet])


@given(stream=st.binary())
@each_row("decoders", [FROM_CLIENTS, FROM_SERVERS])
def test_arbitrary_bytes_decode_or_fault(decoders: Mapping[int, PacketDecoder], stream: bytes) -> None:
    _check_decodes_or_faults(decoders, stream)


@settings(max_examples=examples(100))
@given(first=st.sampled_from(FIRST_BYTES), body=st.binary(max_size=40))
@each_row("decoders", [FROM_CLIENTS, FROM_SERVERS])
def test_an_arbitrary_body_decodes_or_faults(
    decoders: Mapping[int, PacketDecoder], first: int, body: bytes
) -> None:
    _check_decodes_or_faults(decoders, bytes((first, len(body))) + body)


@given(st.data())
def test_a_damaged_stream_decodes_or_faults(data: st.DataObject) -> None:
    decoders, _ = sent = data.draw(sent_packets(least=1))
    _check_decodes_or_faults(decoders, data.draw(damaged(sent.stream)))


@settings(max_examples=examples(100))
@given(st.data())
def test_a_body_with_wrong_bits_decodes_or_faults(data: st.DataObject) -> None:
    _, raw, decoders = data.draw(st.sampled_from(SHORT))
    packet = bytearray.fromhex(raw)
    for position in data.draw(st.lists(st.integers(2, max(2, len(packet) - 1)), max_size=3)):
        packet[position : position + 1] = data.draw(st.binary(min_size=1, max_size=1))
    packet[1] = len(packet) - 2
    _check_decodes_or_faults(decoders, bytes(packet))


@given(sent_packets(least=1), sent_packets(least=1), st.data())
def test_the_start_of_one_stream_and_the_end_of_another_decode_or_fault(
    one: SentPackets, other: SentPackets, data: st.DataObject
) -> None:
    start = one.stream[: data.draw(st.integers(0, len(one.stream)))]
    end = other.stream[data.draw(st.integers(0, len(other.stream))) :]
    _check_decodes_or_faults(one.decoders, start + end)
