"""Order of the audit log, and the cost of finding a page in a long log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from sqlalchemy import event, text

from meshfleet.protocol.times import parse_millis
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.audit import log
from meshfleet.service.audit.log import AuditFilter, AuditPosition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from meshfleet.db import Database

pytestmark = pytest.mark.both_databases

_ROWS: Final = 20_000
_PAGE: Final = 50
_MAX_ROWS_READ: Final = 4 * _PAGE
_STEPS_PER_ROW: Final = 25
"""Maximum number of virtual machine steps that SQLite takes per row."""

_INSERT_ROWS: Final = """
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :rows)
    INSERT INTO audit (time, actor, action, target, detail)
    SELECT 1000 * i, CASE WHEN i % 500 = 0 THEN 'rare' ELSE 'often' END,
      CASE WHEN i % 500 = 1 THEN 'label.remove' ELSE 'device.label' END, 'bmac-' || i % 2000, '{}' FROM n
"""
"""Query that inserts one row per second."""

_END: Final = 1000 * _ROWS


def _fill(connection: Connection) -> None:
    connection.execute(text(_INSERT_ROWS), {"rows": _ROWS})
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("ANALYZE audit")  # as autovacuum does after a while


def _estimate_rows_read(
    connection: Connection, audit_filter: AuditFilter, before: AuditPosition | None
) -> float:
    """Return the approximate number of rows that the database reads."""
    if connection.dialect.name == "sqlite":
        steps = 0

        def step() -> None:
            nonlocal steps
            steps += 1

        driver: Any = connection.connection.driver_connection
        driver.set_progress_handler(step, 1)
        log.list_entries(connection, audit_filter, before=before, limit=_PAGE)
        driver.set_progress_handler(None, 0)
        return steps / _STEPS_PER_ROW
    executed: list[Any] = []
    event.listen(connection, "before_cursor_execute", lambda *what: executed.append(what[2:4]))
    log.list_entries(connection, audit_filter, before=before, limit=_PAGE)
    query, values = executed[0]
    plan = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}", values).scalar_one()
    return max(
        float(each["Actual Rows"] + each.get("Rows Removed by Filter", 0))
        for each in _list_plan_nodes(plan[0]["Plan"])
    )


def _list_plan_nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for each in plan.get("Plans", ()):
        yield from _list_plan_nodes(each)


@pytest.mark.rule("auth-27")
def test_a_page_of_a_long_log_is_found_without_a_scan(database: Database) -> None:
    database.write_now(_fill)
    middle = AuditPosition(_END // 2, _ROWS // 2)
    filters: list[dict[str, str]] = [{}, {"actor": "often"}, {"actor": "rare"}, {"action": "label.remove"}]
    times = (
        (None, None, None),
        (_END - 10_000, None, None),
        (_END + 1000, None, None),
        (None, 30_000, None),
        (1000, _END, None),
        (_END // 2 - 10_000, _END // 2 + 10_000, None),
        (1000, _END, middle),
        (_END // 2 - 10_000, _END, middle),
        (None, None, middle),
    )
    failures = []
    for conditions in filters:
        for since, until, before in times:
            audit_filter = AuditFilter(**conditions, since=since, until=until)
            rows = database.read_now(_estimate_rows_read, audit_filter, before)
            if rows > _MAX_ROWS_READ:
                failures.append((audit_filter, before, rows))
    assert failures == []


@pytest.mark.rule("auth-27")
def test_old_changes_of_a_target_are_found_without_a_scan(database: Database) -> None:
    database.write_now(_fill)
    for since, until in ((None, None), (1000, 3_000_000), (None, 1000)):
        audit_filter = AuditFilter(target="bmac-7", since=since, until=until)
        assert database.read_now(_estimate_rows_read, audit_filter, None) <= _MAX_ROWS_READ, audit_filter


def test_pages_are_complete_with_equal_times_and_a_clock_set_back(database: Database) -> None:
    times = [5, 5, 9, 7, 7, 7, 2]
    row = "INSERT INTO audit (time, actor, action, target, detail) VALUES"

    def fill(connection: Connection) -> None:
        for time in times:
            connection.exec_driver_sql(f"{row} ({time}, 'a', 'b', 'c', '{{}}')")

    database.write_now(fill)
    positions: list[AuditPosition] = []
    while page := database.read_now(
        log.list_entries, AuditFilter(until=9), before=positions[-1] if positions else None, limit=2
    ):
        positions += map(log.build_position, page)
    expected = [AuditPosition(time, number) for number, time in enumerate(times, start=1) if time < 9]
    assert positions == sorted(expected, reverse=True)


@pytest.mark.rule("auth-26", "auth-27")
def test_a_change_that_waited_for_another_is_recorded_after_it(database: Database) -> None:
    def rename(connection: Connection, now: int) -> None:
        log.record_change(connection, COMMAND_LINE, "device.rename", str(now), now=now)

    for now in (1000, 5_000_000, 4_999_000, 4_999_500, 900_000):
        database.write_now(rename, now)
    rows = database.read_now(log.list_entries, AuditFilter(), before=None, limit=9)
    assert [(row.target, parse_millis(row.time)) for row in rows] == [
        ("4999500", 5_000_000),
        ("4999000", 5_000_000),
        ("5000000", 5_000_000),
        ("900000", 900_000),  # the clock was set back
        ("1000", 1000),
    ]
