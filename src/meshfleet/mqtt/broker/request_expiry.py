"""How long requests wait for an absent gateway: no write fires hours later (request-30, request-33)."""

from __future__ import annotations

import re
from typing import Any

from meshfleet.errors.protocol import WireError
from meshfleet.protocol.payload import decode_object


class RequestTopicRules:
    """What holds for messages on request topics and no others."""

    def __init__(self, topic_prefix: str, max_age: float) -> None:
        front = re.escape(f"{topic_prefix}/" if topic_prefix else "")
        self._topic = re.compile(rf"{front}mt/(?:gateway/[^/]*|gateways)/request/")
        self._max_age = round(max_age * 1000)

    def is_request(self, topic: str) -> bool:
        """Whether a topic is one for requests."""
        return self._topic.match(topic) is not None

    def expiry_time(self, now: int) -> int:
        """Until when a request of this moment may wait, in milliseconds."""
        return now + self._max_age


def contains_key(payload: bytes) -> bool:
    """Whether a request holds a key, which is never written down. What nobody can read may hold one."""
    try:
        return _part_contains_key(decode_object(payload or b"{}"))
    except WireError:
        return True


def _part_contains_key(part: Any) -> bool:
    """Whether there is a key at any depth, of which a payload has few."""
    if isinstance(part, dict):
        return not _KEY_FIELDS.isdisjoint(part) or any(map(_part_contains_key, part.values()))
    return isinstance(part, list) and any(map(_part_contains_key, part))


_KEY_FIELDS = frozenset({"key", "publicKey"})
