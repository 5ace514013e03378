"""A job with many targets is written down in chunks, and seen whole or not at all."""

from __future__ import annotations

import asyncio
from array import array
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import func, insert, select, update

from meshfleet.db import bulk
from meshfleet.db.tables import (
    device,
    evidence,
    execution,
    firmware,
    job,
    job_draft,
    job_outbox,
    tally,
    transition,
)
from meshfleet.errors import Conflict, DatabaseUnavailable, NotFound, NotReleased
from meshfleet.protocol.ids import mac_from_int
from meshfleet.rest import Job, NewJob, Targets, Wave
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.devices import registry
from meshfleet.service.jobs import commands
from meshfleet.service.jobs.execution import transition_writer
from meshfleet.service.jobs.execution.transition_writer import EvidenceItem
from meshfleet.service.jobs.planning import creation, job_drafts, targets
from meshfleet.service.jobs.planning.creation import JobRequestContext
from meshfleet.service.jobs.planning.validation import validate_job
from meshfleet.service.jobs.views import job_view as reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Table

    from meshfleet.db import Database

pytestmark = pytest.mark.both_databases

MANY = 4_000
FEW = 3_000
"""More than one chunk, and no multiple of it."""
FIRST = 0xC00000000000
FIRMWARE = "fw-0000000000000000"
NOW = 1_700_000_000_000
ASKED = JobRequestContext(COMMAND_LINE, None)
LABELLED = Targets(labels=["all"])

REMOVED = (transition, evidence, job_outbox, execution, tally)
TRACES: dict[Table, dict[str, Any]] = {
    transition: {"time": NOW, "after": "SUCCEEDED", "version": 1, "actor": "x", "cause": "x"},
    evidence: {"time": NOW, "kind": "response", "content": "{}"},
}
LETTER = {"step": "parting", "gateway": 1, "target": 1, "operation": "write", "identifier": "8122"}


def now() -> int:
    return NOW


def fill(connection: Connection, many: int) -> None:
    """A fleet with one label; every tenth device is of another model."""
    connection.execute(
        insert(firmware).values(
            id=FIRMWARE,
            model=0x18,
            version="3.4.2",
            type=1,
            file_name="image.zip",
            size=1000,
            sha256=bytes(32),
            hardware="[]",
            notes="",
            state="released",
            created_by="somebody",
            created_at=1,
        )
    )
    numbers = range(FIRST, FIRST + many)
    rows = [
        (each, "x", "x", False, 0x11 if each % 10 == 0 else 0x18, 0, "3.4.1", 0, "1.0.0", None, 7, True, 1, 1)
        for each in numbers
    ]
    bulk.insert_rows(connection, device, rows)
    registry.attach_labels(connection, [("all", mac_from_int(each)) for each in numbers], at=1)


def order(*waves: Wave) -> NewJob:
    return NewJob(name="All", firmware_id=FIRMWARE, targets=LABELLED, waves=waves)


def make(database: Database, asked: NewJob | None = None) -> Job:
    made = asyncio.run(creation.create_job(database, asked or order(), ASKED, now))
    assert isinstance(made, Job)
    return made


def count(database: Database, table: Table) -> int:
    query = select(func.count()).select_from(table)
    return database.read_now(lambda c: c.execute(query).scalar_one())


