"""Reports that cannot be taken: counted, and the newest of them kept with the reason (report-29)."""

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
"""Rejects in the list."""

_MAX_PAYLOAD_BYTES, _MAX_TEXT = 1024, 1024
"""Bytes and characters that are kept of each."""

_MAX_REJECTS_PER_MINUTE: Final = 30
"""Rejects of one gateway that are kept in a minute: one that sends nothing else must not fill the list."""

_MINUTE_MS: Final = 60_000

_GATEWAY_PATTERN = re.compile(r"(?:^|/)mt/gateway/([0-9a-f]{12})/")


class RejectedReport(NamedTuple):
    """A report that was not taken, and why."""

    time: int
    gateway: int | None
    topic: str
    reason: str
    code: str
    payload: bytes


def build_reject(message: Publish, error: FleetError, now: int) -> RejectedReport:
    """What is kept of a message that is no report."""
    gateway = _GATEWAY_PATTERN.search(message.topic)
    return RejectedReport(
        time=now,
        gateway=int(gateway[1], 16) if gateway else None,
        topic=message.topic[:_MAX_TEXT],
        reason=str(error)[:_MAX_TEXT],
        code=error.code,
        payload=message.payload[:_MAX_PAYLOAD_BYTES],
    )


def build_oversize_error(message: OversizedPublish) -> PayloadTooLarge:
    """Why a message was not even read."""
    return PayloadTooLarge("payload", f"{message.size} bytes are too many")


class RejectQuota:
    """Who may add to the list. All of them are counted, whoever may."""

    def __init__(self) -> None:
        self._minute = 0
        self._used: Counter[int | None] = Counter()

    def admit(self, rejects: Sequence[RejectedReport], now: int) -> list[RejectedReport]:
        """Those that are kept, if they can be written: only then are they to be charged."""
        used = Counter(self._used) if now // _MINUTE_MS == self._minute else Counter()
        kept = []
        for each in rejects:
            used[each.gateway] += 1
            if used[each.gateway] <= _MAX_REJECTS_PER_MINUTE:
                kept.append(each)
        return kept

    def charge(self, kept: Sequence[RejectedReport], now: int) -> None:
        """These are written."""
        if now // _MINUTE_MS != self._minute:
            self._minute, self._used = now // _MINUTE_MS, Counter()
        self._used.update(each.gateway for each in kept)
