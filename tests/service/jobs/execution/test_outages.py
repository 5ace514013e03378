"""Outages of the service, of gateways and of the broker: clocks stand still, and devices are asked first."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from meshfleet.protocol.ids import mac_from_int
from meshfleet.protocol.products import UpdateMethod
from meshfleet.protocol.times import format_millis
from meshfleet.rest import Concurrency, ExecutionState, NewJob, Rate, Retry, Targets, Timeouts
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
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection

    from meshfleet.db import Database

HOUR = 3600.0
UNSENT = "the start command could not be sent yet"
WAYS = [UpdateMethod.DOWNLOAD, UpdateMethod.BROADCAST]


@pytest.fixture
def on_sqlite(sqlite_database: Database) -> Iterator[Database]:
    """One database, where it does not matter which."""
    yield sqlite_database
    sqlite_database.close()


def order(method: UpdateMethod = UpdateMethod.DOWNLOAD, **values: Any) -> NewJob:
    """All devices at once, and nothing may stand still for longer than a minute."""
    usual: dict[str, Any] = {
        "concurrency": Concurrency(per_gateway=None),
        "retry": Retry(max=0),
        "timeouts": Timeouts(queue_minutes=300, step_minutes=1),
    }
    targets = Targets(all=True)
    return NewJob(
        name="all", firmware_id=firmware_id(0, MODEL), targets=targets, method=method, **(usual | values)
    )


def states(world: Simulation) -> Counter[str]:
    """How many of those that take part are in which state."""
    query = text("SELECT state FROM execution WHERE wave >= 0")
    return Counter(world.database.read_now(lambda connection: connection.scalars(query).all()))


def transferring(world: Simulation) -> Callable[[], bool]:
    """Whether the image is on its way, to all that get it at once."""
    return lambda: states(world)["TRANSFERRING"] > 0 and not states(world)["DISPATCHED"]


def shown(world: Simulation, device: int) -> Any:
    """What people see of an execution."""
    return world.database.read_now(execution_view.load_execution, world.jobs[0], mac_from_int(device))


def paces(world: Simulation) -> set[tuple[int, str]]:
    """The gateways whose pace was measured, each with the way of updating."""
    query = text("SELECT gateway, method FROM pace WHERE rate > 0")
    return {tuple(row) for row in world.database.read_now(lambda connection: connection.execute(query).all())}


def partings(world: Simulation) -> int:
    """How many devices were told not to go on."""
    return sum(each.request.step is UpdateStep.FINAL_ABORT for each in world.log)


@pytest.mark.rule("firmware-39")
@pytest.mark.parametrize("method", WAYS)
def test_devices_that_finish_while_the_service_is_away_succeed(
    on_sqlite: Database, method: UpdateMethod
) -> None:
    world = Simulation(on_sqlite, 1)
    laws = Invariants(world)
    world.create(order(method))
    world.run(HOUR, until=transferring(world))
    world.stop_service(HOUR)
    run_until_finished(world)
    assert states(world) == {"SUCCEEDED": 4}
    assert (partings(world), paces(world)) == (0, set())
    laws.check_end()


@pytest.mark.rule("firmware-39")
@pytest.mark.parametrize("method", WAYS)
def test_devices_that_finish_while_their_gateway_is_away_succeed(
    on_sqlite: Database, method: UpdateMethod
) -> None:
    world = Simulation(on_sqlite, 1)
    laws = Invariants(world)
    world.create(order(method))
    world.run(HOUR, until=transferring(world))
    for number in world.gateways:
        world.set_connected(number, connected=False)
    world.run(HOUR)
    away = {each.state: each.waiting_for for each in _all(world) if each.state is not ExecutionState.QUEUED}
    assert away.keys() <= {ExecutionState.TRANSFERRING, ExecutionState.DISPATCHED}, away
    assert {each[: len("gateway-offline:")] for each in away.values()} == {"gateway-offline:"}
    run_until_finished(world)
    assert states(world) == {"SUCCEEDED": 4}
    assert (partings(world), paces(world)) == (0, set())
    laws.check_end()


def _all(world: Simulation) -> list[Any]:
    return [shown(world, number) for number, each in world.devices.items() if each.model == MODEL]


@pytest.mark.rule("firmware-41")
def test_a_device_that_begins_late_is_waited_for(on_sqlite: Database) -> None:
    world = Simulation(on_sqlite, 1)
    for device in world.devices.values():
        device.fate = UpdateFate.SLOW
    world.create(order(timeouts=Timeouts(queue_minutes=300, total_minutes=300)))
    run_until_finished(world)
    assert states(world) == {"SUCCEEDED": 4}
    assert {each.version for each in world.devices.values() if each.model == MODEL} == {NEW}
    assert paces(world) == {(number, UpdateMethod.DOWNLOAD) for number in world.gateways}


@pytest.mark.rule("firmware-43")
@pytest.mark.parametrize("method", WAYS)
def test_a_start_that_never_left_is_shown_as_that_and_canceled_at_once(
    on_sqlite: Database, method: UpdateMethod
) -> None:
    world = Simulation(on_sqlite, 1)
    for gateway in world.gateways.values():  # of which the registry has not heard yet
        gateway.is_connected = False
    job = world.create(order(method))
    world.run(60)
    for each in _all(world):
        if each.state is ExecutionState.DISPATCHED:
            assert each.waiting_for == f"{UNSENT}; last error: the gateway is not connected"
            assert each.transitions[-1].cause != "the first command is sent"
    assert states(world)["DISPATCHED"] > 0
    world.run_command(job, "cancel")
    world.run(2)
    assert states(world) == {"CANCELED": 4}
    assert not {each.request.step for each in world.log} & {UpdateStep.ABORT, UpdateStep.FINAL_ABORT}


@pytest.mark.rule("firmware-43")
@pytest.mark.parametrize(
    ("method", "stop"),
    [
        (UpdateMethod.DOWNLOAD, "cancel"),
        (UpdateMethod.BROADCAST, "withdraw"),
        (UpdateMethod.NORDIC_DFU, "deadline"),
    ],
)
def test_a_start_in_the_outbox_is_taken_back_by_the_cancel(
    on_sqlite: Database, method: UpdateMethod, stop: str
) -> None:
    world = Simulation(on_sqlite, 1)
    Invariants(world)
    job = world.create(order(method, deadline=format_millis(world.wall + 3_600_000)))
    world.holds_requests = True
    world.run(20)
    assert states(world)["DISPATCHED"] > 0
    if stop == "cancel":
        world.run_command(job, "cancel")
    elif stop == "withdraw":
        world.withdraw(job)
    else:
        world.ahead = 3_600_000
    world.run(2)
    assert states(world) == {"CANCELED": 4}
    world.holds_requests = False
    world.run(60)
    assert world.log == [], "nothing was sent"


@pytest.mark.rule("firmware-43")
def test_nothing_begins_between_the_cancel_and_the_next_step_of_the_job(database: Database) -> None:
    world = Simulation(database, 1)
    job = world.create(order())
    world.holds_requests = True
    world.run(20)
    world.run_command(job, "cancel")
    taken = database.write_now(outbox.lease_requests, 256, {}, until=world.now + 60_000)
    assert taken.requests == []
    done = database.write_now(job_scheduler.advance_job, JobSpecCache(), job, world.moment)
    assert states(world)["DISPATCHED"] == 0
    assert done.is_canceling, "the runner drops what waits for its turn at a gateway"


@pytest.mark.rule("firmware-43")
def test_a_further_attempt_that_only_asked_for_the_version_is_canceled_at_once(on_sqlite: Database) -> None:
    world = Simulation(on_sqlite, 1, gateways=1, devices=1)
    [device] = world.devices.values()
    device.fate = UpdateFate.STUCK
    job = world.create(order(retry=Retry(max=1, backoff_seconds=5)))
    world.run(HOUR, until=lambda: states(world)["DISPATCHED"] + states(world)["TRANSFERRING"] > 0)
    world.run(HOUR, until=lambda: states(world)["QUEUED"] == 1)
    world.network.lost = 1.0
    while all(each.request.attempt == 1 for each in world.log):
        world.run(1)
    assert [each.request.step for each in world.log if each.request.attempt == 2] == [
        UpdateStep.RECHECK_VERSION
    ]
    world.run_command(job, "cancel")
    world.run(2)
    assert states(world) == {"CANCELED": 1}
    world.run(60)
    assert [each.request.step for each in world.log if each.request.attempt == 2] == [
        UpdateStep.RECHECK_VERSION
    ]


def _clocks(world: Simulation, now: int) -> list[tuple[int | None, ...]]:
    """How much time each running clock has left."""
    return [
        tuple(None if each is None else each - now for each in row)
        for query in (
            "SELECT due, expires, total_until, moved_at FROM execution WHERE progress > 0 ORDER BY device",
            "SELECT expires FROM execution WHERE state = 'QUEUED' AND expires IS NOT NULL ORDER BY device",
            "SELECT queue_until, soaks_until, paced_until FROM job WHERE finished_at IS NULL ORDER BY id",
        )
        for row in world.database.read_now(lambda connection: connection.exec_driver_sql(query).all())  # noqa: B023 # at once
    ]


@pytest.mark.rule("firmware-39", "rest-201", "rest-202")
def test_after_an_outage_clocks_have_the_time_left_that_they_had(database: Database) -> None:
    """Also if the clock of the machine was set back meanwhile, and if the first start is broken off."""
    world = Simulation(database, 1)
    for device, fate in zip(world.devices.values(), [UpdateFate.LOST, *[UpdateFate.STUCK] * 5], strict=True):
        device.fate = fate
    world.create(order(retry=Retry(max=3), rate=Rate(per_minute=60), timeouts=Timeouts(queue_minutes=300)))
    world.run(300, until=lambda: states(world) == {"QUEUED": 1, "TRANSFERRING": 3})
    database.write_now(downtime.record_alive, world.now)
    before = _clocks(world, world.now)
    assert len(before) == 3 + 1 + 1
    for hours in (70, -30):
        later = world.now + int(hours * HOUR) * 1000
        with pytest.raises(TransactionAborted):
            database.write_now(_resume_and_break_off, later)
        assert database.write_now(downtime.record_alive, later) == later - world.now
        assert _clocks(world, later) == before
        assert database.write_now(downtime.record_alive, later + 4000) == 0
        assert _clocks(world, later) == before, "only once"
        world.now = later
        database.write_now(downtime.record_alive, later)


def _resume_and_break_off(connection: Connection, now: int) -> None:
    downtime.record_alive(connection, now)
    raise TransactionAborted
