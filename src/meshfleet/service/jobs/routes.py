"""`/api/v1/jobs`."""

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
from meshfleet.rest import (
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
    NewJob,
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
from meshfleet.service.jobs.views import execution_view, job_summary
from meshfleet.service.jobs.views import job_view as reading
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
    """List what becomes of a device in jobs that are not over, the newest job first."""
    device = parse_path_device(device_id)
    asked = execution_view.DeviceUpdateListing(device=mac_to_int(device))
    before = pages.decode_start(asked, next_token, start=None)
    found = await database.read(execution_view.list_device_updates, asked, before=before, limit=limit + 1)
    if not found:
        await database.read(listing.load_device, device)  # it may be unknown, and then says so
    cut = pages.build_page(asked, found, limit, lambda last: (int(last.job_id.removeprefix("job-")),))
    return DeviceUpdatePage(**cut)


device_updates_router = Router("/api/v1/devices", route_handlers=[list_device_updates], tags=["Devices"])


JobCommand = Callable[..., Job]
"""One of `steering`."""
RunCommand = Callable[[JobCommand], Awaitable[Job]]
StateT = TypeVar("StateT", bound=StrEnum)

_ID: Final = re.compile(r"job-([1-9][0-9]{0,17})")
_OK: Final = 200

IdempotencyKeyHeader = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key", description="The same key with the same body makes one job, and gets it."
    ),
]


def _build_state_parameter(words: type[StrEnum]) -> QueryParameter:
    return QueryParameter(
        name="State",
        description="Is in this state; may be given several times, then in any of them.",
        schema_extra={"items": {"type": "string", "enum": [str(each) for each in words]}},
    )


class _EmptyBody(Struct, frozen=True):
    """What a retry is asked with."""


