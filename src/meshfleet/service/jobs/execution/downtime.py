"""Knows when jobs were last run, so that clocks go on after an outage from where they stood (firmware-39).

An outage of the service or of its database is one in which no program could run jobs. Clocks of running
updates, and of jobs that soak, queue or keep a rate, are moved by its length. Times of day that people have
set (`startAt`, `deadline`) stay. The wall clock may have been set meanwhile, also back: each clock keeps the
time that it had left.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from meshfleet.db import bulk
from meshfleet.db.tables import active_condition

if TYPE_CHECKING:
    from sqlalchemy import Connection

_log = logging.getLogger(__name__)

ALIVE_INTERVAL_MS: Final = 3000
"""Milliseconds between two notes that a program runs jobs."""

DOWNTIME_THRESHOLD_MS: Final = 20_000
"""Milliseconds without such a note that count as an outage: programs side by side differ by some seconds."""

_SELECT_ALIVE_AT: Final = "SELECT alive_at FROM job_engine WHERE id = 1"
_UPDATE_ALIVE_AT: Final = (
    "INSERT INTO job_engine (id, alive_at) VALUES (1, ?)"
    " ON CONFLICT (id) DO UPDATE SET alive_at = excluded.alive_at"
)
_MOVE_ACTIVE: Final = (
    "UPDATE execution SET due = due + {gap}, expires = expires + {gap}, total_until = total_until + {gap},"  # noqa: S608 # our own names
    " moved_at = moved_at + {gap}, suspended_at = suspended_at + {gap}, resumed_at = {now},"
    " final_until = NULL"
    f" WHERE {active_condition()} AND device >= 0"  # or SQLite would look at all executions there ever were
)
_MOVE_QUEUED: Final = (
    "UPDATE execution SET expires = expires + {gap} WHERE state = 'QUEUED' AND expires IS NOT NULL"
)
_MOVE_UNCHECKED: Final = (
    # For how long a device was awaited that reports the target version.
    "UPDATE execution SET moved_at = moved_at + {gap} WHERE state = 'QUEUED' AND moved_at IS NOT NULL"
    " AND job IN (SELECT id FROM job WHERE finished_at IS NULL)"
)
_MOVE_JOBS: Final = (
    "UPDATE job SET queue_until = queue_until + {gap}, soaks_until = soaks_until + {gap},"
    " paced_until = CASE WHEN paced_until = 0 THEN 0 ELSE paced_until + {gap} END WHERE finished_at IS NULL"
)
_MOVE_BACK: Final = (
    "UPDATE execution SET due = due + {gap} WHERE state = 'QUEUED' AND due > 0"
    " AND job IN (SELECT id FROM job WHERE finished_at IS NULL)"
)
_MOVE_LEASES: Final = "UPDATE job_outbox SET taken_until = taken_until + {gap} WHERE taken_until > 0"


def record_alive(connection: Connection, now: int, last_alive_at: int | None = None) -> int:
    """Note that jobs are run now, and move clocks if they were not for a while. Return how long that was.

    `noted_at` is when this program noted it last, None if it has just started. A program that did so a moment
    ago never moves clocks: the clock of another program may be ahead or behind. All is done in one
    transaction, so a program that is killed before its end has moved nothing.
    """
    rows = bulk.query_rows(connection, _SELECT_ALIVE_AT, (), lock=" FOR UPDATE")
    gap = now - rows[0][0] if rows else 0
    if abs(gap) < DOWNTIME_THRESHOLD_MS or (
        last_alive_at is not None and abs(now - last_alive_at) < DOWNTIME_THRESHOLD_MS
    ):
        gap = 0
    if gap:
        _move_clocks(connection, gap, now)
    bulk.execute_one(connection, _UPDATE_ALIVE_AT, (now,))
    return gap


def _move_clocks(connection: Connection, gap: int, now: int) -> None:
    statements = [_MOVE_ACTIVE, _MOVE_QUEUED, _MOVE_UNCHECKED, _MOVE_JOBS]
    if gap < 0:  # what is due in the past is looked at anyway, but what is due tomorrow would wait until then
        statements += [_MOVE_BACK, _MOVE_LEASES]
    for each in statements:
        bulk.execute_one(connection, each.format(gap=gap, now=now), ())
    _log.info("jobs were not run for a while: their clocks were moved by %d s", gap // 1000)
