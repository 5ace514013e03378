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
from meshfleet.service.accounts.model import Actor
from meshfleet.service.clock import Now
from meshfleet.service.devices.paths import device_in_path, parse_gateway
from meshfleet.service.http.pages import Pages
from meshfleet.service.http.parameters import NextToken
from meshfleet.service.http.paths import segment
from meshfleet.service.http.query_reader import QueryReader, one_of, parse_flag
from meshfleet.service.jobs import deletion, steering
from meshfleet.service.jobs.making import creating, retrying
from meshfleet.service.jobs.making.creating import Asked
from meshfleet.service.jobs.shown import executions, summary
from meshfleet.service.jobs.shown import jobs as reading
from meshfleet.service.jobs.shown.executions import ExecutionListing
from meshfleet.service.jobs.shown.jobs import JobListing
from meshfleet.service.jobs.shown.news import News
from meshfleet.service.requests.window import Window
from meshfleet.wire.ids import DeviceId, Mac, mac_number, mac_of, parse_device_id
from meshfleet.wire.rest import (
    JOBS,
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

Deed = Callable[..., Job]
"""One of `steering`."""
Steer = Callable[[Deed], Awaitable[Job]]
Word = TypeVar("Word", bound=StrEnum)

_ID: Final = re.compile(r"job-([1-9][0-9]{0,17})")
_OK: Final = 200

IdempotencyKey = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key", description="The same key with the same body makes one job, and gets it."
    ),
]


def _in_states(words: type[StrEnum]) -> QueryParameter:
    return QueryParameter(
        name="State",
        description="Is in this state; may be given several times, then in any of them.",
        schema_extra={"items": {"type": "string", "enum": [str(each) for each in words]}},
    )


class _NoBody(Struct, frozen=True):
    """What a retry is asked with."""


@post(
    problems=(409,),
    responses={_OK: ResponseSpec(DryRun, description="With `dryRun`: what the job would do.")},
)
async def create_job(
    data: JSONBody[NewJob],
    actor: Given[Actor],
    database: Given[Database],
    window: Given[Window],
    now: Given[Now],
    news: Given[News],
    idempotency_key: IdempotencyKey = None,
) -> Response[Job]:
    """Make a job that updates devices, or with `dryRun` tell what it would do.

    Devices that cannot take the firmware are part of the job all the same: as SKIPPED, with the reason.
    """
    asked = Asked(actor, window.key(idempotency_key, actor, JOBS, data), news.changed)
    made = await creating.create(database, data, asked, now)
    return _dry(made) if isinstance(made, DryRun) else Response(news.tell(made))


@get()
async def list_jobs(
    database: Given[Database],
    pages: Given[Pages],
    limit: Given[int],
    now: Given[Now],
    states: Annotated[list[str] | None, _in_states(JobState)] = None,
    firmware_id: Annotated[
        str | None, QueryParameter(name="FirmwareId", description="Brings this firmware.")
    ] = None,
    next_token: NextToken = None,
) -> JobPage:
    """List jobs, the newest first."""
    reader = QueryReader()
    asked = JobListing(states=_states(reader, JobState, states), firmware=firmware_id)
    reader.end()
    before = pages.after(asked, next_token, start=None)
    found = await database.read(reading.page, asked, before=before, limit=limit + 1, now=now())
    return JobPage(**pages.cut(asked, found, limit, lambda last: (_number(last.id),)))


@get("/{job_id:str}")
async def show_job(job_id: FromPath[str], database: Given[Database], now: Given[Now]) -> Job:
    """Show a job and how it goes."""
    return await database.read(reading.show, _number(segment(job_id)), now=now())


@get("/{job_id:str}/summary")
async def summarize_job(job_id: FromPath[str], database: Given[Database], now: Given[Now]) -> JobSummary:
    """Count the executions of a job by why they failed, by what they wait for, and by gateway."""
    return await database.read(summary.show, _number(segment(job_id)), now=now())