@post(
    problems=(409,),
    responses={_OK: ResponseSpec(DryRun, description="With `dryRun`: what the job would do.")},
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
    """Make a job that updates devices, or with `dryRun` tell what it would do.

    Devices that cannot take the firmware are part of the job all the same: as SKIPPED, with the reason.
    """
    asked = JobRequestContext(
        actor, request_facade.build_key(idempotency_key, actor, JOBS_PATH, data), job_notifier.on_changes
    )
    made = await creation.create_job(database, data, asked, now)
    return (
        _build_dry_run_response(made)
        if isinstance(made, DryRun)
        else Response(job_notifier.notify_changed(made))
    )


@get()
async def list_jobs(
    database: Given[Database],
    pages: Given[PageTokens],
    limit: Given[int],
    now: Given[Now],
    states: Annotated[list[str] | None, _build_state_parameter(JobState)] = None,
    firmware_id: Annotated[
        str | None, QueryParameter(name="FirmwareId", description="Brings this firmware.")
    ] = None,
    next_token: NextToken = None,
) -> JobPage:
    """List jobs, the newest first."""
    reader = QueryReader()
    asked = JobListing(states=_parse_states(reader, JobState, states), firmware=firmware_id)
    reader.raise_faults()
    before = pages.decode_start(asked, next_token, start=None)
    found = await database.read(reading.list_jobs, asked, before=before, limit=limit + 1, now=now())
    return JobPage(**pages.build_page(asked, found, limit, lambda last: (_parse_job_number(last.id),)))


@get("/{job_id:str}")
async def show_job(job_id: FromPath[str], database: Given[Database], now: Given[Now]) -> Job:
    """Show a job and how it goes."""
    return await database.read(reading.load_job, _parse_job_number(decode_segment(job_id)), now=now())


@get("/{job_id:str}/summary")
async def summarize_job(job_id: FromPath[str], database: Given[Database], now: Given[Now]) -> JobSummary:
    """Count the executions of a job by why they failed, by what they wait for, and by gateway."""
    return await database.read(
        job_summary.load_job_summary, _parse_job_number(decode_segment(job_id)), now=now()
    )


@get("/{job_id:str}/executions")
async def list_executions(
    job_id: FromPath[str],
    database: Given[Database],
    pages: Given[PageTokens],
    limit: Given[int],
    states: Annotated[list[str] | None, _build_state_parameter(ExecutionState)] = None,
    gateway: Annotated[
        str | None,
        QueryParameter(name="Gateway", description="The MAC or device id of the gateway it goes through."),
    ] = None,
    codes: Annotated[
        list[str] | None,
        QueryParameter(
            name="ReasonCode",
            description="Has this `reasonCode`; may be given several times, then any of them.",
        ),
    ] = None,
    ids: Annotated[
        list[str] | None,
        QueryParameter(name="Ids", description="Is of one of these devices; may be given several times."),
    ] = None,
    left_out: Annotated[
        str | None,
        QueryParameter(
            name="LeftOut",
            description="Was left out from the beginning, or was not.",
            schema_extra={"type": "boolean"},
        ),
    ] = None,
    next_token: NextToken = None,
) -> ExecutionPage:
    """List the executions of a job by device."""
    reader = QueryReader()
    asked = ExecutionListing(
        job=_parse_job_number(decode_segment(job_id)),
        states=_parse_states(reader, ExecutionState, states),
        gateway=reader.read(parse_gateway_mac, gateway, "Gateway", unless=None),
        codes=tuple(sorted(set(codes or ()))),
        devices=None if ids is None else _parse_devices(reader, ids),
        left_out=reader.read(parse_flag, left_out, "LeftOut", unless=None),
    )
    reader.raise_faults()
    after = pages.decode_start(asked, next_token, start=-1)
    found = await database.read(execution_view.list_executions, asked, after=after, limit=limit + 1)
    cut = pages.build_page(asked, found, limit, lambda last: (mac_to_int(to_mac(DeviceId(last.device_id))),))
    return ExecutionPage(**cut)


@get("/{job_id:str}/executions/{device_id:str}")
async def show_execution(
    job_id: FromPath[str], device_id: FromPath[str], database: Given[Database]
) -> ExecutionDetail:
    """Show the part of a device in a job, with all that happened and what proves it."""
    return await database.read(
        execution_view.load_execution, _parse_job_number(decode_segment(job_id)), parse_path_device(device_id)
    )


def provide_run_command(
    job_id: FromPath[str],
    actor: Given[Actor],
    database: Given[Database],
    now: Given[Now],
    job_notifier: Given[JobNotifier],
) -> RunCommand:
    """What does a deed to the job of the path, and tells whoever looks at it."""

    async def steer(deed: JobCommand) -> Job:
        return job_notifier.notify_changed(
            await database.write(deed, _parse_job_number(decode_segment(job_id)), by=actor, now=now())
        )

    return steer


@post("/{job_id:str}/apply", status_code=200, problems=(409,))
async def apply_job(steer: Given[SkipValidation[RunCommand]]) -> Job:
    """Let a job begin that was made with `autoApply` false, or devices start what they have staged."""
    return await steer(commands.apply_job)


@post("/{job_id:str}/pause", status_code=200, problems=(409,))
async def pause_job(steer: Given[SkipValidation[RunCommand]]) -> Job:
    """Let a job begin no more updates. Those that are under way go on."""
    return await steer(commands.pause_job)


@post("/{job_id:str}/resume", status_code=200, problems=(409,))
async def resume_job(steer: Given[SkipValidation[RunCommand]]) -> Job:
    """Let a paused job go on. What failed up to now does not count any more for its abort criteria."""
    return await steer(commands.resume_job)


@post("/{job_id:str}/cancel", status_code=200, problems=(409,))
async def cancel_job(steer: Given[SkipValidation[RunCommand]]) -> Job:
    """End a job early. A device that is about to start its new version is awaited."""
    return await steer(commands.cancel_job)


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
    """Make a new job like a finished one, for devices whose update failed, timed out or was canceled."""
    number = _parse_job_number(decode_segment(job_id))
    place = f"{JOBS_PATH}/job-{number}/retry"
    asked = JobRequestContext(
        actor, request_facade.build_key(idempotency_key, actor, place, _EmptyBody()), job_notifier.on_changes
    )
    return job_notifier.notify_changed(await creation.retry_job(database, number, asked, now))


@delete("/{job_id:str}", problems=(409,))
async def delete_job(
    job_id: FromPath[str],
    actor: Given[Actor],
    database: Given[Database],
    now: Given[Now],
    job_notifier: Given[JobNotifier],
) -> None:
    """Delete a job that is over or was never started, with its executions and their history.

    The audit log keeps its name, firmware, outcome and counts.
    """
    number = _parse_job_number(decode_segment(job_id))
    await database.write(commands.delete_job, number, by=actor, now=now())
    job_notifier.notify_deleted(number)


def _build_dry_run_response(dry_run: DryRun) -> Response[Any]:
    return Response(dry_run, status_code=_OK)


def _parse_job_number(text: str) -> int:
    """The number of a job; there is none with an id that cannot be (rest-15)."""
    found = _ID.fullmatch(text)
    if found is None:
        raise NotFound("there is no such job")
    return int(found[1])


def _parse_states(reader: QueryReader, words: type[StateT], given: list[str] | None) -> tuple[StateT, ...]:
    parse = build_choice_parser({str(each): each for each in words})
    found = [reader.read(parse, each, "State", unless=None) for each in given or ()]
    return tuple(sorted({each for each in found if each is not None}))


def _parse_devices(reader: QueryReader, texts: list[str]) -> tuple[Mac, ...]:
    found = [reader.read(parse_device_id, each, "Ids", unless=None) for each in texts]
    return tuple(sorted({to_mac(each) for each in found if each is not None}))


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
    dependencies={"steer": Provide(provide_run_command, sync_to_thread=False)},
    tags=["Jobs"],
)
