"""Reports that could not be taken, the newest first (rest-95)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from sqlalchemy import select

from meshfleet.db.tables import reject
from meshfleet.wire import rest
from meshfleet.wire.ids import number_mac
from meshfleet.wire.times import write_millis

if TYPE_CHECKING:
    from sqlalchemy import Connection


class RejectChoice(Struct, frozen=True, kw_only=True):
    """Which of them are meant."""

    gateway: int | None


class Found(NamedTuple):
    """One of them, and its number."""

    number: int
    shown: rest.Reject


def page(connection: Connection, choice: RejectChoice, *, before: int | None, limit: int) -> list[Found]:
    """The newest, or those older than that number."""
    query = select(reject).order_by(reject.c.id.desc()).limit(limit)
    if choice.gateway is not None:
        query = query.where(reject.c.gateway == choice.gateway)
    if before is not None:
        query = query.where(reject.c.id < before)
    return [
        Found(
            row.id,
            rest.Reject(
                time=write_millis(row.time),
                gateway=None if row.gateway is None else number_mac(row.gateway),
                topic=row.topic,
                reason=row.reason,
                payload=row.payload.decode(errors="replace"),
            ),
        )
        for row in connection.execute(query)
    ]
