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
"""Number of newest ids among which concurrent transactions may still commit rows."""

_MAX_WAIT_MS: Final = 60_000
"""Maximum milliseconds that one change waits for another. Rows further in the future had a wrong clock."""


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filter of audit rows. A row must meet all conditions; None means any value."""

    actor: str | None = None
    action: str | None = None
    target: str | None = None
    since: int | None = None
    """Time of the earliest rows, in milliseconds since the epoch."""
    until: int | None = None
    """Time before which the rows were recorded, in milliseconds since the epoch."""


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
    """Return the time to record for a change: `now`, or the time of the newest row if that is later.

    Two transactions that change the same object read the clock before one waits for the other. The log is
    sorted by time, so the later change must not get the earlier time.
    """
    newest = connection.execute(
        select(func.max(audit.c.time)).where(audit.c.time <= now + _MAX_WAIT_MS)
    ).scalar()
    return now if newest is None else max(now, newest)


class AuditRevision(NamedTuple):
    """Value that changes with every new row; compare two to see whether the log has changed."""

    newest: int
    """Highest id of a row; 0 if the log is empty."""
    recent: int
    """Number of rows among the newest ids. It reveals a row that is committed after one with a higher id."""


def load_revision(connection: Connection) -> AuditRevision:
    """Load the current revision of the log. While it stays the same, no row was added."""
    newest = connection.execute(select(func.max(audit.c.id))).scalar() or 0
    recent = select(func.count()).where(audit.c.id > newest - _RECENT_IDS)
    return AuditRevision(newest, connection.execute(recent).scalar_one())


class AuditPosition(NamedTuple):
    """Position of a row in the log. The log is sorted by time, because users filter by time."""

    time: int
    """Time of the row in milliseconds since the epoch."""
    id: int


def list_entries(
    connection: Connection, choice: AuditFilter, *, before: AuditPosition | None, limit: int
) -> list[AuditRow]:
    """Return up to `limit` matching rows, the newest first; with `before`, only rows before this position."""
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
    if before is not None:  # replaces `until`, which is later: SQLite might start its scan there
        query = query.where(tuple_(audit.c.time, audit.c.id) < tuple_(*before))
    elif choice.until is not None:
        query = query.where(audit.c.time < choice.until)
    return [_to_audit_row(row) for row in connection.execute(query)]


def build_position(row: AuditRow) -> AuditPosition:
    """Return the position of the last row of a page, where the next page continues."""
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
