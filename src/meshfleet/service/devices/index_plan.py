"""Chooses the index that SQLite scans for a page of devices, because SQLite lacks the statistics to choose.

The devices that match each condition are counted, up to a limit. The index of the condition with the fewest
devices is scanned, and the other conditions are checked for each device found. If the page needs another
order than the scanned index has, the devices found are sorted. If too many devices would have to be sorted,
the index of the sort order is scanned instead.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import Integer, Text, column, func, literal_column, select, table

from meshfleet.db.tables import device, device_label
from meshfleet.service.devices.filter_sql import NAME_CONDITION, build_label_condition, disable_index
from meshfleet.service.devices.model import DeviceSort

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from sqlalchemy import ColumnElement, Connection, Select

    from meshfleet.service.devices.filter_sql import NamePattern, ResolvedFilter

    Columns = tuple[ColumnElement[Any], ...]

_INDEXED_COLUMNS: Final = (
    ("gateway",),
    ("model", "firmware"),
    ("model", "hardware"),
    ("firmware", "hardware"),
    ("firmware",),
    ("model",),
    ("hardware",),
    ("connected",),
)
"""Columns that have an index in id order. If two indexes find equally few devices, the first is used."""

_MAX_SORTED: Final = 6_000
"""Maximum number of devices to sort. For more devices, scanning the index of the sort order is faster."""

_COUNT_LIMITS: Final = (500, _MAX_SORTED, 30_000)
"""Limits up to which the devices that match each condition are counted, tried one after another.

