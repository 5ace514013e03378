"""A newer job takes over what an older one tries again, too; and the times that people read are theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from meshfleet.wire.rest import NewJob, Retry, Targets
from tests.service.jobs.engine.chaos import DAY, run_out
from tests.service.jobs.engine.radio import Fate
from tests.service.jobs.engine.rows import MODEL, firmware_id
from tests.service.jobs.engine.world import World

if TYPE_CHECKING:
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


def rows(world: World, query: str) -> list[Row[Any]]:
    return list(world.database.read_now(lambda connection: connection.execute(text(query)).all()))


def state_of(world: World, job: int) -> str:
    [(state,)] = rows(world, f"SELECT state FROM execution WHERE job = {job} AND wave >= 0")  # noqa: S608 # a number
    return str(state)


def test_what_is_tried_again_goes_to_the_newer_job(database: Database) -> None:
    world = World(database, 1, gateways=1, devices=1)
    [device] = world.devices.values()
    device.fate = Fate.LOST
    older = world.create(order(0, on_newer_job="supersede"))
    world.run(DAY, until=lambda: state_of(world, older) == "TRANSFERRING")
    newer = world.create(order(1))
    assert state_of(world, older) == "TRANSFERRING", "what is under way is not taken over"
    world.run(DAY, until=lambda: state_of(world, older) == "QUEUED")
    device.fate = Fate.FINE
    run_out(world)

    assert state_of(world, newer) == "SUCCEEDED"
    [told] = rows(
        world,
        f"SELECT state, code, reason FROM execution WHERE job = {older} AND wave >= 0",  # noqa: S608 # a number
    )
    assert tuple(told) == ("SUPERSEDED", "NEWER_JOB", f"job-{newer} took it over")
    assert [version for _, version in device.begun] == ["1.1.0", "1.2.0"]


def test_what_is_tried_again_stays_with_a_job_that_lets_others_queue(database: Database) -> None:
    world = World(database, 1, gateways=1, devices=1)
    [device] = world.devices.values()
    device.fate = Fate.LOST
    older = world.create(order(0))
    world.run(DAY, until=lambda: state_of(world, older) == "TRANSFERRING")
    newer = world.create(order(1))
    device.fate = Fate.FINE
    run_out(world)

    assert (state_of(world, older), state_of(world, newer)) == ("SUCCEEDED", "SUCCEEDED")


def test_people_read_times_of_their_clock(database: Database) -> None:
    world = World(database, 1, gateways=1, devices=1)
    world.ahead = 3 * HOUR
    job = world.create(order(0))
    world.run(DAY, until=lambda: state_of(world, job) == "TRANSFERRING")
    world.ahead = -3 * HOUR
    run_out(world)

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
