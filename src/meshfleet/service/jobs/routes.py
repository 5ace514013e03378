"""Routes of `/api/v1/jobs` and `/api/v1/devices/{id}/updates`."""

import re
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Annotated, Any, Final, TypeVar

from litestar import Response, Router, delete, get, post
from litestar.di import NamedDependency as Given
from litestar.di import Provide
from litestar.openapi import ResponseSpec
from litestar.params import FromPath, HeaderParameter, JSONBody, QueryParameter, SkipValidation
from msgspec import Struct

from meshfleet.db import Database
from meshfleet.errors import NotFound
from meshfleet.protocol.ids import DeviceId, Mac, mac_to_int, parse_device_id, to_mac
from meshfleet.rest.job_requests import NewJob
from meshfleet.rest.jobs import (
    JOBS_PATH,
    DeviceUpdatePage,
    DryRun,
    ExecutionDetail,
    ExecutionPage,
    ExecutionState,
    Job,
    JobPage,
    JobState,
    JobSummary,
)
from meshfleet.service.actor import Actor
from meshfleet.service.clock import Now
from meshfleet.service.devices import listing
from meshfleet.service.devices.parameters import parse_gateway_mac, parse_path_device
from meshfleet.service.http.pagination import PageTokens
from meshfleet.service.http.query import NextToken, QueryReader, build_choice_parser, parse_flag
from meshfleet.service.http.request import decode_segment
from meshfleet.service.jobs import commands
from meshfleet.service.jobs.notifications import JobNotifier
from meshfleet.service.jobs.planning import creation
from meshfleet.service.jobs.planning.creation import JobRequestContext
from meshfleet.service.jobs.views import execution_view, job_summary, job_view
from meshfleet.service.jobs.views.execution_view import ExecutionListing
from meshfleet.service.jobs.views.job_view import JobListing
from meshfleet.service.requests.dispatcher import RequestFacade

# `/api/v1/devices/{id}/updates`.


@get("/{device_id:str}/updates")
async def list_device_updates(
    device_id: FromPath[str],
    limit: Given[int],
    database: Given[Database],
    pages: Given[PageTokens],
    next_token: NextToken = None,
) -> DeviceUpdatePage:
    """List the executions of a device in open jobs, the newest job first."""
    device = parse_path_device(device_id)
    query = execution_view.DeviceUpdateListing(device=mac_to_int(device))
    before = pages.decode_start(query, next_token, start=None)
    updates = await database.read(execution_view.list_device_updates, query, before=before, limit=limit + 1)
    if not updates:
        await database.read(listing.load_device, device)  # raises NotFound if the device is unknown
    page = pages.build_page(query, updates, limit, lambda last: (_parse_job_number(last.job_id),))
    return DeviceUpdatePage(**page)


device_updates_router = Router("/api/v1/devices", route_handlers=[list_device_updates], tags=["Devices"])


JobCommand = Callable[..., Job]
"""Function of the module `commands` that changes a job and returns the changed job."""
RunCommand = Callable[[JobCommand], Awaitable[Job]]
"""Function that runs a job command on the job of the request path."""
StateT = TypeVar("StateT", bound=StrEnum)

_ID: Final = re.compile(r"job-([1-9][0-9]{0,17})")
_OK: Final = 200

IdempotencyKeyHeader = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key",
        description="A repeated request with the same key and body returns the job of the first one.",
    ),
]


def _build_state_parameter(states: type[StrEnum]) -> QueryParameter:
    return QueryParameter(
        name="State",
        description="State to include. Can be repeated to include several states.",
        schema_extra={"items": {"type": "string", "enum": [str(each) for each in states]}},
    )


class _EmptyBody(Struct, frozen=True):
    """Empty request body, hashed with the idempotency key of a retry, which has no body."""


@post(
    problems=(409,),
    responses={_OK: ResponseSpec(DryRun, description="Effect of the job, if the request has `dryRun` set.")},
)
async def create_job(
    data: JSONBody[NewJob],
    actor: Given[Actor],
    database: Given[Database],
    request_facade: Given[RequestFacade],
    now: Given[Now],
    job_notifier: Given[JobNotifier],
    idempotency_key: IdempotencyKeyHeader = None,
) -> Response[Job]:
    """Create a job that updates devices, or with `dryRun` only return what the job would do.

    Devices that do not fit the firmware become part of the job in state SKIPPED, with the reason.
    """
    context = JobRequestContext(
        actor,
        request_facade.build_idempotency_key(idempotency_key, actor, JOBS_PATH, data),
        job_notifier.on_changes,
    )
    result = await creation.create_job(database, data, context, now)
    if isinstance(result, DryRun):
        dry_run_response: Response[Any] = Response(result, status_code=_OK)
        return dry_run_response
    return Response(job_notifier.notify_changed(result))


