"""Dry run: computes the effect and estimated duration of a job without creating it (rest-122)."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import func, select

from meshfleet.db import bulk
from meshfleet.db.tables import pace
from meshfleet.protocol.ids import mac_from_int, to_device_id
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest.jobs import DryRun, JobWave, Refusal, WaveState
from meshfleet.service.jobs.compatibility import select_method
from meshfleet.service.jobs.planning import conflicts
from meshfleet.service.jobs.planning.targets import split_pages
from meshfleet.service.jobs.updates import timeouts
from meshfleet.service.jobs.updates.drivers import MAX_BROADCAST_DEVICES
from meshfleet.service.presence.last_seen import DEFAULT_INTERVAL_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.rest.job_requests import NewJob
    from meshfleet.service.jobs.compatibility import Exclusion
    from meshfleet.service.jobs.planning.job_drafts import JobPlan


# Facts about the fleet for the estimate: transfer rates, heartbeat intervals and busy devices.

_HEARTBEAT_INTERVALS: Final = (
    "SELECT rhythm / 1000, count(*) FROM device_state WHERE device IN numbers AND rhythm IS NOT NULL"
    " GROUP BY rhythm / 1000"
)
"""Counts devices by heartbeat interval in whole seconds, so that there are few different intervals."""

_SECOND_MS: Final = 1000
_MINUTE_MS: Final = 60_000
_INTERVAL_QUANTILE: Final = 0.9


class FleetEstimate(NamedTuple):
    """Facts about the devices that a job would update, from which its duration is estimated."""

    bytes_per_second: float
    """Mean transfer rate from gateways to devices."""
    heartbeat_minutes: float
    """Heartbeat interval in minutes that nine of ten devices do not exceed."""
    busy: int
    """Number of devices that another open job is updating or will update."""


async def load_fleet_estimate(database: Database, plan: JobPlan) -> FleetEstimate:
    """Load the facts about devices from which the duration of a job is estimated."""
    rate = await database.read(_load_transfer_rate, select_method(plan.firmware.requirement))
    devices = array("q", plan.targets.list_eligible_devices())
    queue_jobs = await database.read(conflicts.list_jobs_with_queue)
    intervals: Counter[int] = Counter()
    busy = 0
    for page in split_pages(devices):
        intervals.update(await database.read(_count_intervals, page))
        busy += len(await database.read(conflicts.find_busy_devices, queue_jobs, page))
    intervals[DEFAULT_INTERVAL_MS] += len(devices) - intervals.total()
    return FleetEstimate(rate, _find_heartbeat_quantile(intervals) / _MINUTE_MS, busy)


def _load_transfer_rate(connection: Connection, method: UpdateMethod) -> float:
    """Return the mean measured transfer rate of an update method in bytes per second, or a default rate."""
    measured = connection.execute(select(func.avg(pace.c.rate)).where(pace.c.method == str(method))).scalar()
    return timeouts.DEFAULT_RATES[method] if measured is None else float(measured)


def _count_intervals(connection: Connection, devices: Sequence[int]) -> dict[int, int]:
    """Count devices by heartbeat interval in milliseconds. Devices without a known interval are missing."""
    return {
        seconds * _SECOND_MS: count
        for seconds, count in bulk.query_in(connection, _HEARTBEAT_INTERVALS, devices)
    }


def _find_heartbeat_quantile(intervals: Counter[int]) -> int:
    """Return the heartbeat interval in milliseconds that 90 % of the devices do not exceed.

    `intervals` are the numbers of devices by heartbeat interval in milliseconds.
    """
    ordered = sorted(intervals)
    cumulative = list(accumulate(intervals[each] for each in ordered))
    return ordered[bisect_left(cumulative, _INTERVAL_QUANTILE * cumulative[-1])]


_MAX_EXAMPLES: Final = 20
"""Maximum number of example device ids per list in a dry run."""


def build_dry_run(plan: JobPlan, estimate: FleetEstimate) -> DryRun:
    """Build the dry run: eligible and excluded devices, waves, and the estimated duration."""
    waves = plan.waves.planned
    eligible = sum(each.size for each in waves)
    method = select_method(plan.firmware.requirement)
    return DryRun(
        targets=len(plan.targets),
        eligible=eligible,
        skipped=len(plan.targets) - eligible,
        offline=plan.targets.offline,
        busy=estimate.busy,
        refusals=_build_refusals(plan),
        methods={str(method): eligible} if eligible else {},
        waves=[
            JobWave(
                name=each.name,
                state=WaveState.WAITING,
                size=each.size,
                succeeded=0,
                failed=0,
                soaks_until=None,
            )
            for each in waves
        ],
        device_ids=_format_device_ids(_list_first_devices(plan)),
        estimated_minutes=round(_estimate_minutes(plan, method, estimate), 1) if eligible else 0.0,
    )


def _build_refusals(plan: JobPlan) -> list[Refusal]:
    """Build the list of reasons why devices are excluded from a job, the most frequent reason first."""
    examples: dict[Exclusion, list[int]] = {}
    for target in plan.targets:
        if target.exclusion is not None:
            devices = examples.setdefault(target.exclusion, [])
            if len(devices) < _MAX_EXAMPLES:
                devices.append(target.device)
    counts = plan.targets.count_exclusions()
    return [
        Refusal(
            code=exclusion.code,
            reason=exclusion.reason,
            count=count,
            device_ids=_format_device_ids(examples[exclusion]),
        )
        for exclusion, count in counts.most_common()
    ]


def _list_first_devices(plan: JobPlan) -> list[int]:
    """List at most `_MAX_EXAMPLES` devices that are updated first, in the order of their updates."""
    ranks = (
        (plan.waves.find_position(device).rank, device) for device in plan.targets.list_eligible_devices()
    )
    return [device for _, device in sorted(each for each in ranks if each[0] < _MAX_EXAMPLES)]


def _format_device_ids(devices: Iterable[int]) -> list[str]:
    return [to_device_id(mac_from_int(number)) for number in devices]


def _estimate_minutes(plan: JobPlan, method: UpdateMethod, estimate: FleetEstimate) -> float:
    """Estimate the minutes that a job takes without failures, from the limit that slows the job down most."""
    body, waves = plan.job.body, len(plan.waves.planned)
    devices_by_gateway = Counter(target.gateway for target in plan.targets if target.exclusion is None)
    parallel = MAX_BROADCAST_DEVICES if method is UpdateMethod.BROADCAST else body.concurrency.per_gateway
    transfer = timeouts.estimate_transfer(plan.firmware.size, estimate.bytes_per_second) / _MINUTE_MS
    confirmation = body.health.heartbeats * estimate.heartbeat_minutes
    # During the confirmation a device occupies no slot of its gateway, but still one of the job.
    gateway_rounds = max(_count_rounds(max(devices_by_gateway.values()), parallel), waves)
    by_gateway = gateway_rounds * transfer + waves * confirmation
    device_count = devices_by_gateway.total()
    by_job = _count_rounds(device_count, body.concurrency.per_job) * (transfer + confirmation)
    soaking = (waves - 1) * body.gate.soak_minutes
    return max(by_gateway, by_job, _estimate_rate_minutes(body, device_count)) + soaking


def _count_rounds(devices: int, parallel: int | None) -> int:
    """Return how many rounds update all devices if each round updates `parallel` of them; 1 if it is None."""
    return 1 if parallel is None else math.ceil(devices / parallel)


def _estimate_rate_minutes(body: NewJob, devices: int) -> float:
    """Return the minutes that a job takes because of its rate limit; 0 without a limit."""
    per_minute = None if body.rate is None else body.rate.per_minute
    return 0.0 if per_minute is None else devices / per_minute
