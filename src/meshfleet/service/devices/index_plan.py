"""SQLite has no figures to plan by, so this chooses the index along which it finds the devices of a page.

Each condition is counted, to a limit, and the one that selects fewest devices is walked in the order of the
page; the others are looked at for each device that is met. Where a page is sorted by something that this
index does not know, few devices are found all and then sorted; for many it is cheaper to walk along the
index of the sort.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import Integer, Text, column, func, literal_column, select, table

from meshfleet.db.tables import device, device_label
from meshfleet.service.devices.filter_sql import NAME_CONDITION, has_label, without_index
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
"""Columns that have an index in the order of ids; of equals the first is taken."""

_MAX_SORTED: Final = 6_000
"""So many devices are sorted in the time that it takes to meet a hundred of them along another index."""

_COUNT_LIMITS: Final = (500, _MAX_SORTED, 30_000)
"""How far conditions are counted: not much farther than the smallest of them."""

_COUNT_CACHE_SECONDS: Final = 60.0
"""For how many seconds a count serves: it decides about the way, not about what is found."""

_MAX_CACHED_COUNTS: Final = 1_000
"""How many counts are remembered."""

_NAME_INDEX: Final = table("device_name", column("rowid", Integer), column("name_key", Text))
"""The index of parts of names."""

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
"""Conditions that the index of a sort can answer."""


class IndexScan(NamedTuple):
    """A way to meet the devices of one condition, in the order of their ids."""

    cache_key: tuple[Hashable, ...]
    """By which its size is remembered."""
    ids: Select[Any]
    """What it meets: the id is the first column."""
    columns: frozenset[str] = frozenset()
    """Along an index of `device`: the columns in it."""
    label: int | None = None
    """Along the devices of a label."""
    is_name_search: bool = False
    """Along the index of parts of names."""

    @property
    def id_column(self) -> ColumnElement[int]:
        """The id of a device that is met."""
        return self.ids.selected_columns[0]


class QueryPlan(NamedTuple):
    """How to find all devices that are meant."""

    query: Select[Any]
    columns: Columns
    """What the page is sorted by, the id at the end, so written that the query goes the way chosen."""
    first_id: ColumnElement[int] | int | None = None
    last_id: ColumnElement[int] | int | None = None
    """When sorted by id: ids before and after which there is nothing."""


def plan_page_query(connection: Connection, selection: ResolvedFilter, sort: DeviceSort) -> QueryPlan:
    """The way on which a page is found soonest."""
    if selection.ids is not None:
        return QueryPlan(
            _select_ids.where(*selection.conditions(sort, indexed=())), _unindexed_sort_columns(sort)
        )
    walks = list(_list_scans(selection, sort))
    walk, size = _find_smallest_scan(connection, walks, sort)
    if walk is None or (sort is not DeviceSort.ID and size >= _MAX_SORTED):
        return QueryPlan(
            _select_ids.where(*selection.conditions(sort, indexed=_SORT_INDEX_COLUMNS[sort])),
            SORT_COLUMNS[sort],
        )
    if sort is not DeviceSort.ID:
        return QueryPlan(_scan_before_sort(walk, selection, sort), _unindexed_sort_columns(sort))
    others = [each for each in walks if each is not walk and not each.is_name_search]
    return QueryPlan(_scan_in_id_order(walk, selection), (walk.id_column,), *_id_bounds(others))


def find_id_range(connection: Connection, selection: ResolvedFilter) -> tuple[int, int] | None:
    """The ids from and to which all conditions have devices, for PostgreSQL; None: one of them has none.

    It knows how many devices meet a condition, but not that these may stand together among the ids.
    """
    walks = [walk for walk in _list_scans(selection, DeviceSort.NAME) if not walk.is_name_search]
    found = connection.execute(select(*_first_ids(walks), *_last_ids(walks))).one()
    if None in found:
        return None
    return max(found[: len(walks)]), min(found[len(walks) :])


def _id_bounds(walks: Sequence[IndexScan]) -> tuple[ColumnElement[int] | None, ColumnElement[int] | None]:
    """Where the last of some walks begins, and the first of them ends: MACs of one make stand together."""
    if len(walks) > 1:
        return func.max(*_first_ids(walks)), func.min(*_last_ids(walks))
    return (_first_ids(walks)[0], _last_ids(walks)[0]) if walks else (None, None)


def _first_ids(walks: Sequence[IndexScan]) -> list[ColumnElement[int]]:
    return [walk.ids.order_by(walk.id_column).limit(1).scalar_subquery() for walk in walks]


def _last_ids(walks: Sequence[IndexScan]) -> list[ColumnElement[int]]:
    return [walk.ids.order_by(walk.id_column.desc()).limit(1).scalar_subquery() for walk in walks]


def _scan_in_id_order(walk: IndexScan, selection: ResolvedFilter) -> Select[Any]:
    """Go along an index, and look at each device that is met."""
    if walk.columns:
        return _select_ids.where(*selection.conditions(indexed=walk.columns))
    ids = _with_labels(walk, selection)
    facts = list(selection.column_conditions(indexed=(), with_name=not walk.is_name_search))
    met = device.c.id == walk.id_column
    return ids.where(_select_ids.where(met, *facts).exists()) if facts else ids


def _scan_before_sort(walk: IndexScan, selection: ResolvedFilter, sort: DeviceSort) -> Select[Any]:
    """Find all devices, which will then be sorted."""
    if walk.columns:
        return _select_ids.where(*selection.conditions(sort, indexed=walk.columns))
    facts = selection.column_conditions(sort, indexed=(), with_name=not walk.is_name_search)
    return _select_ids.where(device.c.id.in_(_with_labels(walk, selection)), *facts)


def _with_labels(walk: IndexScan, selection: ResolvedFilter) -> Select[Any]:
    others = (each for each in selection.labels if each != walk.label)
    return walk.ids.where(*(has_label(walk.id_column, each) for each in others))


def _unindexed_sort_columns(sort: DeviceSort) -> Columns:
    *columns, number = SORT_COLUMNS[sort]
    return (*(without_index(each) for each in columns), number)


def _list_scans(selection: ResolvedFilter, sort: DeviceSort) -> Iterator[IndexScan]:
    if selection.name is not None:
        yield from _list_name_scans(selection.name, sort)
    for number in selection.labels:
        ids = select(device_label.c.device).where(device_label.c.label == number)
        yield IndexScan(("label", number), ids, label=number)
    for columns in _INDEXED_COLUMNS:
        if selection.columns.keys() >= set(columns):
            values = [(name, selection.columns[name]) for name in columns]
            conditions = [device.c[name] == value for name, value in values]
            yield IndexScan(tuple(values), _select_ids.where(*conditions), columns=frozenset(columns))


def _list_name_scans(name: NamePattern, sort: DeviceSort) -> Iterator[IndexScan]:
    if name.trigram_query is not None:
        ids = select(_NAME_INDEX.c.rowid).where(_NAME_INDEX.c.name_key.op("MATCH")(name.trigram_query))
        yield IndexScan(("parts", name.key), ids, is_name_search=True)
    elif name.is_prefix and sort is not DeviceSort.NAME:
        yield IndexScan(
            ("begins", name.key), _select_ids.where(name.condition()), columns=frozenset({NAME_CONDITION})
        )


def _find_smallest_scan(
    connection: Connection, walks: Sequence[IndexScan], sort: DeviceSort
) -> tuple[IndexScan | None, int]:
    """The walk that meets fewest devices, and how many, as far as it was counted."""
    if len(walks) == 1 and sort is DeviceSort.ID:
        return walks[0], 0  # nothing to choose
    smallest, size = None, _COUNT_LIMITS[-1]
    for limit in _COUNT_LIMITS:
        sizes = [_count_scan(connection, walk, limit) for walk in walks]
        size = min(sizes, default=limit)
        smallest = walks[sizes.index(size)] if sizes else None
        if size < limit or (limit == _MAX_SORTED and sort is not DeviceSort.ID):
            break
    return smallest, size


def _count_scan(connection: Connection, walk: IndexScan, limit: int) -> int:
    """How many devices a walk meets, at most `limit`; perhaps as it was some seconds ago."""
    if walk.is_name_search and limit > _MAX_SORTED:
        return limit  # to count these takes longer than to find a page
    # Each connection remembers its own, and is used by one thread at a time.
    sizes: dict[tuple[Hashable, ...], tuple[float, int]] = connection.info.setdefault("sizes", {})
    key, now = (limit, *walk.cache_key), time.monotonic()
    since, size = sizes.get(key, (now - _COUNT_CACHE_SECONDS, 0))
    if now - since < _COUNT_CACHE_SECONDS:
        return size
    counted = walk.ids.with_only_columns(literal_column("1")).limit(limit).subquery()
    size = connection.scalars(select(func.count()).select_from(counted)).one()
    if len(sizes) >= _MAX_CACHED_COUNTS:
        sizes.clear()
    sizes[key] = now, size
    return size
