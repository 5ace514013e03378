"""Open jobs that say what becomes of a device when a newer job wants it, too (rest-129)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import JSON, cast, func, select

from meshfleet.db import bulk
from meshfleet.db.tables import job
from meshfleet.service.jobs.states import TERMINAL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement, Connection

_TERMINAL: Final = ", ".join(f"'{state}'" for state in sorted(TERMINAL))


class Rivals(NamedTuple):
    """Open jobs that do not just let newer ones queue behind them."""

    rejecting: tuple[int, ...] = ()
    """Jobs that let no newer job have their devices."""
    superseded: tuple[int, ...] = ()
    """Jobs that give devices up to a newer one."""


def find(connection: Connection) -> Rivals:
    """All that are open now."""
    policy = _policy(connection)
    query = select(job.c.id, policy).where(job.c.finished_at.is_(None), policy != "queue").order_by(job.c.id)
    rows = connection.execute(query).all()
    return Rivals(
        tuple(number for number, each in rows if each == "reject"),
        tuple(number for number, each in rows if each == "supersede"),
    )


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


def _policy(connection: Connection) -> ColumnElement[Any]:
    if connection.dialect.name == "sqlite":
        return func.json_extract(job.c.body, "$.onNewerJob")
    policy: ColumnElement[Any] = cast(job.c.body, JSON)["onNewerJob"].as_string()
    return policy
