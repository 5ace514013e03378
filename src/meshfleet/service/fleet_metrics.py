"""Metrics whose values are in the database: devices, gateways, batteries, update jobs and backups.

A scrape must be cheap with a large fleet. So a value is loaded again only after 15 seconds or more,
however many programs scrape.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy import Connection, func, select, text

from meshfleet.db.tables import (
    active_condition,
    alarm,
    device,
    device_state,
    execution,
    gateway,
    job,
    notification,
    tally,
)
from meshfleet.protocol.ids import mac_from_int
from meshfleet.rest.alarms import AlarmSeverity, AlarmState
from meshfleet.rest.channels import DeliveryState
from meshfleet.rest.jobs import ExecutionState, JobState
from meshfleet.service.alarms.progress import load_progress
from meshfleet.service.alarms.rules import Severity
from meshfleet.service.backup.records import MIN_BACKUPS, BackupTimes, load_backup_times
from meshfleet.service.devices.summary import ConnectivityCounts, count_connected_devices
from meshfleet.service.gateways.store import IS_UNSEEN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from prometheus_client import Metric

    from meshfleet.db import Database
    from meshfleet.service.clock import Now
    from meshfleet.service.metrics import Metrics
    from meshfleet.settings import Settings

_KEPT_MS: Final = 15_000
"""Milliseconds for which most values are kept: the database counts them with indexes."""

_SILENT_KEPT_MS: Final = 30_000
"""Milliseconds for which counts of silent devices are kept: counting reads all disconnected devices."""

_BATTERIES_KEPT_MS: Final = 300_000
"""Milliseconds for which battery counts are kept: they need all rows, and change slowly."""

_MAX_GATEWAYS: Final = 2_000
"""Maximum number of gateways that get a time series each. If there are more, none of them gets one."""

_MAX_SILENT_GATEWAYS: Final = 50
"""Maximum number of gateways whose disconnected devices are counted."""

_BATTERY_LEVELS: Final = (5, 15, 25, 50, 100)
"""Upper bounds of the battery buckets in percent."""


# Queries.


def load_gateways(connection: Connection) -> dict[tuple[str, str], bool]:
    """Load whether each gateway is connected, by MAC and name. Return an empty dict for over 2,000 gateways.

    Gateways that never connected are left out: they are probably not installed yet.
    """
    query = (
        select(device.c.id, device.c.name, device.c.connected)
        .select_from(gateway)
        .join(device, device.c.id == gateway.c.device)
        .outerjoin(device_state, device_state.c.device == device.c.id)
        .where(~IS_UNSEEN)
        .limit(_MAX_GATEWAYS + 1)
    )
    rows = connection.execute(query).all()
    if len(rows) > _MAX_GATEWAYS:
        return {}
    return {(mac_from_int(number), name): connected for number, name, connected in rows}


def count_silent_devices(connection: Connection) -> dict[str, int]:
    """Count disconnected devices by MAC of their gateway, for the 50 gateways with the highest counts."""
    count = func.count()
    query = (
        select(device.c.gateway, count)
        .where(~device.c.connected, device.c.gateway.is_not(None), device.c.gateway != device.c.id)
        .group_by(device.c.gateway)
        .order_by(count.desc(), device.c.gateway)
        .limit(_MAX_SILENT_GATEWAYS)
    )
    return {mac_from_int(number): silent for number, silent in connection.execute(query)}


class BatteryCounts(NamedTuple):
    """Cumulative histogram of the battery levels of all devices."""

    at_most: Sequence[int] = (0,) * len(_BATTERY_LEVELS)
    """Number of devices with at most the level, for each of `_BATTERY_LEVELS`."""
    sum: int = 0
    """Sum of the battery levels of all devices in percent."""


def count_batteries(connection: Connection) -> BatteryCounts:
    """Count the devices by battery level. Leave out devices that never reported a level."""
    level = device_state.c.battery
    query = select(*(func.count().filter(level <= each) for each in _BATTERY_LEVELS), func.sum(level))
    *at_most, total = connection.execute(query.where(level.is_not(None))).one()
    return BatteryCounts(at_most, int(total or 0))


class JobCounts(NamedTuple):
    """Numbers of update jobs and of their executions by state, and since when a job has made no progress."""

    jobs: Mapping[str, int] = dict.fromkeys(JobState, 0)
    executions: Mapping[str, int] = dict.fromkeys(ExecutionState, 0)
    stalled_since: int | None = None
    """Unix time in milliseconds of the last progress of the job that has made none for longest.

    Only jobs with active updates count. None if no update is active.
    """


def count_jobs(connection: Connection) -> JobCounts:
    """Count jobs and executions, and find the job whose active updates have not changed for longest."""
    jobs = connection.execute(select(job.c.state, func.count()).group_by(job.c.state)).all()
    counted = func.sum(tally.c.count)
    executions = connection.execute(select(tally.c.state, counted).group_by(tally.c.state)).all()
    # Staged updates are left out: devices may keep the image until a user applies the job.
    changes = (
        select(func.max(execution.c.updated_at).label("at"))
        .where(text(active_condition()), execution.c.state != ExecutionState.STAGED)
        .group_by(execution.c.job)
        .subquery()
    )
    return JobCounts(
        {**JobCounts().jobs, **dict(jobs)},
        {**JobCounts().executions, **{state: int(count) for state, count in executions}},
        connection.execute(select(func.min(changes.c.at))).scalar(),
    )


_NO_ALARMS: Final = {
    (str(state), str(severity)): 0
    for state in (AlarmState.OPEN, AlarmState.ACKNOWLEDGED)
    for severity in AlarmSeverity
}


class AlarmCounts(NamedTuple):
    """Numbers of alarms that are not over by state and severity, and the time of the last evaluation."""

    alarms: Mapping[tuple[str, str], int] = _NO_ALARMS
    evaluated_at: int | None = None
    """Unix time in milliseconds; None before the first evaluation."""


def count_alarms(connection: Connection) -> AlarmCounts:
    """Count the alarms that are not over."""
    columns = alarm.c
    query = select(columns.state, columns.severity, func.count()).where(columns.state != AlarmState.CLEARED)
    rows = connection.execute(query.group_by(columns.state, columns.severity))
    counted = {(state, Severity(severity).name.lower()): count for state, severity, count in rows}
    progress = load_progress(connection)
    return AlarmCounts({**_NO_ALARMS, **counted}, None if progress is None else progress.evaluated_at)


_UNSENT: Final = (str(DeliveryState.HELD), str(DeliveryState.WAITING), str(DeliveryState.DEAD))


class MessageCounts(NamedTuple):
    """Numbers of messages about alarms that were not sent, by state, and the oldest one that is due."""

    messages: Mapping[str, int] = dict.fromkeys(_UNSENT, 0)
    oldest_due: int | None = None
    """Unix time in milliseconds; None if no message waits."""


def count_messages(connection: Connection) -> MessageCounts:
    """Count the messages about alarms that were not sent."""
    columns = notification.c
    query = select(columns.state, func.count(), func.min(columns.due)).where(columns.state.in_(_UNSENT))
    rows = {state: (count, due) for state, count, due in connection.execute(query.group_by(columns.state))}
    counts = {state: rows.get(state, (0, None))[0] for state in _UNSENT}
    return MessageCounts(counts, rows.get(str(DeliveryState.WAITING), (0, None))[1])


Result = TypeVar("Result")


class _KeptQuery(Generic[Result]):
    """Query whose result is kept in memory for `kept_ms` milliseconds."""

    def __init__(self, load: Callable[[Connection], Result], empty: Result, kept_ms: int = _KEPT_MS) -> None:
        self._load = load
        self._kept_ms = kept_ms
        self._loaded_at: int | None = None
        self.result = empty

    def is_due(self, now: int) -> bool:
        """Return whether the query must run, as the result is too old or was never loaded."""
        return self._loaded_at is None or now - self._loaded_at >= self._kept_ms

    def run(self, connection: Connection, now: int) -> None:
        """Run the query and keep the result. `now` is the monotonic time in milliseconds."""
        self.result = self._load(connection)
        self._loaded_at = now


class FleetMetrics:
    """Metrics of the service whose values are loaded from the database."""

    def __init__(self, database: Database, settings: Settings, *, now: Now, monotonic: Now) -> None:
        self._database = database
        self._now = now
        self._monotonic = monotonic
        self._lock = asyncio.Lock()
        self._has_gateways = settings.metrics_per_gateway
        self._devices = _KeptQuery(count_connected_devices, ConnectivityCounts(0, 0))
        self._gateways = _KeptQuery[dict[tuple[str, str], bool]](load_gateways, {})
        self._silent = _KeptQuery[dict[str, int]](count_silent_devices, {}, _SILENT_KEPT_MS)
        self._batteries = _KeptQuery(count_batteries, BatteryCounts(), _BATTERIES_KEPT_MS)
        self._jobs = _KeptQuery(count_jobs, JobCounts())
        self._alarms = _KeptQuery(count_alarms, AlarmCounts())
        self._messages = _KeptQuery(count_messages, MessageCounts())
        self._backups = _KeptQuery(load_backup_times, BackupTimes())

    def apply_settings(self, settings: Settings) -> None:
        """Enable or disable the metrics per gateway, as the settings say."""
        self._has_gateways = settings.metrics_per_gateway

    async def refresh(self) -> None:
        """Load the values that are too old, before a scrape. Concurrent scrapes do not load them twice."""
        async with self._lock:
            now = self._monotonic()
            queries = (
                self._devices,
                self._gateways,
                self._silent,
                self._batteries,
                self._jobs,
                self._alarms,
                self._messages,
                self._backups,
            )
            if due := [each for each in queries if each.is_due(now)]:
                await self._database.read(_run_queries, due, now)

    def register_in(self, metrics: Metrics) -> None:
        """Add the metrics of the fleet to `metrics`, the metrics of the service."""
        gauge = metrics.add_gauge
        gauge("devices", "Devices in the registry.", self._read_devices, "connected")
        gauge(
            "gateway_connected",
            "1 if a gateway is connected, else 0. Absent with metrics.per-gateway off, or with more than"
            f" {_MAX_GATEWAYS:,} gateways.",
            lambda: self._gateways.result if self._has_gateways else {},
            "gateway",
            "name",
        )
        gauge(
            "devices_silent",
            f"Disconnected devices behind each of the {_MAX_SILENT_GATEWAYS} gateways with the most of them.",
            lambda: self._silent.result if self._has_gateways else {},
            "gateway",
        )
        metrics.register(_BatteryCollector(self._batteries))
        gauge("jobs", "Update jobs.", lambda: self._jobs.result.jobs, "state")
        gauge("executions", "Devices in update jobs.", lambda: self._jobs.result.executions, "state")
        gauge(
            "job_oldest_waiting_seconds",
            "Time since one of the running updates of a job reached its next state; that of the job for which"
            " it is longest. 0 if no update runs.",
            self._read_oldest_wait,
        )
        gauge("alarms", "Alarms that are not over.", lambda: self._alarms.result.alarms, "state", "severity")
        gauge(
            "alarms_evaluated_timestamp_seconds",
            "Time of the last evaluation of alarms. Absent before the first one.",
            lambda: _read_seconds(self._alarms.result.evaluated_at),
        )
        gauge(
            "notifications",
            "Messages about alarms that are held, wait to be sent, or were given up.",
            lambda: self._messages.result.messages,
            "state",
        )
        gauge(
            "notification_oldest_due_timestamp_seconds",
            "Time at which the oldest waiting message about an alarm was due. Absent if none waits.",
            lambda: _read_seconds(self._messages.result.oldest_due),
        )
        gauge(
            "backup_timestamp_seconds",
            "Time of the newest checked backup with samples. Absent if there is none.",
            lambda: _read_seconds(self._backups.result.newest),
        )
        gauge(
            "backup_interval_seconds",
            f"Usual time between two backups with samples. Absent with fewer than {MIN_BACKUPS} backups.",
            lambda: _read_seconds(self._backups.result.interval),
        )

    def _read_devices(self) -> dict[str, float]:
        counts = self._devices.result
        return {"true": counts.connected, "false": counts.disconnected}

    def _read_oldest_wait(self) -> float:
        since = self._jobs.result.stalled_since
        return 0 if since is None else max(0, self._now() - since) / 1000


def _run_queries(connection: Connection, queries: Sequence[_KeptQuery[Any]], now: int) -> None:
    for each in queries:
        each.run(connection, now)


def _read_seconds(millis: float | None) -> dict[tuple[str, ...], float]:
    return {} if millis is None else {(): millis / 1000}


class _BatteryCollector(Collector):
    """Histogram of the battery levels of devices. Unlike in most histograms, counts can decrease."""

    def __init__(self, query: _KeptQuery[BatteryCounts]) -> None:
        self._query = query

    def collect(self) -> Iterator[Metric]:
        """Yield the histogram of battery levels."""
        counts = self._query.result
        buckets = [
            (f"{level:.1f}", count) for level, count in zip(_BATTERY_LEVELS, counts.at_most, strict=True)
        ]
        yield HistogramMetricFamily(
            "meshfleet_devices_battery",
            "Newest battery level of devices in percent. Devices that never reported one are left out.",
            buckets=[*buckets, ("+Inf", counts.at_most[-1])],
            sum_value=counts.sum,
        )
