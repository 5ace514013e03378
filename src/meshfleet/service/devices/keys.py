"""Which devices are on a page: their ids, with what the page is sorted by.

A page begins where the one before ended, by value, never by number (rest-20). PostgreSQL knows how many
devices each condition selects and plans by it. SQLite does not, so `walks` says which index to go along.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import ColumnElement, Select, select, tuple_

from meshfleet.db.tables import device
from meshfleet.service.devices import walks
from meshfleet.service.devices.model import Sort

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Connection

    from meshfleet.service.devices.model import Order, Position
    from meshfleet.service.devices.selection import Selection

_SORTED_BY: Final[dict[Sort, tuple[ColumnElement[Any], ...]]] = {
    Sort.ID: (device.c.id,),
    Sort.NAME: (device.c.name_key, device.c.id),
    Sort.CONNECTIVITY: (device.c.connected, device.c.connected_at, device.c.id),
}


def find(
    connection: Connection, selection: Selection, order: Order, *, after: Position | None, limit: int
) -> Sequence[Position]:
    """The sort keys, each ending with the id, of up to `limit` devices that follow a position."""
    columns = _SORTED_BY[order.sort]
    if connection.dialect.name == "sqlite":
        query = walks.choose(connection, selection, order.sort)
        columns = (*columns[:-1], query.selected_columns[0])
        query = query.with_only_columns(*columns)
    else:
        query = select(*columns).where(*selection.conditions(order.sort))
    return [tuple(row) for row in connection.execute(_page(query, columns, order, after).limit(limit))]


def _page(
    query: Select[Any], columns: Iterable[ColumnElement[Any]], order: Order, after: Position | None
) -> Select[Any]:
    if after is not None:
        place = tuple_(*columns)
        query = query.where(place < after if order.reverse else place > after)
    return query.order_by(*(each.desc() if order.reverse else each for each in columns))
