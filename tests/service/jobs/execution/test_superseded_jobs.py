"""A newer job takes over what an older one tries again, too; and the times that people read are theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from meshfleet.protocol.times import format_millis
from meshfleet.rest import NewJob, Retry, Targets
from tests.service.jobs.execution.random_events import DAY, run_until_finished
from tests.service.jobs.execution.rows import MODEL, firmware_id
from tests.service.jobs.execution.simulated_devices import UpdateFate
from tests.service.jobs.execution.simulation import START, Simulation

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Row

    from meshfleet.db import Database

HOUR = 3_600_000


def order(place: int, **values: object) -> NewJob:
    return NewJob(
        name="all",
        firmware_id=firmware_id(place, MODEL),
        targets=Targets(all=True),
        retry=Retry(max=3, backoff_seconds=5),
        **values,  # type: ignore[arg-type]
    )


def rows(world: Simulation, query: str) -> list[Row[Any]]:
    return list(world.database.read_now(lambda connection: connection.execute(text(query)).all()))


def state_of(world: Simulation, job: int) -> str:
    [(state,)] = rows(world, f"SELECT state FROM execution WHERE job = {job} AND wave >= 0")  # noqa: S608 # a number
    return str(state)


def test_what_is_tried_again_goes_to_the_newer_job(database: Database) -> None:
    world = Simulation(database, 1, gateways=1, devices=1)
    [device] = world.devices.values()
    device.fate = UpdateFate.LOST
    older = world.create(order(0, on_newer_job="supersede"))
    world.run(DAY, until=lambda: state_of(world, older) == "TRANSFERRING")
    newer = world.create(order(1))
    assert state_of(world, older) == "TRANSFERRING", "what is under way is not taken over"
    world.run(DAY, until=lambda: state_of(world, older) == "QUEUED")
    device.fate = UpdateFate.FINE
    run_until_finished(world)

    assert state_of(world, newer) == "SUCCEEDED"
    [told] = rows(
        world,
        f"SELECT state, code, reason FROM execution WHERE job = {older} AND wave >= 0",  # noqa: S608 # a number
    )
    assert tuple(told) == ("SUPERSEDED", "NEWER_JOB", f"job-{newer} took over the device")
    assert [version for _, version in device.begun] == ["1.1.0", "1.2.0"]


def test_what_is_tried_again_stays_with_a_job_that_lets_others_queue(database: Database) -> None:
    world = Simulation(database, 1, gateways=1, devices=1)
    [device] = world.devices.values()
    device.fate = UpdateFate.LOST
    older = world.create(order(0))
    world.run(DAY, until=lambda: state_of(world, older) == "TRANSFERRING")
    newer = world.create(order(1))
    device.fate = UpdateFate.FINE
    run_until_finished(world)

    assert (state_of(world, older), state_of(world, newer)) == ("SUCCEEDED", "SUCCEEDED")


def test_people_read_times_of_their_clock(database: Database) -> None:
    world = Simulation(database, 1, gateways=1, devices=1)
    world.ahead = 3 * HOUR
    job = world.create(order(0))
    world.run(DAY, until=lambda: state_of(world, job) == "TRANSFERRING")
    world.ahead = -3 * HOUR
    run_until_finished(world)

    [(started,)] = rows(world, f"SELECT started_at FROM execution WHERE job = {job} AND wave >= 0")  # noqa: S608 # a number
    before, *after = rows(
        world,
        f"SELECT time, after FROM transition WHERE job = {job} AND device IS NOT NULL ORDER BY id",  # noqa: S608 # a number
    )
    proofs = rows(world, f"SELECT time FROM evidence WHERE job = {job} ORDER BY id")  # noqa: S608 # a number
    assert before.time == started > world.now
    assert [each.time < world.now - 2 * HOUR for each in after[1:]] == [True] * len(after[1:])
    assert after[-1].after == "SUCCEEDED"
    assert proofs[0].time > world.now > proofs[-1].time


@pytest.mark.rule("rest-218")
def test_a_job_whose_only_devices_were_superseded_ends(sqlite_database: Database) -> None:
    wrong = []
    waits: dict[str, dict[str, Any]] = {
        "IN_PROGRESS": {},
        "PAUSED": {},
        "CREATED": {"auto_apply": False},
        "SCHEDULED": {"start_at": format_millis(START + DAY * 1000)},
    }
    world = Simulation(sqlite_database, 1, gateways=1, devices=1)
    world.set_connected(1, connected=False)
    for state, values in waits.items():
        older = world.create(order(0, on_newer_job="supersede", **values))
        world.run(5)
        if state == "PAUSED":
            world.run_command(older, "pause")
        assert rows(world, f"SELECT state FROM job WHERE id = {older}") == [(state,)]  # noqa: S608 # a number
        newer = world.create(order(1))
        world.run(10)
        [ended] = rows(world, f"SELECT state, outcome, finished_at FROM job WHERE id = {older}")  # noqa: S608 # a number
        if tuple(ended)[:2] != ("COMPLETED", "NONE") or ended.finished_at is None:
            wrong.append((state, tuple(ended)))
        world.run_command(newer, "cancel")
        world.run(5)
    assert not wrong


@pytest.mark.rule("rest-217")
def test_an_execution_that_ends_with_its_job_says_why_the_job_did(sqlite_database: Database) -> None:
    world = Simulation(sqlite_database, 1, gateways=1, devices=3)
    wrong = []
    stops: dict[str, Callable[[int], object]] = {
        "the firmware was withdrawn": world.withdraw,
        "the deadline of the job has passed": lambda _: setattr(world, "ahead", 2 * HOUR),
        "the job was canceled": lambda job: world.run_command(job, "cancel"),
    }
    for reason, stop in stops.items():
        world.ahead = 0
        job = world.create(order(0, deadline=format_millis(world.wall + HOUR)))
        begun = f"SELECT state FROM execution WHERE job = {job} AND state = 'TRANSFERRING'"  # noqa: S608 # a number
        world.run(DAY, until=lambda begun=begun: bool(rows(world, begun)))  # type: ignore[misc] # as it is now
        stop(job)
        run_until_finished(world)
        ended = f"SELECT state, reason FROM execution WHERE job = {job} AND state <> 'SKIPPED'"  # noqa: S608 # a number
        told = rows(world, ended)
        causes = rows(world, f"SELECT cause FROM transition WHERE job = {job} AND after = 'CANCELED'")  # noqa: S608 # a number
        assert told
        wrong += [(reason, each) for each in told if each.state != "CANCELED"]
        wrong += [(reason, each) for each in told if not each.reason.startswith(reason)]
        wrong += [
            (reason, each)
            for each in causes
            if each.cause not in {*(x.reason for x in told), "all executions have ended"}
        ]
    assert not wrong
