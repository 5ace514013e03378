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
from meshfleet.service.devices.selection import has_label

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from sqlalchemy import Connection, Select

    from meshfleet.service.devices.selection import Name, Selection

_PARTS: Final = table("device_name", column("rowid", Integer), column("name_key", Text))
"""The index of parts of names."""

_INDEXES: Final = (
    ("model", "firmware"),
    ("model",),
    ("firmware",),
    ("hardware",),
    ("gateway",),
    ("connected",),
)
"""Columns that have an index in the order of ids."""

_SORT_INDEXES: Final = {
    Sort.NAME: "ix_device_name_key_id",
    Sort.CONNECTIVITY: "ix_device_connected_connected_at_id",
}

_FEW: Final = 8_000
"""So many devices are sorted in less time than it takes to meet a hundred of them along another index."""

_STEPS: Final = (1_000, _FEW, 64_000)
"""How far conditions are counted: not much farther than the smallest of them."""

_REMEMBERED: Final = 10.0
"""For how many seconds a count serves: it only decides about the way, not about what is found."""

_MOST: Final = 1_000
"""How many counts are remembered."""


class Walk(NamedTuple):
    """A way to meet the devices of one condition, in the order of their ids."""

    key: tuple[Hashable, ...]
    """By which its count is remembered."""
    ids: Select[Any]
    """What it meets: the id is the first column."""
    on_device: bool = True
    """Whether it goes along `device`, so that all conditions can be looked at there."""
    label: int | None = None
    """The label that need not be looked at any more."""
    named: bool = True
    """Whether the name must still be looked at."""


def choose(connection: Connection, selection: Selection, sort: Sort) -> Select[Any]:
    """All devices that are meant, as a query that finds them in the order of a page.

    Its first column is the id; when the page is not sorted by id, the other columns of `device` are at hand.
    """
    walk, size = _smallest(connection, list(_walks(selection, sort)))
    if sort is not Sort.ID and size >= _FEW:
        return _devices(_SORT_INDEXES[sort]).where(*selection.conditions(sort))
    if walk.on_device:
        return walk.ids.where(*selection.conditions(sort))
    return _beside(walk, selection, sort)


def _beside(walk: Walk, selection: Selection, sort: Sort) -> Select[Any]:
    """Go along another table, and look at each device that it names."""
    number = walk.ids.selected_columns[0]
    ids = walk.ids.where(*(has_label(number, each) for each in selection.labels if each != walk.label))
    facts = list(selection.facts(sort, named=walk.named))
    if sort is not Sort.ID:
        return _devices().where(device.c.id.in_(ids), *facts)
    return ids.where(_devices().where(device.c.id == number, *facts).exists()) if facts else ids


def _walks(selection: Selection, sort: Sort) -> Iterator[Walk]:
    yield Walk(("all",), _devices())
    if selection.ids is not None:
        return  # few, and found by themselves
    for columns in _INDEXES:
        if selection.columns.keys() >= set(columns):
            values = [(name, selection.columns[name]) for name in columns]
            conditions = [device.c[name] == value for name, value in values]
            yield Walk(tuple(values), _devices(f"ix_device_{'_'.join(columns)}_id").where(*conditions))
    for number in selection.labels:
        ids = select(device_label.c.device).where(device_label.c.label == number)
        yield Walk(("label", number), ids, on_device=False, label=number)
    if selection.name is not None:
        yield from _walks_by_name(selection.name, sort)


def _walks_by_name(name: Name, sort: Sort) -> Iterator[Walk]:
    if name.in_parts is not None:
        ids = select(_PARTS.c.rowid).where(_PARTS.c.name_key.op("MATCH")(name.in_parts))
        yield Walk(("parts", name.key), ids, on_device=False, named=False)
    elif name.begins and sort is not Sort.NAME:
        index = "ix_device_initial" if len(name.key) == 1 else "ix_device_initials"
        yield Walk(("begins", name.key), _devices(index).where(name.condition(sort)))


def _devices(index: str | None = None) -> Select[Any]:
    """Devices along an index; without one, by their ids."""
    return select(device.c.id).with_hint(device, f"INDEXED BY {index}" if index else "NOT INDEXED", "sqlite")


def _smallest(connection: Connection, walks: Sequence[Walk]) -> tuple[Walk, int]:
    """The walk that meets fewest devices, and how many these are."""
    everything, *chosen = walks
    if not chosen:
        return everything, _STEPS[-1]
    for limit in _STEPS:
        sizes = [_size(connection, walk, limit) for walk in chosen]
        if min(sizes) < limit:
            break
    return chosen[sizes.index(min(sizes))], min(sizes)


_sizes: dict[tuple[Hashable, ...], tuple[float, int]] = {}


def _size(connection: Connection, walk: Walk, limit: int) -> int:
    """How many devices a walk meets, at most `limit`; perhaps as it was some seconds ago."""
    key = (id(connection.engine), limit, *walk.key)
    now = time.monotonic()
    since, size = _sizes.get(key, (-_REMEMBERED, 0))
    if now - since < _REMEMBERED:
        return size
    counted = walk.ids.with_only_columns(literal_column("1")).limit(limit).subquery()
    size = connection.scalars(select(func.count()).select_from(counted)).one()
    if len(_sizes) >= _MOST:
        _sizes.clear()
    _sizes[key] = now, size
    return size
