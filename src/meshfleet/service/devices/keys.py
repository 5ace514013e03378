"""Which devices are on a page: their ids, with what the page is sorted by.

A page begins where the one before ended, by value, never by number (rest-20). PostgreSQL knows how many
devices each condition selects and plans by it. SQLite does not, so `walks` says which index to go along.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import literal, select, tuple_

from meshfleet.service.devices import walks
from meshfleet.service.devices.model import Sort

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import ColumnElement, Connection

    from meshfleet.service.devices.model import Order, Position
    from meshfleet.service.devices.selection import Selection

    Columns = Sequence[ColumnElement[Any]]

_SEVERAL: Final = 2
"""Conditions of which each may be met by devices far from those of the others."""


def find(
    connection: Connection, selection: Selection, order: Order, *, after: Position | None, limit: int
) -> Sequence[Position]:
    """The sort keys, each ending with the id, of up to `limit` devices that follow a position."""
    way = _way(connection, selection, order.sort)
    if way is None:
        return []
    columns = way.columns
    query = way.query.with_only_columns(*columns).where(*_bounds(selection, order, way, after))
    query = query.order_by(*(each.desc() if order.reverse else each for each in columns)).limit(limit)
    return [tuple(row) for row in connection.execute(query)]


def _way(connection: Connection, selection: Selection, sort: Sort) -> walks.Way | None:
    """How to find the devices; None: there are none."""
    if connection.dialect.name == "sqlite":
        return walks.choose(connection, selection, sort)
    columns = walks.SORTED_BY[sort]
    way = walks.Way(select(*columns).where(*selection.conditions(sort)), columns)
    if sort is not Sort.ID or len(selection.columns) + len(selection.labels) < _SEVERAL:
        return way
    ends = walks.within(connection, selection)
    return None if ends is None else way._replace(first=ends[0], last=ends[1])


def _bounds(
    selection: Selection, order: Order, way: walks.Way, after: Position | None
) -> Iterator[ColumnElement[bool]]:
    """Where in the sort a page begins, and if that is known, where the list ends.

    Never two conditions for one side: a database may go by the weaker one.
    """
    lowest, highest = _ends(selection, order.sort, way)
    if after is not None:
        fixed = order.sort is Sort.CONNECTIVITY and "connected" in selection.columns
        yield from _beyond(way.columns, after, reverse=order.reverse, fixed=fixed)
    if lowest is not None and (after is None or order.reverse):
        yield lowest
    if highest is not None and (after is None or not order.reverse):
        yield highest


def _beyond(
    columns: Columns, after: Position, *, reverse: bool, fixed: bool
) -> Iterator[ColumnElement[bool]]:
    """What follows a position; `fixed`: the first column has only one value."""
    if fixed:
        columns, after = columns[1:], after[1:]
    elif isinstance(after[0], bool) and after[0] is not reverse:
        # Nothing follows the second of two values: said so, no database need guess how much it is.
        yield columns[0] == after[0]
        columns, after = columns[1:], after[1:]
    place = tuple_(*columns)
    yield place < after if reverse else place > after


def _ends(
    selection: Selection, sort: Sort, way: walks.Way
) -> tuple[ColumnElement[bool] | None, ColumnElement[bool] | None]:
    """From where, and to where, the first column of a sort is of interest.

    From its lowest value, where all of it is: SQLite goes along an index for which it has a condition.
    """
    column, name = way.columns[0], selection.name
    if sort is Sort.NAME and name and name.begins:
        # Names that begin with the same stand together when they are sorted.
        return column >= name.key, None if name.following is None else column < name.following
    if sort is Sort.NAME:
        return column >= "", None
    if sort is Sort.CONNECTIVITY:
        return None if "connected" in selection.columns else column >= literal(value=False), None
    if way.first is None or way.last is None:
        return None, None
    return column >= way.first, column <= way.last