@get()
async def list_jobs(
    database: Given[Database],
    pages: Given[PageTokens],
    limit: Given[int],
    now: Given[Now],
    states: Annotated[list[str] | None, _build_state_parameter(JobState)] = None,
    firmware_id: Annotated[
        str | None, QueryParameter(name="FirmwareId", description="Id of the firmware that the job installs.")
    ] = None,
    next_token: NextToken = None,
) -> JobPage:
    """List jobs, the newest first."""
    reader = QueryReader()
    query = JobListing(states=_parse_states(reader, JobState, states), firmware=firmware_id)
    reader.raise_faults()
    before = pages.decode_start(query, next_token, start=None)
    jobs = await database.read(job_view.list_jobs, query, before=before, limit=limit + 1, now=now())
    return JobPage(**pages.build_page(query, jobs, limit, lambda last: (_parse_job_number(last.id),)))


@get("/{job_id:str}")
async def show_job(job_id: FromPath[str], database: Given[Database], now: Given[Now]) -> Job:
    """Show a job and its progress."""
    return await database.read(job_view.load_job, _parse_job_number(job_id), now=now())


@get("/{job_id:str}/summary")
async def summarize_job(job_id: FromPath[str], database: Given[Database], now: Given[Now]) -> JobSummary:
    """Count the executions of a job by failure reason, by wait reason, and by gateway."""
    return await database.read(job_summary.load_job_summary, _parse_job_number(job_id), now=now())


@get("/{job_id:str}/executions")
async def list_executions(
    job_id: FromPath[str],
    database: Given[Database],
    pages: Given[PageTokens],
    limit: Given[int],
    states: Annotated[list[str] | None, _build_state_parameter(ExecutionState)] = None,
    gateway: Annotated[
        str | None,
        QueryParameter(
            name="Gateway", description="MAC or device id of the gateway through which the device is updated."
        ),
    ] = None,
    codes: Annotated[
        list[str] | None,
        QueryParameter(
            name="ReasonCode",
            description="`reasonCode` to include. Can be repeated to include several codes.",
        ),
    ] = None,
    ids: Annotated[
        list[str] | None,
        QueryParameter(
            name="Ids", description="Device id to include. Can be repeated to include several devices."
        ),
    ] = None,
    left_out: Annotated[
        str | None,
        QueryParameter(
            name="LeftOut",
            description="Whether the device was excluded when the job was created.",
            schema_extra={"type": "boolean"},
        ),
    ] = None,
    next_token: NextToken = None,
) -> ExecutionPage:
    """List the executions of a job, sorted by device."""
    reader = QueryReader()
    query = ExecutionListing(
        job=_parse_job_number(job_id),
        states=_parse_states(reader, ExecutionState, states),
        gateway=reader.read(parse_gateway_mac, gateway, "Gateway", default=None),
        codes=tuple(sorted(set(codes or ()))),
        devices=None if ids is None else _parse_devices(reader, ids),
        left_out=reader.read(parse_flag, left_out, "LeftOut", default=None),
    )
    reader.raise_faults()
    after = pages.decode_start(query, next_token, start=-1)
    executions = await database.read(execution_view.list_executions, query, after=after, limit=limit + 1)
    page = pages.build_page(
        query, executions, limit, lambda last: (mac_to_int(to_mac(DeviceId(last.device_id))),)
    )
    return ExecutionPage(**page)


@get("/{job_id:str}/executions/{device_id:str}")
async def show_execution(
    job_id: FromPath[str], device_id: FromPath[str], database: Given[Database]
) -> ExecutionDetail:
    """Show the execution of a device in a job, with the history of its states and the evidence for them."""
    return await database.read(
        execution_view.load_execution, _parse_job_number(job_id), parse_path_device(device_id)
    )


