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
from meshfleet.service.devices.model import Sort
from meshfleet.service.devices.selection import NAME, has_label, plain

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from sqlalchemy import ColumnElement, Connection, Select

    from meshfleet.service.devices.selection import Name, Selection

    Columns = tuple[ColumnElement[Any], ...]

_INDEXES: Final = (
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

_FEW: Final = 6_000
"""So many devices are sorted in the time that it takes to meet a hundred of them along another index."""

_STEPS: Final = (500, _FEW, 30_000)
"""How far conditions are counted: not much farther than the smallest of them."""

_REMEMBERED: Final = 60.0
"""For how many seconds a count serves: it decides about the way, not about what is found."""

_MOST: Final = 1_000
"""How many counts are remembered."""

_PARTS: Final = table("device_name", column("rowid", Integer), column("name_key", Text))
"""The index of parts of names."""

_devices: Final = select(device.c.id)

SORTED_BY: Final[dict[Sort, Columns]] = {
    Sort.ID: (device.c.id,),
    Sort.NAME: (device.c.name_key, device.c.id),
    Sort.CONNECTIVITY: (device.c.connected, device.c.connected_at, device.c.id),
}

_IN_SORT: Final = {Sort.ID: (), Sort.NAME: (NAME,), Sort.CONNECTIVITY: ("connected",)}
"""Conditions that the index of a sort can answer."""


class Walk(NamedTuple):
    """A way to meet the devices of one condition, in the order of their ids."""

    key: tuple[Hashable, ...]
    """By which its size is remembered."""
    ids: Select[Any]
    """What it meets: the id is the first column."""
    columns: frozenset[str] = frozenset()
    """Along an index of `device`: the columns in it."""
    label: int | None = None
    """Along the devices of a label."""
    parts: bool = False
    """Along the index of parts of names."""

    @property
    def number(self) -> ColumnElement[int]:
        """The id of a device that is met."""
        return self.ids.selected_columns[0]


class Way(NamedTuple):
    """How to find all devices that are meant."""

    query: Select[Any]
    columns: Columns
    """What the page is sorted by, the id at the end, so written that the query goes the way chosen."""
    first: ColumnElement[int] | int | None = None
    last: ColumnElement[int] | int | None = None
    """When sorted by id: ids before and after which there is nothing."""


def choose(connection: Connection, selection: Selection, sort: Sort) -> Way:
    """The way on which a page is found soonest."""
    if selection.ids is not None:
        return Way(_devices.where(*selection.conditions(sort, indexed=())), _without_index(sort))
    walks = list(_walks(selection, sort))
    walk, size = _smallest(connection, walks, sort)
    if walk is None or (sort is not Sort.ID and size >= _FEW):
        return Way(_devices.where(*selection.conditions(sort, indexed=_IN_SORT[sort])), SORTED_BY[sort])
    if sort is not Sort.ID:
        return Way(_collected(walk, selection, sort), _without_index(sort))
    others = [each for each in walks if each is not walk and not each.parts]
    return Way(_along(walk, selection), (walk.number,), *_ends(others))


def within(connection: Connection, selection: Selection) -> tuple[int, int] | None:
    """The ids from and to which all conditions have devices, for PostgreSQL; None: one of them has none.

    It knows how many devices meet a condition, but not that these may stand together among the ids.
    """
    walks = [walk for walk in _walks(selection, Sort.NAME) if not walk.parts]
    found = connection.execute(select(*_firsts(walks), *_lasts(walks))).one()
    if None in found:
        return None
    return max(found[: len(walks)]), min(found[len(walks) :])


def _ends(walks: Sequence[Walk]) -> tuple[ColumnElement[int] | None, ColumnElement[int] | None]:
    """Where the last of some walks begins, and the first of them ends: MACs of one make stand together."""
    if len(walks) > 1:
        return func.max(*_firsts(walks)), func.min(*_lasts(walks))
    return (_firsts(walks)[0], _lasts(walks)[0]) if walks else (None, None)


def _firsts(walks: Sequence[Walk]) -> list[ColumnElement[int]]:
    return [walk.ids.order_by(walk.number).limit(1).scalar_subquery() for walk in walks]


def _lasts(walks: Sequence[Walk]) -> list[ColumnElement[int]]:
    return [walk.ids.order_by(walk.number.desc()).limit(1).scalar_subquery() for walk in walks]


def _along(walk: Walk, selection: Selection) -> Select[Any]:
    """Go along an index, and look at each device that is met."""
    if walk.columns:
        return _devices.where(*selection.conditions(indexed=walk.columns))
    ids = _with_labels(walk, selection)
    facts = list(selection.facts(indexed=(), named=not walk.parts))
    met = device.c.id == walk.number
    return ids.where(_devices.where(met, *facts).exists()) if facts else ids


def _collected(walk: Walk, selection: Selection, sort: Sort) -> Select[Any]:
    """Find all devices, which will then be sorted."""
    if walk.columns:
        return _devices.where(*selection.conditions(sort, indexed=walk.columns))
    facts = selection.facts(sort, indexed=(), named=not walk.parts)
    return _devices.where(device.c.id.in_(_with_labels(walk, selection)), *facts)


def _with_labels(walk: Walk, selection: Selection) -> Select[Any]:
    others = (each for each in selection.labels if each != walk.label)
    return walk.ids.where(*(has_label(walk.number, each) for each in others))


def _without_index(sort: Sort) -> Columns:
    *columns, number = SORTED_BY[sort]
    return (*(plain(each) for each in columns), number)


def _walks(selection: Selection, sort: Sort) -> Iterator[Walk]:
    if selection.name is not None:
        yield from _walks_by_name(selection.name, sort)
    for number in selection.labels:
        ids = select(device_label.c.device).where(device_label.c.label == number)
        yield Walk(("label", number), ids, label=number)
    for columns in _INDEXES:
        if selection.columns.keys() >= set(columns):
            values = [(name, selection.columns[name]) for name in columns]
            conditions = [device.c[name] == value for name, value in values]
            yield Walk(tuple(values), _devices.where(*conditions), columns=frozenset(columns))


def _walks_by_name(name: Name, sort: Sort) -> Iterator[Walk]:
    if name.in_parts is not None:
        ids = select(_PARTS.c.rowid).where(_PARTS.c.name_key.op("MATCH")(name.in_parts))
        yield Walk(("parts", name.key), ids, parts=True)
    elif name.begins and sort is not Sort.NAME:
        yield Walk(("begins", name.key), _devices.where(name.condition()), columns=frozenset({NAME}))


def _smallest(connection: Connection, walks: Sequence[Walk], sort: Sort) -> tuple[Walk | None, int]:
    """The walk that meets fewest devices, and how many, as far as it was counted."""
    if len(walks) == 1 and sort is Sort.ID:
        return walks[0], 0  # nothing to choose
    smallest, size = None, _STEPS[-1]
    for limit in _STEPS:
        sizes = [_size(connection, walk, limit) for walk in walks]
        size = min(sizes, default=limit)
        smallest = walks[sizes.index(size)] if sizes else None
        if size < limit or (limit == _FEW and sort is not Sort.ID):
            break
    return smallest, size


def _size(connection: Connection, walk: Walk, limit: int) -> int:
    """How many devices a walk meets, at most `limit`; perhaps as it was some seconds ago."""
    if walk.parts and limit > _FEW:
        return limit  # to count these takes longer than to find a page
    # Each connection remembers its own, and is used by one thread at a time.
    sizes: dict[tuple[Hashable, ...], tuple[float, int]] = connection.info.setdefault("sizes", {})
    key, now = (limit, *walk.key), time.monotonic()
    since, size = sizes.get(key, (now - _REMEMBERED, 0))
    if now - since < _REMEMBERED:
        return size
    counted = walk.ids.with_only_columns(literal_column("1")).limit(limit).subquery()
    size = connection.scalars(select(func.count()).select_from(counted)).one()
    if len(sizes) >= _MOST:
        sizes.clear()
    sizes[key] = now, size
    return size
