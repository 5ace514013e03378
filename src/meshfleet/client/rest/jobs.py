"""`fleet.jobs`: jobs that update the firmware of many devices.

The request that creates a job has an idempotency key, so the service creates only one job even if the request
is repeated after a lost connection.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Literal, TypedDict

from msgspec import UNSET, UnsetType

from meshfleet.client.arguments import (
    check_argument_names,
    check_text,
    format_optional_time,
    normalize_device_id,
    normalize_device_ids,
    normalize_mac,
    parse_enum,
    to_tuple,
    unset_if_none,
)
from meshfleet.client.rest.devices import DeviceFilters
from meshfleet.client.rest.firmware import to_firmware_id
from meshfleet.client.rest.http_caller import RestResource
from meshfleet.client.rest.http_messages import build_query
from meshfleet.client.rest.live_events import subscribe_to_events
from meshfleet.errors import ServiceRefused, ServiceUnreachable, TooManyAttempts, Unavailable
from meshfleet.errors.protocol import MalformedInput
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest.job_requests import (
    Concurrency,
    Criterion,
    Gate,
    JobHealth,
    NewJob,
    Rate,
    Retry,
    TargetFilter,
    Targets,
    Timeouts,
    Wave,
)
from meshfleet.rest.jobs import (
    JOBS_PATH,
    DryRun,
    ExecutionDetail,
    ExecutionPage,
    Job,
    JobPage,
    JobState,
    JobSummary,
)
from meshfleet.rest.paths import execution_path, executions_path, job_action_path, job_path

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable
    from typing import Unpack

    from meshfleet.client.arguments import Moment
    from meshfleet.client.rest.http_caller import HttpCaller
    from meshfleet.client.rest.http_messages import HttpResponse
    from meshfleet.client.rest.live_events import Event
    from meshfleet.rest.firmware import Firmware
    from meshfleet.rest.jobs import Execution, ExecutionState


# Options of a new job.


class JobOptions(TypedDict, total=False):
    """Target devices and options of an update job. The service has a default for each missing option.

    A device is a target if at least one of `devices`, `labels`, `filter` and `everything` selects it.
    """

    devices: str | Iterable[str]
    """MACs or device ids of target devices."""
    labels: str | Iterable[str]
    """Labels; all devices with at least one of the labels are targets."""
    filter: DeviceFilters | None
    """Filters as in `fleet.devices.list`; all devices that match all filters are targets."""
    everything: bool
    """Whether all devices of the fleet are targets."""
    stage: bool
    """Whether devices only receive the image, and install it when `apply` is called."""
    allow_downgrade: bool
    """Whether devices with a newer version are updated; otherwise such devices are skipped."""
    method: UpdateMethod | Literal["download", "broadcast", "nordic-dfu"] | None
    """Update method; None selects the default method of each device."""
    auto_apply: bool
    """Whether the job starts automatically; otherwise `apply` starts the job."""
    start_at: Moment | None
    """Time at which the job starts; None means at once."""
    deadline: Moment | None
    """Time at which an unfinished job is canceled; None for no deadline."""
    waves: Iterable[Wave]
    """Waves of devices, updated one after the other; if empty, all devices are one wave."""
    gate: Gate
    """Conditions that a wave must meet before the next wave starts."""
    concurrency: Concurrency
    """Maximum number of devices that the job updates at the same time."""
    rate: Rate | None
    """Maximum number of updates that the job starts per minute; None for no limit."""
    abort: Iterable[Criterion]
    """Percentages of failed updates at which the job is paused or canceled."""
    retry: Retry
    """Number and delay of automatic retries per device."""
    timeouts: Timeouts
    """Timeouts for the steps of an update."""
    health: JobHealth
    """Number of good heartbeats after which the update of a device counts as successful."""
    on_newer_job: Literal["queue", "supersede", "reject"]
    """Treatment of a device of this job that a newer job includes."""


def build_new_job(name: str, firmware: str, options: JobOptions, *, dry_run: bool) -> NewJob:
    """Build the body of a REST request that creates a job or starts a dry run."""
    check_argument_names(options, JobOptions)
    method = options.get("method")
    waves = tuple(options.get("waves", ()))
    for wave in waves:
        check_text(wave.name or "", "waves")
    return NewJob(
        name=name,
        firmware_id=firmware,
        targets=_build_targets(options),
        stage=options.get("stage", False),
        allow_downgrade=options.get("allow_downgrade", False),
        method=None if method is None else parse_enum(UpdateMethod, method, "method"),
        auto_apply=options.get("auto_apply", True),
        dry_run=dry_run,
        start_at=format_optional_time(options.get("start_at"), "start_at"),
        deadline=format_optional_time(options.get("deadline"), "deadline"),
        waves=waves,
        gate=options.get("gate", Gate()),
        concurrency=options.get("concurrency", Concurrency()),
        rate=options.get("rate"),
        abort=tuple(options.get("abort", ())),
        retry=options.get("retry", Retry()),
        timeouts=options.get("timeouts", Timeouts()),
        health=options.get("health", JobHealth()),
        on_newer_job=options.get("on_newer_job", "queue"),
    )


def _build_targets(options: JobOptions) -> Targets:
    filters = options.get("filter")
    targets = Targets(
        device_ids=_unset_if_empty(
            [normalize_device_id(device, "devices") for device in to_tuple(options.get("devices", ()))]
        ),
        labels=_unset_if_empty(
            [check_text(label, "labels") for label in to_tuple(options.get("labels", ()))]
        ),
        filter=UNSET if filters is None else _build_target_filter(filters),
        all=options.get("everything", False),
    )
    if targets == Targets():
        raise MalformedInput(
            "devices", "no targets are given: name devices, labels or a filter, or pass everything=True"
        )
    return targets


def _build_target_filter(filters: DeviceFilters) -> TargetFilter:
    check_argument_names(filters, DeviceFilters)
    gateway = filters.get("gateway")
    return TargetFilter(
        label=_unset_if_empty([check_text(label, "labels") for label in to_tuple(filters.get("labels", ()))]),
        connected=unset_if_none(filters.get("connected")),
        model_number=_check_optional_text(filters.get("model_number"), "model_number"),
        firmware_version=_check_optional_text(filters.get("firmware_version"), "firmware_version"),
        hardware_version=_check_optional_text(filters.get("hardware_version"), "hardware_version"),
        friendly_name=_check_optional_text(filters.get("friendly_name"), "friendly_name"),
        gateway=UNSET if gateway is None else normalize_mac(gateway),
        ids=_unset_if_empty(
            [normalize_device_id(device, "ids") for device in to_tuple(filters.get("ids", ()))]
        ),
    )


def _check_optional_text(text: str | None, field: str) -> str | UnsetType:
    return UNSET if text is None else check_text(text, field)


def _unset_if_empty(values: list[str]) -> list[str] | UnsetType:
    return values or UNSET


# Watching a job: by live events, and also by polling, as live events may fail to arrive.

FINISHED_STATES: Final = frozenset({JobState.COMPLETED, JobState.CANCELED})

_POLL_SECONDS_WITH_EVENTS: Final = 5.0
"""Seconds between two polls of a watched job while live events are received."""
_POLL_SECONDS: Final = 1.0
"""Seconds between two polls of a watched job after live events have failed."""


async def watch_job(caller: HttpCaller, job: str) -> AsyncGenerator[Job, None]:
    """Yield the state of a job at once and after every change, until the job is finished."""
    path = job_path(job)
    events = _JobEvents(subscribe_to_events(caller, "job", jobs=job))
    last_yielded: Job | None = None
    try:
        events.start()
        current = await caller.get(Job, path)
        while True:
            if current != last_yielded:
                last_yielded = current
                yield current
            if current.state in FINISHED_STATES:
                return
            current = await events.next_change() or await caller.get(Job, path)
    finally:
        await events.close()


class _JobEvents:
    """Waits for live events of one job, or only for the time of the next poll if live events have failed."""

    def __init__(self, events: AsyncGenerator[Event, None]) -> None:
        self._events = events
        self._next_event: asyncio.Task[Event] | None = None
        self._has_failed = False

    def start(self) -> None:
        """Start waiting for the next live event of the job."""
        if self._next_event is None and not self._has_failed:
            self._next_event = asyncio.ensure_future(anext(self._events))

    async def next_change(self) -> Job | None:
        """Wait for a live event and return the changed job. Return None when the job must be polled."""
        self.start()
        if self._next_event is None:
            await asyncio.sleep(_POLL_SECONDS)
            return None
        done, _ = await asyncio.wait([self._next_event], timeout=_POLL_SECONDS_WITH_EVENTS)
        if not done:
            return None
        event, self._next_event = self._next_event, None
        try:
            data = event.result().data
        except (ServiceRefused, ServiceUnreachable, TooManyAttempts, Unavailable, StopAsyncIteration):
            self._has_failed = True  # polling raises the error if it persists
            return None
        return data if isinstance(data, Job) else None

    async def close(self) -> None:
        """Stop waiting for live events, and close the stream of events."""
        if self._next_event is not None:
            self._next_event.cancel()
            await asyncio.wait([self._next_event])
        await self._events.aclose()


_EXTRA_TIMEOUT: Final = 60.0
"""Extra seconds to wait while the service creates a job, which may have a hundred thousand devices."""


class Jobs(RestResource):
    """Update jobs of a fleet. Methods accept the id of a job or a `Job` object."""

    async def create(self, name: str, firmware: str | Firmware, **options: Unpack[JobOptions]) -> Job:
        """Create a job that installs this firmware, which must be released, on devices.

        A device that cannot be updated gets an execution in state SKIPPED with the reason. `dry_run` shows
        such devices in advance.
        """
        body = build_new_job(name, to_firmware_id(firmware), options, dry_run=False)
        return self._caller.decode(Job, await self._post_once(JOBS_PATH, body))

    async def dry_run(self, name: str, firmware: str | Firmware, **options: Unpack[JobOptions]) -> DryRun:
        """Compute what a job would do: devices to update, devices to skip and why, waves, and duration."""
        body = build_new_job(name, to_firmware_id(firmware), options, dry_run=True)
        return self._caller.decode(DryRun, await self._post_once(JOBS_PATH, body))

    def list(
        self, *, states: JobState | str | Iterable[JobState | str] = (), firmware: str | None = None
    ) -> AsyncGenerator[Job, None]:
        """List the jobs in any of these states, the newest first. If `states` is empty, all states match."""
        query = build_query({"FirmwareId": firmware}, {"State": to_tuple(states)})
        return self._caller.iterate_items(JobPage, JOBS_PATH, query)

    async def show(self, job: str | Job) -> Job:
        """Get the state, options and progress of a job."""
        return await self._caller.get(Job, job_path(_to_job_id(job)))

    async def summary(self, job: str | Job) -> JobSummary:
        """Count the executions of a job by failure reason, by what they wait for, and by gateway."""
        return await self._caller.get(JobSummary, f"{job_path(_to_job_id(job))}/summary")

    def executions(  # noqa: PLR0913 # one keyword per filter
        self,
        job: str | Job,
        *,
        states: ExecutionState | str | Iterable[ExecutionState | str] = (),
        gateway: str | None = None,
        reason_codes: str | Iterable[str] = (),
        devices: str | Iterable[str] = (),
        left_out: bool | None = None,
    ) -> AsyncGenerator[Execution, None]:
        """List the executions of a job, one per device, that match all filters.

        If `left_out` is True, list only devices that were excluded when the job was created; if False, only
        the devices that were not excluded.
        """
        single = {"Gateway": None if gateway is None else normalize_mac(gateway), "LeftOut": left_out}
        repeated = {
            "State": to_tuple(states),
            "ReasonCode": to_tuple(reason_codes),
            "Ids": normalize_device_ids(devices, "devices"),
        }
        query = build_query(single, repeated)
        return self._caller.iterate_items(ExecutionPage, executions_path(_to_job_id(job)), query)

    async def execution(self, job: str | Job, device: str) -> ExecutionDetail:
        """Get the execution of one device in a job, with the reports and responses behind each transition."""
        return await self._caller.get(
            ExecutionDetail, execution_path(_to_job_id(job), normalize_device_id(device))
        )

    async def apply(self, job: str | Job) -> Job:
        """Start a job created without `auto_apply`, or install the images that a `stage` job transferred."""
        return await self._post_action(job, "apply")

    async def pause(self, job: str | Job) -> Job:
        """Pause a job: no more updates start, but running updates continue."""
        return await self._post_action(job, "pause")

    async def resume(self, job: str | Job) -> Job:
        """Resume a paused job."""
        return await self._post_action(job, "resume")

    async def cancel(self, job: str | Job) -> Job:
        """Cancel a job. Devices that already install the image finish their update."""
        return await self._post_action(job, "cancel")

    async def retry(self, job: str | Job) -> Job:
        """Create a new job for the devices of a job whose update failed, timed out or was canceled."""
        path = job_action_path(_to_job_id(job), "retry")
        return self._caller.decode(Job, await self._post_once(path, None))

    async def delete(self, job: str | Job) -> None:
        """Delete a job that is finished or was never started. The audit log keeps the result of the job."""
        await self._caller.delete(job_path(_to_job_id(job)))

    def watch(self, job: str | Job) -> AsyncGenerator[Job, None]:
        """Yield the state of a job at once and after every change, until the job is finished."""
        return watch_job(self._caller, _to_job_id(job))

    async def _post_action(self, job: str | Job, action: str) -> Job:
        return await self._caller.post(Job, job_action_path(_to_job_id(job), action))

    async def _post_once(self, path: str, body: NewJob | None) -> HttpResponse:
        return await self._caller.post_once(path, body, extra_timeout=_EXTRA_TIMEOUT)


def _to_job_id(job: str | Job) -> str:
    return check_text(job if isinstance(job, str) else job.id, "job")
