"""Tests of outages of the service, of gateways and of the broker: timers are suspended."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from meshfleet.protocol.ids import mac_from_int
from meshfleet.protocol.products import UpdateMethod
from meshfleet.protocol.times import format_millis
from meshfleet.rest.job_requests import Concurrency, NewJob, Rate, Retry, Targets, Timeouts
from meshfleet.rest.jobs import ExecutionState
from meshfleet.service.jobs.execution import downtime, job_scheduler, outbox
from meshfleet.service.jobs.execution.queries import JobSpecCache
from meshfleet.service.jobs.updates.model import UpdateStep
from meshfleet.service.jobs.views import execution_view
from tests.service.jobs.execution.invariants import Invariants
from tests.service.jobs.execution.random_events import run_until_finished
from tests.service.jobs.execution.rows import MODEL, NEW, firmware_id
from tests.service.jobs.execution.simulated_devices import UpdateFate
from tests.service.jobs.execution.simulation import Simulation, TransactionAborted

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from meshfleet.db import Database

HOUR = 3600.0
UNSENT = "the start command could not be sent yet"
METHODS = [UpdateMethod.DOWNLOAD, UpdateMethod.BROADCAST]


@pytest.fixture
def on_sqlite(sqlite_database: Database) -> Database:
    """Provide SQLite only: these tests do not depend on the database."""
    return sqlite_database


def build_job(method: UpdateMethod = UpdateMethod.DOWNLOAD, **values: Any) -> NewJob:
    """Build a job request for all devices at once, with a step timeout of one minute."""
    defaults: dict[str, Any] = {
        "concurrency": Concurrency(per_gateway=None),
        "retry": Retry(max=0),
        "timeouts": Timeouts(queue_minutes=300, step_minutes=1),
    }
    targets = Targets(all=True)
    return NewJob(
        name="all", firmware_id=firmware_id(0, MODEL), targets=targets, method=method, **(defaults | values)
    )


def count_states(simulation: Simulation) -> Counter[str]:
    """Count the executions in waves by state."""
    query = text("SELECT state FROM execution WHERE wave >= 0")
    return Counter(simulation.database.read_now(lambda connection: connection.scalars(query).all()))


def is_transferring(simulation: Simulation) -> Callable[[], bool]:
    """Return a condition: all started executions are transferring."""
    return lambda: count_states(simulation)["TRANSFERRING"] > 0 and not count_states(simulation)["DISPATCHED"]


def load_execution(simulation: Simulation, device: int) -> Any:
    """Load the execution of a device as users see it."""
    return simulation.database.read_now(
        execution_view.load_execution, simulation.jobs[0], mac_from_int(device)
    )


def list_measured_gateways(simulation: Simulation) -> set[tuple[int, str]]:
    """Return the gateways and methods with a measured transfer rate."""
    query = text("SELECT gateway, method FROM pace WHERE rate > 0")
    return {
        tuple(row) for row in simulation.database.read_now(lambda connection: connection.execute(query).all())
    }


def count_abort_requests(simulation: Simulation) -> int:
    """Count the final abort requests."""
    return sum(each.request.step is UpdateStep.FINAL_ABORT for each in simulation.log)


@pytest.mark.rule("firmware-39")
@pytest.mark.parametrize("method", METHODS)
def test_devices_that_finish_while_the_service_is_down_succeed(
    on_sqlite: Database, method: UpdateMethod
) -> None:
    simulation = Simulation(on_sqlite, 1)
    invariants = Invariants(simulation)
    simulation.create(build_job(method))
    simulation.run(HOUR, until=is_transferring(simulation))
    simulation.stop_service(HOUR)
    run_until_finished(simulation)
    assert count_states(simulation) == {"SUCCEEDED": 4}
    assert (count_abort_requests(simulation), list_measured_gateways(simulation)) == (0, set())
    invariants.check_end()


@pytest.mark.rule("firmware-39")
@pytest.mark.parametrize("method", METHODS)
def test_devices_that_finish_while_their_gateway_is_disconnected_succeed(
    on_sqlite: Database, method: UpdateMethod
) -> None:
    simulation = Simulation(on_sqlite, 1)
    invariants = Invariants(simulation)
    simulation.create(build_job(method))
    simulation.run(HOUR, until=is_transferring(simulation))
    for number in simulation.gateways:
        simulation.set_connected(number, connected=False)
    simulation.run(HOUR)
    waiting = {
        each.state: each.waiting_for
        for each in _load_executions(simulation)
        if each.state is not ExecutionState.QUEUED
    }
    assert waiting.keys() <= {ExecutionState.TRANSFERRING, ExecutionState.DISPATCHED}, waiting
    assert {each[: len("gateway-offline:")] for each in waiting.values()} == {"gateway-offline:"}
    run_until_finished(simulation)
    assert count_states(simulation) == {"SUCCEEDED": 4}
    assert (count_abort_requests(simulation), list_measured_gateways(simulation)) == (0, set())
    invariants.check_end()


def _load_executions(simulation: Simulation) -> list[Any]:
    return [
        load_execution(simulation, number)
        for number, each in simulation.devices.items()
        if each.model == MODEL
    ]


@pytest.mark.rule("firmware-41")
def test_a_device_that_starts_late_is_awaited(on_sqlite: Database) -> None:
    simulation = Simulation(on_sqlite, 1)
    for device in simulation.devices.values():
        device.fate = UpdateFate.SLOW
    simulation.create(build_job(timeouts=Timeouts(queue_minutes=300, total_minutes=300)))
    run_until_finished(simulation)
    assert count_states(simulation) == {"SUCCEEDED": 4}
    assert {each.version for each in simulation.devices.values() if each.model == MODEL} == {NEW}
    assert list_measured_gateways(simulation) == {
        (number, UpdateMethod.DOWNLOAD) for number in simulation.gateways
    }


@pytest.mark.rule("firmware-43")
@pytest.mark.parametrize("method", METHODS)
def test_an_unsent_start_is_shown_as_such_and_canceled_at_once(
    on_sqlite: Database, method: UpdateMethod
) -> None:
    simulation = Simulation(on_sqlite, 1)
    for gateway in simulation.gateways.values():  # the registry still shows them as connected
        gateway.is_connected = False
    job = simulation.create(build_job(method))
    simulation.run(60)
    for each in _load_executions(simulation):
        if each.state is ExecutionState.DISPATCHED:
            assert each.waiting_for == f"{UNSENT}; last error: the gateway is not connected"
            assert each.transitions[-1].cause != "the first command is sent"
    assert count_states(simulation)["DISPATCHED"] > 0
    simulation.run_command(job, "cancel")
    simulation.run(2)
    assert count_states(simulation) == {"CANCELED": 4}
    assert not {each.request.step for each in simulation.log} & {UpdateStep.ABORT, UpdateStep.FINAL_ABORT}


@pytest.mark.rule("firmware-43")
@pytest.mark.parametrize(
    ("method", "stop"),
    [
        (UpdateMethod.DOWNLOAD, "cancel"),
        (UpdateMethod.BROADCAST, "withdraw"),
        (UpdateMethod.NORDIC_DFU, "deadline"),
    ],
)
def test_a_cancel_withdraws_a_start_from_the_outbox(
    on_sqlite: Database, method: UpdateMethod, stop: str
) -> None:
    simulation = Simulation(on_sqlite, 1)
    Invariants(simulation)
    job = simulation.create(build_job(method, deadline=format_millis(simulation.wall + 3_600_000)))
    simulation.holds_requests = True
    simulation.run(20)
    assert count_states(simulation)["DISPATCHED"] > 0
    if stop == "cancel":
        simulation.run_command(job, "cancel")
    elif stop == "withdraw":
        simulation.withdraw(job)
    else:
        simulation.ahead = 3_600_000
    simulation.run(2)
    assert count_states(simulation) == {"CANCELED": 4}
    simulation.holds_requests = False
    simulation.run(60)
    assert simulation.log == [], "nothing was sent"


@pytest.mark.rule("firmware-43")
def test_no_update_starts_between_a_cancel_and_the_next_step_of_the_job(database: Database) -> None:
    simulation = Simulation(database, 1)
    job = simulation.create(build_job())
    simulation.holds_requests = True
    simulation.run(20)
    simulation.run_command(job, "cancel")
    leased = database.write_now(outbox.lease_requests, 256, {}, until=simulation.now + 60_000)
    assert leased.requests == []
    result = database.write_now(job_scheduler.advance_job, JobSpecCache(), job, simulation.moment)
    assert count_states(simulation)["DISPATCHED"] == 0
    assert result.is_canceling, "the runner drops requests that wait to be sent"


@pytest.mark.rule("firmware-43")
def test_a_later_attempt_that_only_read_the_version_is_canceled_at_once(on_sqlite: Database) -> None:
    simulation = Simulation(on_sqlite, 1, gateways=1, devices=1)
    [device] = simulation.devices.values()
    device.fate = UpdateFate.STUCK
    job = simulation.create(build_job(retry=Retry(max=1, backoff_seconds=5)))
    simulation.run(
        HOUR,
        until=lambda: count_states(simulation)["DISPATCHED"] + count_states(simulation)["TRANSFERRING"] > 0,
    )
    simulation.run(HOUR, until=lambda: count_states(simulation)["QUEUED"] == 1)
    simulation.network.lost = 1.0
    while all(each.request.attempt == 1 for each in simulation.log):
        simulation.run(1)
    assert [each.request.step for each in simulation.log if each.request.attempt == 2] == [
        UpdateStep.RECHECK_VERSION
    ]
    simulation.run_command(job, "cancel")
    simulation.run(2)
    assert count_states(simulation) == {"CANCELED": 1}
    simulation.run(60)
    assert [each.request.step for each in simulation.log if each.request.attempt == 2] == [
        UpdateStep.RECHECK_VERSION
    ]


def _list_remaining_times(simulation: Simulation, now: int) -> list[tuple[int | None, ...]]:
    """Return the remaining time of each running timer."""
    return [
        tuple(None if each is None else each - now for each in row)
        for query in (
            "SELECT due, expires, total_until, moved_at FROM execution WHERE progress > 0 ORDER BY device",
            "SELECT expires FROM execution WHERE state = 'QUEUED' AND expires IS NOT NULL ORDER BY device",
            "SELECT queue_until, soaks_until, paced_until FROM job WHERE finished_at IS NULL ORDER BY id",
        )
        for row in simulation.database.read_now(lambda connection: connection.exec_driver_sql(query).all())  # noqa: B023 # called immediately
    ]


@pytest.mark.rule("firmware-39", "rest-201", "rest-202")
def test_after_an_outage_timers_have_their_remaining_time(database: Database) -> None:
    """Set the clock forward and back, and abort the first transaction after the outage."""
    simulation = Simulation(database, 1)
    for device, fate in zip(
        simulation.devices.values(), [UpdateFate.LOST, *[UpdateFate.STUCK] * 5], strict=True
    ):
        device.fate = fate
    simulation.create(
        build_job(retry=Retry(max=3), rate=Rate(per_minute=60), timeouts=Timeouts(queue_minutes=300))
    )
    simulation.run(300, until=lambda: count_states(simulation) == {"QUEUED": 1, "TRANSFERRING": 3})
    database.write_now(downtime.record_alive, simulation.now)
    before = _list_remaining_times(simulation, simulation.now)
    assert len(before) == 3 + 1 + 1
    for hours in (70, -30):
        later = simulation.now + int(hours * HOUR) * 1000
        with pytest.raises(TransactionAborted):
            database.write_now(_record_alive_and_abort, later)
        assert database.write_now(downtime.record_alive, later) == later - simulation.now
        assert _list_remaining_times(simulation, later) == before
        assert database.write_now(downtime.record_alive, later + 4000) == 0
        assert _list_remaining_times(simulation, later) == before, "only once"
        simulation.now = later
        database.write_now(downtime.record_alive, later)


def _record_alive_and_abort(connection: Connection, now: int) -> None:
    downtime.record_alive(connection, now)
    raise TransactionAborted
