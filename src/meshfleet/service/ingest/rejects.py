"""Rejected reports: all are counted, and the newest are stored with the reason for rejection (report-29)."""

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
"""Maximum number of stored rejected reports."""

_MAX_PAYLOAD_BYTES: Final = 1024
"""Maximum number of stored bytes of the payload of a rejected report."""

_MAX_TEXT_LENGTH: Final = 1024
"""Maximum number of stored characters of a rejected report's topic, and of the reason for rejection."""

_MAX_REJECTS_PER_MINUTE: Final = 30
"""Maximum number of rejected reports stored per gateway and minute.

Without this limit, one gateway could displace the rejected reports of all others.
"""

_MINUTE_MS: Final = 60_000

_GATEWAY_PATTERN = re.compile(r"(?:^|/)mt/gateway/([0-9a-f]{12})/")


class RejectedReport(NamedTuple):
    """Report that was rejected, and the reason for rejection."""

    time: int
    """Unix time in milliseconds at which the report was rejected."""
    gateway: int | None
    """Gateway in the topic of the report; None if the topic contains no gateway."""
    topic: str
    reason: str
    code: str
    """Error code of the reason."""
    payload: bytes


def build_reject(message: Publish, error: FleetError, now: int) -> RejectedReport:
    """Build the record of a rejected MQTT message, with topic, reason and payload truncated."""
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
    """Return the error for an MQTT message that was not parsed because of its size."""
    return PayloadTooLarge("payload", f"is too large: {message.size} bytes")


class RejectQuota:
    """Limits how many rejected reports are stored per gateway and minute."""

    def __init__(self) -> None:
        self._minute = 0
        self._used: Counter[int | None] = Counter()

    def admit(self, rejects: Sequence[RejectedReport], now: int) -> list[RejectedReport]:
        """Return the rejected reports that may be stored. Call `charge` after they have been stored."""
        used = Counter(self._used) if now // _MINUTE_MS == self._minute else Counter()
        kept = []
        for reject in rejects:
            used[reject.gateway] += 1
            if used[reject.gateway] <= _MAX_REJECTS_PER_MINUTE:
                kept.append(reject)
        return kept

    def charge(self, kept: Sequence[RejectedReport], now: int) -> None:
        """Count the rejected reports that were stored against the quotas of their gateways."""
        if now // _MINUTE_MS != self._minute:
            self._minute, self._used = now // _MINUTE_MS, Counter()
        self._used.update(reject.gateway for reject in kept)
