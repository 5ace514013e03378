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
"""Number of newest audit row ids among which concurrent transactions may still commit rows."""

_MAX_WAIT_MS: Final = 60_000
"""Maximum milliseconds that one transaction waits for another; rows further ahead had a wrong clock."""


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filter of audit rows. A row must match all fields of the filter; None matches any value."""

    actor: str | None = None
    action: str | None = None
    target: str | None = None
    since: int | None = None
    """Earliest time of the rows (inclusive), as Unix time in milliseconds."""
    until: int | None = None
    """Latest time of the rows (exclusive), as Unix time in milliseconds."""


def record_change(
    connection: Connection, by: Actor, action: str, target: str, *, now: int, **detail: Any
) -> None:
    """Record a change in the audit log. Call this in the transaction that makes the change.

    `action` is the kind of change, such as `device.rename`; `detail` holds further facts for the log.
    """
    record_changes(connection, by, action, [target], now=now, **detail)


def record_changes(
    connection: Connection, by: Actor, action: str, targets: Sequence[str], *, now: int, **detail: Any
) -> None:
    """Record the same change of several targets in the audit log, one row per target."""
    record_details(connection, by, action, [(target, detail) for target in targets], now=now)


def record_details(
    connection: Connection, by: Actor, action: str, details: Sequence[tuple[str, dict[str, Any]]], *, now: int
) -> None:
    """Record a change of several targets in the audit log, one row per target, each with its detail."""
    if not details:
        return
    row = {
        "time": _choose_entry_time(connection, now),
        "actor": by.display_name,
        "action": action,
        "address": by.address,
    }
    rows = [
        {**row, "target": target, "detail": msgspec.json.encode(detail).decode()}
        for target, detail in details
    ]
    connection.execute(insert(audit), rows)


def _choose_entry_time(connection: Connection, now: int) -> int:
    """Return the time to record for a change: `now`, or the time of the newest row if that is later.

    Two transactions that change the same object read the clock before one waits for the other. The audit log
    is sorted by time, so the later change must not get the earlier time.
    """
    newest = connection.execute(
        select(func.max(audit.c.time)).where(audit.c.time <= now + _MAX_WAIT_MS)
    ).scalar()
    return now if newest is None else max(now, newest)


class AuditLogState(NamedTuple):
    """State of the audit log. If two states are equal, no row was added between them."""

    newest: int
    """Highest row id of the audit log; 0 if the log is empty."""
    recent: int
    """Number of rows with recent ids; it grows if a row is committed after a row with a higher id."""


def load_log_state(connection: Connection) -> AuditLogState:
    """Load the state of the audit log, to compare it with an earlier one."""
    newest = connection.execute(select(func.max(audit.c.id))).scalar() or 0
    recent = select(func.count()).where(audit.c.id > newest - _RECENT_IDS)
    return AuditLogState(newest, connection.execute(recent).scalar_one())


class AuditPosition(NamedTuple):
    """Position of a row in the audit log, which is sorted by time and row id."""

    time: int
    """Unix time of the row in milliseconds."""
    id: int


def list_entries(
    connection: Connection, choice: AuditFilter, *, before: AuditPosition | None, limit: int
) -> list[AuditRow]:
    """Return up to `limit` matching audit rows, newest first; only rows before `before`, if given."""
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
    """Return the position of an audit row, from which the next page continues."""
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
