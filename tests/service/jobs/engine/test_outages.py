"""Outages of the service, of gateways and of the broker: clocks stand still, and devices are asked first."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from meshfleet.service.jobs.shown import executions
from meshfleet.service.jobs.update.model import Step
from meshfleet.wire.ids import number_mac
from meshfleet.wire.products import Way
from meshfleet.wire.rest import Concurrency, ExecutionState, NewJob, Retry, Targets, Timeouts
from tests.service.jobs.engine.chaos import run_out
from tests.service.jobs.engine.laws import Laws
from tests.service.jobs.engine.radio import Fate
from tests.service.jobs.engine.rows import MODEL, NEW, firmware_id
from tests.service.jobs.engine.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from meshfleet.db import Database

HOUR = 3600.0
WAYS = [Way.DOWNLOAD, Way.BROADCAST, Way.NORDIC_DFU]


@pytest.fixture
def database(sqlite_database: Database) -> Iterator[Database]:
    """On one database: what an outage writes is tested on both with the law of replays."""
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


def partings(world: World) -> int:
    """How many devices were told not to go on."""
    return sum(each.letter.step is Step.PARTING for each in world.log)


@pytest.mark.rule("firmware-39")
@pytest.mark.parametrize("method", WAYS)
def test_devices_that_finish_while_the_service_is_away_succeed(database: Database, method: Way) -> None:
    world = World(database, 1)
    laws = Laws(world)
    world.create(order(method))
    world.run(HOUR, until=transferring(world))
    world.be_away(HOUR)
    run_out(world)
    assert states(world) == {"SUCCEEDED": 4}
    assert partings(world) == 0
    laws.check_end()


@pytest.mark.rule("firmware-39")
@pytest.mark.parametrize("method", WAYS)
def test_devices_that_finish_while_their_gateway_is_away_succeed(database: Database, method: Way) -> None:
    world = World(database, 1)
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
    assert partings(world) == 0
    laws.check_end()


def _all(world: World) -> list[Any]:
    return [shown(world, number) for number, each in world.devices.items() if each.model == MODEL]


@pytest.mark.rule("firmware-41")
@pytest.mark.parametrize("method", WAYS)
def test_a_device_that_begins_late_is_waited_for(database: Database, method: Way) -> None:
    world = World(database, 1)
    for device in world.devices.values():
        device.fate = Fate.SLOW
    world.create(order(method, timeouts=Timeouts(queue_minutes=300)))
    run_out(world)
    assert states(world) == {"SUCCEEDED": 4}
    assert {each.version for each in world.devices.values() if each.model == MODEL} == {NEW}
