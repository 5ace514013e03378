"""Audit log: one row per change, written in the transaction of the change (auth-26, auth-27)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from sqlalchemy import func, insert, select, tuple_

from meshfleet.db.tables import audit
from meshfleet.protocol.times import format_millis, parse_millis
from meshfleet.rest.accounts import AuditRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection, Row

    from meshfleet.service.actor import Actor


_RECENT_IDS: Final = 1000
"""Range of the newest ids in which rows of concurrent transactions may still appear."""

_MAX_WAIT_MS: Final = 60_000
"""Longest time a change waits for others, in milliseconds; rows farther in the future had a wrong clock."""


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filter of audit rows; all given conditions must match."""

    actor: str | None = None
    action: str | None = None
    target: str | None = None
    since: int | None = None
    until: int | None = None
    """Time range in milliseconds since the epoch: `since` is inclusive, `until` is exclusive."""


def record_change(
    connection: Connection, by: Actor, action: str, target: str, *, now: int, **detail: Any
) -> None:
    """Record a change. Call it in the transaction that makes the change."""
    record_changes(connection, by, action, [target], now=now, **detail)


def record_changes(
    connection: Connection, by: Actor, action: str, targets: Sequence[str], *, now: int, **detail: Any
) -> None:
    """Record the same change of several targets, one row for each."""
    row = {
        "time": _choose_entry_time(connection, now),
        "actor": by.display_name,
        "action": action,
        "detail": msgspec.json.encode(detail).decode(),
        "address": by.address,
    }
    if targets:
        connection.execute(insert(audit), [{**row, "target": target} for target in targets])


def _choose_entry_time(connection: Connection, now: int) -> int:
    """Return the time to record for a change: `now`, but not before the changes it follows.

    Two transactions that change the same thing read the clock before one waits for the other. As the log is
    read in the order of its times, these must show which change came first.
    """
    newest = connection.execute(
        select(func.max(audit.c.time)).where(audit.c.time <= now + _MAX_WAIT_MS)
    ).scalar()
    return now if newest is None else max(now, newest)


class AuditMark(NamedTuple):
    """State of the log that differs after every change."""

    newest: int
    recent: int
    """Number of rows in the range of the newest ids: a row may be committed after one with a higher id."""


def load_mark(connection: Connection) -> AuditMark:
    """Return the current mark: while it is unchanged, no change was recorded."""
    newest = connection.execute(select(func.max(audit.c.id))).scalar() or 0
    recent = select(func.count()).where(audit.c.id > newest - _RECENT_IDS)
    return AuditMark(newest, connection.execute(recent).scalar_one())


class AuditPosition(NamedTuple):
    """Position of a row in the log, which is ordered by time because users filter by time."""

    time: int
    id: int


def list_entries(
    connection: Connection, choice: AuditFilter, *, before: AuditPosition | None, limit: int
) -> list[AuditRow]:
    """Return up to `limit` matching rows, the newest first, starting before a position."""
    query = select(audit).order_by(audit.c.time.desc(), audit.c.id.desc()).limit(limit)
    for column, value in (
        (audit.c.actor, choice.actor),
        (audit.c.action, choice.action),
        (audit.c.target, choice.target),
    ):
        if value is not None:
            query = query.where(column == value)
    if choice.since is not None:
        query = query.where(audit.c.time >= choice.since)
    if before is not None:  # instead of `until`, which is later and where SQLite might start the scan
        query = query.where(tuple_(audit.c.time, audit.c.id) < tuple_(*before))
    elif choice.until is not None:
        query = query.where(audit.c.time < choice.until)
    return [_to_audit_row(row) for row in connection.execute(query)]


def build_position(row: AuditRow) -> AuditPosition:
    """Return the position of a row, after which the next page starts."""
    return AuditPosition(parse_millis(row.time), row.id)


def _to_audit_row(row: Row[Any]) -> AuditRow:
    return AuditRow(
        id=row.id,
        time=format_millis(row.time),
        actor=row.actor,
        action=row.action,
        target=row.target,
        detail=msgspec.json.decode(row.detail),
        address=row.address,
    )
