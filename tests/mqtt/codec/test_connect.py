"""CONNECT and CONNACK: protocol versions, flags, will messages, credentials and return codes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from rich.pretty import pretty_repr

from meshfleet.errors.protocol import MalformedPacket, UnsupportedProtocol
from meshfleet.mqtt.codec.decoder import FROM_SERVERS
from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import Connack, Connect, ConnectReturnCode, Will
from tests.mqtt.codec.streams import add_fixed_header, parse_fault, parse_hex
from tests.row_tables import each_row

MQTT = "00044d515454 04"
WILL = Will("t", b"w")


@each_row(
    ("body", "packet"),
    [
        (f"{MQTT} 00 0000 000161", Connect("a", clean=False)),
        (f"{MQTT} 02 0000 0000", Connect("")),
        (f"{MQTT} 02 0001 000161", Connect("a", keep_alive=1)),
        (f"{MQTT} 02 ffff 000161", Connect("a", keep_alive=65_535)),
        (f"{MQTT} 06 0000 000161 000174 000177", Connect("a", will=WILL)),
        (f"{MQTT} 0e 0000 000161 000174 000177", Connect("a", will=replace(WILL, qos=1))),
        (f"{MQTT} 16 0000 000161 000174 000177", Connect("a", will=replace(WILL, qos=2))),
        (f"{MQTT} 26 0000 000161 000174 000177", Connect("a", will=replace(WILL, retain=True))),
        (f"{MQTT} 06 0000 000161 000174 0000", Connect("a", will=Will("t", b""))),
        (f"{MQTT} 82 0000 000161 000175", Connect("a", user="u")),
        (f"{MQTT} 82 0000 000161 0000", Connect("a", user="")),
        (f"{MQTT} c2 0000 000161 000175 000200ff", Connect("a", user="u", password=b"\x00\xff")),
        (f"{MQTT} c2 0000 000161 000175 0000", Connect("a", user="u", password=b"")),
        (
            f"{MQTT} f4 003c 000161 000174 000177 000175 000170",
            Connect("a", False, 60, Will("t", b"w", 2, retain=True), "u", b"p"),  # noqa: FBT003 # positional, as in the packet
        ),
    ],
)
def test_a_connect_is_decoded_and_encoded(body: str, packet: Connect) -> None:
    raw = add_fixed_header("10", body)
    assert parse_hex(raw) == [packet]
    assert encode_packet(packet) == bytes.fromhex(raw)


@each_row(
    ("body", "text"),
    [
        ("00044d515454 04 03 0000 000161", "CONNECT flags: have the reserved bit set"),  # [MQTT-3.1.2-3]
        ("00044d515454 04 0a 0000 000161", "CONNECT flags: describe a will message without the will flag"),
        ("00044d515454 04 12 0000 000161", "CONNECT flags: describe a will message without the will flag"),
        ("00044d515454 04 22 0000 000161", "CONNECT flags: describe a will message without the will flag"),
        # [MQTT-3.1.2-14]
        ("00044d515454 04 1e 0000 000161 000174 000177", "CONNECT will qos: 3 is not a QoS"),
        ("00044d515454 04 42 0000 000161 000170", "CONNECT password: needs a user name"),  # [MQTT-3.1.2-22]
        ("00044d515454 04 06 0000 000161 0000 000177", "CONNECT will topic: is empty"),
        ("00044d515454 04 06 0000 000161 00012b 000177", "CONNECT will topic: '+' has a wildcard"),
        ("00044d515454 04 06 0000 000161", "CONNECT will topic: is truncated"),
        ("00044d515454 04 06 0000 000161 000174", "CONNECT will payload: is truncated"),
        ("00044d515454 04 82 0000 000161", "CONNECT user name: is truncated"),
        ("00044d515454 04 c2 0000 000161 000175", "CONNECT password: is truncated"),
        ("00044d515454 04 02 0000 000261", "CONNECT client id: is truncated"),
        ("00044d515454 04 02 0000 000161 00", "CONNECT: has 1 bytes too many"),
        ("00044d515454 04 02 0000 000161 000175", "CONNECT: has 3 bytes too many"),
    ],
)
def test_a_connect_that_violates_a_rule_is_refused(body: str, text: str) -> None:
    fault = parse_fault(add_fixed_header("10", body))
    assert str(fault) == text
    assert type(fault) is MalformedPacket


@each_row(
    "body",
    [
        "00064d5149736470 03 02 003c 000161",  # MQTT 3.1
        "00044d515454 03 02 003c 000161",
        "00044d515454 05 02 003c 00 000161",  # MQTT 5
        "00044d515454 06",
        "00044d515454 00",
        "00044d515454 84 02 003c 000161",  # a bridge of another broker
    ],
)
def test_another_mqtt_version_is_an_error_of_its_own(body: str) -> None:
    fault = parse_fault(add_fixed_header("10", body))
    assert type(fault) is UnsupportedProtocol
    assert fault.field == "CONNECT protocol"


@each_row("name", ["0000", "00046d717474", "00044d515453", "00054d51545400", "00034d5154"])
def test_another_protocol_is_refused(name: str) -> None:
    fault = parse_fault(add_fixed_header("10", f"{name} 04 02 003c 000161"))  # [MQTT-3.1.2-1]
    assert type(fault) is MalformedPacket
    assert fault.field == "CONNECT protocol name"


def test_an_empty_client_id_without_a_clean_session_is_decoded() -> None:
    raw = add_fixed_header("10", f"{MQTT} 00 0000 0000")  # [MQTT-3.1.3-8]
    assert parse_hex(raw) == [Connect("", clean=False)]


@each_row(
    ("packet", "match"),
    [
        (Connect("", clean=False), "^CONNECT client id"),  # [MQTT-3.1.3-7]
        (Connect("a", keep_alive=-1), "^CONNECT keep alive: -1 is not 0 to 65535"),
        (Connect("a", keep_alive=65_536), "^CONNECT keep alive: 65536 is not 0 to 65535"),
        (Connect("a", password=b"p"), "^CONNECT password: needs a user name"),
        (Connect("a", password=b""), "^CONNECT password: needs a user name"),
        (Connect("a", will=Will("t", b"", qos=3)), "^CONNECT will qos: 3 is not a QoS"),
        (Connect("a", will=Will("t", b"", qos=-1)), "^CONNECT will qos: -1 is not a QoS"),
        (Connect("a", will=Will("", b"")), "^CONNECT will topic: is empty"),
        (Connect("a", will=Will("t/#", b"")), "^CONNECT will topic: 't/#' has a wildcard"),
    ],
)
def test_a_connect_that_violates_a_rule_is_not_encoded(packet: Connect, match: str) -> None:
    with pytest.raises(MalformedPacket, match=match):
        encode_packet(packet)


@each_row(
    ("raw", "packet"),
    [
        ("20020000", Connack()),
        ("20020100", Connack(session_present=True)),
        ("20020001", Connack(code=ConnectReturnCode.UNACCEPTABLE_PROTOCOL)),
        ("20020002", Connack(code=ConnectReturnCode.IDENTIFIER_REJECTED)),
        ("20020003", Connack(code=ConnectReturnCode.SERVER_UNAVAILABLE)),
        ("20020004", Connack(code=ConnectReturnCode.BAD_CREDENTIALS)),
        ("20020005", Connack(code=ConnectReturnCode.NOT_AUTHORIZED)),
    ],
)
def test_a_connack_is_decoded_and_encoded(raw: str, packet: Connack) -> None:
    assert parse_hex(raw, FROM_SERVERS) == [packet]
    assert encode_packet(packet) == bytes.fromhex(raw)


@each_row(
    ("raw", "field"),
    [
        ("20020200", "CONNACK flags"),
        ("20028000", "CONNACK flags"),
        ("20020006", "CONNACK return code"),
        ("200200ff", "CONNACK return code"),
        ("20020101", "CONNACK session present"),  # [MQTT-3.2.2-4]
        ("20020105", "CONNACK session present"),
        ("2000", "CONNACK flags"),
        ("200100", "CONNACK return code"),
        ("2003000000", "CONNACK"),
    ],
)
def test_a_connack_that_violates_a_rule_is_refused(raw: str, field: str) -> None:
    assert parse_fault(raw, FROM_SERVERS).field == field


@each_row("code", [code for code in ConnectReturnCode if code])
def test_a_refusal_with_session_present_is_not_encoded(code: ConnectReturnCode) -> None:
    with pytest.raises(
        MalformedPacket, match=r"^CONNACK session present: must be 0 if the connection is refused"
    ):
        encode_packet(Connack(session_present=True, code=code))


@each_row("show", [repr, str, lambda packet: f"{[packet]}", pretty_repr])
@each_row("hidden", ["username", "hush"])
def test_credentials_are_not_shown(show: type[str], hidden: str) -> None:
    shown = show(Connect("pump-7", keep_alive=60, user="username", password=b"hush"))
    assert "pump-7" in shown
    assert hidden not in shown
