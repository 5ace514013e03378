"""However many executions there ever were, SQLite finds the few that a round is about without a walk.

Jobs of all kinds run in a world on simulated time, and each statement in which the engine looks for
executions is explained. What is in the tables makes no difference to that: SQLite has no statistics of them,
as in the service.
"""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from sqlalchemy import event

from meshfleet.db import Database
from meshfleet.db import sqlite as in_file
from meshfleet.rest import Concurrency, NewJob, Retry, Targets, Timeouts
from tests.row_tables import each_row
from tests.service.jobs.execution.random_events import DAY, run_until_finished
from tests.service.jobs.execution.rows import LEGACY, MODEL, firmware_id
from tests.service.jobs.execution.simulated_devices import UpdateFate
from tests.service.jobs.execution.simulation import Simulation

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    from sqlalchemy import Connection, Engine

    from meshfleet.protocol.ids import ModelNumber

HOT = {
    "dispatching: the queue of a wave": "e.state = 'QUEUED' AND e.wave = ? AND e.due <= ?",
    "dispatching: who takes part in a broadcast": "FROM device d CROSS JOIN execution e",
    "dispatching: what gateways are busy with": "SELECT gateway, method, coalesce(batch,",
    "dispatching: who is taken over": "SELECT e.device, min(e.job) FROM job j",
    "advancing: whose time has come": "AND e.due <= ? ORDER BY e.due LIMIT",
    "advancing: the execution of a device": "WHERE e.device IN (SELECT value",
    "advancing: a broadcast": "e.batch = ?",
    "advancing: heartbeats": "s.status_at > coalesce(e.beat_at, -1)",
    "advancing: devices in DFU mode": "s.boot_mode = 'dfu'",
    "advancing: devices that are gone, and gateways": "CASE WHEN d.id IS NULL THEN 'gone'",
    "ending_many: some to be canceled": "state = 'QUEUED' AND job = ? ORDER BY device",
    "ending_many: who was never begun": "expires IS NULL ORDER BY wave, due",
    "ending_many: who is tried again in vain": "+job = ? AND expires <= ?",
    "ending_many: the end of many": "UPDATE execution SET state = 'CANCELED'",
    "lines: who is next": "e.waiting = 'gateway-busy' AND e.gateway = ?",
    "stepping: who is taken back": "AND batch IS NULL)) AND coalesce(waiting",
    "stepping: who is to start what it has": "state = 'STAGED' AND ask IS NULL",
}
"""A part of each statement that the engine runs again and again."""

_TABLE = re.compile(r"\b(?:FROM|JOIN|UPDATE) execution(?: ([a-z]))?\b")
_OF_FEW = re.compile(r"SCAN \w+ USING (?:COVERING )?INDEX ix_execution_(?:due|active|at_gateway)\b")
"""A walk along an index that has only those that are under way."""
_OF_ALL = re.compile(r"SCAN |SEARCH \w+ USING PRIMARY KEY \(job=\?\)")
"""A walk along all executions, or all of a job."""


class Said(NamedTuple):
    """A statement as it was run."""

    text: str
    values: Any


def order(place: int = 0, model: ModelNumber = MODEL, **values: Any) -> NewJob:
    return NewJob(name="all", firmware_id=firmware_id(place, model), targets=Targets(all=True), **values)


def live(world: Simulation) -> None:
    """Let everything happen that the engine has a statement for."""
    for each in world.devices.values():
        each.fate = UpdateFate.LOST
    one, again = Concurrency(per_gateway=1), Retry(max=2, backoff_seconds=5)
    world.create(order(retry=again, concurrency=one, on_newer_job="supersede"))
    world.run(20)
    for each in world.devices.values():
        each.fate = UpdateFate.FINE
    newer = world.create(order(1, method="broadcast", stage=True))
    world.run(300)
    assert world.run_command(newer, "apply")
    world.run(300)
    legacy = world.create(order(0, LEGACY, concurrency=Concurrency(per_job=1)))
    world.run(5)
    assert world.run_command(legacy, "cancel")
    world.run(600)
    world.set_connected(1, connected=False)
    world.create(order(1, LEGACY, timeouts=Timeouts(queue_minutes=2)))
    world.run(DAY / 24)
    run_until_finished(world)


def hear(engine: Engine, heard: dict[str, Said]) -> None:
    """Keep every statement, once."""

    @event.listens_for(engine, "before_cursor_execute")
    def keep(*what: Any) -> None:
        _, _, text, values, _, is_many = what
        heard.setdefault(text, Said(text, values[0] if is_many else values))


@pytest.fixture(scope="module")
def plans(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What SQLite does for each statement that looks for executions: lines about those."""
    path = tmp_path_factory.mktemp("plans") / "meshfleet.sqlite"
    shutil.copy(sqlite_template, path)
    engines, heard = in_file.create_sqlite_engines(path), dict[str, Said]()
    event.listen(engines.writers, "connect", _hurry)
    database = Database(engines)
    world = Simulation(database, 1)
    hear(engines.writers, heard)
    live(world)
    found = {text: database.read_now(_explain, said) for text, said in heard.items() if _TABLE.search(text)}
    statistics = "SELECT count(*) FROM sqlite_master WHERE name LIKE 'sqlite_stat%'"
    assert database.read_now(lambda connection: connection.exec_driver_sql(statistics).scalar()) == 0
    database.close()
    return found


def _hurry(connection: sqlite3.Connection, _record: object) -> None:
    connection.execute("PRAGMA synchronous = OFF")  # nobody needs it after a power cut


def _explain(connection: Connection, said: Said) -> list[str]:
    names = {alias or "execution" for alias in _TABLE.findall(said.text)}
    rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {said.text}", said.values)
    return [row[-1] for row in rows if row[-1].split()[1] in names]


@each_row("part", [pytest.param(part, id=name) for name, part in HOT.items()])
def test_a_statement_of_every_round_walks_along_few(plans: dict[str, list[str]], part: str) -> None:
    found = [lines for text, lines in plans.items() if part in text]
    assert found, "nobody has run it"
    for lines in found:
        assert lines
        assert not [each for each in lines if _OF_ALL.match(each) and not _OF_FEW.match(each)]


def test_nothing_else_that_the_engine_does_walks_along_all(plans: dict[str, list[str]]) -> None:
    walks = {
        text: each
        for text, lines in plans.items()
        for each in lines
        if _OF_ALL.match(each) and not _OF_FEW.match(each)
    }
    assert walks == {}