def provide_run_command(
    job_id: FromPath[str],
    actor: Given[Actor],
    database: Given[Database],
    now: Given[Now],
    job_notifier: Given[JobNotifier],
) -> RunCommand:
    """Provide a function that runs a command on the job of the request path and publishes the change."""

    async def run_command(command: JobCommand) -> Job:
        return job_notifier.notify_changed(
            await database.write(command, _parse_job_number(job_id), by=actor, now=now())
        )

    return run_command


@post("/{job_id:str}/apply", status_code=200, problems=(409,))
async def apply_job(run_command: Given[SkipValidation[RunCommand]]) -> Job:
    """Start a job that was created with `autoApply` false, or allow its devices to start the staged image."""
    return await run_command(commands.apply_job)


@post("/{job_id:str}/pause", status_code=200, problems=(409,))
async def pause_job(run_command: Given[SkipValidation[RunCommand]]) -> Job:
    """Pause a job: no more updates start. Updates in progress continue."""
    return await run_command(commands.pause_job)


@post("/{job_id:str}/resume", status_code=200, problems=(409,))
async def resume_job(run_command: Given[SkipValidation[RunCommand]]) -> Job:
    """Resume a paused job. Its abort criteria ignore failures before the resume."""
    return await run_command(commands.resume_job)


@post("/{job_id:str}/cancel", status_code=200, problems=(409,))
async def cancel_job(run_command: Given[SkipValidation[RunCommand]]) -> Job:
    """Cancel a job. Updates that can no longer be aborted continue until they end."""
    return await run_command(commands.cancel_job)


@post("/{job_id:str}/retry", problems=(409,))
async def retry_job(
    job_id: FromPath[str],
    actor: Given[Actor],
    database: Given[Database],
    request_facade: Given[RequestFacade],
    now: Given[Now],
    job_notifier: Given[JobNotifier],
    idempotency_key: IdempotencyKeyHeader = None,
) -> Job:
    """Create a copy of a finished job for the devices whose update failed, timed out or was canceled."""
    number = _parse_job_number(job_id)
    path = f"{JOBS_PATH}/job-{number}/retry"
    context = JobRequestContext(
        actor,
        request_facade.build_idempotency_key(idempotency_key, actor, path, _EmptyBody()),
        job_notifier.on_changes,
    )
    return job_notifier.notify_changed(await creation.retry_job(database, number, context, now))


@delete("/{job_id:str}", problems=(409,))
async def delete_job(
    job_id: FromPath[str],
    actor: Given[Actor],
    database: Given[Database],
    now: Given[Now],
    job_notifier: Given[JobNotifier],
) -> None:
    """Delete a job that has ended or was never started, with its executions and their history.

    The audit log keeps the name, firmware, outcome and counts of the job.
    """
    number = _parse_job_number(job_id)
    await database.write(commands.delete_job, number, by=actor, now=now())
    job_notifier.notify_deleted(number)


def _parse_job_number(text: str) -> int:
    """Return the number in a job id such as `job-12`. Raise `NotFound` if the id is malformed (rest-15)."""
    match = _ID.fullmatch(decode_segment(text))
    if match is None:
        raise NotFound("job not found")
    return int(match[1])


def _parse_states(reader: QueryReader, states: type[StateT], texts: list[str] | None) -> tuple[StateT, ...]:
    """Parse the parameter `State` of a list. Add faults to `reader`."""
    parse = build_choice_parser({str(each): each for each in states})
    parsed = [reader.read(parse, each, "State", default=None) for each in texts or ()]
    return tuple(sorted({each for each in parsed if each is not None}))


def _parse_devices(reader: QueryReader, texts: list[str]) -> tuple[Mac, ...]:
    """Parse the parameter `Ids` of a list. Add faults to `reader`."""
    ids = [reader.read(parse_device_id, each, "Ids", default=None) for each in texts]
    return tuple(sorted({to_mac(each) for each in ids if each is not None}))


router = Router(
    JOBS_PATH,
    route_handlers=[
        list_jobs,
        create_job,
        show_job,
        delete_job,
        summarize_job,
        list_executions,
        show_execution,
        apply_job,
        pause_job,
        resume_job,
        cancel_job,
        retry_job,
    ],
    dependencies={"run_command": Provide(provide_run_command, sync_to_thread=False)},
    tags=["Jobs"],
)
