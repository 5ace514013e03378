"""Tests of executions that wait for a gateway slot, and of aborts for removed devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from meshfleet.rest.job_requests import Concurrency, NewJob, Targets
from meshfleet.service.jobs.updates.model import UpdateStep
from tests.service.jobs.execution.random_events import DAY, run_until_finished
from tests.service.jobs.execution.rows import MODEL, firmware_id
from tests.service.jobs.execution.simulation import ROUND, Simulation

if TYPE_CHECKING:
    from sqlalchemy import Row

    from meshfleet.db import Database


def build_job(index: int = 0, **values: Any) -> NewJob:
    return NewJob(name="all", firmware_id=firmware_id(index, MODEL), targets=Targets(all=True), **values)


def select_rows(simulation: Simulation, query: str, **values: Any) -> list[Row[Any]]:
    return list(
        simulation.database.read_now(lambda connection: connection.execute(text(query), values).all())
    )


def count_executions(simulation: Simulation, job: int, **columns: str) -> int:
    """Count the executions of a job with these column values."""
    conditions = "".join(f" AND {name} = :{name}" for name in columns)
    query = f"SELECT count(*) FROM execution WHERE job = :job AND wave >= 0{conditions}"  # noqa: S608 # constants only
    return int(select_rows(simulation, query, job=job, **columns)[0][0])


def find_first_transition(simulation: Simulation, job: int, *after: str) -> int:
    """Return the time at which the first execution of a job entered one of these states."""
    state_list = ", ".join(f"'{each}'" for each in after)
    query = f"SELECT min(time) FROM transition WHERE job = :job AND after IN ({state_list}) AND device > 0"  # noqa: S608 # constants only
    return int(select_rows(simulation, query, job=job)[0][0])


def test_waiting_executions_of_a_paused_job_do_not_block_a_gateway(database: Database) -> None:
    simulation = Simulation(database, 1, gateways=1, devices=18)
    one_slot = Concurrency(per_gateway=1)
    paused = simulation.create(build_job(concurrency=one_slot))
    simulation.run(1)
    assert count_executions(simulation, paused, waiting="gateway-busy") == 11, "more than are woken at once"
    other = simulation.create(build_job(1, concurrency=one_slot))
    simulation.run(1)
    assert count_executions(simulation, other, waiting="gateway-busy") == 11
    assert simulation.run_command(paused, "pause")
    simulation.run(DAY, until=lambda: count_executions(simulation, other, state="DISPATCHED") == 1)

    freed_at, started_at = (
        find_first_transition(simulation, paused, "APPLYING", "CONFIRMING"),
        find_first_transition(simulation, other, "DISPATCHED"),
    )
    assert started_at - freed_at <= ROUND, "waiting executions are checked as soon as a slot is free"
    assert count_executions(simulation, paused, waiting="gateway-busy") == 11


@pytest.mark.parametrize("method", ["download", "broadcast"])
def test_the_update_of_a_removed_device_is_aborted(database: Database, method: str) -> None:
    simulation = Simulation(database, 1, gateways=1, devices=2)
    removed, remaining = simulation.devices.values()
    job = simulation.create(build_job(method=method, concurrency=Concurrency(per_gateway=2)))
    simulation.run(DAY, until=lambda: count_executions(simulation, job, state="TRANSFERRING") == 2)
    simulation.forget(removed.number)
    simulation.run(10)

    assert count_executions(simulation, job, state="REMOVED", code="REMOVED") == 1
    abort_requests = [request for request, _ in simulation.log if request.step is UpdateStep.FINAL_ABORT]
    assert [(each.device, each.target, each.value) for each in abort_requests] == [
        (removed.number, removed.number, {"action": 0})
    ]
    assert removed.update is not None
    assert removed.update.aborted is not None
    run_until_finished(simulation)
    assert (remaining.version, removed.version) == ("1.1.0", "1.0.0")
    assert select_rows(simulation, "SELECT state FROM job") == [("COMPLETED",)], (
        "a removed device does not delay the job"
    )


def test_a_removed_device_in_the_queue_gets_no_request(database: Database) -> None:
    simulation = Simulation(database, 1, gateways=1, devices=2)
    job = simulation.create(build_job(concurrency=Concurrency(per_job=1)))
    simulation.run(DAY, until=lambda: count_executions(simulation, job, state="TRANSFERRING") == 1)
    [(queued,)] = select_rows(simulation, "SELECT device FROM execution WHERE state = 'QUEUED'")
    simulation.forget(queued)
    run_until_finished(simulation)

    assert count_executions(simulation, job, state="REMOVED") == 1
    assert {request.device for request, _ in simulation.log} == {*simulation.devices} - {queued}
