"""`fleet.jobs`: updating devices, many at a time.

Every order carries a key by which the service knows it again, so that it may be said twice when a connection
is lost, and makes one job.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Final, Literal, TypedDict, TypeVar

from msgspec import UNSET, UnsetType

from meshfleet import rest
from meshfleet.client.arguments import (
    check_argument_names,
    check_text,
    format_optional_time,
    normalize_device_id,
    normalize_device_ids,
    normalize_mac,
    parse_enum,
    to_tuple,
)
from meshfleet.client.arguments import normalize_device_id as device_id_of
from meshfleet.client.rest import firmware as catalogue
from meshfleet.client.rest.devices import DeviceFilters
from meshfleet.client.rest.http_caller import iterate_items
from meshfleet.client.rest.http_messages import HttpRequest, build_query, encode_body
from meshfleet.client.rest.live_events import subscribe_to_events
from meshfleet.errors import ServiceRefused, ServiceUnreachable, TooManyAttempts, Unavailable
from meshfleet.errors.protocol import WireError
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest import (
    Concurrency,
    Criterion,
    Gate,
    Job,
    JobHealth,
    JobState,
    NewJob,
    Rate,
    Retry,
    TargetFilter,
    Targets,
    Timeouts,
    Wave,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable
    from typing import Unpack

    from meshfleet.client.arguments import Moment
    from meshfleet.client.rest.http_caller import HttpCaller
    from meshfleet.client.rest.http_messages import HttpResponse
    from meshfleet.client.rest.live_events import Event
    from meshfleet.rest import DryRun, Execution, ExecutionDetail, ExecutionState, JobSummary


# What a job is made of, as callers name it.

Value = TypeVar("Value")


class JobOptions(TypedDict, total=False):
    """Which devices are updated, and how. Without a word everything is as the service has it."""

    devices: str | Iterable[str]
    """These."""
    labels: str | Iterable[str]
    """And all that have any of these labels."""
    filter: DeviceFilters | None
    """And all that meet these filters, as in `fleet.devices.list`."""
    everything: bool
    """And all others."""
    stage: bool
    """Let devices keep the image until the job is applied."""
    allow_downgrade: bool
    method: UpdateMethod | Literal["download", "broadcast", "nordic-dfu"] | None
    """None: as fits each device."""
    auto_apply: bool
    """False: the job begins when it is applied."""
    start_at: Moment | None
    deadline: Moment | None
    waves: Iterable[Wave]
    gate: Gate
    concurrency: Concurrency
    rate: Rate | None
    abort: Iterable[Criterion]
    retry: Retry
    timeouts: Timeouts
    health: JobHealth
    on_newer_job: Literal["queue", "supersede", "reject"]
    """What to do where another job comes for the same device."""


def build_new_job(name: str, firmware: str, options: JobOptions, *, dry_run: bool) -> NewJob:
    """The body that asks for a job."""
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
    chosen = options.get("filter")
    found = Targets(
        device_ids=_unset_if_empty(
            [normalize_device_id(each, "devices") for each in to_tuple(options.get("devices", ()))]
        ),
        labels=_unset_if_empty([check_text(each, "labels") for each in to_tuple(options.get("labels", ()))]),
        filter=UNSET if chosen is None else _build_target_filter(chosen),
        all=options.get("everything", False),
    )
    if found == Targets():
        raise WireError("devices", "are none: name some, or say everything=True")
    return found


def _build_target_filter(filters: DeviceFilters) -> TargetFilter:
    check_argument_names(filters, DeviceFilters)
    gateway = filters.get("gateway")
    return TargetFilter(
        label=_unset_if_empty([check_text(each, "labels") for each in to_tuple(filters.get("labels", ()))]),
        connected=_unset_if_none(filters.get("connected")),
        model_number=_check_optional_text(filters.get("model_number"), "model_number"),
        firmware_version=_check_optional_text(filters.get("firmware_version"), "firmware_version"),
        hardware_version=_check_optional_text(filters.get("hardware_version"), "hardware_version"),
        friendly_name=_check_optional_text(filters.get("friendly_name"), "friendly_name"),
        gateway=UNSET if gateway is None else normalize_mac(gateway),
        ids=_unset_if_empty([normalize_device_id(each, "ids") for each in to_tuple(filters.get("ids", ()))]),
    )


def _check_optional_text(text: str | None, field: str) -> str | UnsetType:
    return UNSET if text is None else check_text(text, field)


def _unset_if_none(value: Value | None) -> Value | UnsetType:
    return UNSET if value is None else value


def _unset_if_empty(values: list[str]) -> list[str] | UnsetType:
    return values or UNSET


# Watching a job: by live events, and by asking now and then, for events may not get through.

FINISHED_STATES: Final = frozenset({JobState.COMPLETED, JobState.CANCELED})

_POLL_SECONDS_WITH_EVENTS: Final = 5.0
_POLL_SECONDS: Final = 1.0
"""Seconds between two questions, with live events and without."""


async def watch_job(caller: HttpCaller, job: str) -> AsyncGenerator[Job, None]:
    """A job as it is now, and again whenever it has changed, until it is over."""
    path = rest.job_path(job)
    ear = _JobEvents(subscribe_to_events(caller, "job", jobs=job))
    told: Job | None = None
    try:
        ear.start()
        found = await caller.get(rest.Job, path)
        while True:
            if found != told:
                told = found
                yield found
            if found.state in FINISHED_STATES:
                return
            found = await ear.next_change() or await caller.get(rest.Job, path)
    finally:
        await ear.close()


class _JobEvents:
    """Hears events of a job, as long as there are any."""

    def __init__(self, events: AsyncGenerator[Event, None]) -> None:
        self._events = events
        self._next_event: asyncio.Task[Event] | None = None
        self._has_failed = False

    def start(self) -> None:
        """Wait for the next event from now on."""
        if self._next_event is None and not self._has_failed:
            self._next_event = asyncio.ensure_future(anext(self._events))

    async def next_change(self) -> Job | None:
        """The next that is told of the job; None: it is time to ask."""
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
            self._has_failed = True  # whoever is asked tells what is wrong, if it is more than that
            return None
        return data if isinstance(data, Job) else None

    async def close(self) -> None:
        """Let go."""
        if self._next_event is not None:
            self._next_event.cancel()
            await asyncio.wait([self._next_event])
        await self._events.aclose()


_EXTRA_TIMEOUT: Final = 60.0
"""Seconds that the service may take longer than usual to find and write down a hundred thousand devices."""


class Jobs:
    """The update jobs of a fleet. Each is named by its id, or by what was told of it."""

    def __init__(self, caller: HttpCaller) -> None:
        self._caller = caller

    async def create(self, name: str, firmware: str | rest.Firmware, **options: Unpack[JobOptions]) -> Job:
        """Update devices to this firmware, which is released. The devices are those of any part of the order.

        Those that cannot take it are in the job, too, as SKIPPED and with the reason; see `dry_run`.
        """
        body = build_new_job(name, catalogue.to_firmware_id(firmware), options, dry_run=False)
        return self._caller.decode(rest.Job, await self._post_idempotently(rest.JOBS_PATH, body))

    async def dry_run(
        self, name: str, firmware: str | rest.Firmware, **options: Unpack[JobOptions]
    ) -> DryRun:
        """What a job would do: who would be updated, who would not and why, in which waves, in what time."""
        body = build_new_job(name, catalogue.to_firmware_id(firmware), options, dry_run=True)
        return self._caller.decode(rest.DryRun, await self._post_idempotently(rest.JOBS_PATH, body))

    def list(
        self, *, states: JobState | str | Iterable[JobState | str] = (), firmware: str | None = None
    ) -> AsyncGenerator[Job, None]:
        """Jobs in any of these states, the newest first: with this firmware, or with any."""
        chosen = build_query({"FirmwareId": firmware}, {"State": to_tuple(states)})
        return iterate_items(self._caller, rest.JobPage, rest.JOBS_PATH, chosen)

    async def show(self, job: str | Job) -> Job:
        """A job, and how it goes."""
        return await self._caller.get(rest.Job, rest.job_path(_to_job_id(job)))

    async def summary(self, job: str | Job) -> JobSummary:
        """Its executions, counted by why they failed, by what they wait for, and by gateway."""
        return await self._caller.get(rest.JobSummary, f"{rest.job_path(_to_job_id(job))}/summary")

    def executions(  # noqa: PLR0913 # one for each filter, by its name
        self,
        job: str | Job,
        *,
        states: ExecutionState | str | Iterable[ExecutionState | str] = (),
        gateway: str | None = None,
        reason_codes: str | Iterable[str] = (),
        devices: str | Iterable[str] = (),
        left_out: bool | None = None,
    ) -> AsyncGenerator[Execution, None]:
        """The parts of devices in a job: in any of these states, through one gateway, for these reasons.

        `left_out` asks for those that were left out from the beginning, or for the others.
        """
        single = {"Gateway": None if gateway is None else normalize_mac(gateway), "LeftOut": left_out}
        repeated = {
            "State": to_tuple(states),
            "ReasonCode": to_tuple(reason_codes),
            "Ids": normalize_device_ids(devices, "devices"),
        }
        chosen = build_query(single, repeated)
        return iterate_items(self._caller, rest.ExecutionPage, rest.executions_path(_to_job_id(job)), chosen)

    async def execution(self, job: str | Job, device: str) -> ExecutionDetail:
        """The part of one device, with all that happened and what proves it."""
        return await self._caller.get(
            rest.ExecutionDetail, rest.execution_path(_to_job_id(job), device_id_of(device))
        )

    async def apply(self, job: str | Job) -> Job:
        """Let a job begin that was made without `auto_apply`, or devices start what they have staged."""
        return await self._post_command(job, "apply")

    async def pause(self, job: str | Job) -> Job:
        """Begin no more updates. Those that are under way go on."""
        return await self._post_command(job, "pause")

    async def resume(self, job: str | Job) -> Job:
        """Go on with a paused job."""
        return await self._post_command(job, "resume")

    async def cancel(self, job: str | Job) -> Job:
        """End a job early. A device that is about to start its new version is awaited."""
        return await self._post_command(job, "cancel")

    async def retry(self, job: str | Job) -> Job:
        """Make a new job for devices whose update failed, timed out or was canceled."""
        path = rest.job_action_path(_to_job_id(job), "retry")
        return self._caller.decode(rest.Job, await self._post_idempotently(path, None))

    async def delete(self, job: str | Job) -> None:
        """Delete a job that is over or was never started; the audit log keeps how it went."""
        await self._caller.delete(rest.job_path(_to_job_id(job)))

    def watch(self, job: str | Job) -> AsyncGenerator[Job, None]:
        """A job as it is now, and again whenever it has changed, until it is over."""
        return watch_job(self._caller, _to_job_id(job))

    async def _post_command(self, job: str | Job, command: str) -> Job:
        return await self._caller.post(rest.Job, rest.job_action_path(_to_job_id(job), command))

    async def _post_idempotently(self, path: str, body: rest.NewJob | None) -> HttpResponse:
        call = HttpRequest(
            method="POST",
            path=path,
            body=encode_body(body),
            headers=(("Idempotency-Key", secrets.token_urlsafe(16)),),
            is_repeatable=True,
            extra_timeout=_EXTRA_TIMEOUT,
        )
        return await self._caller.send(call)


def _to_job_id(job: str | Job) -> str:
    return check_text(job if isinstance(job, str) else job.id, "job")
