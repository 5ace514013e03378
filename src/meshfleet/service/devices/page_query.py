"""Which devices are on a page: their ids, with what the page is sorted by.

A page begins where the one before ended, by value, never by number (rest-20). PostgreSQL knows how many
devices each condition selects and plans by it. SQLite does not, so `walks` says which index to go along.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import literal, select, tuple_

from meshfleet.service.devices import index_plan
from meshfleet.service.devices.model import DeviceSort

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import ColumnElement, Connection

    from meshfleet.service.devices.filter_sql import ResolvedFilter
    from meshfleet.service.devices.model import DevicePosition, SortOrder

    Columns = Sequence[ColumnElement[Any]]

_MIN_CONDITIONS: Final = 2
"""Conditions of which each may be met by devices far from those of the others."""


def find_page_keys(
    connection: Connection,
    selection: ResolvedFilter,
    order: SortOrder,
    *,
    after: DevicePosition | None,
    limit: int,
) -> Sequence[DevicePosition]:
    """The sort keys, each ending with the id, of up to `limit` devices that follow a position."""
    way = _plan_query(connection, selection, order.sort)
    if way is None:
        return []
    columns = way.columns
    query = way.query.with_only_columns(*columns).where(*_page_bounds(selection, order, way, after))
    query = query.order_by(*(each.desc() if order.reverse else each for each in columns)).limit(limit)
    return [tuple(row) for row in connection.execute(query)]


def _plan_query(
    connection: Connection, selection: ResolvedFilter, sort: DeviceSort
) -> index_plan.QueryPlan | None:
    """How to find the devices; None: there are none."""
    if connection.dialect.name == "sqlite":
        return index_plan.plan_page_query(connection, selection, sort)
    columns = index_plan.SORT_COLUMNS[sort]
    way = index_plan.QueryPlan(select(*columns).where(*selection.conditions(sort)), columns)
    if sort is not DeviceSort.ID or len(selection.columns) + len(selection.labels) < _MIN_CONDITIONS:
        return way
    ends = index_plan.find_id_range(connection, selection)
    return None if ends is None else way._replace(first_id=ends[0], last_id=ends[1])


def _page_bounds(
    selection: ResolvedFilter, order: SortOrder, way: index_plan.QueryPlan, after: DevicePosition | None
) -> Iterator[ColumnElement[bool]]:
    """Where in the sort a page begins, and if that is known, where the list ends.

    Never two conditions for one side: a database may go by the weaker one.
    """
    lowest, highest = _sort_bounds(selection, order.sort, way)
    if after is not None:
        fixed = order.sort is DeviceSort.CONNECTIVITY and "connected" in selection.columns
        yield from _after_position(way.columns, after, reverse=order.reverse, is_first_fixed=fixed)
    if lowest is not None and (after is None or order.reverse):
        yield lowest
    if highest is not None and (after is None or not order.reverse):
        yield highest


def _after_position(
    columns: Columns, after: DevicePosition, *, reverse: bool, is_first_fixed: bool
) -> Iterator[ColumnElement[bool]]:
    """What follows a position; `fixed`: the first column has only one value."""
    if is_first_fixed:
        columns, after = columns[1:], after[1:]
    elif isinstance(after[0], bool) and after[0] is not reverse:
        # Nothing follows the second of two values: said so, no database need guess how much it is.
        yield columns[0] == after[0]
        columns, after = columns[1:], after[1:]
    place = tuple_(*columns)
    yield place < after if reverse else place > after


def _sort_bounds(
    selection: ResolvedFilter, sort: DeviceSort, way: index_plan.QueryPlan
) -> tuple[ColumnElement[bool] | None, ColumnElement[bool] | None]:
    """From where, and to where, the first column of a sort is of interest.

    From its lowest value, where all of it is: SQLite goes along an index for which it has a condition.
    """
    column, name = way.columns[0], selection.name
    if sort is DeviceSort.NAME and name and name.is_prefix:
        # Names that begin with the same stand together when they are sorted.
        return column >= name.key, None if name.prefix_end is None else column < name.prefix_end
    if sort is DeviceSort.NAME:
        return column >= "", None
    if sort is DeviceSort.CONNECTIVITY:
        return None if "connected" in selection.columns else column >= literal(value=False), None
    if way.first_id is None or way.last_id is None:
        return None, None
    return column >= way.first_id, column <= way.last_id
