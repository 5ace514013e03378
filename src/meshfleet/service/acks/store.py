"""The ledger in the database: series, and the holes in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from sqlalchemy import select

from meshfleet.db import bulk
from meshfleet.db.tables import hole, series
from meshfleet.service.acks.series import Hole, Series

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sqlalchemy import ColumnElement, Connection

    from meshfleet.service.acks.series import Key

SeriesRow: TypeAlias = tuple[int, int, int, int, int, int]
HoleRow: TypeAlias = tuple[int, int, int, int | None]
"""A hole without its series."""

_NEWER: Final = "UPDATE SET time = excluded.time, seq = excluded.seq, unfilled = excluded.unfilled"
_FILLED: Final = "DELETE FROM hole WHERE device = ? AND kind = ? AND identifier = ?"
_ENDED: Final = "DELETE FROM series WHERE device = ? AND kind = ? AND identifier = ?"


def ledger(connection: Connection) -> dict[Key, Series]:
    """All that was known before a start."""
    return _known(connection, (), ())


def of_identifier(connection: Connection, device: int, identifier: int) -> list[Series]:
    """The series of an identifier: what is measured, and what happens."""
    wanted = series.c.device == device, series.c.identifier == identifier
    missing = hole.c.device == device, hole.c.identifier == identifier
    return list(_known(connection, wanted, missing).values())


def write(connection: Connection, rows: Sequence[SeriesRow], holes: Mapping[Key, Sequence[HoleRow]]) -> None:
    """Write how series are now, and of some of them which holes they have."""
    bulk.upsert(connection, series, rows, otherwise=_NEWER)
    bulk.execute(connection, _FILLED, sorted(holes))
    bulk.insert(connection, hole, [(*key, *row) for key in sorted(holes) for row in holes[key]])


def end(connection: Connection, gone: Collection[Key]) -> None:
    """Forget series, and their holes."""
    for statement in (_FILLED, _ENDED):
        bulk.execute(connection, statement, sorted(gone))


def _known(
    connection: Connection, wanted: Sequence[ColumnElement[bool]], missing: Sequence[ColumnElement[bool]]
) -> dict[Key, Series]:
    found: dict[Key, Series] = {}
    for device, kind, identifier, time, seq, unfilled in connection.execute(select(series).where(*wanted)):
        found[device, kind, identifier] = Series(time, seq, unfilled=unfilled)
    holes = select(hole).where(*missing).order_by(hole.c.since)
    for device, kind, identifier, since, until, found_at, lost_at in connection.execute(holes):
        if (known := found.get((device, kind, identifier))) is not None:
            known.holes = [*(known.holes or ()), Hole(since, until, found_at, lost_at=lost_at)]
    return found
