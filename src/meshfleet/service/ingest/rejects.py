"""Reports that cannot be taken: counted, and the newest of them kept with the reason (report-29)."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.errors import PayloadTooLarge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.errors import FleetError
    from meshfleet.wire.mqtt.packets import Oversized, Publish

KEPT: Final = 10_000
"""Rejects in the list."""

_PAYLOAD, _TEXT = 1024, 1024
"""Bytes and characters that are kept of each."""

_QUOTA: Final = 30
"""Rejects of one gateway that are kept in a minute: one that sends nothing else must not fill the list."""

_MINUTE: Final = 60_000

_GATEWAY = re.compile(r"(?:^|/)mt/gateway/([0-9a-f]{12})/")


class Reject(NamedTuple):
    """A report that was not taken, and why."""

    time: int
    gateway: int | None
    topic: str
    reason: str
    code: str
    payload: bytes


def reject(message: Publish, error: FleetError, now: int) -> Reject:
    """What is kept of a message that is no report."""
    gateway = _GATEWAY.search(message.topic)
    return Reject(
        time=now,
        gateway=int(gateway[1], 16) if gateway else None,
        topic=message.topic[:_TEXT],
        reason=str(error)[:_TEXT],
        code=error.code,
        payload=message.payload[:_PAYLOAD],
    )


def too_large(message: Oversized) -> PayloadTooLarge:
    """Why a message was not even read."""
    return PayloadTooLarge("payload", f"{message.size} bytes are too many")


class Quota:
    """Who may add to the list. All of them are counted, whoever may."""

    def __init__(self) -> None:
        self._minute = 0
        self._used: Counter[int | None] = Counter()

    def admit(self, rejects: Sequence[Reject], now: int) -> list[Reject]:
        """Those that are kept, if they can be written: only then are they to be charged."""
        used = Counter(self._used) if now // _MINUTE == self._minute else Counter()
        kept = []
        for each in rejects:
            used[each.gateway] += 1
            if used[each.gateway] <= _QUOTA:
                kept.append(each)
        return kept

    def charge(self, kept: Sequence[Reject], now: int) -> None:
        """These are written."""
        if now // _MINUTE != self._minute:
            self._minute, self._used = now // _MINUTE, Counter()
        self._used.update(each.gateway for each in kept)
