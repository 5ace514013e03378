"""SUBSCRIBE, SUBACK, UNSUBSCRIBE and UNSUBACK: filters, requested QoS and return codes."""

from __future__ import annotations

import pytest

from meshfleet.errors.protocol import MalformedPacket
from meshfleet.mqtt.codec.decoder import FROM_SERVERS
from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import SUBACK_FAILURE, Packet, Suback, Subscribe, Unsubscribe
from tests.mqtt.codec.streams import add_fixed_header, parse_fault, parse_hex
from tests.row_tables import each_row


@each_row(
    ("raw", "packet"),
    [
        ("8206 0001 000161 00", Subscribe(1, (("a", 0),))),
        ("820e 000a 0003612f62 01 0003632f64 02", Subscribe(10, (("a/b", 1), ("c/d", 2)))),
        ("820a 0001 000161 02 000161 00", Subscribe(1, (("a", 2), ("a", 0)))),
        ("a205 0001 000161", Unsubscribe(1, ("a",))),
        ("a20c 000a 0003612f62 0003632f64", Unsubscribe(10, ("a/b", "c/d"))),
    ],
)
def test_filters_are_decoded_and_encoded_in_order(raw: str, packet: Packet) -> None:
    assert parse_hex(raw) == [packet]
    assert encode_packet(packet) == bytes.fromhex(raw)


def test_many_filters_fit_in_one_packet() -> None:
    filters = tuple(f"mt/{number}/#" for number in range(500))
    subscribe, unsubscribe = (
        Subscribe(1, tuple((topic_filter, 1) for topic_filter in filters)),
        Unsubscribe(2, filters),
    )
    assert parse_hex((encode_packet(subscribe) + encode_packet(unsubscribe)).hex()) == [
        subscribe,
        unsubscribe,
    ]


@each_row(
    ("raw", "text"),
    [
        ("8202 0001", "SUBSCRIBE filters: are missing"),  # [MQTT-3.8.3-3]
        ("8206 0001 000161 03", "SUBSCRIBE qos: 3 is not a QoS"),  # [MQTT-3.8.3-4]
        ("8206 0001 000161 04", "SUBSCRIBE qos: 4 is not a QoS"),
        ("8206 0001 000161 80", "SUBSCRIBE qos: 128 is not a QoS"),
        ("8206 0001 000161 fe", "SUBSCRIBE qos: 254 is not a QoS"),
        ("820a 0001 000161 00 000161 05", "SUBSCRIBE qos: 5 is not a QoS"),
        ("8205 0001 000161", "SUBSCRIBE qos: is truncated"),
        ("8206 0001 00026161", "SUBSCRIBE qos: is truncated"),
        ("8206 0001 000361 00", "SUBSCRIBE filter: is truncated"),
        ("8207 0001 000161 00 00", "SUBSCRIBE filter: is truncated"),
        ("8205 0001 0000 00", "SUBSCRIBE filter: is empty"),
        ("8200", "SUBSCRIBE id: is truncated"),
        ("a202 0001", "UNSUBSCRIBE filters: are missing"),  # [MQTT-3.10.3-2]
        ("a204 0001 0000", "UNSUBSCRIBE filter: is empty"),
        ("a205 0001 000261", "UNSUBSCRIBE filter: is truncated"),
        ("a206 0001 000161 00", "UNSUBSCRIBE filter: is truncated"),
        ("a200", "UNSUBSCRIBE id: is truncated"),
    ],
)
def test_a_subscribe_or_unsubscribe_that_violates_a_rule_is_refused(raw: str, text: str) -> None:
    assert str(parse_fault(raw)) == text


@each_row("code", [0, 1, 2, SUBACK_FAILURE])
def test_a_suback_grants_a_qos_or_refuses(code: int) -> None:
    raw = add_fixed_header("90", f"0001 {code:02x} 01")
    assert parse_hex(raw, FROM_SERVERS) == [Suback(1, (code, 1))]
    assert encode_packet(Suback(1, (code, 1))) == bytes.fromhex(raw)


@each_row("code", [3, 4, 0x7F, 0x81, 0x82, 0xFF])
def test_a_suback_with_another_code_is_neither_decoded_nor_encoded(code: int) -> None:
    for codes in ((code,), (0, code), (code, 0x80)):  # [MQTT-3.9.3-2]
        fault = parse_fault(add_fixed_header("90", "0001" + bytes(codes).hex()), FROM_SERVERS)
        assert str(fault) == f"SUBACK code: {code} is neither a QoS nor 128"
        with pytest.raises(MalformedPacket, match=r"^SUBACK code: "):
            encode_packet(Suback(1, codes))


def test_a_suback_without_codes_is_neither_decoded_nor_encoded() -> None:
    assert str(parse_fault("9002 0001", FROM_SERVERS)) == "SUBACK codes: are missing"
    with pytest.raises(MalformedPacket, match=r"^SUBACK codes: are missing"):
        encode_packet(Suback(1, ()))


@each_row(
    ("packet", "text"),
    [
        (Subscribe(1, ()), "SUBSCRIBE filters: are missing"),
        (Subscribe(1, (("a", 3),)), "SUBSCRIBE qos: 3 is not a QoS"),
        (Subscribe(1, (("a", 0), ("b", -1))), "SUBSCRIBE qos: -1 is not a QoS"),
        (Subscribe(1, (("a", 0x80),)), "SUBSCRIBE qos: 128 is not a QoS"),
        (Subscribe(1, (("a", 0), ("", 0))), "SUBSCRIBE filter: is empty"),
        (Unsubscribe(1, ()), "UNSUBSCRIBE filters: are missing"),
        (Unsubscribe(1, ("a", "")), "UNSUBSCRIBE filter: is empty"),
    ],
)
def test_a_subscribe_or_unsubscribe_that_violates_a_rule_is_not_encoded(packet: Packet, text: str) -> None:
    with pytest.raises(MalformedPacket) as caught:
        encode_packet(packet)
    assert str(caught.value) == text
