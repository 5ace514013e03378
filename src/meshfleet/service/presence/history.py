"""When a device was connected, the newest change first."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from sqlalchemy import select

from meshfleet.db.tables import connectivity
from meshfleet.wire import rest
from meshfleet.wire.ids import number_mac
from meshfleet.wire.times import write_millis

if TYPE_CHECKING:
    from sqlalchemy import Connection


class HistoryListing(Struct, frozen=True, kw_only=True):
    """What the pages of a history belong to."""

    device: int


class Found(NamedTuple):
    """A change, and its number."""

    number: int
    shown: rest.ConnectivityChange


def page(connection: Connection, device: int, *, before: int | None, limit: int) -> list[Found]:
    """The newest changes of a device, or those older than that number."""
    columns = connectivity.c
    query = select(connectivity).where(columns.device == device).order_by(columns.id.desc()).limit(limit)
    if before is not None:
        query = query.where(columns.id < before)
    return [
        Found(
            row.id,
            rest.ConnectivityChange(
                time=write_millis(row.time),
                connected=row.connected,
                cause=row.cause,
                gateway=number_mac(row.gateway) if row.gateway else None,
            ),
        )
        for row in connection.execute(query)
    ]
