"""Tests of the gateways through which jobs start and follow updates."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from meshfleet.protocol.codes import Status
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest.job_requests import Concurrency, NewJob, Retry, Targets
from meshfleet.rest.jobs import ExecutionState
from meshfleet.service.clock import ClockReading
from meshfleet.service.jobs.execution import execution_events, job_scheduler
from meshfleet.service.jobs.execution.queries import JobSpecCache
from meshfleet.service.jobs.updates.model import ResponseReceived, UpdateStep
from meshfleet.service.jobs.updates.states import ACTIVE_STATES
from meshfleet.service.requests.gateway_ranking import FailedAttempts, LinkObservation, rank_gateways
from tests.cli.programs import TEST_TIMEOUT
from tests.service.jobs.execution.invariants import Invariants
from tests.service.jobs.execution.random_events import DAY, run_until_finished
from tests.service.jobs.execution.rows import LEGACY, MODEL, firmware_id
from tests.service.jobs.execution.simulation import BEAT, Simulation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.service.jobs.execution.queries import JobSpec

MINUTE = 60_000
A, B = 1, 2
OPEN = {str(each) for each in (ACTIVE_STATES | {ExecutionState.QUEUED})}


@pytest.fixture
def database(sqlite_database: Database) -> Database:
    """Provide SQLite only: the selection of gateways does not depend on the database."""
    return sqlite_database


@pytest.fixture
def on_postgresql(postgresql_database: Database) -> Database:
    """Provide PostgreSQL, where two processes can run jobs."""
    return postgresql_database


class ObservedGatewaySelector:
    """Selector of gateways by given observations and the failures of requests."""

    def __init__(self, simulation: Simulation, observations: dict[int, list[LinkObservation]]) -> None:
        self._simulation = simulation
        self._observations = observations
        self._failures = FailedAttempts(lambda: simulation.now)
        self._checked_results = 0

    def select(self, devices: Sequence[int]) -> dict[int, int | None]:
        requests = {each.request.id: each.request for each in self._simulation.log}
        for _, result in self._simulation.results[self._checked_results :]:
            request, event = requests[result.request_id], result.event
            if not isinstance(event, ResponseReceived) or event.status in {
                Status.TIMEOUT,
                Status.UNREACHABLE,
            }:
                self._failures.add(request.device, request.gateway)
        self._checked_results = len(self._simulation.results)
        return {each: self._select_gateway(each) for each in devices}

    def _select_gateway(self, device: int) -> int | None:
        connected = [number for number, each in self._simulation.gateways.items() if each.is_connected]
        failures = self._failures.get_ages(device, [A, B])
        observations = self._observations.get(device, [])
        ranked = rank_gateways(
            observations, connected=connected, interval=BEAT, failures=failures, now=self._simulation.now
        )
        return ranked[0].gateway if ranked and ranked[0].connected else None


def load_executions(simulation: Simulation) -> list[Any]:
    query = text("SELECT device, state, attempt, gateway, reason FROM execution ORDER BY device")
    return [tuple(row) for row in simulation.database.read_now(lambda c: c.execute(query).all())]


def list_start_gateways(simulation: Simulation) -> list[int]:
    """Return the gateways of the start commands in their order."""
    return [each.request.gateway for each in simulation.log if each.request.step is UpdateStep.START]


def build_job(**values: Any) -> NewJob:
    fields = {"retry": Retry(max=0, backoff_seconds=5), **values}
    return NewJob(name="all", firmware_id=firmware_id(0, MODEL), targets=Targets(all=True), **fields)


@pytest.mark.rule("rest-102")
def test_after_a_failed_try_an_update_starts_through_the_next_best_gateway(database: Database) -> None:
    """Let A receive a device best, while only B can reach it."""
    simulation = Simulation(database, 1, gateways=2, devices=1)
    [(number, device)] = simulation.devices.items()
    device.gateway = B
    now = simulation.now
    observations = [
        LinkObservation(A, now, 101, -40.0),
        LinkObservation(B, now, 102, -60.0),
        LinkObservation(B, now + MINUTE),
    ]
    simulation.select = ObservedGatewaySelector(simulation, {number: observations}).select
    simulation.create(build_job())
    run_until_finished(simulation)
    assert load_executions(simulation) == [(number, "SUCCEEDED", 1, B, None)]
    assert list_start_gateways(simulation) == [A, B]


@pytest.mark.rule("rest-102")
def test_an_update_moves_to_another_gateway_only_if_that_has_a_free_slot(database: Database) -> None:
    """Let A receive one of two devices best, while both are reached through B."""
    simulation = Simulation(database, 1, gateways=2, devices=2)
    first, second = simulation.devices
    simulation.devices[first].gateway = simulation.devices[second].gateway = B
    observations = [
        LinkObservation(A, simulation.now, 101, -40.0),
        LinkObservation(B, simulation.now, 102, -60.0),
    ]
    simulation.select = ObservedGatewaySelector(
        simulation, {first: observations, second: observations[1:]}
    ).select
    simulation.create(
        build_job(concurrency=Concurrency(per_gateway=1), retry=Retry(max=3, backoff_seconds=60))
    )
    max_active = 0

    def count() -> None:
        nonlocal max_active
        active = [each for each in load_executions(simulation) if each[1] in {"DISPATCHED", "TRANSFERRING"}]
        max_active = max(max_active, sum(each[3] == B for each in active))

    simulation.after_round = count
    run_until_finished(simulation)
    assert [(each[1], each[3]) for each in load_executions(simulation)] == [
        ("SUCCEEDED", B),
        ("SUCCEEDED", B),
    ]
    assert max_active == 1


@pytest.mark.rule("rest-102")
@pytest.mark.parametrize("method", [*UpdateMethod])
def test_a_device_whose_own_gateway_is_disconnected_is_updated_through_another(
    database: Database, method: UpdateMethod
) -> None:
    """Keep the own gateway of the device disconnected."""
    simulation = Simulation(database, 1, gateways=2, devices=1)
    [(number, device)] = simulation.devices.items()
    simulation.set_connected(A, connected=False)
    device.gateway = B
    simulation.select = ObservedGatewaySelector(
        simulation, {number: [LinkObservation(B, simulation.now, 102, -60.0)]}
    ).select
    simulation.create(build_job(method=method))
    wait_reasons: set[str | None] = set()
    simulation.after_round = lambda: wait_reasons.update(_load_wait_reasons(simulation))
    simulation.run(3600, until=lambda: load_executions(simulation)[0][1] not in OPEN)
    assert load_executions(simulation) == [(number, "SUCCEEDED", 1, B, None)]
    assert {
        (each.request.step, each.request.gateway) for each in simulation.log if each.request.gateway != B
    } == set()
    assert "gateway-offline" not in wait_reasons


def _load_wait_reasons(simulation: Simulation) -> list[str | None]:
    query = text("SELECT waiting FROM execution")
    return list(simulation.database.read_now(lambda c: c.scalars(query).all()))


def test_a_device_without_recent_reports_is_reached_through_its_own_gateway(database: Database) -> None:
    simulation = Simulation(database, 1, gateways=2, devices=1)
    simulation.select = ObservedGatewaySelector(simulation, {}).select
    simulation.create(build_job())
    simulation.run(DAY, until=lambda: bool(list_start_gateways(simulation)))
    assert list_start_gateways(simulation) == [A]


FIRST, AT_B, LEGACY_DEVICE, LATER = 0x1000, 0x1002, 0x1004, 0x1006
"""Devices of `moving_to_b`. The first and the legacy one move to B; the last one could begin there."""


def create_simulation_moving_to_b(database: Database) -> Simulation:
    """Create two updates that can move to B at once: one in DFU mode, one whose gateway reconnected."""
    simulation = Simulation(database, 1, gateways=2, devices=7)
    two_slots = Concurrency(per_gateway=2)
    for number in set(simulation.devices) - {LEGACY_DEVICE, AT_B, FIRST}:
        simulation.set_connected(number, connected=False)
    simulation.create(build_job(concurrency=two_slots))
    dfu = NewJob(
        name="dfu",
        firmware_id=firmware_id(0, LEGACY),
        targets=Targets(all=True),
        method=UpdateMethod.NORDIC_DFU,
        concurrency=two_slots,
    )
    simulation.create(dfu)
    simulation.holds_requests = True
    simulation.run(1)
    assert find_hosts(simulation) == {FIRST: A, AT_B: B, LEGACY_DEVICE: A}
    changes = [
        "DELETE FROM job_outbox",
        "UPDATE execution SET ask = NULL WHERE state = 'DISPATCHED'",
        f"UPDATE execution SET waiting = 'gateway-offline' WHERE device = {FIRST} AND state = 'DISPATCHED'",  # noqa: S608 # contains only a number
        f"UPDATE device_state SET boot_mode = 'dfu', radio_gateway = {B} WHERE device = {LEGACY_DEVICE}",  # noqa: S608 # contains only numbers
    ]
    for each in changes:
        database.write_now(lambda c, each=each: c.exec_driver_sql(each))  # type: ignore[misc] # binds the current statement
    simulation.move(FIRST, B)
    simulation.move(LEGACY_DEVICE, B)
    assert database.read_now(execution_events.list_changed_devices) == [FIRST, LEGACY_DEVICE]
    return simulation


def find_hosts(simulation: Simulation) -> dict[int, int]:
    """Return the gateways of dispatched updates by device."""
    return {each[0]: each[3] for each in load_executions(simulation) if each[1] == "DISPATCHED"}


@pytest.mark.rule("rest-102")
def test_two_updates_that_move_at_once_do_not_share_the_last_slot(database: Database) -> None:
    simulation = create_simulation_moving_to_b(database)
    invariants = Invariants(simulation)
    database.write_now(
        execution_events.apply_registry_changes, JobSpecCache(), [FIRST, LEGACY_DEVICE], simulation.moment
    )
    invariants.check_round()
    assert sorted(find_hosts(simulation).values()) == [A, B, B]


class LateSpecCache(JobSpecCache):
    """Cache that loads jobs after another process has committed."""

    def __init__(self, commit: Callable[[], object]) -> None:
        super().__init__()
        self._commit = commit

    def load_specs(self, connection: Connection, jobs: Iterable[int]) -> dict[int, JobSpec]:
        self._commit()
        return super().load_specs(connection, jobs)


@pytest.mark.rule("rest-102")
def test_two_processes_do_not_share_the_last_slot(on_postgresql: Database) -> None:
    """Let the other process hold the dispatch lock when slots are first checked, and commit after that."""
    simulation = create_simulation_moving_to_b(on_postgresql)
    simulation.set_connected(LATER, connected=True)
    is_planned, may_commit = Event(), Event()

    def advance_job(connection: Connection) -> None:
        later = ClockReading(simulation.now + MINUTE, simulation.wall + MINUTE)
        job_scheduler.advance_job(connection, JobSpecCache(), simulation.jobs[0], later)
        is_planned.set()
        assert may_commit.wait(TEST_TIMEOUT)

    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(on_postgresql.write_now, advance_job)
        assert is_planned.wait(TEST_TIMEOUT)

        def commit() -> None:
            may_commit.set()
            other.result(TEST_TIMEOUT)

        devices = [FIRST, LEGACY_DEVICE]
        on_postgresql.write_now(
            execution_events.apply_registry_changes, LateSpecCache(commit), devices, simulation.moment
        )
    assert find_hosts(simulation) == {FIRST: A, AT_B: B, LEGACY_DEVICE: A, LATER: B}
