"""Outages of the service, of gateways and of the broker: clocks stand still, and devices are asked first."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from meshfleet.service.jobs.engine import outbox, stepping, uptime
from meshfleet.service.jobs.engine.loading import Orders
from meshfleet.service.jobs.shown import executions
from meshfleet.service.jobs.update.model import Step
from meshfleet.wire.ids import number_mac
from meshfleet.wire.products import Way
from meshfleet.wire.rest import Concurrency, ExecutionState, NewJob, Rate, Retry, Targets, Timeouts
from meshfleet.wire.times import write_millis
from tests.service.jobs.engine.chaos import run_out
from tests.service.jobs.engine.laws import Laws
from tests.service.jobs.engine.radio import Fate
from tests.service.jobs.engine.rows import MODEL, NEW, firmware_id
from tests.service.jobs.engine.world import Torn, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection

    from meshfleet.db import Database

HOUR = 3600.0
UNSENT = "its first command could not be sent yet"
WAYS = [Way.DOWNLOAD, Way.BROADCAST]


@pytest.fixture
def on_sqlite(sqlite_database: Database) -> Iterator[Database]:
    """One database, where it does not matter which."""
    yield sqlite_database
    sqlite_database.close()


def order(method: Way = Way.DOWNLOAD, **values: Any) -> NewJob:
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


def states(world: World) -> Counter[str]:
    """How many of those that take part are in which state."""
    query = text("SELECT state FROM execution WHERE wave >= 0")
    return Counter(world.database.read_now(lambda connection: connection.scalars(query).all()))


def transferring(world: World) -> Callable[[], bool]:
    """Whether the image is on its way, to all that get it at once."""
    return lambda: states(world)["TRANSFERRING"] > 0 and not states(world)["DISPATCHED"]


def shown(world: World, device: int) -> Any:
    """What people see of an execution."""
    return world.database.read_now(executions.show, world.jobs[0], number_mac(device))


def paces(world: World) -> set[tuple[int, str]]:
    """The gateways whose pace was measured, each with the way of updating."""
    query = text("SELECT gateway, method FROM pace WHERE rate > 0")
    return {tuple(row) for row in world.database.read_now(lambda connection: connection.execute(query).all())}


def partings(world: World) -> int:
    """How many devices were told not to go on."""
    return sum(each.letter.step is Step.PARTING for each in world.log)


@pytest.mark.rule("firmware-39")
@pytest.mark.parametrize("method", WAYS)
def test_devices_that_finish_while_the_service_is_away_succeed(on_sqlite: Database, method: Way) -> None:
    world = World(on_sqlite, 1)
    laws = Laws(world)
    world.create(order(method))
    world.run(HOUR, until=transferring(world))
    world.be_away(HOUR)
    run_out(world)
    assert states(world) == {"SUCCEEDED": 4}
    assert (partings(world), paces(world)) == (0, set())
    laws.check_end()


@pytest.mark.rule("firmware-39")
@pytest.mark.parametrize("method", WAYS)
def test_devices_that_finish_while_their_gateway_is_away_succeed(on_sqlite: Database, method: Way) -> None:
    world = World(on_sqlite, 1)
    laws = Laws(world)
    world.create(order(method))
    world.run(HOUR, until=transferring(world))
    for number in world.gateways:
        world.set_connected(number, connected=False)
    world.run(HOUR)
    away = {each.state: each.waiting_for for each in _all(world) if each.state is not ExecutionState.QUEUED}
    assert away.keys() <= {ExecutionState.TRANSFERRING, ExecutionState.DISPATCHED}, away
    assert {each[: len("gateway-offline:")] for each in away.values()} == {"gateway-offline:"}
    run_out(world)
    assert states(world) == {"SUCCEEDED": 4}
    assert (partings(world), paces(world)) == (0, set())
    laws.check_end()


def _all(world: World) -> list[Any]:
    return [shown(world, number) for number, each in world.devices.items() if each.model == MODEL]


@pytest.mark.rule("firmware-41")
def test_a_device_that_begins_late_is_waited_for(on_sqlite: Database) -> None:
    world = World(on_sqlite, 1)
    for device in world.devices.values():
        device.fate = Fate.SLOW
    world.create(order(timeouts=Timeouts(queue_minutes=300, total_minutes=300)))
    run_out(world)
    assert states(world) == {"SUCCEEDED": 4}
    assert {each.version for each in world.devices.values() if each.model == MODEL} == {NEW}
    assert paces(world) == {(number, Way.DOWNLOAD) for number in world.gateways}


@pytest.mark.rule("firmware-43")
@pytest.mark.parametrize("method", WAYS)
def test_a_start_that_never_left_is_shown_as_that_and_canceled_at_once(
    on_sqlite: Database, method: Way
) -> None:
    world = World(on_sqlite, 1)
    for gateway in world.gateways.values():  # of which the registry has not heard yet
        gateway.is_connected = False
    job = world.create(order(method))
    world.run(60)
    for each in _all(world):
        if each.state is ExecutionState.DISPATCHED:
            assert each.waiting_for == f"{UNSENT}; at the last try: the gateway is not connected"
            assert each.transitions[-1].cause != "the first command is sent"
    assert states(world)["DISPATCHED"] > 0
    world.steer(job, "cancel")
    world.run(2)
    assert states(world) == {"CANCELED": 4}
    assert not {each.letter.step for each in world.log} & {Step.ABORT, Step.PARTING}


@pytest.mark.rule("firmware-43")
@pytest.mark.parametrize(
    ("method", "stop"),
    [(Way.DOWNLOAD, "cancel"), (Way.BROADCAST, "withdraw"), (Way.NORDIC_DFU, "deadline")],
)
def test_a_start_in_the_outbox_is_taken_back_by_the_cancel(
    on_sqlite: Database, method: Way, stop: str
) -> None:
    world = World(on_sqlite, 1)
    Laws(world)
    job = world.create(order(method, deadline=write_millis(world.wall + 3_600_000)))
    world.is_held = True
    world.run(20)
    assert states(world)["DISPATCHED"] > 0
    if stop == "cancel":
        world.steer(job, "cancel")
    elif stop == "withdraw":
        world.withdraw(job)
    else:
        world.ahead = 3_600_000
    world.run(2)
    assert states(world) == {"CANCELED": 4}
    world.is_held = False
    world.run(60)
    assert world.log == [], "nothing was sent"


@pytest.mark.rule("firmware-43")
def test_nothing_begins_between_the_cancel_and_the_next_step_of_the_job(database: Database) -> None:
    world = World(database, 1)
    job = world.create(order())
    world.is_held = True
    world.run(20)
    world.steer(job, "cancel")
    taken = database.write_now(outbox.take, 256, {}, until=world.now + 60_000)
    assert taken.letters == []
    done = database.write_now(stepping.step, Orders(), job, world.moment)
    assert states(world)["DISPATCHED"] == 0
    assert done.is_canceling, "the runner drops what waits for its turn at a gateway"


@pytest.mark.rule("firmware-43")
def test_a_further_attempt_that_only_asked_for_the_version_is_canceled_at_once(on_sqlite: Database) -> None:
    world = World(on_sqlite, 1, gateways=1, devices=1)
    [device] = world.devices.values()
    device.fate = Fate.STUCK
    job = world.create(order(retry=Retry(max=1, backoff_seconds=5)))
    world.run(HOUR, until=lambda: states(world)["DISPATCHED"] + states(world)["TRANSFERRING"] > 0)
    world.run(HOUR, until=lambda: states(world)["QUEUED"] == 1)
    world.weather.lost = 1.0
    while all(each.letter.attempt == 1 for each in world.log):
        world.run(1)
    assert [each.letter.step for each in world.log if each.letter.attempt == 2] == [Step.LOOK]
    world.steer(job, "cancel")
    world.run(2)
    assert states(world) == {"CANCELED": 1}
    world.run(60)
    assert [each.letter.step for each in world.log if each.letter.attempt == 2] == [Step.LOOK]


def _clocks(world: World, now: int) -> list[tuple[int | None, ...]]:
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
    world = World(database, 1)
    for device, fate in zip(world.devices.values(), [Fate.LOST, *[Fate.STUCK] * 5], strict=True):
        device.fate = fate
    world.create(order(retry=Retry(max=3), rate=Rate(per_minute=60), timeouts=Timeouts(queue_minutes=300)))
    world.run(300, until=lambda: states(world) == {"QUEUED": 1, "TRANSFERRING": 3})
    database.write_now(uptime.resume, world.now)
    before = _clocks(world, world.now)
    assert len(before) == 3 + 1 + 1
    for hours in (70, -30):
        later = world.now + int(hours * HOUR) * 1000
        with pytest.raises(Torn):
            database.write_now(_resume_and_break_off, later)
        assert database.write_now(uptime.resume, later) == later - world.now
        assert _clocks(world, later) == before
        assert database.write_now(uptime.resume, later + 4000) == 0
        assert _clocks(world, later) == before, "only once"
        world.now = later
        database.write_now(uptime.resume, later)


def _resume_and_break_off(connection: Connection, now: int) -> None:
    uptime.resume(connection, now)
    raise Torn
