"""Expiry of requests to disconnected gateways, which must not execute old writes when they reconnect.

See rules request-30 and request-33.
"""

from __future__ import annotations

import re
from typing import Any

from meshfleet.errors.protocol import MalformedInput
from meshfleet.protocol.payload import decode_object


class RequestTopicRules:
    """Recognizes request topics, and computes when a request expires."""

    def __init__(self, topic_prefix: str, max_age: float) -> None:
        prefix = re.escape(f"{topic_prefix}/" if topic_prefix else "")
        self._topic = re.compile(rf"{prefix}mt/(?:gateway/[^/]*|gateways)/request/")
        self.set_max_age(max_age)

    def set_max_age(self, seconds: float) -> None:
        """Set the age in seconds at which requests expire."""
        self._max_age = round(seconds * 1000)

    def is_request(self, topic: str) -> bool:
        """Return whether a topic is a request topic."""
        return self._topic.match(topic) is not None

    def compute_expiry(self, now: int) -> int:
        """Return when a request received at `now` expires; both in milliseconds of the monotonic clock."""
        return now + self._max_age


def contains_encryption_key(payload: bytes) -> bool:
    """Return whether the payload of a request contains a cryptographic key, and so must not be persisted.

    Return True for a payload that cannot be decoded: it may contain a key.
    """
    try:
        return _json_contains_key(decode_object(payload or b"{}"))
    except MalformedInput:
        return True


def _json_contains_key(json_value: Any) -> bool:
    """Return whether a JSON value has a field for a cryptographic key at any depth."""
    if isinstance(json_value, dict):
        return not _KEY_FIELDS.isdisjoint(json_value) or any(map(_json_contains_key, json_value.values()))
    return isinstance(json_value, list) and any(map(_json_contains_key, json_value))


_KEY_FIELDS = frozenset({"key", "publicKey"})
