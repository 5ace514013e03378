"""What the standard allows survives the wire; what it does not is one of our errors, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from meshfleet.errors.protocol import MalformedPacket
from meshfleet.mqtt.codec.decoder import FROM_CLIENTS, FROM_SERVERS
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

    from meshfleet.mqtt.codec.decoder import PacketDecoder

FIRST_BYTES = sorted({*FROM_CLIENTS, *FROM_SERVERS, *range(0x30, 0x40)})


@given(from_clients)
def test_every_packet_of_a_client_survives_the_wire(packet: Packet) -> None:
    assert parse_pieces(FROM_CLIENTS, [encode_packet(packet)]) == Outcome([packet])


@given(from_servers)
def test_every_packet_of_a_server_survives_the_wire(packet: Packet) -> None:
    assert parse_pieces(FROM_SERVERS, [encode_packet(packet)]) == Outcome([packet])


@each_row(("name", "raw", "shapes"), SHORT)
def test_a_packet_is_written_as_it_was_read(name: str, raw: str, shapes: Mapping[int, PacketDecoder]) -> None:
    (packet,) = parse_hex(raw, shapes)
    assert type(packet).__name__.upper() == name
    assert encode_packet(packet) == bytes.fromhex(raw)


def _decodes_or_faults(shapes: Mapping[int, PacketDecoder], stream: bytes) -> None:
    parser = PacketParser(shapes)
    packets = parser.feed(stream)
    assert parser.fault is None or isinstance(parser.fault, MalformedPacket)
    for packet in packets:
        # A server must read this one, to refuse it politely [MQTT-3.1.3-8]; a client must not send it.
        if not (isinstance(packet, Connect) and not packet.client_id and not packet.clean):
            assert parse_pieces(shapes, [encode_packet(packet)]) == Outcome([packet])


@given(stream=st.binary())
@each_row("shapes", [FROM_CLIENTS, FROM_SERVERS])
def test_arbitrary_bytes_decode_or_fault(shapes: Mapping[int, PacketDecoder], stream: bytes) -> None:
    _decodes_or_faults(shapes, stream)


@settings(max_examples=examples(100))
@given(first=st.sampled_from(FIRST_BYTES), body=st.binary(max_size=40))
@each_row("shapes", [FROM_CLIENTS, FROM_SERVERS])
def test_an_arbitrary_body_decodes_or_faults(
    shapes: Mapping[int, PacketDecoder], first: int, body: bytes
) -> None:
    _decodes_or_faults(shapes, bytes((first, len(body))) + body)


@given(st.data())
def test_a_damaged_stream_decodes_or_faults(data: st.DataObject) -> None:
    shapes, _ = made = data.draw(sent_packets(least=1))
    _decodes_or_faults(shapes, data.draw(damaged(made.stream)))


@settings(max_examples=examples(100))
@given(st.data())
def test_a_body_with_wrong_bits_decodes_or_faults(data: st.DataObject) -> None:
    _, raw, shapes = data.draw(st.sampled_from(SHORT))
    packet = bytearray.fromhex(raw)
    for at in data.draw(st.lists(st.integers(2, max(2, len(packet) - 1)), max_size=3)):
        packet[at : at + 1] = data.draw(st.binary(min_size=1, max_size=1))
    packet[1] = len(packet) - 2
    _decodes_or_faults(shapes, bytes(packet))


@given(sent_packets(least=1), sent_packets(least=1), st.data())
def test_the_front_of_one_stream_and_the_end_of_another_decode_or_fault(
    one: SentPackets, other: SentPackets, data: st.DataObject
) -> None:
    front = one.stream[: data.draw(st.integers(0, len(one.stream)))]
    end = other.stream[data.draw(st.integers(0, len(other.stream))) :]
    _decodes_or_faults(one.shapes, front + end)
