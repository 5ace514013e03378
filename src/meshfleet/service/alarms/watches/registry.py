"""List of all watches."""

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
    from collections.abc import Mapping

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
