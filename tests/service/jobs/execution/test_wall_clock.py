"""Tests of the wall clock: start times and deadlines follow it, durations do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from meshfleet.protocol.times import format_millis
from meshfleet.rest.job_requests import Concurrency, NewJob, Retry, Targets, Timeouts
from tests.service.jobs.execution.random_events import DAY, run_until_finished
from tests.service.jobs.execution.rows import MODEL, firmware_id
from tests.service.jobs.execution.simulated_devices import UpdateFate
from tests.service.jobs.execution.simulation import Simulation

if TYPE_CHECKING:
    from meshfleet.db import Database

MINUTE = 60_000
HOUR = 60 * MINUTE


@pytest.fixture
def database(sqlite_database: Database) -> Database:
    """Provide SQLite only: no time of day is compared in the database."""
    return sqlite_database


def build_job(**values: Any) -> NewJob:
    """Build a job request that updates one device after another."""
    return NewJob(
        name="all",
        firmware_id=firmware_id(0, MODEL),
        targets=Targets(all=True),
        concurrency=Concurrency(per_job=1),
        **values,
    )


def load_job_state(simulation: Simulation) -> tuple[str, str | None]:
    """Return the state and stop cause of the only job."""
    query = text("SELECT state, stop_cause FROM job")
    state, cause = simulation.database.read_now(lambda connection: connection.execute(query).one())
    return state, cause


def count_started(simulation: Simulation) -> int:
    """Count the started updates."""
    query = text("SELECT count(*) FROM transition WHERE after = 'DISPATCHED'")
    return int(simulation.database.read_now(lambda connection: connection.execute(query).scalar_one()))


def test_a_job_starts_by_the_wall_clock(database: Database) -> None:
    simulation = Simulation(database, 1)
    simulation.create(build_job(start_at=format_millis(simulation.wall + HOUR)))
    simulation.run(1800)
    assert load_job_state(simulation) == ("SCHEDULED", None)
    simulation.ahead = -2 * HOUR
    simulation.run(3600)
    assert (load_job_state(simulation), count_started(simulation)) == (("SCHEDULED", None), 0), (
        "the start time was not reached"
    )
    simulation.ahead = 9 * HOUR
    simulation.run(1)
    assert (load_job_state(simulation), count_started(simulation)) == (("IN_PROGRESS", None), 1)
    simulation.ahead = -9 * HOUR
    run_until_finished(simulation)
    assert (load_job_state(simulation), count_started(simulation)) == (("COMPLETED", None), 4), (
        "a started job continues"
    )


def test_no_update_starts_after_the_deadline(database: Database) -> None:
    simulation = Simulation(database, 1)
    simulation.create(build_job(deadline=format_millis(simulation.wall + 8 * HOUR)))
    simulation.run(30)
    simulation.ahead = 9 * HOUR
    simulation.run(1)
    assert (load_job_state(simulation), count_started(simulation)) == (("CANCELING", "DEADLINE"), 1)
    simulation.ahead = 0
    run_until_finished(simulation)
    assert (load_job_state(simulation), count_started(simulation)) == (("CANCELED", "DEADLINE"), 1), (
        "a canceled job stays canceled"
    )


def test_setting_the_clock_back_postpones_a_deadline(database: Database) -> None:
    simulation = Simulation(database, 1)
    simulation.create(build_job(deadline=format_millis(simulation.wall + MINUTE)))
    simulation.run(30)
    simulation.ahead = -9 * HOUR
    run_until_finished(simulation)
    assert (load_job_state(simulation), count_started(simulation)) == (("COMPLETED", None), 4)


def test_setting_the_clock_does_not_time_out_an_update(database: Database) -> None:
    simulation = Simulation(database, 1, gateways=1, devices=1)
    [device] = simulation.devices.values()
    device.fate = UpdateFate.STUCK
    simulation.create(build_job(timeouts=Timeouts(queue_minutes=60, step_minutes=3), retry=Retry(max=0)))
    query = text("SELECT state, code FROM execution WHERE wave >= 0")

    def load_state() -> tuple[Any, ...]:
        return tuple(simulation.database.read_now(lambda connection: connection.execute(query).one()))

    simulation.run(DAY, until=lambda: load_state()[0] == "TRANSFERRING")
    for ahead in (9 * HOUR, -9 * HOUR, 0):
        simulation.ahead = ahead
        simulation.run(40)
        assert load_state() == ("TRANSFERRING", None)
    simulation.ahead = -9 * HOUR
    simulation.run(120)
    assert load_state() == ("TIMED_OUT", "STALLED"), "the step timeout of three minutes has passed"


@pytest.mark.rule("firmware-34")
@pytest.mark.parametrize("ahead", [-24 * HOUR, 24 * HOUR], ids=["back", "ahead"])
def test_an_update_is_confirmed_although_the_clock_is_set_meanwhile(database: Database, ahead: int) -> None:
    """Set the clock between heartbeats, which are distinguished by their wall-clock times."""
    simulation = Simulation(database, 1, gateways=1, devices=1)
    simulation.create(build_job())
    query = text("SELECT state, beats FROM execution WHERE wave >= 0")

    def load_state() -> tuple[Any, ...]:
        return tuple(simulation.database.read_now(lambda connection: connection.execute(query).one()))

    simulation.run(DAY, until=lambda: load_state() == ("CONFIRMING", 1))
    simulation.ahead = ahead
    simulation.run(600)
    assert load_state() == ("SUCCEEDED", 3)
