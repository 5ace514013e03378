"""Finds the devices of a page of the device list: device ids and sort values.

A page starts after the sort values of the previous page's last device, never at an offset (rest-20).
PostgreSQL chooses an index by its own statistics; for SQLite, `index_plan` chooses the index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import ColumnElement, Connection, literal, select, tuple_

from meshfleet.service.devices import index_plan
from meshfleet.service.devices.model import DevicePosition, DeviceSort, SortOrder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from meshfleet.service.devices.filter_sql import ResolvedFilter

    Columns = Sequence[ColumnElement[Any]]

_MIN_CONDITIONS: Final = 2
"""Minimum number of filter conditions for which a query for the range of device ids pays off."""


def find_page_keys(
    connection: Connection,
    selection: ResolvedFilter,
    order: SortOrder,
    *,
    after: DevicePosition | None,
    limit: int,
) -> Sequence[DevicePosition]:
    """Return the sort values of up to `limit` devices after the position `after`, each with the id last."""
    plan = _plan_query(connection, selection, order.sort)
    if plan is None:
        return []
    columns = plan.columns
    query = plan.query.with_only_columns(*columns).where(*_build_page_bounds(selection, order, plan, after))
    query = query.order_by(*(each.desc() if order.reverse else each for each in columns)).limit(limit)
    return [tuple(row) for row in connection.execute(query)]


def _plan_query(
    connection: Connection, selection: ResolvedFilter, sort: DeviceSort
) -> index_plan.QueryPlan | None:
    """Return the query plan for a page of devices; None if no device can match the filter."""
    if connection.dialect.name == "sqlite":
        return index_plan.plan_page_query(connection, selection, sort)
    columns = index_plan.SORT_COLUMNS[sort]
    plan = index_plan.QueryPlan(select(*columns).where(*selection.build_conditions(sort)), columns)
    if sort is not DeviceSort.ID or len(selection.columns) + len(selection.labels) < _MIN_CONDITIONS:
        return plan
    id_range = index_plan.find_id_range(connection, selection)
    return None if id_range is None else plan._replace(first_id=id_range.first, last_id=id_range.last)


def _build_page_bounds(
    selection: ResolvedFilter, order: SortOrder, plan: index_plan.QueryPlan, after: DevicePosition | None
) -> Iterator[ColumnElement[bool]]:
    """Yield the SQL conditions for the start of a page and, if known, for the end of the list.

    At most one lower and one upper bound are yielded, because a database might scan with the weaker one.
    """
    lowest, highest = _build_sort_bounds(selection, order.sort, plan)
    if after is not None:
        is_fixed = order.sort is DeviceSort.CONNECTIVITY and "connected" in selection.columns
        yield from _build_position_conditions(
            plan.columns, after, reverse=order.reverse, is_first_fixed=is_fixed
        )
    if lowest is not None and (after is None or order.reverse):
        yield lowest
    if highest is not None and (after is None or not order.reverse):
        yield highest


def _build_position_conditions(
    columns: Columns, after: DevicePosition, *, reverse: bool, is_first_fixed: bool
) -> Iterator[ColumnElement[bool]]:
    """Yield the SQL conditions for the devices that follow the position `after` in a sorted list.

    `columns` are the sort columns. `is_first_fixed` says that all listed devices have the same value in the
    first sort column, because the filter requires the value.
    """
    if is_first_fixed:
        columns, after = columns[1:], after[1:]
    elif isinstance(after[0], bool) and after[0] is not reverse:
        # No third value follows the second boolean: an equality lets the database plan better than a range.
        yield columns[0] == after[0]
        columns, after = columns[1:], after[1:]
    key = tuple_(*columns)
    yield key < after if reverse else key > after


def _build_sort_bounds(
    selection: ResolvedFilter, sort: DeviceSort, plan: index_plan.QueryPlan
) -> tuple[ColumnElement[bool] | None, ColumnElement[bool] | None]:
    """Return the SQL conditions for the lower and upper bound of the first sort column; None means no bound.

    The lower bound may be the lowest possible value: without any condition, SQLite would not use an index.
    """
    column, name = plan.columns[0], selection.name
    if sort is DeviceSort.NAME and name and name.is_prefix:
        # Names with the same prefix are contiguous in sort order.
        return column >= name.key, None if name.prefix_end is None else column < name.prefix_end
    if sort is DeviceSort.NAME:
        return column >= "", None
    if sort is DeviceSort.CONNECTIVITY:
        return None if "connected" in selection.columns else column >= literal(value=False), None
    if plan.first_id is None or plan.last_id is None:
        return None, None
    return column >= plan.first_id, column <= plan.last_id
