"""Topic names, topic filters and other texts: what they may hold, how long they may be, in every place."""

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


class Place(NamedTuple):
    """Where a text stands in a packet."""

    name: str
    first: str
    body: str
    packet: Callable[[str], Packet]

    def raw(self, text: bytes) -> str:
        """The packet with this text, as hex."""
        return add_fixed_header(self.first, self.body.format(encode_field(text)))

    def survives(self, text: str) -> None:
        """The text is read, and written."""
        assert parse_hex(self.raw(text.encode())) == [self.packet(text)]
        assert encode_packet(self.packet(text)) == bytes.fromhex(self.raw(text.encode()))

    def refuses(self, text: bytes, reason: str) -> None:
        """The text is not read, for this reason."""
        assert str(parse_fault(self.raw(text))) == f"{self.name}: {reason}"

    def seen(self, text: str | bytes) -> str:
        """The text as an error shows it: a user name is not shown."""
        return "it" if self.name == "CONNECT user name" else repr(text)

    def does_not_write(self, text: str) -> str:
        """The text is not written, for the reason that comes back."""
        with pytest.raises(MalformedPacket) as caught:
            encode_packet(self.packet(text))
        assert caught.value.field == self.name
        return caught.value.reason


TOPICS = [
    Place("PUBLISH topic", "30", "{}", lambda text: Publish(text, b"")),
    Place("PUBLISH topic", "32", "{} 0001", lambda text: Publish(text, b"", qos=1, packet_id=1)),
    Place(
        "CONNECT will topic",
        "10",
        "00044d515454 04 06 0000 000161 {} 0000",
        lambda text: Connect("a", will=Will(text, b"")),
    ),
]
FILTERS = [
    Place("SUBSCRIBE filter", "82", "0001 {} 00", lambda text: Subscribe(1, ((text, 0),))),
    Place("SUBSCRIBE filter", "82", "0001 000161 00 {} 00", lambda text: Subscribe(1, (("a", 0), (text, 0)))),
    Place("UNSUBSCRIBE filter", "a2", "0001 {}", lambda text: Unsubscribe(1, (text,))),
    Place("UNSUBSCRIBE filter", "a2", "0001 000161 {}", lambda text: Unsubscribe(1, ("a", text))),
]
TEXTS = [
    *TOPICS,
    *FILTERS,
    Place("CONNECT client id", "10", "00044d515454 04 02 0000 {}", Connect),
    Place(
        "CONNECT user name", "10", "00044d515454 04 82 0000 000161 {}", lambda text: Connect("a", user=text)
    ),
]


@each_row(
    "text",
    ["a", " ", "a b/ c", "Zürich", "😀/é", "/", "//", "/a", "a/", "$SYS/a", "\x01\x7f", "\ufffe", "😀" * 20],
)
def test_a_text_is_read_and_written_in_every_place(text: str) -> None:
    for place in TEXTS:
        place.survives(text)


def test_u_feff_is_a_character_like_any_other() -> None:
    for place in TEXTS:
        raw = place.raw(bytes.fromhex("efbbbf61efbbbf"))  # [MQTT-1.5.3-3]
        assert parse_hex(raw) == [place.packet("\ufeffa\ufeff")]
        assert encode_packet(place.packet("\ufeffa\ufeff")) == bytes.fromhex(raw)


@each_row(
    "text",
    [
        "80",  # a continuation of nothing
        "61c3",  # cut
        "c0af",  # a / in too many bytes
        "e080af",
        "eda080",  # U+D800 [MQTT-1.5.3-1]
        "edbfbf",  # U+DFFF
        "eda0bdedb2a9",  # two surrogates that would be one character
        "f4908080",  # behind U+10FFFF
        "ff",
    ],
)
def test_a_text_that_is_not_utf_8_is_refused(text: str) -> None:
    raw = bytes.fromhex(text)
    for place in TEXTS:
        place.refuses(raw, f"{place.seen(raw)} is not UTF-8")


@each_row("text", ["\0", "a\0b", "\0/"])
def test_u_0000_is_refused_and_not_written(text: str) -> None:
    for place in TEXTS:  # [MQTT-1.5.3-2]
        place.refuses(text.encode(), f"{place.seen(text)} contains the character U+0000")
        assert place.does_not_write(text) == f"{place.seen(text)} contains the character U+0000"


