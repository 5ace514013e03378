"""Tests of superseded retries, of times in the history, and of reasons of executions that end with a job."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from meshfleet.protocol.times import format_millis
from meshfleet.rest.job_requests import NewJob, Retry, Targets
from tests.service.jobs.execution.random_events import DAY, run_until_finished
from tests.service.jobs.execution.rows import MODEL, firmware_id
from tests.service.jobs.execution.simulated_devices import UpdateFate
from tests.service.jobs.execution.simulation import START, Simulation

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Row

    from meshfleet.db import Database

HOUR = 3_600_000


def build_job(index: int, **values: object) -> NewJob:
    return NewJob(
        name="all",
        firmware_id=firmware_id(index, MODEL),
        targets=Targets(all=True),
        retry=Retry(max=3, backoff_seconds=5),
        **values,  # type: ignore[arg-type]
    )


def select_rows(simulation: Simulation, query: str) -> list[Row[Any]]:
    return list(simulation.database.read_now(lambda connection: connection.execute(text(query)).all()))


def _has_rows(simulation: Simulation, query: str) -> bool:
    return bool(select_rows(simulation, query))


def load_state(simulation: Simulation, job: int) -> str:
    [(state,)] = select_rows(simulation, f"SELECT state FROM execution WHERE job = {job} AND wave >= 0")  # noqa: S608 # contains only a number
    return str(state)


def test_a_retry_is_superseded_by_a_newer_job(database: Database) -> None:
    simulation = Simulation(database, 1, gateways=1, devices=1)
    [device] = simulation.devices.values()
    device.fate = UpdateFate.LOST
    older = simulation.create(build_job(0, on_newer_job="supersede"))
    simulation.run(DAY, until=lambda: load_state(simulation, older) == "TRANSFERRING")
    newer = simulation.create(build_job(1))
    assert load_state(simulation, older) == "TRANSFERRING", "an active execution is not superseded"
    simulation.run(DAY, until=lambda: load_state(simulation, older) == "QUEUED")
    device.fate = UpdateFate.FINE
    run_until_finished(simulation)

    assert load_state(simulation, newer) == "SUCCEEDED"
    [executions] = select_rows(
        simulation,
        f"SELECT state, code, reason FROM execution WHERE job = {older} AND wave >= 0",  # noqa: S608 # contains only a number
    )
    assert tuple(executions) == ("SUPERSEDED", "NEWER_JOB", f"job-{newer} took over the device")
    assert [version for _, version in device.started] == ["1.1.0", "1.2.0"]


def test_a_retry_stays_with_a_job_that_newer_jobs_queue_behind(database: Database) -> None:
    simulation = Simulation(database, 1, gateways=1, devices=1)
    [device] = simulation.devices.values()
    device.fate = UpdateFate.LOST
    older = simulation.create(build_job(0))
    simulation.run(DAY, until=lambda: load_state(simulation, older) == "TRANSFERRING")
    newer = simulation.create(build_job(1))
    device.fate = UpdateFate.FINE
    run_until_finished(simulation)

    assert (load_state(simulation, older), load_state(simulation, newer)) == ("SUCCEEDED", "SUCCEEDED")


def test_history_has_times_of_the_wall_clock(database: Database) -> None:
    simulation = Simulation(database, 1, gateways=1, devices=1)
    simulation.ahead = 3 * HOUR
    job = simulation.create(build_job(0))
    simulation.run(DAY, until=lambda: load_state(simulation, job) == "TRANSFERRING")
    simulation.ahead = -3 * HOUR
    run_until_finished(simulation)

    [(started,)] = select_rows(
        simulation,
        f"SELECT started_at FROM execution WHERE job = {job} AND wave >= 0",  # noqa: S608 # contains only a number
    )
    before, *after = select_rows(
        simulation,
        f"SELECT time, after FROM transition WHERE job = {job} AND device IS NOT NULL ORDER BY id",  # noqa: S608 # contains only a number
    )
    proofs = select_rows(simulation, f"SELECT time FROM evidence WHERE job = {job} ORDER BY id")  # noqa: S608 # contains only a number
    assert before.time == started > simulation.now
    assert [each.time < simulation.now - 2 * HOUR for each in after[1:]] == [True] * len(after[1:])
    assert after[-1].after == "SUCCEEDED"
    assert proofs[0].time > simulation.now > proofs[-1].time


@pytest.mark.rule("rest-218")
def test_a_job_whose_only_devices_were_superseded_ends(sqlite_database: Database) -> None:
    failures = []
    states: dict[str, dict[str, Any]] = {
        "IN_PROGRESS": {},
        "PAUSED": {},
        "CREATED": {"auto_apply": False},
        "SCHEDULED": {"start_at": format_millis(START + DAY * 1000)},
    }
    simulation = Simulation(sqlite_database, 1, gateways=1, devices=1)
    simulation.set_connected(1, connected=False)
    for state, values in states.items():
        older = simulation.create(build_job(0, on_newer_job="supersede", **values))
        simulation.run(5)
        if state == "PAUSED":
            simulation.run_command(older, "pause")
        assert select_rows(simulation, f"SELECT state FROM job WHERE id = {older}") == [(state,)]  # noqa: S608 # contains only a number
        newer = simulation.create(build_job(1))
        simulation.run(10)
        [ended_row] = select_rows(
            simulation,
            f"SELECT state, outcome, finished_at FROM job WHERE id = {older}",  # noqa: S608 # contains only a number
        )
        if tuple(ended_row)[:2] != ("COMPLETED", "NONE") or ended_row.finished_at is None:
            failures.append((state, tuple(ended_row)))
        simulation.run_command(newer, "cancel")
        simulation.run(5)
    assert not failures


@pytest.mark.rule("rest-217")
def test_an_execution_that_ends_with_its_job_has_the_reason_of_the_job(sqlite_database: Database) -> None:
    simulation = Simulation(sqlite_database, 1, gateways=1, devices=3)
    failures = []
    stops: dict[str, Callable[[int], object]] = {
        "the firmware was withdrawn": simulation.withdraw,
        "the deadline of the job has passed": lambda _: setattr(simulation, "ahead", 2 * HOUR),
        "the job was canceled": lambda job: simulation.run_command(job, "cancel"),
    }
    for reason, stop in stops.items():
        simulation.ahead = 0
        job = simulation.create(build_job(0, deadline=format_millis(simulation.wall + HOUR)))
        transferring_query = f"SELECT state FROM execution WHERE job = {job} AND state = 'TRANSFERRING'"  # noqa: S608 # contains only a number
        is_started = partial(_has_rows, simulation, transferring_query)
        simulation.run(DAY, until=is_started)
        stop(job)
        run_until_finished(simulation)
        ended_query = f"SELECT state, reason FROM execution WHERE job = {job} AND state <> 'SKIPPED'"  # noqa: S608 # contains only a number
        executions = select_rows(simulation, ended_query)
        causes = select_rows(
            simulation,
            f"SELECT cause FROM transition WHERE job = {job} AND after = 'CANCELED'",  # noqa: S608 # contains only a number
        )
        assert executions
        failures += [(reason, each) for each in executions if each.state != "CANCELED"]
        failures += [(reason, each) for each in executions if not each.reason.startswith(reason)]
        failures += [
            (reason, each)
            for each in causes
            if each.cause
            not in {*(execution.reason for execution in executions), "all executions have ended"}
        ]
    assert not failures
