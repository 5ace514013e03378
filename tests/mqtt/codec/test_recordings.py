"""Recorded packets of real programs decode the same forever.

mosquitto_pub and mosquitto_sub 2.0.11 and paho-mqtt 2.2.0 talked to mosquitto 2.0.11.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.errors.protocol import UnsupportedProtocol
from meshfleet.mqtt.codec.decoder import FROM_CLIENTS, FROM_SERVERS, PacketDecoder
from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import (
    Connack,
    Connect,
    ConnectReturnCode,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
)
from tests.mqtt.codec.streams import parse_fault, parse_hex
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Mapping


EVENT = "mt/gateway/0123456789ab/device/fedcba987654/event/8800"
EVENT_HEX = (
    "00366d742f676174657761792f3031323334353637383961622f6465766963652f6665646362613938373635342f"
    "6576656e742f38383030"
)
VERSION = b"mosquitto version 2.0.11"

MOSQUITTO_PUB: list[tuple[str, Packet]] = [
    ("101100044d5154540402003c000570756d7030", Connect("pump0", keep_alive=60)),
    (
        "301c000f666c6f6f7220372f5ac3bc726963687b2276616c7565223a307d",
        Publish("floor 7/Zürich", b'{"value":0}'),
    ),
    ("e000", Disconnect()),
    ("101100044d5154540402003c000570756d7031", Connect("pump1", keep_alive=60)),
    (
        "331e000f666c6f6f7220372f5ac3bc7269636800017b2276616c7565223a317d",
        Publish("floor 7/Zürich", b'{"value":1}', qos=1, retain=True, packet_id=1),
    ),
    (
        "102d00044d51545404f6001e000570756d7032000a676f6e652f70756d7032000362796500036a6f65000468757368",
        Connect(
            "pump2",
            keep_alive=30,
            will=Will("gone/pump2", b"bye", qos=2, retain=True),
            user="joe",
            password=b"hush",
        ),
    ),
    (
        "341e000f666c6f6f7220372f5ac3bc7269636800017b2276616c7565223a327d",
        Publish("floor 7/Zürich", b'{"value":2}', qos=2, packet_id=1),
    ),
    ("62020001", Pubrel(1)),
]
MOSQUITTO_SUB: list[tuple[str, Packet]] = [
    ("101000044d51545404000005000465617231", Connect("ear1", clean=False, keep_alive=5)),
    (
        "8230000100156d742f676174657761792f2b2f6465766963652f23020013245359532f62726f6b65722f76657273696f6e02",
        Subscribe(1, (("mt/gateway/+/device/#", 2), ("$SYS/broker/version", 2))),
    ),
    ("a20d000200096e6f7468696e672f23", Unsubscribe(2, ("nothing/#",))),
    ("40020002", Puback(2)),
    ("50020001", Pubrec(1)),
    ("70020001", Pubcomp(1)),
    ("c000", Pingreq()),
    ("e000", Disconnect()),
]
PAHO: list[tuple[str, Packet]] = [
    (
        "102d00044d51545404ec000500067061686f2d310009676f6e652f7061686f000362796500036a6f65000468757368",
        Connect(
            "paho-1",
            clean=False,
            keep_alive=5,
            will=Will("gone/paho", b"bye", qos=1, retain=True),
            user="joe",
            password=b"hush",
        ),
    ),
    (
        "8216000100096d742f2b2f75702f23020001610000012b01",
        Subscribe(1, (("mt/+/up/#", 2), ("a", 0), ("+", 1))),
    ),
    ("300f000a6d742f782f75702fc3a900ff00", Publish("mt/x/up/é", b"\x00\xff\x00")),
    ("3211000a6d742f782f75702fc3a9000300ff01", Publish("mt/x/up/é", b"\x00\xff\x01", qos=1, packet_id=3)),
    ("40020001", Puback(1)),
    ("3411000a6d742f782f75702fc3a9000400ff02", Publish("mt/x/up/é", b"\x00\xff\x02", qos=2, packet_id=4)),
    ("62020004", Pubrel(4)),
    ("50020002", Pubrec(2)),
    ("70020002", Pubcomp(2)),
    ("3087010003626967" + "78" * 130, Publish("big", b"x" * 130)),
    ("a210000600096d742f2b2f75702f23000161", Unsubscribe(6, ("mt/+/up/#", "a"))),
    ("c000", Pingreq()),
    ("e000", Disconnect()),
]
MOSQUITTO: list[tuple[str, Packet]] = [
    ("20020000", Connack()),
    ("20020100", Connack(session_present=True)),
    ("20020001", Connack(code=ConnectReturnCode.UNACCEPTABLE_PROTOCOL)),  # response to protocol level 6
    # Response to an empty client id without a clean session.
    ("20020002", Connack(code=ConnectReturnCode.IDENTIFIER_REJECTED)),
    ("90050001020001", Suback(1, (2, 0, 1))),
    (
        "312d0013245359532f62726f6b65722f76657273696f6e6d6f7371756974746f2076657273696f6e20322e302e3131",
        Publish("$SYS/broker/version", VERSION, retain=True),
    ),
    (
        "332f0013245359532f62726f6b65722f76657273696f6e00016d6f7371756974746f2076657273696f6e20322e302e3131",
        Publish("$SYS/broker/version", VERSION, qos=1, retain=True, packet_id=1),
    ),
    (f"303a{EVENT_HEX}7b7d", Publish(EVENT, b"{}")),
    (f"323c{EVENT_HEX}00027b7d", Publish(EVENT, b"{}", qos=1, packet_id=2)),
    (f"343c{EVENT_HEX}00027b7d", Publish(EVENT, b"{}", qos=2, packet_id=2)),
    ("40020003", Puback(3)),
    ("50020004", Pubrec(4)),
    ("62020002", Pubrel(2)),
    ("70020004", Pubcomp(4)),
    ("b0020006", Unsuback(6)),
    ("d000", Pingresp()),
]


@each_row(
    ("recording", "decoders"),
    [
        pytest.param(MOSQUITTO_PUB, FROM_CLIENTS, id="mosquitto_pub"),
        pytest.param(MOSQUITTO_SUB, FROM_CLIENTS, id="mosquitto_sub"),
        pytest.param(PAHO, FROM_CLIENTS, id="paho"),
        pytest.param(MOSQUITTO, FROM_SERVERS, id="mosquitto"),
    ],
)
def test_packets_of_real_programs_are_decoded_and_encoded_to_the_same_bytes(
    recording: list[tuple[str, Packet]], decoders: Mapping[int, PacketDecoder]
) -> None:
    for raw, packet in recording:
        assert parse_hex(raw, decoders) == [packet]
        assert encode_packet(packet).hex() == raw
    assert parse_hex("".join(raw for raw, _ in recording), decoders) == [packet for _, packet in recording]


@each_row(
    "raw",
    [
        pytest.param("101400064d51497364700302003c00067061686f2d78", id="3.1"),
        pytest.param("101300044d5154540502003c0000067061686f2d78", id="5"),
    ],
)
def test_a_connect_of_paho_in_another_version_is_unsupported(raw: str) -> None:
    assert type(parse_fault(raw)) is UnsupportedProtocol


def test_a_connack_in_mqtt_5_is_refused() -> None:
    assert parse_fault("200900000622000a210014", FROM_SERVERS).field == "CONNACK"