@each_row("text", ["\ud800", "a\udfff", "\ud83d\ude00"])
def test_a_surrogate_is_not_written(text: str) -> None:
    for place in TEXTS:
        assert place.does_not_write(text) == f"{place.seen(text)} cannot be encoded as UTF-8"


@each_row("text", ["+", "#", "a/+", "a/#", "+/a", "a+", "#a", "a/b#c/d"])
def test_a_wildcard_in_a_topic_name_is_refused_and_not_written(text: str) -> None:
    for place in [*TOPICS, *TOPICS]:  # nor is it remembered
        place.refuses(text.encode(), f"'{text}' has a wildcard")
        assert place.does_not_write(text) == f"'{text}' has a wildcard"


@each_row("place", [*TOPICS, *FILTERS])
def test_an_empty_name_is_refused_and_not_written(place: Place) -> None:
    place.refuses(b"", "is empty")  # [MQTT-4.7.3-1]
    assert place.does_not_write("") == "is empty"


@each_row(
    "text", ["#", "+", "/#", "/+", "+/", "+/+", "+/#", "+/a/+", "a/#", "a/+/b", "a//#", "//+//", "$SYS/#"]
)
def test_a_wildcard_that_fills_its_level_is_taken(text: str) -> None:
    for place in FILTERS:
        place.survives(text)


@each_row("text", ["a+", "+a", "a/b+", "+a/b", "a/b+c/d", "++", "+ ", "a#", "##", "+#", "/#a"])
def test_a_wildcard_that_does_not_fill_its_level_is_refused_and_not_written(text: str) -> None:
    for place in FILTERS:  # [MQTT-4.7.1-3]
        place.refuses(text.encode(), f"'{text}' has a wildcard that does not fill its level")
        assert place.does_not_write(text) == f"'{text}' has a wildcard that does not fill its level"


@each_row("text", ["#/", "#/a", "a/#/b", "#/#", "/#/", "#/+"])
def test_a_hash_before_the_end_is_refused_and_not_written(text: str) -> None:
    for place in FILTERS:  # [MQTT-4.7.1-2]
        place.refuses(text.encode(), f"'{text}' has a # before its end")
        assert place.does_not_write(text) == f"'{text}' has a # before its end"


def test_a_filter_that_was_read_does_not_become_a_topic_name() -> None:
    assert parse_hex("8208 0001 0003612f23 00") == [Subscribe(1, (("a/#", 0),))]
    assert str(parse_fault("3005 0003612f23")) == "PUBLISH topic: 'a/#' has a wildcard"


@each_row("place", TEXTS)
@each_row("longest", ["x" * 65_535, "é" * 32_767 + "x", "😀" * 16_383 + "xxx"])
def test_a_text_may_take_65535_bytes_and_no_more(place: Place, longest: str) -> None:
    raw = encode_packet(place.packet(longest))
    assert b"\xff\xff" + longest.encode() in raw
    assert parse_hex(raw.hex()) == [place.packet(longest)]
    assert place.does_not_write(longest + "x") == "65536 bytes are more than 65535"


@each_row(
    ("name", "packet"),
    [
        ("CONNECT will payload", lambda raw: Connect("a", will=Will("t", raw))),
        ("CONNECT password", lambda raw: Connect("a", user="u", password=raw)),
    ],
)
def test_bytes_in_a_connect_may_be_65535_and_no_more(name: str, packet: Callable[[bytes], Packet]) -> None:
    assert parse_hex(encode_packet(packet(bytes(65_535))).hex()) == [packet(bytes(65_535))]
    with pytest.raises(MalformedPacket) as caught:
        encode_packet(packet(bytes(65_536)))
    assert str(caught.value) == f"{name}: 65536 bytes are more than 65535"


def test_an_error_repeats_a_long_name_in_part_only() -> None:
    with pytest.raises(MalformedPacket) as caught:
        encode_packet(Publish("x" * 60_000 + "#", b""))
    assert len(str(caught.value)) < 200


def test_a_name_is_the_same_whether_remembered_or_not() -> None:
    topic_names.DECODED_TOPICS.clear()
    topic_names.ENCODED_TOPICS.clear()
    for _ in range(3):
        assert topic_names.encode_topic("Zürich") == bytes.fromhex("0007 5ac3bc72696368")
        assert topic_names.decode_topic("Zürich".encode()) == "Zürich"
    assert topic_names.DECODED_TOPICS["Zürich".encode()] == "Zürich"
    assert topic_names.ENCODED_TOPICS["Zürich"] == bytes.fromhex("0007 5ac3bc72696368")
