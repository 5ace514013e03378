"""Tests of determinism: the same events at the same times give the same states on either database."""

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
def create_database(sqlite_template: Path, tmp_path: Path) -> Callable[[str], Database]:
    def create(name: str) -> Database:
        path = tmp_path / f"{name}.sqlite"
        shutil.copy(sqlite_template, path)
        return open_sqlite(path)

    return create


def load_history(database: Database, time: str = "time") -> list[tuple[Any, ...]]:
    """Return all transitions and final executions."""
    return database.read_now(_load_history, time)


def _load_history(connection: Connection, time: str) -> list[tuple[Any, ...]]:
    transitions = connection.exec_driver_sql(
        f"SELECT job, device, {time}, before, after, attempt, version, cause FROM transition ORDER BY id"  # noqa: S608 # constants only
    )
    final_rows = connection.exec_driver_sql(
        "SELECT job, device, state, wave, attempt, progress, code, reason FROM execution ORDER BY job, device"
    )
    return [*map(tuple, transitions), *map(tuple, final_rows)]


@pytest.mark.parametrize("seed", [2])
def test_the_same_events_give_the_same_states(create_database: Callable[[str], Database], seed: int) -> None:
    histories = []
    for name in ("one", "two"):
        database = create_database(name)
        simulation = Simulation(database, seed)
        run_random_events(simulation, Random(seed), STEPS)  # noqa: S311 # not used for secrets
        run_until_finished(simulation)
        histories.append(load_history(database))
        database.close()
    assert histories[0] == histories[1]
    assert len(histories[0]) > 20


@pytest.mark.parametrize("seed", [2, pytest.param(5, marks=pytest.mark.part("fuzz"))])
def test_setting_the_wall_clock_does_not_change_executions(
    create_database: Callable[[str], Database], seed: int
) -> None:
    histories = []
    for name, hours in (("one", [0]), ("two", [-9, -1, 0, 1, 9])):
        database = create_database(name)
        simulation, rng = Simulation(database, seed), Random(seed)  # noqa: S311 # not used for secrets
        run_random_events(simulation, Random(seed), STEPS, partial(_set_clock, simulation, rng, hours))  # noqa: S311 # not used for secrets
        run_until_finished(simulation)
        histories.append(load_history(database, "NULL"))
        database.close()
    assert histories[0] == histories[1]
    assert len(histories[0]) > 20


def _set_clock(simulation: Simulation, rng: Random, hours: list[int]) -> None:
    simulation.ahead = rng.choice(hours) * HOUR


def test_the_same_seed_gives_the_same_waves(create_database: Callable[[str], Database]) -> None:
    waves = []
    for name in ("one", "two"):
        database = create_database(name)
        run_random_events(Simulation(database, 7), Random(7), 0)  # noqa: S311 # not used for secrets
        rows = "SELECT device, wave, due FROM execution ORDER BY device"
        waves.append(database.read_now(lambda connection: [*connection.exec_driver_sql(rows)]))  # noqa: B023 # called immediately
        database.close()
    assert waves[0] == waves[1]


@pytest.mark.parametrize("seed", [3, pytest.param(4, marks=pytest.mark.part("fuzz"))])
@pytest.mark.rule("rest-201", "rest-202", "rest-142", "rest-143", "rest-144")
def test_the_invariants_hold_on_either_database(database: Database, seed: int) -> None:
    simulation = Simulation(database, seed)
    invariants = Invariants(simulation)
    run_random_events(simulation, Random(seed), STEPS, invariants.check)  # noqa: S311 # not used for secrets
    run_until_finished(simulation)
    invariants.check_end()
