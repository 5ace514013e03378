"""Downtime of the job runner: timers of jobs do not run while no process can run jobs (firmware-39).

Downtime is a period in which no process could run jobs, because the service or its database was not running.
After downtime, the timers of active updates and of jobs (soak time, queue timeout, rate limit) are postponed
by its length. Times that users set (`startAt`, `deadline`) do not change. Timers also keep their remaining
time if the wall clock was set forward or back during the downtime.
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
"""Interval in milliseconds at which a process stores that it is running jobs."""

DOWNTIME_THRESHOLD_MS: Final = 20_000
"""Milliseconds without a record of a running process that count as downtime.

A lower threshold would be too short, because the clocks of processes differ by seconds.
"""

_SELECT_ALIVE_AT: Final = "SELECT alive_at FROM job_engine WHERE id = 1"
_UPDATE_ALIVE_AT: Final = (
    "INSERT INTO job_engine (id, alive_at) VALUES (1, ?)"
    " ON CONFLICT (id) DO UPDATE SET alive_at = excluded.alive_at"
)
_MOVE_ACTIVE: Final = (
    "UPDATE execution SET due = due + {gap}, expires = expires + {gap}, total_until = total_until + {gap},"  # noqa: S608 # constants only
    " moved_at = moved_at + {gap}, suspended_at = suspended_at + {gap}, resumed_at = {now},"
    " final_until = NULL"
    f" WHERE {active_condition()} AND device >= 0"  # or SQLite would scan all executions
)
_MOVE_QUEUED: Final = (
    "UPDATE execution SET expires = expires + {gap} WHERE state = 'QUEUED' AND expires IS NOT NULL"
)
_MOVE_UNCHECKED: Final = (
    # `moved_at` of a queued execution: since when the runner waits for an offline device that reports the
    # target version.
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
    """Store that a process is running jobs now. After downtime, postpone the timers by its length.

    Return the milliseconds of downtime: 0 if there was none, negative if the clock was set back.
    `last_alive_at` is the monotonic time in milliseconds of the last call in this process; None if the
    process has just started. A process that called recently never moves timers, because clocks of other
    processes may differ.

    The transaction is atomic: a process that is killed before the commit has moved no timer.
    """
    rows = bulk.query_rows(connection, _SELECT_ALIVE_AT, (), lock=" FOR UPDATE")
    gap = now - rows[0][0] if rows else 0
    if abs(gap) < DOWNTIME_THRESHOLD_MS or (
        last_alive_at is not None and abs(now - last_alive_at) < DOWNTIME_THRESHOLD_MS
    ):
        gap = 0
    if gap:
        _move_timers(connection, gap, now)
    bulk.execute_one(connection, _UPDATE_ALIVE_AT, (now,))
    return gap


def _move_timers(connection: Connection, gap: int, now: int) -> None:
    """Move the timers of jobs and updates by `gap` milliseconds; negative after a clock was set back."""
    statements = [_MOVE_ACTIVE, _MOVE_QUEUED, _MOVE_UNCHECKED, _MOVE_JOBS]
    if gap < 0:  # the clock was set back: executions and leases due in the future would wait too long
        statements += [_MOVE_BACK, _MOVE_LEASES]
    for each in statements:
        bulk.execute_one(connection, each.format(gap=gap, now=now), ())
    _log.info("job timers moved by %d s: no process was running jobs", gap // 1000)
