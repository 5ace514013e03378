"""Which devices are on a page: their ids, with what the page is sorted by.

PostgreSQL knows how many devices each condition selects and plans by it. SQLite does not, so we count, to a
limit, and tell it which condition to go by: the one that selects fewest. It walks along the index of that
condition in the order of the page, and looks at the others for each device that it meets. Only where a page
is sorted by something else, and few devices are to be expected, these are all found and then sorted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import (
    Integer,
    Text,
    column,
    select,
    table,
    tuple_,
)

from meshfleet.db.tables import device
from meshfleet.service.devices.model import Sort

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from meshfleet.service.devices.model import Order, Position
    from meshfleet.service.devices.selection import Selection

_PARTS: Final = table("device_name", column("rowid", Integer), column("name_key", Text))
"""SQLite's index of parts of names."""

_SORTED_BY: Final = {
    Sort.ID: (device.c.id,),
    Sort.NAME: (device.c.name_key, device.c.id),
    Sort.CONNECTIVITY: (device.c.connected, device.c.connected_at, device.c.id),
}


def find(
    connection: Connection, selection: Selection, order: Order, *, after: Position | None, limit: int
) -> Sequence[Position]:
    """The sort keys, each ending with the id, of up to `limit` devices that follow a position."""
    columns = _SORTED_BY[order.sort]
    query = select(*columns).where(*selection.conditions())
    if after is not None:
        place = tuple_(*columns)
        query = query.where(place < after if order.reverse else place > after)
    query = query.order_by(*(each.desc() if order.reverse else each for each in columns)).limit(limit)
    return [tuple(row) for row in connection.execute(query)]
