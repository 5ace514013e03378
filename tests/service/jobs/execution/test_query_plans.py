"""Tests of query plans: SQLite finds the executions of a round without scanning all executions.

Jobs of all kinds run in a simulation, and each statement on executions is explained. The content of the
tables does not matter, because SQLite has no statistics of them, as in the service.
"""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from sqlalchemy import event

from meshfleet.db import Database
from meshfleet.db import sqlite as in_file
from meshfleet.rest.job_requests import Concurrency, NewJob, Retry, Targets, Timeouts
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

FREQUENT_STATEMENTS = {
    "dispatch: the queue of a wave": "e.state = 'QUEUED' AND e.wave = ? AND e.due <= ?",
    "dispatch: members of a broadcast": "FROM device d CROSS JOIN execution e",
    "gateway_slots: updates of gateways": "SELECT gateway, method, coalesce(batch,",
    "dispatch: newer jobs of devices": "SELECT e.device, min(e.job) FROM job j",
    "execution_events: due executions": "AND e.due <= ? ORDER BY e.due LIMIT",
    "execution_events: executions of devices": "WHERE e.device IN (SELECT value",
    "broadcast_batches: members": "e.batch = ?",
    "registry_changes: heartbeats": "s.status_at > coalesce(e.beat_at, -1)",
    "registry_changes: devices in DFU mode": "s.boot_mode = 'dfu'",
    "registry_changes: removed devices and gateways": "CASE WHEN d.id IS NULL THEN 'gone'",
    "queue_cleanup: executions to cancel": "state = 'QUEUED' AND job = ? ORDER BY device",
    "queue_cleanup: expired executions": "expires IS NULL ORDER BY wave, due",
    "queue_cleanup: expired retries": "+job = ? AND expires <= ?",
    "store: end of queued executions": "UPDATE execution SET state = :state",
    "transition_writer: executions that wait for a gateway": "e.waiting = 'gateway-busy' AND e.gateway = ?",
    "job_scheduler: cancelable executions": "AND batch IS NULL)) AND coalesce(waiting",
    "job_scheduler: staged executions": "state = 'STAGED' AND ask IS NULL",
}
"""A part of the text of each frequent statement."""

_TABLE = re.compile(r"\b(?:FROM|JOIN|UPDATE) execution(?: ([a-z]))?\b")
_ACTIVE_SCAN = re.compile(r"SCAN \w+ USING (?:COVERING )?INDEX ix_execution_(?:due|active|at_gateway)\b")
"""Scan of an index that contains only active executions."""
_FULL_SCAN = re.compile(r"SCAN |SEARCH \w+ USING PRIMARY KEY \(job=\?\)")
"""Scan of all executions, or of all executions of a job."""


class ExecutedStatement(NamedTuple):
    """Executed statement with its values."""

    text: str
    values: Any


def build_job(place: int = 0, model: ModelNumber = MODEL, **values: Any) -> NewJob:
    return NewJob(name="all", firmware_id=firmware_id(place, model), targets=Targets(all=True), **values)


def run_all_statements(simulation: Simulation) -> None:
    """Run jobs so that every statement of job execution is executed."""
    for each in simulation.devices.values():
        each.fate = UpdateFate.LOST
    one_slot, retry = Concurrency(per_gateway=1), Retry(max=2, backoff_seconds=5)
    simulation.create(build_job(retry=retry, concurrency=one_slot, on_newer_job="supersede"))
    simulation.run(20)
    for each in simulation.devices.values():
        each.fate = UpdateFate.FINE
    newer = simulation.create(build_job(1, method="broadcast", stage=True))
    simulation.run(300)
    assert simulation.run_command(newer, "apply")
    simulation.run(300)
    legacy = simulation.create(build_job(0, LEGACY, concurrency=Concurrency(per_job=1)))
    simulation.run(5)
    assert simulation.run_command(legacy, "cancel")
    simulation.run(600)
    simulation.set_connected(1, connected=False)
    simulation.create(build_job(1, LEGACY, timeouts=Timeouts(queue_minutes=2)))
    simulation.run(DAY / 24)
    run_until_finished(simulation)


def record_statements(engine: Engine, statements: dict[str, ExecutedStatement]) -> None:
    """Record each executed statement once."""

    @event.listens_for(engine, "before_cursor_execute")
    def record(*args: Any) -> None:
        _, _, text, values, _, is_many = args
        statements.setdefault(text, ExecutedStatement(text, values[0] if is_many else values))


@pytest.fixture(scope="module")
def plans(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Return the lines of the query plan about executions, for each statement on executions."""
    path = tmp_path_factory.mktemp("plans") / "meshfleet.sqlite"
    shutil.copy(sqlite_template, path)
    engines, statements = in_file.create_sqlite_engines(path), dict[str, ExecutedStatement]()
    event.listen(engines.writers, "connect", _disable_sync)
    database = Database(engines)
    simulation = Simulation(database, 1)
    record_statements(engines.writers, statements)
    run_all_statements(simulation)
    plans_found = {
        text: database.read_now(_explain, statement)
        for text, statement in statements.items()
        if _TABLE.search(text)
    }
    statistics = "SELECT count(*) FROM sqlite_master WHERE name LIKE 'sqlite_stat%'"
    assert database.read_now(lambda connection: connection.exec_driver_sql(statistics).scalar()) == 0
    database.close()
    return plans_found


def _disable_sync(connection: sqlite3.Connection, _record: object) -> None:
    connection.execute("PRAGMA synchronous = OFF")  # the data need not survive a power failure


def _explain(connection: Connection, statement: ExecutedStatement) -> list[str]:
    names = {alias or "execution" for alias in _TABLE.findall(statement.text)}
    rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement.text}", statement.values)
    return [row[-1] for row in rows if row[-1].split()[1] in names]


@each_row("part", [pytest.param(part, id=name) for name, part in FREQUENT_STATEMENTS.items()])
def test_a_frequent_statement_does_not_scan_all_executions(plans: dict[str, list[str]], part: str) -> None:
    plans_found = [lines for text, lines in plans.items() if part in text]
    assert plans_found, "the statement was not executed"
    for lines in plans_found:
        assert lines
        assert not [each for each in lines if _FULL_SCAN.match(each) and not _ACTIVE_SCAN.match(each)]


def test_no_other_statement_scans_all_executions(plans: dict[str, list[str]]) -> None:
    scans = {
        text: each
        for text, lines in plans.items()
        for each in lines
        if _FULL_SCAN.match(each) and not _ACTIVE_SCAN.match(each)
    }
    assert scans == {}