Counting stops at the first limit that some condition does not reach: higher counts are not needed.
"""

_COUNT_CACHE_SECONDS: Final = 60.0
"""Seconds for which a count of devices is cached. An outdated count affects only the speed of a query."""

_MAX_CACHED_COUNTS: Final = 1_000
"""Maximum number of cached device counts per database connection."""

_NAME_INDEX: Final = table("device_name", column("rowid", Integer), column("name_key", Text))
"""Trigram index of device names, a full-text search table of SQLite."""

_select_ids: Final = select(device.c.id)

SORT_COLUMNS: Final[dict[DeviceSort, Columns]] = {
    DeviceSort.ID: (device.c.id,),
    DeviceSort.NAME: (device.c.name_key, device.c.id),
    DeviceSort.CONNECTIVITY: (device.c.connected, device.c.connected_at, device.c.id),
}

_SORT_INDEX_COLUMNS: Final = {
    DeviceSort.ID: (),
    DeviceSort.NAME: (NAME_CONDITION,),
    DeviceSort.CONNECTIVITY: ("connected",),
}
"""Filter columns that the index of each sort order covers."""


class IndexScan(NamedTuple):
    """Scan of an index that finds the devices that match one condition, in id order."""

    cache_key: tuple[Hashable, ...]
    """Key under which the number of devices that the scan finds is cached."""
    ids: Select[Any]
    """SQL query of the scan; its first column is the device id."""
    columns: frozenset[str] = frozenset()
    """Columns of the scanned index of the table `device`; empty for scans of other tables."""
    label: int | None = None
    """Id of the label whose devices are scanned; None for other scans."""
    is_name_search: bool = False
    """Whether the trigram index of names is scanned."""

    @property
    def id_column(self) -> ColumnElement[int]:
        """Column of the query that contains the device id."""
        return self.ids.selected_columns[0]


class QueryPlan(NamedTuple):
    """SQL query that finds all matching devices by scanning the chosen index."""

    query: Select[Any]
    columns: Columns
    """Sort columns with the device id last, written so that SQLite uses the chosen index."""
    first_id: ColumnElement[int] | int | None = None
    """Lower bound (inclusive) of the matching device ids if sorted by id; None if unknown."""
    last_id: ColumnElement[int] | int | None = None
    """Upper bound (inclusive) of the matching device ids if sorted by id; None if unknown."""


def plan_page_query(connection: Connection, selection: ResolvedFilter, sort: DeviceSort) -> QueryPlan:
    """Return the query plan with which SQLite is likely to find a page of devices fastest."""
    if selection.ids is not None:
        return QueryPlan(
            _select_ids.where(*selection.build_conditions(sort, indexed=())), _unindexed_sort_columns(sort)
        )
    scans = list(_list_scans(selection, sort))
    scan, size = _find_smallest_scan(connection, scans, sort)
    if scan is None or (sort is not DeviceSort.ID and size >= _MAX_SORTED):
        return QueryPlan(
            _select_ids.where(*selection.build_conditions(sort, indexed=_SORT_INDEX_COLUMNS[sort])),
            SORT_COLUMNS[sort],
        )
    if sort is not DeviceSort.ID:
        return QueryPlan(_build_unsorted_query(scan, selection, sort), _unindexed_sort_columns(sort))
    others = [each for each in scans if each is not scan and not each.is_name_search]
    return QueryPlan(_build_id_order_query(scan, selection), (scan.id_column,), *_build_id_bounds(others))


class IdRange(NamedTuple):
    """Lowest and highest device id (both inclusive) that can match a filter."""

    first: int
    last: int


def find_id_range(connection: Connection, selection: ResolvedFilter) -> IdRange | None:
    """Return the lowest and highest device id that can match a filter; None if no device can match.

    PostgreSQL needs the range: its statistics do not contain that ids of similar devices are often close.
    """
    scans = [scan for scan in _list_scans(selection, DeviceSort.NAME) if not scan.is_name_search]
    found = connection.execute(select(*_build_first_id_queries(scans), *_build_last_id_queries(scans))).one()
    if None in found:
        return None
    return IdRange(max(found[: len(scans)]), min(found[len(scans) :]))


def _build_id_bounds(
    scans: Sequence[IndexScan],
) -> tuple[ColumnElement[int] | None, ColumnElement[int] | None]:
    """Return SQL expressions for the lowest and highest device id that all scans can find.

    The expressions are None if there are no scans. The bounds shorten the query, because the MACs of one
    product are often close together.
    """
    if len(scans) > 1:
        return func.max(*_build_first_id_queries(scans)), func.min(*_build_last_id_queries(scans))
    return (_build_first_id_queries(scans)[0], _build_last_id_queries(scans)[0]) if scans else (None, None)


def _build_first_id_queries(scans: Sequence[IndexScan]) -> list[ColumnElement[int]]:
    """Build the queries for the lowest device id that each scan finds."""
    return [scan.ids.order_by(scan.id_column).limit(1).scalar_subquery() for scan in scans]


def _build_last_id_queries(scans: Sequence[IndexScan]) -> list[ColumnElement[int]]:
    """Build the queries for the highest device id that each scan finds."""
    return [scan.ids.order_by(scan.id_column.desc()).limit(1).scalar_subquery() for scan in scans]


def _build_id_order_query(scan: IndexScan, selection: ResolvedFilter) -> Select[Any]:
    """Build the query that scans an index in id order and checks the other conditions for each device."""
    if scan.columns:
        return _select_ids.where(*selection.build_conditions(indexed=scan.columns))
    ids = _filter_by_labels(scan, selection)
    conditions = list(selection.build_column_conditions(indexed=(), with_name=not scan.is_name_search))
    is_found = device.c.id == scan.id_column
    return ids.where(_select_ids.where(is_found, *conditions).exists()) if conditions else ids


def _build_unsorted_query(scan: IndexScan, selection: ResolvedFilter, sort: DeviceSort) -> Select[Any]:
    """Build the query that finds all matching devices by an index, in any order. They are sorted later."""
    if scan.columns:
        return _select_ids.where(*selection.build_conditions(sort, indexed=scan.columns))
    conditions = selection.build_column_conditions(sort, indexed=(), with_name=not scan.is_name_search)
    return _select_ids.where(device.c.id.in_(_filter_by_labels(scan, selection)), *conditions)


def _filter_by_labels(scan: IndexScan, selection: ResolvedFilter) -> Select[Any]:
    """Build the query of a scan, limited to devices that have all labels of the filter."""
    others = (each for each in selection.labels if each != scan.label)
    return scan.ids.where(*(build_label_condition(scan.id_column, each) for each in others))


def _unindexed_sort_columns(sort: DeviceSort) -> Columns:
    """Return the columns of a sort order, so that SQLite does not use an index for sorting."""
    *columns, id_column = SORT_COLUMNS[sort]
    return (*(disable_index(each) for each in columns), id_column)


def _list_scans(selection: ResolvedFilter, sort: DeviceSort) -> Iterator[IndexScan]:
    """Yield the index scans that can find the devices that match a filter, one per condition."""
    if selection.name is not None:
        yield from _list_name_scans(selection.name, sort)
    for label_id in selection.labels:
        ids = select(device_label.c.device).where(device_label.c.label == label_id)
        yield IndexScan(("label", label_id), ids, label=label_id)
    for columns in _INDEXED_COLUMNS:
        if selection.columns.keys() >= set(columns):
            values = [(name, selection.columns[name]) for name in columns]
            conditions = [device.c[name] == value for name, value in values]
            yield IndexScan(tuple(values), _select_ids.where(*conditions), columns=frozenset(columns))


def _list_name_scans(name: NamePattern, sort: DeviceSort) -> Iterator[IndexScan]:
    """Yield the index scan that finds devices by name, if an index can be used."""
    if name.trigram_query is not None:
        ids = select(_NAME_INDEX.c.rowid).where(_NAME_INDEX.c.name_key.op("MATCH")(name.trigram_query))
        yield IndexScan(("parts", name.key), ids, is_name_search=True)
    elif name.is_prefix and sort is not DeviceSort.NAME:
        yield IndexScan(
            ("begins", name.key),
            _select_ids.where(name.build_condition()),
            columns=frozenset({NAME_CONDITION}),
        )


def _find_smallest_scan(
    connection: Connection, scans: Sequence[IndexScan], sort: DeviceSort
) -> tuple[IndexScan | None, int]:
    """Return the scan that finds the fewest devices, and the number of these devices, up to a limit."""
    if len(scans) == 1 and sort is DeviceSort.ID:
        return scans[0], 0  # nothing to choose
    smallest, size = None, _COUNT_LIMITS[-1]
    for limit in _COUNT_LIMITS:
        sizes = [_count_scanned_devices(connection, scan, limit) for scan in scans]
        size = min(sizes, default=limit)
        smallest = scans[sizes.index(size)] if sizes else None
        if size < limit or (limit == _MAX_SORTED and sort is not DeviceSort.ID):
            break
    return smallest, size


def _count_scanned_devices(connection: Connection, scan: IndexScan, limit: int) -> int:
    """Return the number of devices that a scan finds, up to `limit`, possibly from the cache."""
    if scan.is_name_search and limit > _MAX_SORTED:
        return limit  # counting them takes longer than finding a page
    # Each connection has its own cache and is used by one thread at a time.
    sizes: dict[tuple[Hashable, ...], tuple[float, int]] = connection.info.setdefault("sizes", {})
    key, now = (limit, *scan.cache_key), time.monotonic()
    counted_at, size = sizes.get(key, (now - _COUNT_CACHE_SECONDS, 0))
    if now - counted_at < _COUNT_CACHE_SECONDS:
        return size
    counted = scan.ids.with_only_columns(literal_column("1")).limit(limit).subquery()
    size = connection.scalars(select(func.count()).select_from(counted)).one()
    if len(sizes) >= _MAX_CACHED_COUNTS:
        sizes.clear()
    sizes[key] = now, size
    return size
