"""Open jobs that say what becomes of a device when a newer job wants it, too (rest-129)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import select

from meshfleet.db import bulk
from meshfleet.db.tables import is_active, job, tally
from meshfleet.service.jobs.update.states import TERMINAL
from meshfleet.wire.rest import ExecutionState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement, Connection

_TERMINAL: Final = ", ".join(f"'{state}'" for state in sorted(TERMINAL))

_BEGUN: Final = f"SELECT device FROM execution WHERE device IN numbers AND {is_active()}"  # noqa: S608 # our own words


class Rivals(NamedTuple):
    """Open jobs that do not just let newer ones queue behind them."""

    rejecting: tuple[int, ...] = ()
    """Jobs that let no newer job have their devices."""
    superseded: tuple[int, ...] = ()
    """Jobs that give devices up to a newer one."""


def find(connection: Connection) -> Rivals:
    """All that are open now."""
    return Rivals(_open(connection, "reject"), _open(connection, "supersede"))


def claims(connection: Connection, jobs: Sequence[int], devices: Sequence[int]) -> dict[int, int]:
    """Which of these devices, which are sorted, are not done with in which of these jobs."""
    if not jobs:
        return {}
    rows = bulk.pick(
        connection,
        "SELECT device, min(job) FROM execution"  # noqa: S608 # numbers, and our own words
        f" WHERE job IN ({', '.join(map(str, jobs))}) "
        f" AND device BETWEEN {devices[0]} AND {devices[-1]} AND device IN numbers"
        f" AND state NOT IN ({_TERMINAL})"
        " GROUP BY device",
        devices,
    )
    return {row[0]: row[1] for row in rows}


def keeping(connection: Connection) -> tuple[int, ...]:
    """Open jobs in which devices wait that they do not give up."""
    queued = select(tally.c.job).where(tally.c.state == str(ExecutionState.QUEUED), tally.c.count > 0)
    query = select(job.c.id).where(job.c.finished_at.is_(None), job.c.id.in_(queued), ~_says("supersede"))
    return tuple(connection.scalars(query))


def held(connection: Connection, jobs: Sequence[int], devices: Sequence[int]) -> set[int]:
    """Which of these devices, which are sorted, are under way in any job, or wait in these."""
    return {
        *claims(connection, jobs, devices),
        *(row[0] for row in bulk.pick(connection, _BEGUN, devices)),
    }


def _open(connection: Connection, policy: str) -> tuple[int, ...]:
    """Open jobs with a policy."""
    query = select(job.c.id).where(job.c.finished_at.is_(None), _says(policy)).order_by(job.c.id)
    return tuple(connection.scalars(query))


def _says(policy: str) -> ColumnElement[bool]:
    """Whether a job has a policy.

    Its words are looked for as they stand in an order: within a text of it, quotes are written in another
    way. PostgreSQL's own functions for JSON give up at texts that nobody can forbid.
    """
    return job.c.body.contains(f'"onNewerJob":"{policy}"')
