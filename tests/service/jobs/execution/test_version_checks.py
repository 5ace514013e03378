"""A device that reports the target version is asked once before it is skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest import Concurrency, Gate, NewJob, Targets, Timeouts, Wave
from meshfleet.service.jobs.updates.model import UpdateStep
from tests.service.jobs.execution.invariants import Invariants
from tests.service.jobs.execution.random_events import DAY, run_until_finished
from tests.service.jobs.execution.rows import MODEL, NEW, NEWER, OLD, firmware_id
from tests.service.jobs.execution.simulation import Simulation

if TYPE_CHECKING:
    from meshfleet.db import Database

FIRST, SECOND, THIRD, FOURTH, FIFTH = 0x1000, 0x1002, 0x1006, 0x1008, 0x100C
"""The devices of a world that are of our model."""


def order(**values: Any) -> NewJob:
    return NewJob(name="all", firmware_id=firmware_id(0, MODEL), targets=Targets(all=True), **values)


def told(world: Simulation, job: int) -> dict[int, Any]:
    """The executions of our model, by device."""
    mine = f"job = {job} AND coalesce(code, '') <> 'WRONG_MODEL'"
    query = text(f"SELECT * FROM execution WHERE {mine} ORDER BY device")  # noqa: S608 # a number
    return {row.device: row for row in world.database.read_now(lambda c: c.execute(query).all())}


def steps(world: Simulation, job: int, device: int) -> list[str]:
    query = text(f"SELECT after FROM transition WHERE job = {job} AND device = {device} ORDER BY id")  # noqa: S608 # numbers
    return [row.after for row in world.database.read_now(lambda c: c.execute(query).all())]


def asked(world: Simulation, device: int, step: UpdateStep) -> int:
    return sum(each.request.device == device and each.request.step is step for each in world.log)


def outcome(world: Simulation, job: int) -> tuple[str, str | None]:
    query = text(f"SELECT state, outcome FROM job WHERE id = {job}")  # noqa: S608 # a number
    state, how = world.database.read_now(lambda c: c.execute(query).one())
    return state, how


@pytest.mark.rule("rest-219")
@pytest.mark.parametrize("method", [UpdateMethod.DOWNLOAD, UpdateMethod.BROADCAST])
def test_what_a_device_answers_counts_and_not_what_it_reports(
    sqlite_database: Database, method: UpdateMethod
) -> None:
    world = Simulation(sqlite_database, 1, gateways=1, devices=7)
    honest, liar, away = (world.devices[each] for each in (FIRST, SECOND, THIRD))
    honest.version = away.version = liar.reports = NEW
    world.run(1)
    world.set_connected(THIRD, connected=False)
    waves = (Wave(name="canary", count=1), Wave(percent=100))
    job = world.create(order(method=method, waves=waves, gate=Gate(success_percent=100)))
    assert {each.state for each in told(world, job).values()} == {"QUEUED"}
    world.run(DAY, until=lambda: told(world, job)[SECOND].code == "MISREPORTED")
    assert liar.begun == [], "it waits for its wave"
    run_until_finished(world)
    executions = told(world, job)
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
    assert steps(world, job, FIRST) == ["DISPATCHED", "SKIPPED"]
    assert steps(world, job, SECOND)[:3] == ["DISPATCHED", "QUEUED", "DISPATCHED"]
    assert [asked(world, each, UpdateStep.CHECK_REPORTED) for each in executions] == [1, 1, 0, 0, 0]
    assert (honest.begun, [version for _, version in liar.begun]) == ([], [NEW])
    assert outcome(world, job) == ("COMPLETED", "SUCCEEDED")


@pytest.mark.rule("rest-135", "rest-219")
def test_a_job_whose_devices_all_run_the_version_asks_each_once_and_did_nothing(
    sqlite_database: Database,
) -> None:
    world = Simulation(sqlite_database, 1)
    for each in world.devices.values():
        each.version = NEW
    world.run(1)
    laws = Invariants(world)
    job = world.create(order(concurrency=Concurrency(per_gateway=1)))
    assert outcome(world, job) == ("IN_PROGRESS", None)
    run_until_finished(world)
    laws.check()
    assert outcome(world, job) == ("COMPLETED", "NONE")
    assert [(each.request.step, each.request.device) for each in world.log] == [
        (UpdateStep.CHECK_REPORTED, each.request.device) for each in world.log
    ]
    assert sorted(each.request.device for each in world.log) == [FIRST, SECOND, THIRD, FOURTH]


def test_an_answer_that_allows_no_update_is_told(sqlite_database: Database) -> None:
    world = Simulation(sqlite_database, 1, gateways=1)
    world.devices[FIRST].reports, world.devices[FIRST].version = NEW, NEWER
    world.run(1)
    job = world.create(order())
    run_until_finished(world)
    found = told(world, job)[FIRST]
    assert (found.state, found.code, found.from_version) == ("SKIPPED", "DOWNGRADE", NEWER)
    assert world.devices[FIRST].begun == []


def test_who_is_asked_ends_soon_without_an_answer_or_with_the_job(sqlite_database: Database) -> None:
    world = Simulation(sqlite_database, 1, gateways=1)
    for each in world.devices.values():
        each.version = NEW
    world.run(1)
    world.network.lost = 1.0
    job = world.create(order())
    world.run(3600, until=lambda: outcome(world, job)[0] == "COMPLETED")
    assert {each.reason for each in told(world, job).values()} == {
        f"the device already reports {NEW}; its version could not be read: nobody answered"
    }
    assert outcome(world, job) == ("COMPLETED", "NONE")
    again = world.create(order())
    world.run(5)
    assert "DISPATCHED" in {each.state for each in told(world, again).values()}
    world.run_command(again, "cancel")
    run_until_finished(world)
    assert {each.state for each in told(world, again).values()} == {"CANCELED"}
    assert {each.request.step for each in world.log} == {UpdateStep.CHECK_REPORTED}, (
        "nothing is aborted that was not begun"
    )


def test_who_cannot_be_asked_in_time_has_not_failed(sqlite_database: Database) -> None:
    world = Simulation(sqlite_database, 1, gateways=1)
    for each in world.devices.values():
        each.version = NEW
    world.run(1)
    world.set_connected(1, connected=False)
    job = world.create(order(timeouts=Timeouts(queue_minutes=1)))
    world.run(3600, until=lambda: outcome(world, job)[0] == "COMPLETED")
    assert {(each.state, each.code) for each in told(world, job).values()} == {("SKIPPED", "ALREADY_THERE")}
    reasons = {each.reason for each in told(world, job).values()}
    assert all(each.endswith("could not be read before the queue timeout") for each in reasons)
    assert outcome(world, job) == ("COMPLETED", "NONE")


@pytest.mark.rule("rest-219")
def test_a_device_in_no_wave_is_asked_before_it_joins_a_broadcast(sqlite_database: Database) -> None:
    """It reported the target version when the job was created, and another one by the time of the canary."""
    world = Simulation(sqlite_database, 1, gateways=1, devices=7)
    liar = world.devices[SECOND]
    liar.reports = NEW
    world.run(1)
    world.set_connected(1, connected=False)
    waves = (Wave(name="canary", count=1), Wave(percent=100))
    job = world.create(order(method=UpdateMethod.BROADCAST, waves=waves, gate=Gate(success_percent=100)))
    liar.reports = None
    world.run(90)
    world.set_connected(1, connected=True)
    world.run(DAY, until=lambda: any(each.begun for each in world.devices.values()))
    assert liar.begun == []
    run_until_finished(world)
    assert asked(world, SECOND, UpdateStep.CHECK_REPORTED) == 1
    assert (told(world, job)[SECOND].state, told(world, job)[SECOND].wave) == ("SUCCEEDED", 1)


def test_a_check_takes_no_slot_of_its_gateway(sqlite_database: Database) -> None:
    """A device that is asked for its version does not answer, and another one is to be updated."""
    world = Simulation(sqlite_database, 1, gateways=1, devices=2)
    world.devices[FIRST].version = NEW
    world.run(1)
    world.devices[FIRST].is_off = True  # the registry does not know
    world.set_connected(SECOND, connected=False)
    job = world.create(order(concurrency=Concurrency(per_gateway=1)))
    world.run(5)
    assert told(world, job)[FIRST].state == "DISPATCHED"
    world.set_connected(SECOND, connected=True)
    world.run(32)
    assert (told(world, job)[FIRST].state, told(world, job)[FIRST].step) == (
        "DISPATCHED",
        UpdateStep.CHECK_REPORTED,
    )
    assert [version for _, version in world.devices[SECOND].begun] == [NEW]


@pytest.mark.rule("firmware-39", "rest-219")
def test_after_an_outage_who_reports_the_version_is_awaited_as_long_as_before(
    sqlite_database: Database,
) -> None:
    world = Simulation(sqlite_database, 1, gateways=1, devices=1)
    world.devices[FIRST].version = NEW
    world.run(1)
    world.set_connected(FIRST, connected=False)
    job = world.create(order())
    world.run(120)
    world.stop_service(3600)
    world.run(60)
    assert told(world, job)[FIRST].state == "QUEUED"
    world.set_connected(FIRST, connected=True)
    run_until_finished(world)
    assert asked(world, FIRST, UpdateStep.CHECK_REPORTED) == 1
    assert told(world, job)[FIRST].reason == f"the device already runs {NEW}, as read from it"


@pytest.mark.rule("rest-217")
def test_the_version_and_gateway_of_an_execution_are_those_of_its_attempt(sqlite_database: Database) -> None:
    world = Simulation(sqlite_database, 1, gateways=2)
    device = world.devices[FIRST]
    world.set_connected(FIRST, connected=False)
    job = world.create(order())
    before = told(world, job)[FIRST]
    device.version = "1.0.5"
    world.move(FIRST, 2)
    world.set_connected(FIRST, connected=True)
    run_until_finished(world)
    after = told(world, job)[FIRST]
    assert (before.from_version, before.gateway) == (OLD, 1)
    assert (after.state, after.from_version, after.gateway) == ("SUCCEEDED", "1.0.5", 2)
