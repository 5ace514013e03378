"""SQL query that lists rejected reports, the newest first (rest-95)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from sqlalchemy import select

from meshfleet.db.tables import reject
from meshfleet.protocol.ids import mac_from_int
from meshfleet.protocol.times import format_millis
from meshfleet.rest.telemetry import Reject

if TYPE_CHECKING:
    from sqlalchemy import Connection


class RejectSelection(Struct, frozen=True, kw_only=True):
    """Filter of a list of rejected reports: the gateway that sent them, or None for all."""

    gateway: int | None


class RejectEntry(NamedTuple):
    """Rejected report with its row id."""

    number: int
    body: Reject


def list_reject_entries(
    connection: Connection, choice: RejectSelection, *, before: int | None, limit: int
) -> list[RejectEntry]:
    """List rejected reports, newest first; only rows with an id below `before`, if given."""
    query = select(reject).order_by(reject.c.id.desc()).limit(limit)
    if choice.gateway is not None:
        query = query.where(reject.c.gateway == choice.gateway)
    if before is not None:
        query = query.where(reject.c.id < before)
    return [
        RejectEntry(
            row.id,
            Reject(
                time=format_millis(row.time),
                gateway=None if row.gateway is None else mac_from_int(row.gateway),
                topic=row.topic,
                reason=row.reason,
                payload=row.payload.decode(errors="replace"),
            ),
        )
        for row in connection.execute(query)
    ]
