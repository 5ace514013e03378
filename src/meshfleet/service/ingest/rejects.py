"""Rejected reports: all are counted, and the newest are stored with the reason (report-29)."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.errors.protocol import PayloadTooLarge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.errors import FleetError
    from meshfleet.mqtt.codec.packets import OversizedPublish, Publish

MAX_REJECTS: Final = 10_000
"""Maximum number of stored rejects."""

_MAX_PAYLOAD_BYTES, _MAX_TEXT_LENGTH = 1024, 1024
"""Maximum number of stored bytes of a payload, and of characters of a topic or a reason."""

_MAX_REJECTS_PER_MINUTE: Final = 30
"""Maximum number of rejects stored per gateway and minute: a faulty gateway must not fill the list."""

_MINUTE_MS: Final = 60_000

_GATEWAY_PATTERN = re.compile(r"(?:^|/)mt/gateway/([0-9a-f]{12})/")


class RejectedReport(NamedTuple):
    """Report that was rejected, and the reason."""

    time: int
    gateway: int | None
    topic: str
    reason: str
    code: str
    payload: bytes


def build_reject(message: Publish, error: FleetError, now: int) -> RejectedReport:
    """Build the record of a rejected message, with topic, reason and payload truncated."""
    match = _GATEWAY_PATTERN.search(message.topic)
    return RejectedReport(
        time=now,
        gateway=int(match[1], 16) if match else None,
        topic=message.topic[:_MAX_TEXT_LENGTH],
        reason=str(error)[:_MAX_TEXT_LENGTH],
        code=error.code,
        payload=message.payload[:_MAX_PAYLOAD_BYTES],
    )


def build_oversize_error(message: OversizedPublish) -> PayloadTooLarge:
    """Return the error for a message that was not parsed because of its size."""
    return PayloadTooLarge("payload", f"is too large: {message.size} bytes")


class RejectQuota:
    """Limits the rejects stored per gateway and minute. Further rejects are only counted."""

    def __init__(self) -> None:
        self._minute = 0
        self._used: Counter[int | None] = Counter()

    def admit(self, rejects: Sequence[RejectedReport], now: int) -> list[RejectedReport]:
        """Return the rejects within the quota. Call `charge` after they are written."""
        used = Counter(self._used) if now // _MINUTE_MS == self._minute else Counter()
        kept = []
        for reject in rejects:
            used[reject.gateway] += 1
            if used[reject.gateway] <= _MAX_REJECTS_PER_MINUTE:
                kept.append(reject)
        return kept

    def charge(self, kept: Sequence[RejectedReport], now: int) -> None:
        """Charge the quota for rejects that were written."""
        if now // _MINUTE_MS != self._minute:
            self._minute, self._used = now // _MINUTE_MS, Counter()
        self._used.update(reject.gateway for reject in kept)
