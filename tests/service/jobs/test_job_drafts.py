"""Tests of job drafts: many targets are stored in chunks and become visible together or not at all."""

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
from meshfleet.rest.job_requests import NewJob, Targets, Wave
from meshfleet.rest.jobs import Job
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.devices import registry
from meshfleet.service.jobs import commands
from meshfleet.service.jobs.execution import transition_writer
from meshfleet.service.jobs.execution.transition_writer import EvidenceItem, EvidenceRecord
from meshfleet.service.jobs.planning import creation, job_drafts, targets
from meshfleet.service.jobs.planning.creation import JobRequestContext
from meshfleet.service.jobs.planning.validation import validate_job
from meshfleet.service.jobs.views import job_view

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Table

    from meshfleet.db import Database

pytestmark = pytest.mark.both_databases

MANY_DEVICES = 4_000
TWO_CHUNKS = 3_000
"""More than one chunk, and not a multiple of it."""
FIRST = 0xC00000000000
FIRMWARE = "fw-0000000000000000"
NOW = 1_700_000_000_000
CONTEXT = JobRequestContext(COMMAND_LINE, None)
LABELED_TARGETS = Targets(labels=["all"])

JOB_TABLES = (transition, evidence, job_outbox, execution, tally)
HISTORY_VALUES: dict[Table, dict[str, Any]] = {
    transition: {"time": NOW, "after": "SUCCEEDED", "version": 1, "actor": "x", "cause": "x"},
    evidence: {"time": NOW, "kind": "response", "content": "{}"},
}
REQUEST_VALUES = {"step": "parting", "gateway": 1, "target": 1, "operation": "write", "identifier": "8122"}


def now() -> int:
    return NOW


def insert_fleet(connection: Connection, device_count: int) -> None:
    """Insert firmware and a fleet with one label; every tenth device is of another model."""
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
            created_by="admin",
            created_at=1,
        )
    )
    numbers = range(FIRST, FIRST + device_count)
    rows = [
        (each, "x", "x", False, 0x11 if each % 10 == 0 else 0x18, 0, "3.4.1", 0, "1.0.0", None, 7, True, 1, 1)
        for each in numbers
    ]
    bulk.insert_rows(connection, device, rows)
    registry.attach_labels(connection, [("all", mac_from_int(each)) for each in numbers], at=1)


def build_body(*waves: Wave) -> NewJob:
    return NewJob(name="All", firmware_id=FIRMWARE, targets=LABELED_TARGETS, waves=waves)


def create_job(database: Database, body: NewJob | None = None) -> Job:
    job_created = asyncio.run(creation.create_job(database, body or build_body(), CONTEXT, now))
    assert isinstance(job_created, Job)
    return job_created


def count(database: Database, table: Table) -> int:
    query = select(func.count()).select_from(table)
    return database.read_now(lambda c: c.execute(query).scalar_one())


