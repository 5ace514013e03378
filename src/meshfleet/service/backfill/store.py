"""SQL of series of samples and their gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from sqlalchemy import ColumnElement, Connection, select

from meshfleet.db import bulk
from meshfleet.db.tables import hole, series
from meshfleet.service.backfill.series import Gap, SeriesKey, SeriesState

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


SeriesRow: TypeAlias = tuple[int, int, int, int, int, int]
"""Row of the table `series`: device, kind, identifier, time, seq, unfilled.

A plain tuple, because a flush may write very many rows.
"""


class GapRow(NamedTuple):
    """Row of a gap without the key columns of its series. Times are Unix times in milliseconds."""

    since: int
    until: int
    found_at: int
    lost_at: int | None

    @classmethod
    def from_gap(cls, gap: Gap) -> GapRow:
        """Create the database row of a gap."""
        return cls(gap.since, gap.until, gap.found_at, gap.lost_at)


_UPDATE_SERIES: Final = "UPDATE SET time = excluded.time, seq = excluded.seq, unfilled = excluded.unfilled"
_DELETE_GAPS: Final = "DELETE FROM hole WHERE device = ? AND kind = ? AND identifier = ?"
_DELETE_SERIES: Final = "DELETE FROM series WHERE device = ? AND kind = ? AND identifier = ?"


def load_series(connection: Connection) -> dict[SeriesKey, SeriesState]:
    """Load all series of samples with their gaps."""
    return _select_series(connection, (), ())


def list_series(connection: Connection, device: int, identifier: int) -> list[SeriesState]:
    """Load the series of one device and identifier: one series per sample kind."""
    series_filter = series.c.device == device, series.c.identifier == identifier
    gap_filter = hole.c.device == device, hole.c.identifier == identifier
    return list(_select_series(connection, series_filter, gap_filter).values())


def upsert_series(
    connection: Connection, rows: Sequence[SeriesRow], gaps: Mapping[SeriesKey, Sequence[GapRow]]
) -> None:
    """Insert or update series of samples, and replace the stored gaps of the series in `gaps`."""
    bulk.upsert_rows(connection, series, rows, on_conflict=_UPDATE_SERIES)
    bulk.execute_many(connection, _DELETE_GAPS, sorted(gaps))
    bulk.insert_rows(connection, hole, [(*key, *row) for key in sorted(gaps) for row in gaps[key]])


def delete_series(connection: Connection, keys: Collection[SeriesKey]) -> None:
    """Delete series of samples and their gaps."""
    for statement in (_DELETE_GAPS, _DELETE_SERIES):
        bulk.execute_many(connection, statement, sorted(keys))


def _select_series(
    connection: Connection,
    series_filter: Sequence[ColumnElement[bool]],
    gap_filter: Sequence[ColumnElement[bool]],
) -> dict[SeriesKey, SeriesState]:
    """Load the series of samples that match a filter, with the gaps that match another filter."""
    states: dict[SeriesKey, SeriesState] = {}
    for device, kind, identifier, time, seq, unfilled in connection.execute(
        select(series).where(*series_filter)
    ):
        states[device, kind, identifier] = SeriesState(time, seq, unfilled=unfilled)
    gaps_query = select(hole).where(*gap_filter).order_by(hole.c.since)
    for device, kind, identifier, since, until, found_at, lost_at in connection.execute(gaps_query):
        if (state := states.get((device, kind, identifier))) is not None:
            state.gaps = [*(state.gaps or ()), Gap(since, until, found_at, lost_at=lost_at)]
    return states
