"""The audit log: every change is one row, written with the change itself (auth-26, auth-27)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from sqlalchemy import func, insert, select

from meshfleet.db.tables import audit
from meshfleet.wire.rest import AuditRow
from meshfleet.wire.times import write_millis

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection, Row

    from meshfleet.service.accounts.model import Actor


_RECENT: Final = 1000
"""Numbers among which rows of transactions that run side by side may still appear."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows are meant; all that is given must hold."""

    actor: str | None = None
    action: str | None = None
    target: str | None = None


def record(connection: Connection, by: Actor, action: str, target: str, *, now: int, **detail: Any) -> None:
    """Write down a change, in the transaction that makes it."""
    record_all(connection, by, action, [target], now=now, **detail)


def record_all(  # by name
    connection: Connection, by: Actor, action: str, targets: Sequence[str], *, now: int, **detail: Any
) -> None:
    """Write down the same change of several things, a row for each."""
    row = {
        "time": now,
        "actor": by.title,
        "action": action,
        "detail": msgspec.json.encode(detail).decode(),
        "address": by.address,
    }
    if targets:
        connection.execute(insert(audit), [{**row, "target": target} for target in targets])


class Mark(NamedTuple):
    """How far the log has grown."""

    newest: int
    recent: int
    """How many of the newest numbers are in use. A row may appear behind one with a higher number."""


def mark(connection: Connection) -> Mark:
    """Where the log ends: as long as this stays the same nothing was changed."""
    newest = connection.execute(select(func.max(audit.c.id))).scalar() or 0
    recent = select(func.count()).where(audit.c.id > newest - _RECENT)
    return Mark(newest, connection.execute(recent).scalar_one())


def page(connection: Connection, choice: Choice, *, before: int | None, limit: int) -> list[AuditRow]:
    """The newest rows, or those older than that one."""
    query = select(audit).order_by(audit.c.id.desc()).limit(limit)
    for column, value in (
        (audit.c.actor, choice.actor),
        (audit.c.action, choice.action),
        (audit.c.target, choice.target),
    ):
        if value is not None:
            query = query.where(column == value)
    if before is not None:
        query = query.where(audit.c.id < before)
    return [_row(row) for row in connection.execute(query)]


def _row(row: Row[Any]) -> AuditRow:
    return AuditRow(
        id=row.id,
        time=write_millis(row.time),
        actor=row.actor,
        action=row.action,
        target=row.target,
        detail=msgspec.json.decode(row.detail),
        address=row.address,
    )