@get("/{job_id:str}/executions")
async def list_executions(
    job_id: FromPath[str],
    database: Given[Database],
    pages: Given[Pages],
    limit: Given[int],
    states: Annotated[list[str] | None, _in_states(ExecutionState)] = None,
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
        job=_number(segment(job_id)),
        states=_states(reader, ExecutionState, states),
        gateway=reader.read(parse_gateway, gateway, "Gateway", unless=None),
        codes=tuple(sorted(set(codes or ()))),
        devices=None if ids is None else _devices(reader, ids),
        left_out=reader.read(parse_flag, left_out, "LeftOut", unless=None),
    )
    reader.end()
    after = pages.after(asked, next_token, start=-1)
    found = await database.read(executions.page, asked, after=after, limit=limit + 1)
    cut = pages.cut(asked, found, limit, lambda last: (mac_number(mac_of(DeviceId(last.device_id))),))
    return ExecutionPage(**cut)


@get("/{job_id:str}/executions/{device_id:str}")
async def show_execution(
    job_id: FromPath[str], device_id: FromPath[str], database: Given[Database]
) -> ExecutionDetail:
    """Show the part of a device in a job, with all that happened and what proves it."""
    return await database.read(executions.show, _number(segment(job_id)), device_in_path(device_id))


def steer_job(
    job_id: FromPath[str], actor: Given[Actor], database: Given[Database], now: Given[Now], news: Given[News]
) -> Steer:
    """What does a deed to the job of the path, and tells whoever looks at it."""

    async def steer(deed: Deed) -> Job:
        return news.tell(await database.write(deed, _number(segment(job_id)), by=actor, now=now()))

    return steer


@post("/{job_id:str}/apply", status_code=200, problems=(409,))
async def apply_job(steer: Given[SkipValidation[Steer]]) -> Job:
    """Let a job begin that was made with `autoApply` false, or devices start what they have staged."""
    return await steer(steering.apply)


@post("/{job_id:str}/pause", status_code=200, problems=(409,))
async def pause_job(steer: Given[SkipValidation[Steer]]) -> Job:
    """Let a job begin no more updates. Those that are under way go on."""
    return await steer(steering.pause)


@post("/{job_id:str}/resume", status_code=200, problems=(409,))
async def resume_job(steer: Given[SkipValidation[Steer]]) -> Job:
    """Let a paused job go on. What failed up to now does not count any more for its abort criteria."""
    return await steer(steering.resume)


@post("/{job_id:str}/cancel", status_code=200, problems=(409,))
async def cancel_job(steer: Given[SkipValidation[Steer]]) -> Job:
    """End a job early. A device that is about to start its new version is awaited."""
    return await steer(steering.cancel)


@post("/{job_id:str}/retry", problems=(409,))
async def retry_job(
    job_id: FromPath[str],
    actor: Given[Actor],
    database: Given[Database],
    window: Given[Window],
    now: Given[Now],
    news: Given[News],
    idempotency_key: IdempotencyKey = None,
) -> Job:
    """Make a new job like a finished one, for devices whose update failed, timed out or was canceled."""
    number = _number(segment(job_id))
    place = f"{JOBS}/job-{number}/retry"
    asked = Asked(actor, window.key(idempotency_key, actor, place, _NoBody()), news.changed)
    return news.tell(await retrying.retry(database, number, asked, now))


@delete("/{job_id:str}", problems=(409,))
async def delete_job(
    job_id: FromPath[str], actor: Given[Actor], database: Given[Database], now: Given[Now], news: Given[News]
) -> None:
    """Delete a job that is over or was never started, with its executions and their history.

    The audit log keeps its name, firmware, outcome and counts.
    """
    number = _number(segment(job_id))
    await database.write(deletion.delete_job, number, by=actor, now=now())
    news.tell_deleted(number)


def _dry(told: DryRun) -> Response[Any]:
    return Response(told, status_code=_OK)


def _number(text: str) -> int:
    """The number of a job; there is none with an id that cannot be (rest-15)."""
    found = _ID.fullmatch(text)
    if found is None:
        raise NotFound("there is no such job")
    return int(found[1])


def _states(reader: QueryReader, words: type[Word], given: list[str] | None) -> tuple[Word, ...]:
    parse = one_of({str(each): each for each in words})
    found = [reader.read(parse, each, "State", unless=None) for each in given or ()]
    return tuple(sorted({each for each in found if each is not None}))


def _devices(reader: QueryReader, texts: list[str]) -> tuple[Mac, ...]:
    found = [reader.read(parse_device_id, each, "Ids", unless=None) for each in texts]
    return tuple(sorted({mac_of(each) for each in found if each is not None}))


router = Router(
    JOBS,
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
    dependencies={"steer": Provide(steer_job, sync_to_thread=False)},
    tags=["Jobs"],
)
