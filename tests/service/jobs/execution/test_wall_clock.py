"""Times of day are those of the clock that people read and set; how long something takes is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from meshfleet.protocol.times import format_millis
from meshfleet.rest import Concurrency, NewJob, Retry, Targets, Timeouts
from tests.service.jobs.execution.random_events import DAY, run_until_finished
from tests.service.jobs.execution.rows import MODEL, firmware_id
from tests.service.jobs.execution.simulated_devices import UpdateFate
from tests.service.jobs.execution.simulation import Simulation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.db import Database

MINUTE = 60_000
HOUR = 60 * MINUTE


@pytest.fixture
def database(sqlite_database: Database) -> Iterator[Database]:
    """On one database: no time of day is compared there."""
    yield sqlite_database
    sqlite_database.close()


def order(**values: Any) -> NewJob:
    """One device after the other."""
    return NewJob(
        name="all",
        firmware_id=firmware_id(0, MODEL),
        targets=Targets(all=True),
        concurrency=Concurrency(per_job=1),
        **values,
    )


def job_of(world: Simulation) -> tuple[str, str | None]:
    """Where the only job is, and what stopped it."""
    query = text("SELECT state, stop_cause FROM job")
    state, cause = world.database.read_now(lambda connection: connection.execute(query).one())
    return state, cause


def begun(world: Simulation) -> int:
    """How many updates have begun."""
    query = text("SELECT count(*) FROM transition WHERE after = 'DISPATCHED'")
    return int(world.database.read_now(lambda connection: connection.execute(query).scalar_one()))


def test_a_job_begins_when_the_clock_of_people_says_so(database: Database) -> None:
    world = Simulation(database, 1)
    world.create(order(start_at=format_millis(world.wall + HOUR)))
    world.run(1800)
    assert job_of(world) == ("SCHEDULED", None)
    world.ahead = -2 * HOUR
    world.run(3600)
    assert (job_of(world), begun(world)) == (("SCHEDULED", None), 0), "it is not so late yet"
    world.ahead = 9 * HOUR
    world.run(1)
    assert (job_of(world), begun(world)) == (("IN_PROGRESS", None), 1)
    world.ahead = -9 * HOUR
    run_until_finished(world)
    assert (job_of(world), begun(world)) == (("COMPLETED", None), 4), "what has begun goes on"


def test_after_the_deadline_nothing_begins(database: Database) -> None:
    world = Simulation(database, 1)
    world.create(order(deadline=format_millis(world.wall + 8 * HOUR)))
    world.run(30)
    world.ahead = 9 * HOUR
    world.run(1)
    assert (job_of(world), begun(world)) == (("CANCELING", "DEADLINE"), 1)
    world.ahead = 0
    run_until_finished(world)
    assert (job_of(world), begun(world)) == (("CANCELED", "DEADLINE"), 1), "what is over is over"


def test_a_clock_that_is_set_back_puts_a_deadline_off(database: Database) -> None:
    world = Simulation(database, 1)
    world.create(order(deadline=format_millis(world.wall + MINUTE)))
    world.run(30)
    world.ahead = -9 * HOUR
    run_until_finished(world)
    assert (job_of(world), begun(world)) == (("COMPLETED", None), 4)


def test_nobody_is_given_up_because_a_clock_was_set(database: Database) -> None:
    world = Simulation(database, 1, gateways=1, devices=1)
    [device] = world.devices.values()
    device.fate = UpdateFate.STUCK
    world.create(order(timeouts=Timeouts(queue_minutes=60, step_minutes=3), retry=Retry(max=0)))
    query = text("SELECT state, code FROM execution WHERE wave >= 0")

    def where() -> tuple[Any, ...]:
        return tuple(world.database.read_now(lambda connection: connection.execute(query).one()))

    world.run(DAY, until=lambda: where()[0] == "TRANSFERRING")
    for ahead in (9 * HOUR, -9 * HOUR, 0):
        world.ahead = ahead
        world.run(40)
        assert where() == ("TRANSFERRING", None)
    world.ahead = -9 * HOUR
    world.run(120)
    assert where() == ("TIMED_OUT", "STALLED"), "by then it has had its three minutes"


@pytest.mark.rule("firmware-34")
@pytest.mark.parametrize("ahead", [-24 * HOUR, 24 * HOUR], ids=["back", "ahead"])
def test_an_update_is_confirmed_though_the_clock_is_set_meanwhile(database: Database, ahead: int) -> None:
    """Heartbeats are known by their times, which are those of the clock that was set."""
    world = Simulation(database, 1, gateways=1, devices=1)
    world.create(order())
    query = text("SELECT state, beats FROM execution WHERE wave >= 0")

    def where() -> tuple[Any, ...]:
        return tuple(world.database.read_now(lambda connection: connection.execute(query).one()))

    world.run(DAY, until=lambda: where() == ("CONFIRMING", 1))
    world.ahead = ahead
    world.run(600)
    assert where() == ("SUCCEEDED", 3)
