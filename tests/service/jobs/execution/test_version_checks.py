"""Tests of version checks: a device that reports the target version is read before it is skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest.job_requests import Concurrency, Gate, NewJob, Targets, Timeouts, Wave
from meshfleet.service.jobs.updates.model import UpdateStep
from tests.service.jobs.execution.invariants import Invariants
from tests.service.jobs.execution.random_events import DAY, run_until_finished
from tests.service.jobs.execution.rows import MODEL, NEW, NEWER, OLD, firmware_id
from tests.service.jobs.execution.simulation import Simulation

if TYPE_CHECKING:
    from meshfleet.db import Database

FIRST, SECOND, THIRD, FOURTH, FIFTH = 0x1000, 0x1002, 0x1006, 0x1008, 0x100C
"""Devices of the model of the job in a simulation."""


def build_job(**values: Any) -> NewJob:
    return NewJob(name="all", firmware_id=firmware_id(0, MODEL), targets=Targets(all=True), **values)


def load_executions(simulation: Simulation, job: int) -> dict[int, Any]:
    """Return the executions of the model of the job by device."""
    condition = f"job = {job} AND coalesce(code, '') <> 'WRONG_MODEL'"
    query = text(f"SELECT * FROM execution WHERE {condition} ORDER BY device")  # noqa: S608 # contains only a number
    return {row.device: row for row in simulation.database.read_now(lambda c: c.execute(query).all())}


def list_states(simulation: Simulation, job: int, device: int) -> list[str]:
    query = text(f"SELECT after FROM transition WHERE job = {job} AND device = {device} ORDER BY id")  # noqa: S608 # contains only numbers
    return [row.after for row in simulation.database.read_now(lambda c: c.execute(query).all())]


def count_requests(simulation: Simulation, device: int, step: UpdateStep) -> int:
    return sum(each.request.device == device and each.request.step is step for each in simulation.log)


def load_outcome(simulation: Simulation, job: int) -> tuple[str, str | None]:
    query = text(f"SELECT state, outcome FROM job WHERE id = {job}")  # noqa: S608 # contains only a number
    state, outcome_value = simulation.database.read_now(lambda c: c.execute(query).one())
    return state, outcome_value


@pytest.mark.rule("rest-219")
@pytest.mark.parametrize("method", [UpdateMethod.DOWNLOAD, UpdateMethod.BROADCAST])
def test_the_version_read_from_a_device_overrides_its_reports(
    sqlite_database: Database, method: UpdateMethod
) -> None:
    simulation = Simulation(sqlite_database, 1, gateways=1, devices=7)
    updated, misreporting, offline = (simulation.devices[each] for each in (FIRST, SECOND, THIRD))
    updated.version = offline.version = misreporting.reports = NEW
    simulation.run(1)
    simulation.set_connected(THIRD, connected=False)
    waves = (Wave(name="canary", count=1), Wave(percent=100))
    job = simulation.create(build_job(method=method, waves=waves, gate=Gate(success_percent=100)))
    assert {each.state for each in load_executions(simulation, job).values()} == {"QUEUED"}
    simulation.run(DAY, until=lambda: load_executions(simulation, job)[SECOND].code == "MISREPORTED")
    assert misreporting.started == [], "it is waiting for its wave"
    run_until_finished(simulation)
    executions = load_executions(simulation, job)
    assert {device: (each.state, each.code) for device, each in executions.items()} == {
        FIRST: ("SKIPPED", "ALREADY_THERE"),
        SECOND: ("SUCCEEDED", None),
        THIRD: ("SKIPPED", "ALREADY_THERE"),
        FOURTH: ("SUCCEEDED", None),
        FIFTH: ("SUCCEEDED", None),
    }
    assert executions[FIRST].reason == f"the device already runs {NEW}, as read from it"
    assert executions[THIRD].reason.endswith("could not be read: the device is not connected")
    assert [each.from_version for each in executions.values()] == [NEW, OLD, NEW, OLD, OLD]
    assert [each.attempt for each in executions.values()] == [1] * 5
    assert (executions[SECOND].wave, {executions[each].wave for each in (FOURTH, FIFTH)}) == (1, {0, 1})
    assert list_states(simulation, job, FIRST) == ["DISPATCHED", "SKIPPED"]
    assert list_states(simulation, job, SECOND)[:3] == ["DISPATCHED", "QUEUED", "DISPATCHED"]
    assert [count_requests(simulation, each, UpdateStep.CHECK_REPORTED) for each in executions] == [
        1,
        1,
        0,
        0,
        0,
    ]
    assert (updated.started, [version for _, version in misreporting.started]) == ([], [NEW])
    assert load_outcome(simulation, job) == ("COMPLETED", "SUCCEEDED")


@pytest.mark.rule("rest-135", "rest-219")
def test_a_job_whose_devices_all_run_the_version_reads_each_once_and_has_no_outcome(
    sqlite_database: Database,
) -> None:
    simulation = Simulation(sqlite_database, 1)
    for each in simulation.devices.values():
        each.version = NEW
    simulation.run(1)
    invariants = Invariants(simulation)
    job = simulation.create(build_job(concurrency=Concurrency(per_gateway=1)))
    assert load_outcome(simulation, job) == ("IN_PROGRESS", None)
    run_until_finished(simulation)
    invariants.check()
    assert load_outcome(simulation, job) == ("COMPLETED", "NONE")
    assert [(each.request.step, each.request.device) for each in simulation.log] == [
        (UpdateStep.CHECK_REPORTED, each.request.device) for each in simulation.log
    ]
    assert sorted(each.request.device for each in simulation.log) == [FIRST, SECOND, THIRD, FOURTH]


def test_a_newer_version_read_from_a_device_is_the_reason_to_skip_it(sqlite_database: Database) -> None:
    simulation = Simulation(sqlite_database, 1, gateways=1)
    simulation.devices[FIRST].reports, simulation.devices[FIRST].version = NEW, NEWER
    simulation.run(1)
    job = simulation.create(build_job())
    run_until_finished(simulation)
    row = load_executions(simulation, job)[FIRST]
    assert (row.state, row.code, row.from_version) == ("SKIPPED", "DOWNGRADE", NEWER)
    assert simulation.devices[FIRST].started == []


def test_a_version_check_ends_without_a_response_or_with_its_job(sqlite_database: Database) -> None:
    simulation = Simulation(sqlite_database, 1, gateways=1)
    for each in simulation.devices.values():
        each.version = NEW
    simulation.run(1)
    simulation.network.lost = 1.0
    job = simulation.create(build_job())
    simulation.run(3600, until=lambda: load_outcome(simulation, job)[0] == "COMPLETED")
    assert {each.reason for each in load_executions(simulation, job).values()} == {
        f"the device already reports {NEW}; its version could not be read: no response"
    }
    assert load_outcome(simulation, job) == ("COMPLETED", "NONE")
    second_job = simulation.create(build_job())
    simulation.run(5)
    assert "DISPATCHED" in {each.state for each in load_executions(simulation, second_job).values()}
    simulation.run_command(second_job, "cancel")
    run_until_finished(simulation)
    assert {each.state for each in load_executions(simulation, second_job).values()} == {"CANCELED"}
    assert {each.request.step for each in simulation.log} == {UpdateStep.CHECK_REPORTED}, (
        "an update that was not started is not aborted"
    )


def test_a_device_that_cannot_be_checked_in_time_is_skipped(sqlite_database: Database) -> None:
    simulation = Simulation(sqlite_database, 1, gateways=1)
    for each in simulation.devices.values():
        each.version = NEW
    simulation.run(1)
    simulation.set_connected(1, connected=False)
    job = simulation.create(build_job(timeouts=Timeouts(queue_minutes=1)))
    simulation.run(3600, until=lambda: load_outcome(simulation, job)[0] == "COMPLETED")
    assert {(each.state, each.code) for each in load_executions(simulation, job).values()} == {
        ("SKIPPED", "ALREADY_THERE")
    }
    reasons = {each.reason for each in load_executions(simulation, job).values()}
    assert all(each.endswith("could not be read before the queue timeout") for each in reasons)
    assert load_outcome(simulation, job) == ("COMPLETED", "NONE")


@pytest.mark.rule("rest-219")
def test_a_device_in_no_wave_is_checked_before_it_joins_a_broadcast(sqlite_database: Database) -> None:
    """Let a device report the target version when the job is created, and another one before the canary."""
    simulation = Simulation(sqlite_database, 1, gateways=1, devices=7)
    misreporting = simulation.devices[SECOND]
    misreporting.reports = NEW
    simulation.run(1)
    simulation.set_connected(1, connected=False)
    waves = (Wave(name="canary", count=1), Wave(percent=100))
    job = simulation.create(
        build_job(method=UpdateMethod.BROADCAST, waves=waves, gate=Gate(success_percent=100))
    )
    misreporting.reports = None
    simulation.run(90)
    simulation.set_connected(1, connected=True)
    simulation.run(DAY, until=lambda: any(each.started for each in simulation.devices.values()))
    assert misreporting.started == []
    run_until_finished(simulation)
    assert count_requests(simulation, SECOND, UpdateStep.CHECK_REPORTED) == 1
    assert (
        load_executions(simulation, job)[SECOND].state,
        load_executions(simulation, job)[SECOND].wave,
    ) == ("SUCCEEDED", 1)


def test_a_version_check_occupies_no_slot_of_its_gateway(sqlite_database: Database) -> None:
    """Update a device while another one does not respond to its version check."""
    simulation = Simulation(sqlite_database, 1, gateways=1, devices=2)
    simulation.devices[FIRST].version = NEW
    simulation.run(1)
    simulation.devices[FIRST].is_off = True  # the registry still shows it as connected
    simulation.set_connected(SECOND, connected=False)
    job = simulation.create(build_job(concurrency=Concurrency(per_gateway=1)))
    simulation.run(5)
    assert load_executions(simulation, job)[FIRST].state == "DISPATCHED"
    simulation.set_connected(SECOND, connected=True)
    simulation.run(32)
    assert (load_executions(simulation, job)[FIRST].state, load_executions(simulation, job)[FIRST].step) == (
        "DISPATCHED",
        UpdateStep.CHECK_REPORTED,
    )
    assert [version for _, version in simulation.devices[SECOND].started] == [NEW]


@pytest.mark.rule("firmware-39", "rest-219")
def test_after_an_outage_a_device_that_reports_the_version_is_awaited_for_the_remaining_time(
    sqlite_database: Database,
) -> None:
    simulation = Simulation(sqlite_database, 1, gateways=1, devices=1)
    simulation.devices[FIRST].version = NEW
    simulation.run(1)
    simulation.set_connected(FIRST, connected=False)
    job = simulation.create(build_job())
    simulation.run(120)
    simulation.stop_service(3600)
    simulation.run(60)
    assert load_executions(simulation, job)[FIRST].state == "QUEUED"
    simulation.set_connected(FIRST, connected=True)
    run_until_finished(simulation)
    assert count_requests(simulation, FIRST, UpdateStep.CHECK_REPORTED) == 1
    assert load_executions(simulation, job)[FIRST].reason == f"the device already runs {NEW}, as read from it"


@pytest.mark.rule("rest-217")
def test_the_version_and_gateway_of_an_execution_are_those_of_its_attempt(sqlite_database: Database) -> None:
    simulation = Simulation(sqlite_database, 1, gateways=2)
    device = simulation.devices[FIRST]
    simulation.set_connected(FIRST, connected=False)
    job = simulation.create(build_job())
    before = load_executions(simulation, job)[FIRST]
    device.version = "1.0.5"
    simulation.move(FIRST, 2)
    simulation.set_connected(FIRST, connected=True)
    run_until_finished(simulation)
    after = load_executions(simulation, job)[FIRST]
    assert (before.from_version, before.gateway) == (OLD, 1)
    assert (after.state, after.from_version, after.gateway) == ("SUCCEEDED", "1.0.5", 2)
