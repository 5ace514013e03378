"""The audit log in its order: a page of it is found with few steps, however long the log is."""

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
_FEW: Final = 4 * _PAGE
_STEPS: Final = 25
"""What SQLite does for each row at most: it counts its own steps."""

_FILL: Final = """
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :rows)
    INSERT INTO audit (time, actor, action, target, detail)
    SELECT 1000 * i, CASE WHEN i % 500 = 0 THEN 'rare' ELSE 'often' END,
      CASE WHEN i % 500 = 1 THEN 'label.remove' ELSE 'device.label' END, 'bmac-' || i % 2000, '{}' FROM n
"""
"""A row each second."""

_END: Final = 1000 * _ROWS


def _fill(connection: Connection) -> None:
    connection.execute(text(_FILL), {"rows": _ROWS})
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("ANALYZE audit")  # it does so by itself after a while


def _looked_at(connection: Connection, choice: AuditFilter, before: AuditPosition | None) -> float:
    """How many rows the database looks at, about."""
    if connection.dialect.name == "sqlite":
        steps = 0

        def step() -> None:
            nonlocal steps
            steps += 1

        driver: Any = connection.connection.driver_connection
        driver.set_progress_handler(step, 1)
        log.list_entries(connection, choice, before=before, limit=_PAGE)
        driver.set_progress_handler(None, 0)
        return steps / _STEPS
    said: list[Any] = []
    event.listen(connection, "before_cursor_execute", lambda *what: said.append(what[2:4]))
    log.list_entries(connection, choice, before=before, limit=_PAGE)
    query, values = said[0]
    plan = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}", values).scalar_one()
    return max(
        float(each["Actual Rows"] + each.get("Rows Removed by Filter", 0)) for each in _nodes(plan[0]["Plan"])
    )


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for each in plan.get("Plans", ()):
        yield from _nodes(each)


@pytest.mark.rule("auth-27")
def test_a_page_of_a_long_log_is_found_without_walking_along_it(database: Database) -> None:
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
    for chosen in filters:
        for since, until, before in times:
            choice = AuditFilter(**chosen, since=since, until=until)
            rows = database.read_now(_looked_at, choice, before)
            if rows > _FEW:
                failures.append((choice, before, rows))
    assert failures == []


@pytest.mark.rule("auth-27")
def test_a_target_of_old_is_found_without_walking_along_the_log(database: Database) -> None:
    database.write_now(_fill)
    for since, until in ((None, None), (1000, 3_000_000), (None, 1000)):
        choice = AuditFilter(target="bmac-7", since=since, until=until)
        assert database.read_now(_looked_at, choice, None) <= _FEW, choice


def test_pages_go_on_where_times_are_the_same_and_where_a_clock_went_back(database: Database) -> None:
    times = [5, 5, 9, 7, 7, 7, 2]
    row = "INSERT INTO audit (time, actor, action, target, detail) VALUES"

    def fill(connection: Connection) -> None:
        for time in times:
            connection.exec_driver_sql(f"{row} ({time}, 'a', 'b', 'c', '{{}}')")

    database.write_now(fill)
    found: list[AuditPosition] = []
    while some := database.read_now(
        log.list_entries, AuditFilter(until=9), before=found[-1] if found else None, limit=2
    ):
        found += map(log.build_position, some)
    wanted = [AuditPosition(time, number) for number, time in enumerate(times, start=1) if time < 9]
    assert found == sorted(wanted, reverse=True)


@pytest.mark.rule("auth-26", "auth-27")
def test_a_change_that_had_to_wait_for_another_is_told_behind_it(database: Database) -> None:
    def rename(connection: Connection, now: int) -> None:
        log.record_change(connection, COMMAND_LINE, "device.rename", str(now), now=now)

    for now in (1000, 5_000_000, 4_999_000, 4_999_500, 900_000):
        database.write_now(rename, now)
    found = database.read_now(log.list_entries, AuditFilter(), before=None, limit=9)
    assert [(row.target, parse_millis(row.time)) for row in found] == [
        ("4999500", 5_000_000),
        ("4999000", 5_000_000),
        ("5000000", 5_000_000),
        ("900000", 900_000),  # somebody has set the clock
        ("1000", 1000),
    ]
