"""Names that can be searched: on SQLite their parts are in an index of its own, which is kept here.

PostgreSQL keeps its index by itself. SQLite could by triggers, but writes such an index fast only in the
order of the ids: first all old names of a batch out, then all new ones in.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from meshfleet.db import bulk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection

_OUT: Final = (
    "INSERT INTO device_name (device_name, rowid, name_key)"
    " SELECT 'delete', id, name_key FROM device WHERE id IN numbers ORDER BY id"
)
_IN: Final = (
    "INSERT INTO device_name (rowid, name_key)"
    " SELECT id, name_key FROM device WHERE id IN numbers ORDER BY id"
)


@contextmanager
def kept_searchable(connection: Connection, numbers: Sequence[int]) -> Iterator[None]:
    """Around whatever adds these devices, changes their names, or removes them."""
    if connection.dialect.name == "sqlite" and numbers:
        bulk.run(connection, _OUT, numbers)
        yield
        bulk.run(connection, _IN, numbers)
    else:
        yield
