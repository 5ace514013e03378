"""List of all watches."""

from __future__ import annotations

from typing import Final

from meshfleet.service.alarms.watches.channels import CHANNELS
from meshfleet.service.alarms.watches.clocks import GATEWAY_CLOCKS, SERVICE_CLOCK
from meshfleet.service.alarms.watches.jobs import ENDED_JOBS, STOPPED_JOBS, STUCK_JOBS

WATCHES: Final = {
    each.rule: each
    for each in (GATEWAY_CLOCKS, SERVICE_CLOCK, STOPPED_JOBS, ENDED_JOBS, STUCK_JOBS, CHANNELS)
}
"""All watches by rule."""
