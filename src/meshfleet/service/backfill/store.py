"""The ledger in the database: series, and the holes in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from sqlalchemy import select

from meshfleet.db import bulk
from meshfleet.db.tables import hole, series
from meshfleet.service.backfill.series import Gap, SeriesState

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sqlalchemy import ColumnElement, Connection

    from meshfleet.service.backfill.series import SeriesKey

SeriesRow: TypeAlias = tuple[int, int, int, int, int, int]
GapRow: TypeAlias = tuple[int, int, int, int | None]
"""A hole without its series."""

_UPDATE_SERIES: Final = "UPDATE SET time = excluded.time, seq = excluded.seq, unfilled = excluded.unfilled"
_DELETE_GAPS: Final = "DELETE FROM hole WHERE device = ? AND kind = ? AND identifier = ?"
_DELETE_SERIES: Final = "DELETE FROM series WHERE device = ? AND kind = ? AND identifier = ?"


def load_series(connection: Connection) -> dict[SeriesKey, SeriesState]:
    """All that was known before a start."""
    return _select_series(connection, (), ())


def list_series(connection: Connection, device: int, identifier: int) -> list[SeriesState]:
    """The series of an identifier: what is measured, and what happens."""
    wanted = series.c.device == device, series.c.identifier == identifier
    missing = hole.c.device == device, hole.c.identifier == identifier
    return list(_select_series(connection, wanted, missing).values())


def upsert_series(
    connection: Connection, rows: Sequence[SeriesRow], gaps: Mapping[SeriesKey, Sequence[GapRow]]
) -> None:
    """Write how series are now, and of some of them which holes they have."""
    bulk.upsert_rows(connection, series, rows, on_conflict=_UPDATE_SERIES)
    bulk.execute_many(connection, _DELETE_GAPS, sorted(gaps))
    bulk.insert_rows(connection, hole, [(*key, *row) for key in sorted(gaps) for row in gaps[key]])


def delete_series(connection: Connection, keys: Collection[SeriesKey]) -> None:
    """Forget series, and their holes."""
    for statement in (_DELETE_GAPS, _DELETE_SERIES):
        bulk.execute_many(connection, statement, sorted(keys))


def _select_series(
    connection: Connection, wanted: Sequence[ColumnElement[bool]], missing: Sequence[ColumnElement[bool]]
) -> dict[SeriesKey, SeriesState]:
    found: dict[SeriesKey, SeriesState] = {}
    for device, kind, identifier, time, seq, unfilled in connection.execute(select(series).where(*wanted)):
        found[device, kind, identifier] = SeriesState(time, seq, unfilled=unfilled)
    holes = select(hole).where(*missing).order_by(hole.c.since)
    for device, kind, identifier, since, until, found_at, lost_at in connection.execute(holes):
        if (known := found.get((device, kind, identifier))) is not None:
            known.gaps = [*(known.gaps or ()), Gap(since, until, found_at, lost_at=lost_at)]
    return found
