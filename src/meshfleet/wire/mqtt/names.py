"""Topic names and topic filters: which are legal [MQTT-4.7], and how text becomes bytes [MQTT-1.5.3]."""

from __future__ import annotations

from typing import Final

from meshfleet.errors import MalformedPacket, shown

LONGEST = 0xFFFF
"""Bytes of any text: its length travels in two."""

_REMEMBERED = 16_384
_REMEMBERED_LENGTH = 256
"""Longer names are rare and forgotten at once, so that what is remembered takes some megabytes at most."""

_RARELY = 0xFFFF
"""One name in so many makes a full memory begin anew: where there are more names than room, those that are
here stay for a while, as replacing each by the next would cost more than it saves."""

KNOWN: Final[dict[bytes, str]] = {}
SPELT: Final[dict[str, bytes]] = {}
"""Topic names seen before, from their bytes and to their bytes with the length in front: the same ones come
again and again. Hot paths look here themselves before they ask `read_topic` or `write_topic`."""


def text(value: str, field: str) -> bytes:
    """Encode a text with its length in front."""
    try:
        raw = value.encode()
    except UnicodeEncodeError:
        raise MalformedPacket(field, f"{_seen(value, field)} cannot be written as UTF-8") from None
    if b"\0" in raw:
        raise MalformedPacket(field, f"{_seen(value, field)} holds the character U+0000")
    return binary(raw, field)


def binary(value: bytes, field: str) -> bytes:
    """Write bytes with their length in front."""
    if len(value) > LONGEST:
        raise MalformedPacket(field, f"{len(value)} bytes are more than {LONGEST}")
    return len(value).to_bytes(2) + value


def read_text(raw: bytes, field: str) -> str:
    """Decode a text. Surrogates are not UTF-8 [MQTT-1.5.3-1], and U+0000 is forbidden [MQTT-1.5.3-2]."""
    try:
        value = raw.decode()
    except UnicodeDecodeError:
        raise MalformedPacket(field, f"{_seen(raw, field)} is not UTF-8") from None
    if "\0" in value:
        raise MalformedPacket(field, f"{_seen(value, field)} holds the character U+0000")
    return value


def _seen(value: str | bytes, field: str) -> str:
    """A user name is nobody's business, and now and then it is a password in the wrong place."""
    return "it" if field == "CONNECT user name" else shown(value)


def read_topic(raw: bytes, field: str = "PUBLISH topic") -> str:
    """Decode a topic name."""
    topic = KNOWN.get(raw)
    if topic is None:
        # A fleet may have more topics than anybody remembers: no call more than is needed.
        if not raw or b"+" in raw or b"#" in raw or b"\0" in raw:
            check_topic(read_text(raw, field), field)
        try:
            topic = raw.decode()
        except UnicodeDecodeError:
            return read_text(raw, field)
        if len(KNOWN) < _REMEMBERED or not hash(topic) & _RARELY:
            _remember(topic, raw)
    return topic


def write_topic(topic: str, field: str = "PUBLISH topic") -> bytes:
    """Encode a topic name with its length in front."""
    raw = SPELT.get(topic)
    if raw is None:
        check_topic(topic, field)
        raw = text(topic, field)
        if len(KNOWN) < _REMEMBERED or not hash(topic) & _RARELY:
            _remember(topic, raw[2:])
    return raw


def _remember(topic: str, raw: bytes) -> None:
    if len(raw) > _REMEMBERED_LENGTH:
        return
    if len(KNOWN) >= _REMEMBERED:
        KNOWN.clear()
        SPELT.clear()
    KNOWN[raw] = topic
    SPELT[topic] = len(raw).to_bytes(2) + raw


def check_topic(topic: str, field: str) -> None:
    """A topic name is not empty [MQTT-4.7.3-1] and has no wildcards [MQTT-3.3.2-2]."""
    if not topic:
        raise MalformedPacket(field, "is empty")
    if "+" in topic or "#" in topic:
        raise MalformedPacket(field, f"{shown(topic)} has a wildcard")


def check_filter(wanted: str, field: str) -> None:
    """A wildcard fills a whole level [MQTT-4.7.1-3], and `#` the last one [MQTT-4.7.1-2]."""
    if not wanted:
        raise MalformedPacket(field, "is empty")
    levels = wanted.split("/")
    if any(len(level) > 1 and ("+" in level or "#" in level) for level in levels):
        raise MalformedPacket(field, f"{shown(wanted)} has a wildcard that does not fill its level")
    if "#" in levels[:-1]:
        raise MalformedPacket(field, f"{shown(wanted)} has a # before its end")
