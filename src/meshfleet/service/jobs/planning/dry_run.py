"""What a job would do, without doing it (rest-122)."""

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
from meshfleet.rest import DryRun, JobWave, Refusal, WaveState
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
    from meshfleet.rest import NewJob
    from meshfleet.service.jobs.compatibility import Exclusion
    from meshfleet.service.jobs.planning.job_drafts import JobPlan


# What a forecast needs to know of a fleet: how fast gateways are, how often devices are heard, who is busy.

_HEARTBEAT_INTERVALS: Final = (
    "SELECT rhythm / 1000, count(*) FROM device_state WHERE device IN numbers AND rhythm IS NOT NULL"
    " GROUP BY rhythm / 1000"
)
"""In seconds: so there are few."""

_SECOND_MS: Final = 1000
_MINUTE_MS: Final = 60_000
_INTERVAL_QUANTILE: Final = 0.9


class FleetEstimate(NamedTuple):
    """What is known of those that would be updated."""

    bytes_per_second: float
    """Bytes per second that gateways bring to devices."""
    heartbeat_minutes: float
    """Minutes between two heartbeats, as nine of ten of them keep it or better."""
    busy: int
    """How many of them another job is not over with."""


async def load_fleet_estimate(database: Database, plan: JobPlan) -> FleetEstimate:
    """Gather it for a job."""
    rate = await database.read(_load_transfer_rate, select_method(plan.firmware.requirement))
    devices = array("q", plan.targets.list_eligible())
    keeping = await database.read(conflicts.list_jobs_with_queue)
    rhythms: Counter[int] = Counter()
    busy = 0
    for page in split_pages(devices):
        rhythms.update(await database.read(_count_intervals, page))
        busy += len(await database.read(conflicts.find_busy_devices, keeping, page))
    rhythms[DEFAULT_INTERVAL_MS] += len(devices) - rhythms.total()
    return FleetEstimate(rate, _find_interval_quantile(rhythms) / _MINUTE_MS, busy)


def _load_transfer_rate(connection: Connection, method: UpdateMethod) -> float:
    """Bytes per second in a way of updating: as measured, or as is expected."""
    measured = connection.execute(select(func.avg(pace.c.rate)).where(pace.c.method == str(method))).scalar()
    return timeouts.DEFAULT_RATES[method] if measured is None else float(measured)


def _count_intervals(connection: Connection, devices: Sequence[int]) -> dict[int, int]:
    """How many of these devices are heard in which rhythm, in milliseconds; of others it is not known."""
    return {
        seconds * _SECOND_MS: count
        for seconds, count in bulk.query_in(connection, _HEARTBEAT_INTERVALS, devices)
    }


def _find_interval_quantile(intervals: Counter[int]) -> int:
    """The rhythm of most: a few that are seldom heard do not stand for all."""
    ordered = sorted(intervals)
    heard = list(accumulate(intervals[each] for each in ordered))
    return ordered[bisect_left(heard, _INTERVAL_QUANTILE * heard[-1])]


_MAX_EXAMPLES: Final = 20
"""Devices that are named of many."""


def build_dry_run(plan: JobPlan, estimate: FleetEstimate) -> DryRun:
    """Who would be updated, who not and why, in which waves, and how long it may take."""
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
    """Why devices are left out, the most frequent reason first."""
    some: dict[Exclusion, list[int]] = {}
    for target in plan.targets:
        if target.exclusion is not None:
            named = some.setdefault(target.exclusion, [])
            if len(named) < _MAX_EXAMPLES:
                named.append(target.device)
    counts = plan.targets.count_exclusions()
    return [
        Refusal(code=why.code, reason=why.reason, count=count, device_ids=_format_device_ids(some[why]))
        for why, count in counts.most_common()
    ]


def _list_first_devices(plan: JobPlan) -> list[int]:
    """Some of those that are updated, in the order of their turns."""
    turns = ((plan.waves.find_position(device).rank, device) for device in plan.targets.list_eligible())
    return [device for _, device in sorted(each for each in turns if each[0] < _MAX_EXAMPLES)]


def _format_device_ids(numbers: Iterable[int]) -> list[str]:
    return [to_device_id(mac_from_int(number)) for number in numbers]


def _estimate_minutes(plan: JobPlan, method: UpdateMethod, estimate: FleetEstimate) -> float:
    """How long it takes if nothing goes wrong, as the limit that is felt most allows."""
    order, waves = plan.job.body, len(plan.waves.planned)
    behind = Counter(target.gateway for target in plan.targets if target.exclusion is None)
    at_once = MAX_BROADCAST_DEVICES if method is UpdateMethod.BROADCAST else order.concurrency.per_gateway
    transfer = timeouts.estimate_transfer(plan.firmware.size, estimate.bytes_per_second) / _MINUTE_MS
    proof = order.health.heartbeats * estimate.heartbeat_minutes
    # A gateway is free again while its devices prove themselves, their place in the job is not.
    at_gateways = max(_count_rounds(max(behind.values()), at_once), waves) * transfer + waves * proof
    in_job = _count_rounds(behind.total(), order.concurrency.per_job) * (transfer + proof)
    soaking = (waves - 1) * order.gate.soak_minutes
    return max(at_gateways, in_job, _estimate_rate_minutes(order, behind.total())) + soaking


def _count_rounds(devices: int, at_once: int | None) -> int:
    return 1 if at_once is None else math.ceil(devices / at_once)


def _estimate_rate_minutes(body: NewJob, devices: int) -> float:
    per_minute = None if body.rate is None else body.rate.per_minute
    return 0.0 if per_minute is None else devices / per_minute
