"""Topic names and topic filters: validation [MQTT-4.7] and string encoding [MQTT-1.5.3].

The parameter `field` of these functions is the name of the packet field, for error messages.
"""

from __future__ import annotations

from typing import Final

from meshfleet.errors import quote_input
from meshfleet.errors.protocol import MalformedPacket

MAX_STRING_BYTES = 0xFFFF
"""Maximum bytes of a string in an MQTT packet: the length field of a string has two bytes."""

_MAX_CACHED_TOPICS = 16_384
"""Maximum topic names in the cache."""
_MAX_CACHED_TOPIC_BYTES = 256
"""Maximum bytes of a topic name in the cache, so that the cache takes some megabytes at most."""

_CACHE_RESET_MASK = 0xFFFF
"""Mask for the hash of a new topic name: about one in 65,536 new names clears a full topic cache. Replacing a
cached name for every new name would cost more than the cache saves."""

DECODED_TOPICS: Final[dict[bytes, str]] = {}
"""Cache of topic names by their UTF-8 bytes. Hot paths check this dict before they call `decode_topic`."""
ENCODED_TOPICS: Final[dict[str, bytes]] = {}
"""Cache of topic names as UTF-8 bytes with their length in front, by topic name. Hot paths check this dict
before they call `encode_topic`."""


def encode_text(value: str, field: str) -> bytes:
    """Encode a string as UTF-8 with its length in front."""
    try:
        raw = value.encode()
    except UnicodeEncodeError:
        raise MalformedPacket(field, f"{_quote_value(value, field)} cannot be encoded as UTF-8") from None
    if b"\0" in raw:
        raise MalformedPacket(field, f"{_quote_value(value, field)} contains the character U+0000")
    return encode_binary(raw, field)


def encode_binary(value: bytes, field: str) -> bytes:
    """Encode bytes with their length in front."""
    if len(value) > MAX_STRING_BYTES:
        raise MalformedPacket(field, f"{len(value)} bytes are more than {MAX_STRING_BYTES}")
    return len(value).to_bytes(2) + value


def decode_text(raw: bytes, field: str) -> str:
    """Decode a UTF-8 string. Surrogates [MQTT-1.5.3-1] and U+0000 [MQTT-1.5.3-2] are invalid."""
    try:
        value = raw.decode()
    except UnicodeDecodeError:
        raise MalformedPacket(field, f"{_quote_value(raw, field)} is not UTF-8") from None
    if "\0" in value:
        raise MalformedPacket(field, f"{_quote_value(value, field)} contains the character U+0000")
    return value


def _quote_value(value: str | bytes, field: str) -> str:
    """Quote a value for an error message, except a user name: it may be a password in the wrong field."""
    return "it" if field == "CONNECT user name" else quote_input(value)


def decode_topic(raw: bytes, field: str = "PUBLISH topic") -> str:
    """Decode a topic name from UTF-8 and check it."""
    topic = DECODED_TOPICS.get(raw)
    if topic is None:
        # A fleet may have more topics than the cache holds, so this path makes no unnecessary calls.
        if not raw or b"+" in raw or b"#" in raw or b"\0" in raw:
            check_topic(decode_text(raw, field), field)
        try:
            topic = raw.decode()
        except UnicodeDecodeError:
            return decode_text(raw, field)
        if len(DECODED_TOPICS) < _MAX_CACHED_TOPICS or not hash(topic) & _CACHE_RESET_MASK:
            _cache_topic(topic, raw)
    return topic


def encode_topic(topic: str, field: str = "PUBLISH topic") -> bytes:
    """Check a topic name and encode it with its length in front."""
    raw = ENCODED_TOPICS.get(topic)
    if raw is None:
        check_topic(topic, field)
        raw = encode_text(topic, field)
        if len(DECODED_TOPICS) < _MAX_CACHED_TOPICS or not hash(topic) & _CACHE_RESET_MASK:
            _cache_topic(topic, raw[2:])
    return raw


def _cache_topic(topic: str, raw: bytes) -> None:
    """Add a topic name and its UTF-8 bytes to both caches, unless it is long. Clear full caches first."""
    if len(raw) > _MAX_CACHED_TOPIC_BYTES:
        return
    if len(DECODED_TOPICS) >= _MAX_CACHED_TOPICS:
        DECODED_TOPICS.clear()
        ENCODED_TOPICS.clear()
    DECODED_TOPICS[raw] = topic
    ENCODED_TOPICS[topic] = len(raw).to_bytes(2) + raw


def check_topic(topic: str, field: str) -> None:
    """Raise `MalformedPacket` if a topic name is empty [MQTT-4.7.3-1] or has wildcards [MQTT-3.3.2-2]."""
    if not topic:
        raise MalformedPacket(field, "is empty")
    if "+" in topic or "#" in topic:
        raise MalformedPacket(field, f"{quote_input(topic)} has a wildcard")


def check_filter(topic_filter: str, field: str) -> None:
    """Raise `MalformedPacket` if a topic filter is empty or has a misplaced wildcard.

    A wildcard must be a whole level [MQTT-4.7.1-3], and `#` must be the last level [MQTT-4.7.1-2].
    """
    if not topic_filter:
        raise MalformedPacket(field, "is empty")
    levels = topic_filter.split("/")
    if any(len(level) > 1 and ("+" in level or "#" in level) for level in levels):
        raise MalformedPacket(
            field, f"{quote_input(topic_filter)} has a wildcard that does not fill its level"
        )
    if "#" in levels[:-1]:
        raise MalformedPacket(field, f"{quote_input(topic_filter)} has a # before its end")
