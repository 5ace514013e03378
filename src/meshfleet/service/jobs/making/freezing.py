"""The targets of a job are written down before anybody can see it.

A draft gives the number. Executions follow in chunks, so that other writers are not held up, and belong to
nothing until the job itself is there: its row comes in one last transaction. A draft that is never finished
is swept away; so are the rows of a deleted job, which becomes a draft that was given up.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec import UNSET
from msgspec.structs import fields, replace
from sqlalchemy import delete, insert, select, update

from meshfleet.db import bulk
from meshfleet.db.tables import execution, job, job_draft, tally, transition
from meshfleet.errors import Conflict, KeyReused, NotFound
from meshfleet.service.audit import log as audit
from meshfleet.service.jobs.fitness import MisfitCode, method_of
from meshfleet.service.jobs.making import rivals, wanted
from meshfleet.service.jobs.making.begun import begin
from meshfleet.service.jobs.making.waves import FallenWave
from meshfleet.service.jobs.outcome import outcome
from meshfleet.service.jobs.plan import LEFT_OUT
from meshfleet.wire.rest import ExecutionState, JobState, NewJob

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from meshfleet.service.accounts.model import Actor
    from meshfleet.service.jobs.making.checking import Checked
    from meshfleet.service.jobs.making.rivals import Rivals
    from meshfleet.service.jobs.making.sifting import Sifted, Target
    from meshfleet.service.jobs.making.wanted import Wanted
    from meshfleet.service.jobs.making.waves import Waves
    from meshfleet.service.requests.once import Key

CHUNK: Final = 2000
"""Executions that are written at once; others wait meanwhile."""

_LISTED: Final = 100
"""Ids of devices that an order is shown with."""

_SWEPT: Final = 2000
"""Rows that are removed at once."""

GIVEN_UP: Final = 0
"""`job_draft.created_at` of a draft that was broken off, and of a job that was deleted."""

_LOCK: Final = 0x6D66_6A6F
"""On PostgreSQL: jobs come to be seen one after the other, and each knows those before it."""

_OWN: Final = (
    "device",
    "gateway",
    "from_version",
    "state",
    "wave",
    "due",
    "method",
    "code",
    "reason",
)
"""Columns in which the executions of a new job differ."""

_BEGINNING: Final = {"attempt": 1, "progress": 0, "tries": 0, "beats": 0, "is_read": False, "version": 0}
_REMAINS: Final = tuple(
    f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} WHERE job = ? ORDER BY {order} LIMIT ?)"  # noqa: S608 # our own names
    for table, key, order in (
        ("transition", "id", "device, id"),
        ("evidence", "id", "device, id"),
        ("job_outbox", "id", "device"),
        ("execution", "job, device", "device"),
        ("tally", "job, wave, state", "wave"),
    )
)
"""Remove rows of a job that is not there any more, or never was: at most so many each."""


Row = tuple[Any, ...]


class RivalsChanged(Exception):
    """A job has come meanwhile that lets no newer one have its devices."""


class Frozen(NamedTuple):
    """All that a job will be made of."""

    checked: Checked
    firmware: Wanted
    sifted: Sifted
    waves: Waves
    seed: int
    rivals: Rivals
    by: Actor
    key: Key | None
    parent: int | None


class Draft(NamedTuple):
    """A job that nobody sees."""

    number: int
    created_at: int


class Published(NamedTuple):
    """A job that everybody sees."""

    number: int
    is_new: bool
    """False: the same order came before with this key, and the draft is of no use."""
    older: tuple[int, ...] = ()
    """Jobs that give their devices up to it."""


def begin_draft(connection: Connection, now: int) -> Draft:
    """Get a number for a job."""
    return Draft(bulk.add(connection, job_draft, now), now)


def rows_of(frozen: Frozen, start: int) -> list[Row]:
    """The executions of some targets, from a place on: what differs from one to the other."""
    method = str(method_of(frozen.firmware.need))
    return [_row(each, frozen.waves, method) for each in frozen.sifted.part(start, start + CHUNK)]


def write_chunk(connection: Connection, draft: Draft, rows: Sequence[Row]) -> None:
    """Write some executions, as `rows_of` gives them."""
    bulk.fill(connection, execution, _OWN, rows, job=draft.number, updated_at=draft.created_at, **_BEGINNING)


def publish(connection: Connection, draft: Draft, frozen: Frozen, now: int) -> Published:
    """Let a job be seen, with all its executions; or find the one that came with the same key."""
    if connection.dialect.name != "sqlite":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
    if frozen.key is not None and (before := past(connection, frozen.key)) is not None:
        return Published(before, is_new=False)
    wanted.hold(connection, frozen.firmware.id)
    _check_parent(connection, frozen.parent)
    found = rivals.find(connection)
    if found.rejecting != frozen.rivals.rejecting:
        raise RivalsChanged
    finished = (job_draft.c.id == draft.number) & (job_draft.c.created_at == draft.created_at)
    if not connection.execute(delete(job_draft).where(finished)).rowcount:
        raise Conflict("it took so long to write the job down that it was given up")
    _insert(connection, draft.number, frozen, now)
    return Published(draft.number, is_new=True, older=found.superseded)


def _check_parent(connection: Connection, number: int | None) -> None:
    """Raise `NotFound` if the job to be retried was deleted meanwhile: some of its devices may be missing."""
    if number is None:
        return
    query = select(job.c.id).where(job.c.id == number).with_for_update(read=True)
    if connection.execute(query).first() is None:
        raise NotFound("there is no such job")


def past(connection: Connection, key: Key) -> int | None:
    """The job that came with a key before; `KeyReused` if that was another (rest-25, rest-26)."""
    row = connection.execute(select(job.c.id, job.c.digest).where(job.c.key == key.name)).first()
    if row is None:
        return None
    if row.digest != key.digest:
        raise KeyReused("this Idempotency-Key came before with another request")
    return int(row.id)


def discard(connection: Connection, number: int) -> bool:
    """Remove some rows of a draft or a deleted job. Return False if nothing is left, or it became a job.

    A draft cannot be published any more after this.
    """
    given_up = update(job_draft).where(job_draft.c.id == number).values(created_at=GIVEN_UP)
    if not connection.execute(given_up).rowcount:
        return False  # its maker may not have heard that it was published
    room = _SWEPT
    for statement in _REMAINS:
        if room:
            room -= bulk.change(connection, statement, (number, room))
    if room:
        connection.execute(delete(job_draft).where(job_draft.c.id == number))
    return not room


def sweep(connection: Connection, before: int) -> bool:
    """Remove some rows of deleted jobs, and of drafts begun before a time. Return False if nothing is left.

    To be called until then, each time in a transaction of its own.
    """
    query = select(job_draft.c.id).where(job_draft.c.created_at < before).order_by(job_draft.c.id).limit(1)
    number: int | None = connection.execute(query).scalar()
    if number is None:
        return False
    discard(connection, number)
    return True


def body_of(order: NewJob) -> str:
    """An order as JSON, with all that holds unless set: that may be something else some day.

    Whom it was for is in its executions, so a long list of devices is not written down again.
    """
    ids = order.targets.device_ids
    if ids is not UNSET and len(ids) > _LISTED:
        order = replace(order, targets=replace(order.targets, device_ids=ids[:_LISTED]))
    return msgspec.json.encode(
        {each.encode_name: getattr(order, each.name) for each in fields(NewJob)}
    ).decode()


def _row(target: Target, waves: Waves, method: str) -> Row:
    device, gateway, from_version, misfit = target
    if misfit is None:
        wave, turn = waves.place(device)
        return device, gateway, from_version, str(ExecutionState.QUEUED), wave, turn, method, None, None
    state = _left_out(misfit.code)
    if state is ExecutionState.QUEUED:
        return device, gateway, from_version, str(state), LEFT_OUT, 0, method, str(misfit.code), None
    return device, gateway, from_version, str(state), LEFT_OUT, 0, None, str(misfit.code), misfit.reason


def _left_out(code: MisfitCode) -> ExecutionState:
    """Return the state of a device that is in no wave. One that reports the target version is asked first."""
    if code is MisfitCode.ALREADY_THERE:
        return ExecutionState.QUEUED
    return ExecutionState.REJECTED if code is MisfitCode.EARLIER_JOB else ExecutionState.SKIPPED


def _insert(connection: Connection, number: int, frozen: Frozen, now: int) -> None:
    """The row of a job, and all that goes with it."""
    checked, order, key = frozen.checked, frozen.checked.order, frozen.key
    counts, fallen = _counts(frozen), frozen.waves.fallen
    progress = _progress(frozen, counts, now)
    connection.execute(
        insert(job).values(
            id=number,
            firmware=frozen.firmware.id,
            body=body_of(order),
            start_at=checked.start_at,
            deadline=checked.deadline,
            seed=frozen.seed,
            # A device that misreports its version goes to the last wave, so there is always one.
            waves=msgspec.json.encode([each._asdict() for each in fallen or [FallenWave(None, 0)]]).decode(),
            wave=0,
            paced_until=0,
            armed="{}",
            created_by=frozen.by.title,
            created_at=now,
            parent=frozen.parent,
            key=None if key is None else key.name,
            digest=None if key is None else key.digest,
            **progress,
        )
    )
    rows = [(number, wave, str(state), count) for (wave, state), count in counts.items()]
    bulk.insert(connection, tally, rows)
    connection.execute(
        insert(transition).values(
            job=number,
            time=now,
            after=progress["state"],
            attempt=0,
            version=0,
            actor=frozen.by.title,
            cause="the job was made",
        )
    )
    detail = {"name": order.name, "firmware": order.firmware_id, "devices": len(frozen.sifted)}
    audit.record(connection, frozen.by, "job.create", f"job-{number}", now=now, **detail)


def _counts(frozen: Frozen) -> Counter[tuple[int, ExecutionState]]:
    """How many executions are in which wave and state."""
    counts: Counter[tuple[int, ExecutionState]] = Counter()
    for wave, fallen in enumerate(frozen.waves.fallen):
        counts[wave, ExecutionState.QUEUED] = fallen.size
    for misfit, count in frozen.sifted.misfits().items():
        counts[LEFT_OUT, _left_out(misfit.code)] += count
    return counts


def _progress(frozen: Frozen, counts: Counter[tuple[int, ExecutionState]], now: int) -> dict[str, Any]:
    """Return where a new job is: over at once, if there is no device to update or to ask."""
    if ExecutionState.QUEUED not in {state for _, state in counts}:
        how = outcome({state: count for (_, state), count in counts.items()})
        return {"state": str(JobState.COMPLETED), "outcome": str(how), "finished_at": now}
    order = frozen.checked.order
    if not order.auto_apply:
        return {"state": str(JobState.CREATED)}
    return begin(start_at=frozen.checked.start_at, now=now)
