"""Where samples of a device are missing, series by series."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from msgspec import Struct
from sqlalchemy import select, tuple_

from meshfleet.db.tables import hole

if TYPE_CHECKING:
    from sqlalchemy import Connection, Row

Position: TypeAlias = tuple[int, int, int]
"""Where a page ended: kind, identifier and time."""

START: Final[Position] = (-1, 0, 0)


class HoleListing(Struct, frozen=True, kw_only=True):
    """What the pages of a list of holes belong to."""

    device: int


class Found(NamedTuple):
    """A hole."""

    kind: int
    identifier: int
    since: int
    until: int
    found_at: int
    lost_at: int | None

    @property
    def position(self) -> Position:
        """Where it is in the list."""
        return self.kind, self.identifier, self.since


def page(connection: Connection, device: int, *, after: Position, limit: int) -> list[Found]:
    """Some holes of a device, behind that position."""
    columns = hole.c
    order = columns.kind, columns.identifier, columns.since
    query = select(hole).where(columns.device == device, tuple_(*order) > after).order_by(*order).limit(limit)
    return [_found(row) for row in connection.execute(query)]


def _found(row: Row[Any]) -> Found:
    return Found(row.kind, row.identifier, row.since, row.until, row.found_at, row.lost_at)