def watch_writes(database: Database, monkeypatch: pytest.MonkeyPatch, look: Callable[[str], None]) -> None:
    """Look at the database, through other connections, after each transaction."""
    write = database.write_now

    def watched(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        done = write(work, *args, **kwargs)
        look(work.__name__)
        return done

    monkeypatch.setattr(database, "write_now", watched)


@pytest.mark.rule("rest-121")
def test_many_targets_are_written_in_chunks_and_seen_all_at_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.write_now(fill, MANY)
    seen: list[tuple[str, int, int]] = []

    def look(deed: str) -> None:
        page = database.read_now(reading.list_jobs, reading.JobListing(), before=None, limit=5, now=NOW)
        seen.append((deed, len(page), count(database, execution)))

    watch_writes(database, monkeypatch, look)
    made = make(database, order(Wave(count=5), Wave(percent=50)))
    assert [each for each in seen if each[1]] == [("publish_draft", 1, MANY)]
    written = [rows for deed, _, rows in seen if deed == "insert_executions"]
    assert written == list(range(job_drafts.EXECUTIONS_PER_CHUNK, MANY + 1, job_drafts.EXECUTIONS_PER_CHUNK))
    assert {state: found for state, found in made.counts.items() if found} == {
        "QUEUED": MANY - MANY // 10,
        "SKIPPED": MANY // 10,
    }
    assert [each.size for each in made.wave_states] == [5, MANY * 9 // 20 - 5, MANY * 9 // 20]
    assert count(database, job_draft) == 0
    columns = execution.c
    counted = select(columns.wave, columns.state, func.count()).group_by(columns.wave, columns.state)
    kept = select(tally.c.wave, tally.c.state, tally.c["count"])
    rows, told = database.read_now(lambda c: (c.execute(counted).all(), c.execute(kept).all()))
    assert sorted(map(tuple, rows)) == sorted(map(tuple, told))
    turns = select(columns.due).where(columns.wave >= 0).order_by(columns.wave, columns.due)
    assert database.read_now(lambda c: c.scalars(turns).all()) == list(range(MANY * 9 // 10))


def break_off(database: Database, after: int) -> job_drafts.JobDraft:
    """Begin a job and stop, as a service does that is killed."""

    async def begin() -> job_drafts.JobDraft:
        numbers = await targets.resolve_targets(database, LABELLED)
        frozen = await creation.build_job_plan(database, validate_job(order(), NOW), ASKED, numbers, None)
        draft = await database.write(job_drafts.insert_draft, NOW)
        for start in range(0, after, job_drafts.EXECUTIONS_PER_CHUNK):
            await database.write(
                job_drafts.insert_executions, draft, job_drafts.build_executions(frozen, start)
            )
        return draft

    return asyncio.run(begin())


def test_what_a_broken_off_job_left_behind_is_swept_away_in_chunks(database: Database) -> None:
    database.write_now(fill, FEW)
    break_off(database, FEW)
    kept = make(database)
    broken = break_off(database, 2000)
    assert not database.write_now(job_drafts.sweep_drafts, NOW)
    left = [count(database, execution)]
    while database.write_now(job_drafts.sweep_drafts, NOW + 1):
        left.append(count(database, execution))
    assert left == [8_000, 6_000, 5_000, 3_000, 3_000]
    assert count(database, job_draft) == 0
    again = make(database)
    assert int(again.id.removeprefix("job-")) > broken.number
    assert database.read_now(reading.load_job, int(kept.id.removeprefix("job-")), now=NOW) == kept


def test_a_job_that_is_being_swept_away_cannot_be_seen_any_more(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.write_now(fill, 1500)
    write = database.write_now

    def sweep_between(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if work is job_drafts.publish_draft:
            write(job_drafts.sweep_drafts, NOW + 1)
        return write(work, *args, **kwargs)

    monkeypatch.setattr(database, "write_now", sweep_between)
    with pytest.raises(Conflict):
        make(database)
    assert (count(database, job), count(database, execution), count(database, job_draft)) == (0, 0, 0)


def test_firmware_that_is_withdrawn_meanwhile_makes_no_job(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.write_now(fill, 1500)
    write = database.write_now

    def withdraw_between(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if work is job_drafts.publish_draft:
            write(lambda c: c.execute(update(firmware).values(state="withdrawn")))
        return write(work, *args, **kwargs)

    monkeypatch.setattr(database, "write_now", withdraw_between)
    with pytest.raises(NotReleased):
        make(database)
    assert (count(database, job), count(database, execution), count(database, job_draft)) == (0, 0, 0)


def test_devices_that_are_forgotten_meanwhile_are_no_targets(database: Database) -> None:
    database.write_now(fill, 20)
    numbers = array("q", range(FIRST, FIRST + 25))
    made = asyncio.run(
        creation.create_validated_job(database, validate_job(order(), NOW), ASKED, numbers, now=now)
    )
    assert sum(made.counts.values()) == 20
    with pytest.raises(Conflict):
        asyncio.run(
            creation.create_validated_job(database, validate_job(order(), NOW), ASKED, numbers[20:], now=now)
        )


def test_a_job_of_which_its_maker_did_not_hear_that_it_was_published_keeps_its_devices(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.write_now(fill, 20)
    write = database.write_now

    def cut_off(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        done = write(work, *args, **kwargs)
        if work is job_drafts.publish_draft:
            raise DatabaseUnavailable("the connection ended after the commit")
        return done

    monkeypatch.setattr(database, "write_now", cut_off)
    with pytest.raises(DatabaseUnavailable):
        make(database)
    assert (count(database, job), count(database, execution), count(database, job_draft)) == (1, 20, 0)


@pytest.mark.rule("rest-215")
def test_the_rows_of_a_deleted_job_go_in_chunks_and_those_of_others_stay(database: Database) -> None:
    database.write_now(fill, FEW)
    other, made = (int(make(database).id.removeprefix("job-")) for _ in range(2))
    kept = [count(database, each) for each in REMOVED]

    def run(connection: Connection) -> None:
        """Leave the traces that a job leaves when it runs."""
        mine = select(execution.c.device).where(execution.c.job == made)
        rows = [{"job": made, "device": each, "attempt": 1} for each in connection.scalars(mine)]
        for table, values in TRACES.items():
            connection.execute(insert(table), [row | values for row in rows])
        connection.execute(insert(job_outbox), [row | LETTER | {"id": str(row["device"])} for row in rows])
        connection.execute(update(job).where(job.c.id == made).values(state="COMPLETED", finished_at=NOW))

    database.write_now(run)
    database.write_now(commands.delete_job, made, by=COMMAND_LINE, now=NOW)
    assert count(database, job) == 1
    sizes = [sum(count(database, each) for each in REMOVED)]
    while database.write_now(job_drafts.sweep_drafts, NOW - 1):
        sizes.append(sum(count(database, each) for each in REMOVED))
    assert max(before - after for before, after in pairwise(sizes)) <= job_drafts.EXECUTIONS_PER_CHUNK
    mine = [
        database.read_now(lambda c, each=each: c.execute(select(each.c.job).distinct()).scalars().all())  # type: ignore[misc] # as it is now
        for each in REMOVED
    ]
    assert mine == [[other], [], [], [other], [other]]
    assert count(database, execution) == kept[3] // 2
    assert count(database, job_draft) == 0
    proof = (made, FIRST, 1, EvidenceItem("response", {}))
    database.write_now(transition_writer.insert_evidence, [proof], NOW)
    assert count(database, evidence) == 0, "an answer that comes late leaves nothing behind"


def test_a_job_that_is_deleted_while_it_is_retried_makes_no_other(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.write_now(fill, 20)
    made = int(make(database).id.removeprefix("job-"))
    over = update(job).where(job.c.id == made).values(state="CANCELED", finished_at=NOW)
    ended = update(execution).values(state="CANCELED")
    database.write_now(lambda c: [c.execute(each) for each in (over, ended)])
    write = database.write_now

    def delete_between(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if work is job_drafts.publish_draft:
            write(commands.delete_job, made, by=COMMAND_LINE, now=NOW)
        return write(work, *args, **kwargs)

    monkeypatch.setattr(database, "write_now", delete_between)
    with pytest.raises(NotFound):
        asyncio.run(creation.retry_job(database, made, ASKED, now))
    assert count(database, job) == 0