def observe_writes(
    database: Database, monkeypatch: pytest.MonkeyPatch, on_write: Callable[[str], None]
) -> None:
    """Call `on_write` with the name of the function after each transaction."""
    write = database.write_now

    def write_and_observe(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = write(work, *args, **kwargs)
        on_write(work.__name__)
        return result

    monkeypatch.setattr(database, "write_now", write_and_observe)


@pytest.mark.rule("rest-121")
def test_many_targets_are_stored_in_chunks_and_become_visible_at_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.write_now(insert_fleet, MANY_DEVICES)
    observed: list[tuple[str, int, int]] = []

    def on_write(name: str) -> None:
        page = database.read_now(job_view.list_jobs, job_view.JobListing(), before=None, limit=5, now=NOW)
        observed.append((name, len(page), count(database, execution)))

    observe_writes(database, monkeypatch, on_write)
    job_created = create_job(database, build_body(Wave(count=5), Wave(percent=50)))
    assert [each for each in observed if each[1]] == [("publish_draft", 1, MANY_DEVICES)]
    written = [rows for name, _, rows in observed if name == "insert_executions"]
    assert written == list(
        range(job_drafts.EXECUTIONS_PER_CHUNK, MANY_DEVICES + 1, job_drafts.EXECUTIONS_PER_CHUNK)
    )
    assert {state: found for state, found in job_created.counts.items() if found} == {
        "QUEUED": MANY_DEVICES - MANY_DEVICES // 10,
        "SKIPPED": MANY_DEVICES // 10,
    }
    assert [each.size for each in job_created.wave_states] == [
        5,
        MANY_DEVICES * 9 // 20 - 5,
        MANY_DEVICES * 9 // 20,
    ]
    assert count(database, job_draft) == 0
    columns = execution.c
    counts_query = select(columns.wave, columns.state, func.count()).group_by(columns.wave, columns.state)
    tallies_query = select(tally.c.wave, tally.c.state, tally.c["count"])
    rows, tallies = database.read_now(
        lambda c: (c.execute(counts_query).all(), c.execute(tallies_query).all())
    )
    assert sorted(map(tuple, rows)) == sorted(map(tuple, tallies))
    ranks_query = select(columns.due).where(columns.wave >= 0).order_by(columns.wave, columns.due)
    assert database.read_now(lambda c: c.scalars(ranks_query).all()) == list(range(MANY_DEVICES * 9 // 10))


def create_abandoned_draft(database: Database, after: int) -> job_drafts.JobDraft:
    """Store a part of a job and stop, like a service that is killed."""

    async def insert_part() -> job_drafts.JobDraft:
        numbers = await targets.resolve_targets(database, LABELED_TARGETS)
        plan = await creation.build_job_plan(
            database, validate_job(build_body(), NOW), CONTEXT, numbers, None
        )
        draft = await database.write(job_drafts.insert_draft, NOW)
        for start in range(0, after, job_drafts.EXECUTIONS_PER_CHUNK):
            await database.write(
                job_drafts.insert_executions, draft, job_drafts.build_executions(plan, start)
            )
        return draft

    return asyncio.run(insert_part())


def test_the_rows_of_an_abandoned_draft_are_removed_in_chunks(database: Database) -> None:
    database.write_now(insert_fleet, TWO_CHUNKS)
    create_abandoned_draft(database, TWO_CHUNKS)
    kept_job = create_job(database)
    abandoned = create_abandoned_draft(database, 2000)
    assert not database.write_now(job_drafts.delete_abandoned_rows, NOW)
    remaining = [count(database, execution)]
    while database.write_now(job_drafts.delete_abandoned_rows, NOW + 1):
        remaining.append(count(database, execution))
    assert remaining == [8_000, 6_000, 5_000, 3_000, 3_000]
    assert count(database, job_draft) == 0
    next_job = create_job(database)
    assert int(next_job.id.removeprefix("job-")) > abandoned.number
    assert database.read_now(job_view.load_job, int(kept_job.id.removeprefix("job-")), now=NOW) == kept_job


def test_a_swept_draft_cannot_be_published(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    database.write_now(insert_fleet, 1500)
    write = database.write_now

    def sweep_between(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if work is job_drafts.publish_draft:
            write(job_drafts.delete_abandoned_rows, NOW + 1)
        return write(work, *args, **kwargs)

    monkeypatch.setattr(database, "write_now", sweep_between)
    with pytest.raises(Conflict):
        create_job(database)
    assert (count(database, job), count(database, execution), count(database, job_draft)) == (0, 0, 0)


def test_a_draft_is_not_published_if_its_firmware_was_withdrawn_meanwhile(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.write_now(insert_fleet, 1500)
    write = database.write_now

    def withdraw_between(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if work is job_drafts.publish_draft:
            write(lambda c: c.execute(update(firmware).values(state="withdrawn")))
        return write(work, *args, **kwargs)

    monkeypatch.setattr(database, "write_now", withdraw_between)
    with pytest.raises(NotReleased):
        create_job(database)
    assert (count(database, job), count(database, execution), count(database, job_draft)) == (0, 0, 0)


def test_devices_that_were_removed_meanwhile_are_no_targets(database: Database) -> None:
    database.write_now(insert_fleet, 20)
    numbers = array("q", range(FIRST, FIRST + 25))
    job_created = asyncio.run(
        creation.create_validated_job(database, validate_job(build_body(), NOW), CONTEXT, numbers, now=now)
    )
    assert sum(job_created.counts.values()) == 20
    with pytest.raises(Conflict):
        asyncio.run(
            creation.create_validated_job(
                database, validate_job(build_body(), NOW), CONTEXT, numbers[20:], now=now
            )
        )


def test_a_job_whose_publication_was_not_confirmed_to_its_creator_keeps_its_devices(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.write_now(insert_fleet, 20)
    write = database.write_now

    def write_then_fail(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = write(work, *args, **kwargs)
        if work is job_drafts.publish_draft:
            raise DatabaseUnavailable("the connection ended after the commit")
        return result

    monkeypatch.setattr(database, "write_now", write_then_fail)
    with pytest.raises(DatabaseUnavailable):
        create_job(database)
    assert (count(database, job), count(database, execution), count(database, job_draft)) == (1, 20, 0)


@pytest.mark.rule("rest-215")
def test_the_rows_of_a_deleted_job_are_removed_in_chunks_and_other_rows_stay(database: Database) -> None:
    database.write_now(insert_fleet, TWO_CHUNKS)
    other, job_created = (int(create_job(database).id.removeprefix("job-")) for _ in range(2))
    counts_before = [count(database, each) for each in JOB_TABLES]

    def run(connection: Connection) -> None:
        """Insert the history that a running job leaves."""
        devices_query = select(execution.c.device).where(execution.c.job == job_created)
        rows = [
            {"job": job_created, "device": each, "attempt": 1} for each in connection.scalars(devices_query)
        ]
        for table, values in HISTORY_VALUES.items():
            connection.execute(insert(table), [row | values for row in rows])
        connection.execute(
            insert(job_outbox), [row | REQUEST_VALUES | {"id": str(row["device"])} for row in rows]
        )
        connection.execute(
            update(job).where(job.c.id == job_created).values(state="COMPLETED", finished_at=NOW)
        )

    database.write_now(run)
    database.write_now(commands.delete_job, job_created, by=COMMAND_LINE, now=NOW)
    assert count(database, job) == 1
    sizes = [sum(count(database, each) for each in JOB_TABLES)]
    while database.write_now(job_drafts.delete_abandoned_rows, NOW - 1):
        sizes.append(sum(count(database, each) for each in JOB_TABLES))
    assert max(before - after for before, after in pairwise(sizes)) <= job_drafts.EXECUTIONS_PER_CHUNK
    remaining_jobs = [
        database.read_now(lambda c, each=each: c.execute(select(each.c.job).distinct()).scalars().all())  # type: ignore[misc] # binds the current table
        for each in JOB_TABLES
    ]
    assert remaining_jobs == [[other], [], [], [other], [other]]
    assert count(database, execution) == counts_before[3] // 2
    assert count(database, job_draft) == 0
    late_evidence = EvidenceRecord(job_created, FIRST, 1, EvidenceItem("response", {}))
    database.write_now(transition_writer.insert_late_evidence, [late_evidence], NOW)
    assert count(database, evidence) == 0, "a late response to a deleted job is not stored"


def test_a_retry_fails_if_the_job_is_deleted_meanwhile(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.write_now(insert_fleet, 20)
    job_created = int(create_job(database).id.removeprefix("job-"))
    finish_job = update(job).where(job.c.id == job_created).values(state="CANCELED", finished_at=NOW)
    cancel_executions = update(execution).values(state="CANCELED")
    database.write_now(lambda c: [c.execute(each) for each in (finish_job, cancel_executions)])
    write = database.write_now

    def delete_between(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if work is job_drafts.publish_draft:
            write(commands.delete_job, job_created, by=COMMAND_LINE, now=NOW)
        return write(work, *args, **kwargs)

    monkeypatch.setattr(database, "write_now", delete_between)
    with pytest.raises(NotFound):
        asyncio.run(creation.retry_job(database, job_created, CONTEXT, now))
    assert count(database, job) == 0
