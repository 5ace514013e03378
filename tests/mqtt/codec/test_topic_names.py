"""Topic names, topic filters and other texts: allowed characters and lengths, in every field of a packet."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from meshfleet.errors.protocol import MalformedPacket
from meshfleet.mqtt.codec import topic_names
from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import Connect, Packet, Publish, Subscribe, Unsubscribe, Will
from tests.mqtt.codec.streams import add_fixed_header, encode_field, parse_fault, parse_hex
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Callable


class Field(NamedTuple):
    """Field of a packet that holds a text."""

    name: str
    first: str
    body: str
    packet: Callable[[str], Packet]

    def raw(self, text: bytes) -> str:
        """Return the packet with this text, as hex."""
        return add_fixed_header(self.first, self.body.format(encode_field(text)))

    def check_round_trip(self, text: str) -> None:
        """Check that the text is decoded and encoded."""
        assert parse_hex(self.raw(text.encode())) == [self.packet(text)]
        assert encode_packet(self.packet(text)) == bytes.fromhex(self.raw(text.encode()))

    def check_refused(self, text: bytes, reason: str) -> None:
        """Check that the text is not decoded, for this reason."""
        assert str(parse_fault(self.raw(text))) == f"{self.name}: {reason}"

    def quote(self, text: str | bytes) -> str:
        """Return the text as errors quote it; a user name is omitted."""
        return "it" if self.name == "CONNECT user name" else repr(text)

    def encode_error(self, text: str) -> str:
        """Encode a text that must be refused, and return the reason."""
        with pytest.raises(MalformedPacket) as caught:
            encode_packet(self.packet(text))
        assert caught.value.field == self.name
        return caught.value.reason


TOPICS = [
    Field("PUBLISH topic", "30", "{}", lambda text: Publish(text, b"")),
    Field("PUBLISH topic", "32", "{} 0001", lambda text: Publish(text, b"", qos=1, packet_id=1)),
    Field(
        "CONNECT will topic",
        "10",
        "00044d515454 04 06 0000 000161 {} 0000",
        lambda text: Connect("a", will=Will(text, b"")),
    ),
]
FILTERS = [
    Field("SUBSCRIBE filter", "82", "0001 {} 00", lambda text: Subscribe(1, ((text, 0),))),
    Field("SUBSCRIBE filter", "82", "0001 000161 00 {} 00", lambda text: Subscribe(1, (("a", 0), (text, 0)))),
    Field("UNSUBSCRIBE filter", "a2", "0001 {}", lambda text: Unsubscribe(1, (text,))),
    Field("UNSUBSCRIBE filter", "a2", "0001 000161 {}", lambda text: Unsubscribe(1, ("a", text))),
]
TEXTS = [
    *TOPICS,
    *FILTERS,
    Field("CONNECT client id", "10", "00044d515454 04 02 0000 {}", Connect),
    Field(
        "CONNECT user name", "10", "00044d515454 04 82 0000 000161 {}", lambda text: Connect("a", user=text)
    ),
]


@each_row(
    "text",
    ["a", " ", "a b/ c", "Zürich", "😀/é", "/", "//", "/a", "a/", "$SYS/a", "\x01\x7f", "\ufffe", "😀" * 20],
)
def test_a_text_is_decoded_and_encoded_in_every_field(text: str) -> None:
    for field in TEXTS:
        field.check_round_trip(text)


def test_u_feff_is_a_character_like_any_other() -> None:
    for field in TEXTS:
        raw = field.raw(bytes.fromhex("efbbbf61efbbbf"))  # [MQTT-1.5.3-3]
        assert parse_hex(raw) == [field.packet("\ufeffa\ufeff")]
        assert encode_packet(field.packet("\ufeffa\ufeff")) == bytes.fromhex(raw)


@each_row(
    "text",
    [
        "80",  # a continuation byte without a start
        "61c3",  # truncated
        "c0af",  # an overlong /
        "e080af",
        "eda080",  # U+D800 [MQTT-1.5.3-1]
        "edbfbf",  # U+DFFF
        "eda0bdedb2a9",  # a surrogate pair
        "f4908080",  # beyond U+10FFFF
        "ff",
    ],
)
def test_a_text_that_is_not_utf_8_is_refused(text: str) -> None:
    raw = bytes.fromhex(text)
    for field in TEXTS:
        field.check_refused(raw, f"{field.quote(raw)} is not UTF-8")


@each_row("text", ["\0", "a\0b", "\0/"])
def test_u_0000_is_neither_decoded_nor_encoded(text: str) -> None:
    for field in TEXTS:  # [MQTT-1.5.3-2]
        field.check_refused(text.encode(), f"{field.quote(text)} contains the character U+0000")
        assert field.encode_error(text) == f"{field.quote(text)} contains the character U+0000"


@each_row("text", ["\ud800", "a\udfff", "\ud83d\ude00"])
def test_a_surrogate_is_not_encoded(text: str) -> None:
    for field in TEXTS:
        assert field.encode_error(text) == f"{field.quote(text)} cannot be encoded as UTF-8"


@each_row("text", ["+", "#", "a/+", "a/#", "+/a", "a+", "#a", "a/b#c/d"])
def test_a_wildcard_in_a_topic_name_is_neither_decoded_nor_encoded(text: str) -> None:
    for field in [*TOPICS, *TOPICS]:  # twice: it must not be cached
        field.check_refused(text.encode(), f"'{text}' has a wildcard")
        assert field.encode_error(text) == f"'{text}' has a wildcard"


@each_row("field", [*TOPICS, *FILTERS])
def test_an_empty_name_is_neither_decoded_nor_encoded(field: Field) -> None:
    field.check_refused(b"", "is empty")  # [MQTT-4.7.3-1]
    assert field.encode_error("") == "is empty"


@each_row(
    "text", ["#", "+", "/#", "/+", "+/", "+/+", "+/#", "+/a/+", "a/#", "a/+/b", "a//#", "//+//", "$SYS/#"]
)
def test_a_wildcard_that_fills_its_level_is_accepted(text: str) -> None:
    for field in FILTERS:
        field.check_round_trip(text)


@each_row("text", ["a+", "+a", "a/b+", "+a/b", "a/b+c/d", "++", "+ ", "a#", "##", "+#", "/#a"])
def test_a_wildcard_that_does_not_fill_its_level_is_neither_decoded_nor_encoded(text: str) -> None:
    for field in FILTERS:  # [MQTT-4.7.1-3]
        field.check_refused(text.encode(), f"'{text}' has a wildcard that does not fill its level")
        assert field.encode_error(text) == f"'{text}' has a wildcard that does not fill its level"


@each_row("text", ["#/", "#/a", "a/#/b", "#/#", "/#/", "#/+"])
def test_a_hash_before_the_end_is_neither_decoded_nor_encoded(text: str) -> None:
    for field in FILTERS:  # [MQTT-4.7.1-2]
        field.check_refused(text.encode(), f"'{text}' has a # before its end")
        assert field.encode_error(text) == f"'{text}' has a # before its end"


def test_a_decoded_filter_is_not_accepted_as_a_topic_name() -> None:
    assert parse_hex("8208 0001 0003612f23 00") == [Subscribe(1, (("a/#", 0),))]
    assert str(parse_fault("3005 0003612f23")) == "PUBLISH topic: 'a/#' has a wildcard"


@each_row("field", TEXTS)
@each_row("longest", ["x" * 65_535, "é" * 32_767 + "x", "😀" * 16_383 + "xxx"])
def test_a_text_may_have_65535_bytes_and_no_more(field: Field, longest: str) -> None:
    raw = encode_packet(field.packet(longest))
    assert b"\xff\xff" + longest.encode() in raw
    assert parse_hex(raw.hex()) == [field.packet(longest)]
    assert field.encode_error(longest + "x") == "65536 bytes are more than 65535"


@each_row(
    ("name", "packet"),
    [
        ("CONNECT will payload", lambda raw: Connect("a", will=Will("t", raw))),
        ("CONNECT password", lambda raw: Connect("a", user="u", password=raw)),
    ],
)
def test_a_binary_field_may_have_65535_bytes_and_no_more(
    name: str, packet: Callable[[bytes], Packet]
) -> None:
    assert parse_hex(encode_packet(packet(bytes(65_535))).hex()) == [packet(bytes(65_535))]
    with pytest.raises(MalformedPacket) as caught:
        encode_packet(packet(bytes(65_536)))
    assert str(caught.value) == f"{name}: 65536 bytes are more than 65535"


def test_an_error_quotes_only_a_part_of_a_long_topic() -> None:
    with pytest.raises(MalformedPacket) as caught:
        encode_packet(Publish("x" * 60_000 + "#", b""))
    assert len(str(caught.value)) < 200


def test_a_topic_is_the_same_whether_cached_or_not() -> None:
    topic_names.DECODED_TOPICS.clear()
    topic_names.ENCODED_TOPICS.clear()
    for _ in range(3):
        assert topic_names.encode_topic("Zürich") == bytes.fromhex("0007 5ac3bc72696368")
        assert topic_names.decode_topic("Zürich".encode()) == "Zürich"
    assert topic_names.DECODED_TOPICS["Zürich".encode()] == "Zürich"
    assert topic_names.ENCODED_TOPICS["Zürich"] == bytes.fromhex("0007 5ac3bc72696368")
