"""The same events at the same times give the same states, on either database."""

from __future__ import annotations

import shutil
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tests.databases import open_sqlite
from tests.service.jobs.execution.invariants import Invariants
from tests.service.jobs.execution.random_events import run_random_events, run_until_finished
from tests.service.jobs.execution.simulation import Simulation

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sqlalchemy import Connection

    from meshfleet.db import Database

STEPS = 8
HOUR = 3_600_000


@pytest.fixture
def fresh(sqlite_template: Path, tmp_path: Path) -> Callable[[str], Database]:
    def make(name: str) -> Database:
        path = tmp_path / f"{name}.sqlite"
        shutil.copy(sqlite_template, path)
        return open_sqlite(path)

    return make


def history(database: Database, time: str = "time") -> list[tuple[Any, ...]]:
    """All that became of all, but for the names of requests."""
    return database.read_now(_history, time)


def _history(connection: Connection, time: str) -> list[tuple[Any, ...]]:
    steps = connection.exec_driver_sql(
        f"SELECT job, device, {time}, before, after, attempt, version, cause FROM transition ORDER BY id"  # noqa: S608 # ours
    )
    ends = connection.exec_driver_sql(
        "SELECT job, device, state, wave, attempt, progress, code, reason FROM execution ORDER BY job, device"
    )
    return [*map(tuple, steps), *map(tuple, ends)]


@pytest.mark.parametrize("seed", [2])
def test_the_same_events_give_the_same_states(fresh: Callable[[str], Database], seed: int) -> None:
    told = []
    for name in ("one", "two"):
        database = fresh(name)
        world = Simulation(database, seed)
        run_random_events(world, Random(seed), STEPS)  # noqa: S311 # no secret
        run_until_finished(world)
        told.append(history(database))
        database.close()
    assert told[0] == told[1]
    assert len(told[0]) > 20


@pytest.mark.parametrize("seed", [2, pytest.param(5, marks=pytest.mark.part("fuzz"))])
def test_whoever_sets_the_clock_changes_nothing_for_executions(
    fresh: Callable[[str], Database], seed: int
) -> None:
    told = []
    for name, hours in (("one", [0]), ("two", [-9, -1, 0, 1, 9])):
        database = fresh(name)
        world, dice = Simulation(database, seed), Random(seed)  # noqa: S311 # no secret
        run_random_events(world, Random(seed), STEPS, partial(_set_clock, world, dice, hours))  # noqa: S311 # as above
        run_until_finished(world)
        told.append(history(database, "NULL"))
        database.close()
    assert told[0] == told[1]
    assert len(told[0]) > 20


def _set_clock(world: Simulation, dice: Random, hours: list[int]) -> None:
    world.ahead = dice.choice(hours) * HOUR


def test_the_same_seed_gives_the_same_waves(fresh: Callable[[str], Database]) -> None:
    waves = []
    for name in ("one", "two"):
        database = fresh(name)
        run_random_events(Simulation(database, 7), Random(7), 0)  # noqa: S311 # no secret
        rows = "SELECT device, wave, due FROM execution ORDER BY device"
        waves.append(database.read_now(lambda connection: [*connection.exec_driver_sql(rows)]))  # noqa: B023 # at once
        database.close()
    assert waves[0] == waves[1]


@pytest.mark.parametrize("seed", [3, pytest.param(4, marks=pytest.mark.part("fuzz"))])
@pytest.mark.rule("rest-201", "rest-202", "rest-142", "rest-143", "rest-144")
def test_the_laws_hold_on_either_database(database: Database, seed: int) -> None:
    world = Simulation(database, seed)
    laws = Invariants(world)
    run_random_events(world, Random(seed), STEPS, laws.check)  # noqa: S311 # no secret
    run_until_finished(world)
    laws.check_end()
