"""Lines before gateways, and last words to devices that are gone, in a world on simulated time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from meshfleet.rest import Concurrency, NewJob, Targets
from meshfleet.service.jobs.updates.model import UpdateStep
from tests.service.jobs.execution.random_events import DAY, run_until_finished
from tests.service.jobs.execution.rows import MODEL, firmware_id
from tests.service.jobs.execution.simulation import ROUND, Simulation

if TYPE_CHECKING:
    from sqlalchemy import Row

    from meshfleet.db import Database


def order(place: int = 0, **values: Any) -> NewJob:
    return NewJob(name="all", firmware_id=firmware_id(place, MODEL), targets=Targets(all=True), **values)


def rows(world: Simulation, query: str, **values: Any) -> list[Row[Any]]:
    return list(world.database.read_now(lambda connection: connection.execute(text(query), values).all()))


def count(world: Simulation, job: int, **wanted: str) -> int:
    """How many executions of a job are so."""
    where = "".join(f" AND {name} = :{name}" for name in wanted)
    query = f"SELECT count(*) FROM execution WHERE job = :job AND wave >= 0{where}"  # noqa: S608 # our own names
    return int(rows(world, query, job=job, **wanted)[0][0])


def moved_at(world: Simulation, job: int, *after: str) -> int:
    """When the first execution of a job came into one of these states."""
    words = ", ".join(f"'{each}'" for each in after)
    query = f"SELECT min(time) FROM transition WHERE job = :job AND after IN ({words}) AND device > 0"  # noqa: S608 # ours
    return int(rows(world, query, job=job)[0][0])


def test_who_waits_for_a_paused_job_takes_nobodys_place_at_a_gateway(database: Database) -> None:
    world = Simulation(database, 1, gateways=1, devices=18)
    one = Concurrency(per_gateway=1)
    paused = world.create(order(concurrency=one))
    world.run(1)
    assert count(world, paused, waiting="gateway-busy") == 11, "more than are let out of a line at once"
    other = world.create(order(1, concurrency=one))
    world.run(1)
    assert count(world, other, waiting="gateway-busy") == 11
    assert world.run_command(paused, "pause")
    world.run(DAY, until=lambda: count(world, other, state="DISPATCHED") == 1)

    freed, begun = moved_at(world, paused, "APPLYING", "CONFIRMING"), moved_at(world, other, "DISPATCHED")
    assert begun - freed <= ROUND, "those in line are looked at when there is room, not some time later"
    assert count(world, paused, waiting="gateway-busy") == 11


@pytest.mark.parametrize("method", ["download", "broadcast"])
def test_a_removed_device_on_its_way_is_told_not_to_go_on(database: Database, method: str) -> None:
    world = Simulation(database, 1, gateways=1, devices=2)
    gone, stays = world.devices.values()
    job = world.create(order(method=method, concurrency=Concurrency(per_gateway=2)))
    world.run(DAY, until=lambda: count(world, job, state="TRANSFERRING") == 2)
    world.forget(gone.number)
    world.run(10)

    assert count(world, job, state="REMOVED", code="REMOVED") == 1
    partings = [letter for letter, _ in world.log if letter.step is UpdateStep.FINAL_ABORT]
    assert [(each.device, each.target, each.value) for each in partings] == [
        (gone.number, gone.number, {"action": 0})
    ]
    assert gone.update is not None
    assert gone.update.aborted is not None
    run_until_finished(world)
    assert (stays.version, gone.version) == ("1.1.0", "1.0.0")
    assert rows(world, "SELECT state FROM job") == [("COMPLETED",)], "who is gone holds up nobody"


def test_a_removed_device_in_the_queue_is_told_nothing(database: Database) -> None:
    world = Simulation(database, 1, gateways=1, devices=2)
    job = world.create(order(concurrency=Concurrency(per_job=1)))
    world.run(DAY, until=lambda: count(world, job, state="TRANSFERRING") == 1)
    [(queued,)] = rows(world, "SELECT device FROM execution WHERE state = 'QUEUED'")
    world.forget(queued)
    run_until_finished(world)

    assert count(world, job, state="REMOVED") == 1
    assert {letter.device for letter, _ in world.log} == {*world.devices} - {queued}
