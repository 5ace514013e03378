"""The ledger in the database: series, and the holes in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from sqlalchemy import func, select

from meshfleet.db import bulk
from meshfleet.db.tables import hole, series
from meshfleet.service.acks.series import Hole, Series

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.service.acks.series import Key

SeriesRow: TypeAlias = tuple[int, int, int, int, int, int]
HoleRow: TypeAlias = tuple[int, int, int, int | None]
"""A hole without its series."""

_NEWER: Final = "UPDATE SET time = excluded.time, seq = excluded.seq, unfilled = excluded.unfilled"
_FILLED: Final = "DELETE FROM hole WHERE device = ? AND kind = ? AND identifier = ?"


def ledger(connection: Connection) -> dict[Key, Series]:
    """All that was known before a start."""
    found: dict[Key, Series] = {}
    for device, kind, identifier, time, seq, unfilled in connection.execute(select(series)):
        found[device, kind, identifier] = Series(time, seq, unfilled=unfilled)
    for device, kind, identifier, *rest in connection.execute(select(hole).order_by(hole.c.since)):
        since, until, found_at, lost_at = rest
        if (known := found.get((device, kind, identifier))) is not None:
            known.holes = [*(known.holes or ()), Hole(since, until, found_at, lost_at=lost_at)]
    return found


def write(connection: Connection, rows: Sequence[SeriesRow], holes: Mapping[Key, Sequence[HoleRow]]) -> None:
    """Write how series are now, and of some of them which holes they have."""
    bulk.upsert(connection, series, rows, otherwise=_NEWER)
    bulk.execute(connection, _FILLED, sorted(holes))
    bulk.insert(connection, hole, [(*key, *row) for key in sorted(holes) for row in holes[key]])


def complete_up_to(connection: Connection, device: int, identifier: int) -> int | None:
    """Up to when no sample of an identifier is missing; None: nobody knows (ack-15, ack-16)."""
    wanted = series.c.device == device, series.c.identifier == identifier
    known = [
        Series(time, seq, unfilled=unfilled)
        for time, seq, unfilled in connection.execute(
            select(series.c.time, series.c.seq, series.c.unfilled).where(*wanted)
        )
    ]
    if not known or not all(each.is_checked for each in known):
        return None
    missing = hole.c.device == device, hole.c.identifier == identifier
    first = connection.execute(select(func.min(hole.c.since)).where(*missing)).scalar()
    newest = min(each.time for each in known)
    return newest if first is None else min(newest, int(first))
