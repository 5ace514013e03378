"""List of all watches, and when each of them looks at its facts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.service.alarms.watches.batteries import BATTERIES
from meshfleet.service.alarms.watches.channels import CHANNELS
from meshfleet.service.alarms.watches.clocks import GATEWAY_CLOCKS, SERVICE_CLOCK
from meshfleet.service.alarms.watches.enrollment import NEVER_CONNECTED
from meshfleet.service.alarms.watches.jobs import ENDED_JOBS, STOPPED_JOBS, STUCK_JOBS
from meshfleet.service.alarms.watches.rejects import REJECTS
from meshfleet.service.alarms.watches.samples import LOST_SAMPLES
from meshfleet.service.alarms.watches.service import (
    BACKUP_OLD,
    BROKER,
    CERTIFICATE,
    DATABASE,
    DISK,
    INGEST_LAG,
)
from meshfleet.service.alarms.watches.stability import UNSTABLE_DEVICES, UNSTABLE_GATEWAYS
from meshfleet.service.alarms.watches.versions import VERSION_SKEW

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from meshfleet.service.alarms.rules import Rule
    from meshfleet.service.alarms.watches.watch import Watch

WATCHES: Final[Mapping[str, Watch]] = {
    each.rule: each
    for each in (
        UNSTABLE_GATEWAYS,
        UNSTABLE_DEVICES,
        NEVER_CONNECTED,
        GATEWAY_CLOCKS,
        SERVICE_CLOCK,
        REJECTS,
        LOST_SAMPLES,
        BATTERIES,
        STOPPED_JOBS,
        ENDED_JOBS,
        STUCK_JOBS,
        CHANNELS,
        DATABASE,
        BROKER,
        INGEST_LAG,
        DISK,
        CERTIFICATE,
        BACKUP_OLD,
        VERSION_SKEW,
    )
}
"""All watches by rule."""


class WatchSchedule:
    """Times at which watches have looked at their facts last: most of them look every few minutes."""

    def __init__(self) -> None:
        self._looked_at: dict[Rule, int] = {}

    def list_due(self, now: int) -> list[Watch]:
        """Return the watches that look at a time in Unix milliseconds: all, after a clock was set back."""
        return [
            each
            for each in WATCHES.values()
            if not 0 <= now - self._looked_at.get(each.rule, 0) < each.interval
        ]

    def record_looks(self, watches: Iterable[Watch], now: int) -> None:
        """Record that watches have looked, once what they found is committed."""
        self._looked_at |= {each.rule: now for each in watches}
