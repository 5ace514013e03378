"""SQLite has no figures to plan by, so this chooses the index along which it finds the devices of a page.

Each condition is counted, to a limit, and the one that selects fewest devices is walked in the order of the
page; the others are looked at for each device that is met. Where a page is sorted by something that this
index does not know, few devices are found all and then sorted; for many it is cheaper to walk along the
index of the sort.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Integer, Select, Text, column, exists, func, literal_column, select, table

from meshfleet.db.tables import device, device_label
from meshfleet.service.devices.model import Sort
from meshfleet.service.devices.selection import has_label

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from sqlalchemy import Connection, FromClause

    from meshfleet.service.devices.selection import Selection

_PARTS: Final = table("device_name", column("rowid", Integer), column("name_key", Text))
"""The index of parts of names."""

_FEW: Final = 8_000
"""So many devices are sorted in less time than it takes to meet a hundred of them along another index."""

_STEPS: Final = (1_000, _FEW, 64_000)
"""How far conditions are counted: not much farther than the smallest of them."""

_REMEMBERED: Final = 10.0
"""For how many seconds a count serves: it only decides about the way, not about what is found."""

_MOST: Final = 1_000
"""How many counts are remembered."""

_INDEXED: Final = (
    ("gateway",),
    ("model", "firmware"),
    ("firmware",),
    ("model",),
    ("hardware",),
    ("connected",),
)
"""Columns that have an index in the order of ids; of two that serve the first is taken."""


class Walk(NamedTuple):
    """A condition, and the index along which it is met."""

    source: FromClause
    number: ColumnElement[int]
    """The id of the device, in the source."""
    condition: ColumnElement[bool]
    covers: frozenset[Hashable]
    """What need not be looked at any more."""
    hint: str = "NOT INDEXED"
    """For `device`: the index to use; without one it is found by its id."""


def choose(connection: Connection, selection: Selection, sort: Sort) -> tuple[Select[Any], ColumnElement[int]]:
    """Where to look, with all conditions, and the column there that has the id."""
    walks = list(_walks(selection))
    smallest, size = _smallest(connection, walks) if walks else (_ALL, _STEPS[-1])
    if sort is not Sort.ID and size >= _FEW:
        return _along(selection, _BY_NAME if sort is Sort.NAME else _BY_CONNECTIVITY, sort)
    return _along(selection, smallest, sort)
