"""Through which gateway a job begins and follows an update, on simulated time, by the rule of requests."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from meshfleet.protocol.codes import Status
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest import Concurrency, ExecutionState, NewJob, Retry, Targets
from meshfleet.service.clock import Moment
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
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.service.jobs.compatibility import FirmwareRequirement
    from meshfleet.service.jobs.updates.model import UpdateSpec

MINUTE = 60_000
A, B = 1, 2
OPEN = {str(each) for each in (ACTIVE_STATES | {ExecutionState.QUEUED})}


@pytest.fixture
def database(sqlite_database: Database) -> Iterator[Database]:
    """One is enough: the rule knows no database."""
    yield sqlite_database
    sqlite_database.close()


@pytest.fixture
def on_postgresql(postgresql_database: Database) -> Iterator[Database]:
    """Where two programs can run jobs."""
    yield postgresql_database
    postgresql_database.close()


class Ear:
    """Chooses gateways for a world by what was heard, and remembers what its letters came to."""

    def __init__(self, world: Simulation, heard: dict[int, list[LinkObservation]]) -> None:
        self._world = world
        self._heard = heard
        self._failures = FailedAttempts(lambda: world.now)
        self._seen = 0

    def select(self, devices: Sequence[int]) -> dict[int, int | None]:
        sent = {each.request.id: each.request for each in self._world.log}
        for _, reply in self._world.results[self._seen :]:
            letter, event = sent[reply.request_id], reply.event
            if not isinstance(event, ResponseReceived) or event.status in {
                Status.TIMEOUT,
                Status.UNREACHABLE,
            }:
                self._failures.add(letter.device, letter.gateway)
        self._seen = len(self._world.results)
        return {each: self._gateway_of(each) for each in devices}

    def _gateway_of(self, device: int) -> int | None:
        connected = [number for number, each in self._world.gateways.items() if each.is_connected]
        failures = self._failures.get_ages(device, [A, B])
        heard = self._heard.get(device, [])
        ranked = rank_gateways(
            heard, connected=connected, interval=BEAT, failures=failures, now=self._world.now
        )
        return ranked[0].gateway if ranked and ranked[0].connected else None


def executions(world: Simulation) -> list[Any]:
    query = text("SELECT device, state, attempt, gateway, reason FROM execution ORDER BY device")
    return [tuple(row) for row in world.database.read_now(lambda c: c.execute(query).all())]


def starts(world: Simulation) -> list[int]:
    """The gateways through which updates were begun, in this order."""
    return [each.request.gateway for each in world.log if each.request.step is UpdateStep.START]


def job(**values: Any) -> NewJob:
    usual = {"retry": Retry(max=0, backoff_seconds=5), **values}
    return NewJob(name="all", firmware_id=firmware_id(0, MODEL), targets=Targets(all=True), **usual)


@pytest.mark.rule("rest-102")
def test_an_update_begins_through_the_next_best_gateway_after_a_failed_try(database: Database) -> None:
    """The device belongs to A, which has just heard it best; in truth only B reaches it."""
    world = Simulation(database, 1, gateways=2, devices=1)
    [(number, device)] = world.devices.items()
    device.gateway = B
    now = world.now
    heard = [
        LinkObservation(A, now, 101, -40.0),
        LinkObservation(B, now, 102, -60.0),
        LinkObservation(B, now + MINUTE),
    ]
    world.select = Ear(world, {number: heard}).select
    world.create(job())
    run_until_finished(world)
    assert executions(world) == [(number, "SUCCEEDED", 1, B, None)]
    assert starts(world) == [A, B]


@pytest.mark.rule("rest-102")
def test_an_update_goes_elsewhere_only_where_there_is_room(database: Database) -> None:
    """Both devices are heard best by A, and one of them is at B."""
    world = Simulation(database, 1, gateways=2, devices=2)
    first, second = world.devices
    world.devices[first].gateway = world.devices[second].gateway = B
    heard = [LinkObservation(A, world.now, 101, -40.0), LinkObservation(B, world.now, 102, -60.0)]
    world.select = Ear(world, {first: heard, second: heard[1:]}).select
    world.create(job(concurrency=Concurrency(per_gateway=1), retry=Retry(max=3, backoff_seconds=60)))
    most = 0

    def count() -> None:
        nonlocal most
        active = [each for each in executions(world) if each[1] in {"DISPATCHED", "TRANSFERRING"}]
        most = max(most, sum(each[3] == B for each in active))

    world.after_round = count
    run_until_finished(world)
    assert [(each[1], each[3]) for each in executions(world)] == [("SUCCEEDED", B), ("SUCCEEDED", B)]
    assert most == 1


@pytest.mark.rule("rest-102")
@pytest.mark.parametrize("method", [*UpdateMethod])
def test_a_device_whose_own_gateway_is_away_is_updated_through_another(
    database: Database, method: UpdateMethod
) -> None:
    """The gateway that the device belongs to stays away all the time."""
    world = Simulation(database, 1, gateways=2, devices=1)
    [(number, device)] = world.devices.items()
    world.set_connected(A, connected=False)
    device.gateway = B
    world.select = Ear(world, {number: [LinkObservation(B, world.now, 102, -60.0)]}).select
    world.create(job(method=method))
    waits: set[str | None] = set()
    world.after_round = lambda: waits.update(_waits(world))
    world.run(3600, until=lambda: executions(world)[0][1] not in OPEN)
    assert executions(world) == [(number, "SUCCEEDED", 1, B, None)]
    assert {
        (each.request.step, each.request.gateway) for each in world.log if each.request.gateway != B
    } == set()
    assert "gateway-offline" not in waits


def _waits(world: Simulation) -> list[str | None]:
    query = text("SELECT waiting FROM execution")
    return list(world.database.read_now(lambda c: c.scalars(query).all()))


def test_a_device_that_nobody_has_heard_of_late_is_asked_through_its_own_gateway(database: Database) -> None:
    world = Simulation(database, 1, gateways=2, devices=1)
    world.select = Ear(world, {}).select
    world.create(job())
    world.run(DAY, until=lambda: bool(starts(world)))
    assert starts(world) == [A]


FIRST, AT_B, LEGACY_DEVICE, LATER = 0x1000, 0x1002, 0x1004, 0x1006
"""Devices of `moving_to_b`. The first and the legacy one move to B; the last one could begin there."""


def moving_to_b(database: Database) -> Simulation:
    """Set up two updates that can go on at B at once: one in DFU mode, one whose gateway came back."""
    world = Simulation(database, 1, gateways=2, devices=7)
    two = Concurrency(per_gateway=2)
    for number in set(world.devices) - {LEGACY_DEVICE, AT_B, FIRST}:
        world.set_connected(number, connected=False)
    world.create(job(concurrency=two))
    dfu = NewJob(
        name="dfu",
        firmware_id=firmware_id(0, LEGACY),
        targets=Targets(all=True),
        method=UpdateMethod.NORDIC_DFU,
        concurrency=two,
    )
    world.create(dfu)
    world.holds_requests = True
    world.run(1)
    assert hosts(world) == {FIRST: A, AT_B: B, LEGACY_DEVICE: A}
    changes = [
        "DELETE FROM job_outbox",
        "UPDATE execution SET ask = NULL WHERE state = 'DISPATCHED'",
        f"UPDATE execution SET waiting = 'gateway-offline' WHERE device = {FIRST} AND state = 'DISPATCHED'",  # noqa: S608 # a number
        f"UPDATE device_state SET boot_mode = 'dfu', radio_gateway = {B} WHERE device = {LEGACY_DEVICE}",  # noqa: S608 # numbers
    ]
    for each in changes:
        database.write_now(lambda c, each=each: c.exec_driver_sql(each))  # type: ignore[misc] # as it is now
    world.move(FIRST, B)
    world.move(LEGACY_DEVICE, B)
    assert database.read_now(execution_events.list_devices_with_news) == [FIRST, LEGACY_DEVICE]
    return world


def hosts(world: Simulation) -> dict[int, int]:
    """Return the gateways of updates that are about to begin."""
    return {each[0]: each[3] for each in executions(world) if each[1] == "DISPATCHED"}


@pytest.mark.rule("rest-102")
def test_two_updates_that_move_at_once_do_not_share_the_last_slot(database: Database) -> None:
    world = moving_to_b(database)
    laws = Invariants(world)
    database.write_now(
        execution_events.apply_registry_news, JobSpecCache(), [FIRST, LEGACY_DEVICE], world.moment
    )
    laws.check_round()
    assert sorted(hosts(world).values()) == [A, B, B]


class LateSpecCache(JobSpecCache):
    """Reads jobs after another program has committed."""

    def __init__(self, commit: Callable[[], object]) -> None:
        super().__init__()
        self._commit = commit

    def load_specs(
        self, connection: Connection, jobs: Iterable[int]
    ) -> dict[int, tuple[UpdateSpec, FirmwareRequirement]]:
        self._commit()
        return super().load_specs(connection, jobs)


@pytest.mark.rule("rest-102")
def test_two_programs_do_not_share_the_last_slot(on_postgresql: Database) -> None:
    """The other program holds the planning lock at the first look at slots, and commits right after it."""
    world = moving_to_b(on_postgresql)
    world.set_connected(LATER, connected=True)
    is_planned, may_commit = Event(), Event()

    def plan(connection: Connection) -> None:
        later = Moment(world.now + MINUTE, world.wall + MINUTE)
        job_scheduler.advance_job(connection, JobSpecCache(), world.jobs[0], later)
        is_planned.set()
        assert may_commit.wait(TEST_TIMEOUT)

    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(on_postgresql.write_now, plan)
        assert is_planned.wait(TEST_TIMEOUT)

        def commit() -> None:
            may_commit.set()
            other.result(TEST_TIMEOUT)

        devices = [FIRST, LEGACY_DEVICE]
        on_postgresql.write_now(
            execution_events.apply_registry_news, LateSpecCache(commit), devices, world.moment
        )
    assert hosts(world) == {FIRST: A, AT_B: B, LEGACY_DEVICE: A, LATER: B}
