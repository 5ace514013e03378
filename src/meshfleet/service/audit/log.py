"""The audit log: every change is one row, written with the change itself (auth-26, auth-27)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from sqlalchemy import func, insert, select, tuple_

from meshfleet.db.tables import audit
from meshfleet.protocol.times import format_millis, parse_millis
from meshfleet.rest import AuditRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection, Row

    from meshfleet.service.actor import Actor


_RECENT_IDS: Final = 1000
"""Numbers among which rows of transactions that run side by side may still appear."""

_MAX_WAIT_MS: Final = 60_000
"""Milliseconds that a change may have waited for others; who is farther ahead had another clock."""


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows are meant; all that is given must hold."""

    actor: str | None = None
    action: str | None = None
    target: str | None = None
    since: int | None = None
    until: int | None = None
    """Milliseconds; one at `since` is meant, one at `until` is not."""


def record_change(
    connection: Connection, by: Actor, action: str, target: str, *, now: int, **detail: Any
) -> None:
    """Write down a change, in the transaction that makes it."""
    record_changes(connection, by, action, [target], now=now, **detail)


def record_changes(  # by name
    connection: Connection, by: Actor, action: str, targets: Sequence[str], *, now: int, **detail: Any
) -> None:
    """Write down the same change of several things, a row for each."""
    row = {
        "time": _entry_time(connection, now),
        "actor": by.display_name,
        "action": action,
        "detail": msgspec.json.encode(detail).decode(),
        "address": by.address,
    }
    if targets:
        connection.execute(insert(audit), [{**row, "target": target} for target in targets])


def _entry_time(connection: Connection, now: int) -> int:
    """When a change is made: not before those it follows.

    Two who change the same thing look at the clock first and wait for each other then. The log is read by its
    times, and tells who came first.
    """
    newest = connection.execute(
        select(func.max(audit.c.time)).where(audit.c.time <= now + _MAX_WAIT_MS)
    ).scalar()
    return now if newest is None else max(now, newest)


class AuditMark(NamedTuple):
    """How far the log has grown."""

    newest: int
    recent: int
    """How many of the newest numbers are in use. A row may appear behind one with a higher number."""


def load_mark(connection: Connection) -> AuditMark:
    """Where the log ends: as long as this stays the same nothing was changed."""
    newest = connection.execute(select(func.max(audit.c.id))).scalar() or 0
    recent = select(func.count()).where(audit.c.id > newest - _RECENT_IDS)
    return AuditMark(newest, connection.execute(recent).scalar_one())


class AuditPosition(NamedTuple):
    """Where a row is in the log, which is in the order of times: people ask for times, too."""

    time: int
    id: int


def list_entries(
    connection: Connection, choice: AuditFilter, *, before: AuditPosition | None, limit: int
) -> list[AuditRow]:
    """The newest rows, or those before a position."""
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
    if before is not None:  # which is before `until`, where SQLite might begin to walk
        query = query.where(tuple_(audit.c.time, audit.c.id) < tuple_(*before))
    elif choice.until is not None:
        query = query.where(audit.c.time < choice.until)
    return [_to_audit_row(row) for row in connection.execute(query)]


def build_position(row: AuditRow) -> AuditPosition:
    """Behind which row a page goes on."""
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
