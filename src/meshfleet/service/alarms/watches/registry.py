"""List of all watches."""

from __future__ import annotations

from typing import Final

from meshfleet.service.alarms.watches.channels import CHANNELS
from meshfleet.service.alarms.watches.clocks import GATEWAY_CLOCKS, SERVICE_CLOCK
from meshfleet.service.alarms.watches.jobs import ENDED_JOBS, STOPPED_JOBS, STUCK_JOBS
from meshfleet.service.alarms.watches.service import (
    BACKUP_OLD,
    BROKER,
    CERTIFICATE,
    DATABASE,
    DISK,
    INGEST_LAG,
)
from meshfleet.service.alarms.watches.versions import VERSION_SKEW

WATCHES: Final = {
    each.rule: each
    for each in (
        GATEWAY_CLOCKS,
        SERVICE_CLOCK,
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
