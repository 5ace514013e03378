"""SQL of the sizes of earlier days, and of the age of the samples."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from sqlalchemy import delete, select

from meshfleet.db import bulk
from meshfleet.db.samples import DAY_MS
from meshfleet.db.tables import storage_size
from meshfleet.protocol.times import to_millis
from meshfleet.rest.operations import StoragePart

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

_KEPT_DAYS: Final = 31

_OLDEST_PARTITION: Final = (
    "SELECT min(right(relname, 8)) FROM pg_class WHERE relispartition AND relkind = 'r'"
    " AND relnamespace = current_schema()::regnamespace AND relname ~ '_[0-9]{8}$'"
)


def save_sizes(connection: Connection, sizes: Mapping[StoragePart, int], *, now: int) -> None:
    """Store the sizes of today, and replace those stored earlier today. Delete the sizes of old days."""
    today = now - now % DAY_MS
    connection.execute(delete(storage_size).where(storage_size.c.day <= today - _KEPT_DAYS * DAY_MS))
    rows = [(today, part.value, size) for part, size in sorted(sizes.items())]
    bulk.upsert_rows(connection, storage_size, rows, on_conflict="UPDATE SET bytes = excluded.bytes")


def load_sizes(connection: Connection) -> dict[int, dict[StoragePart, int]]:
    """Load all stored sizes in bytes, by day (Unix time of its start in ms) and part of the data."""
    days: defaultdict[int, dict[StoragePart, int]] = defaultdict(dict)
    for day, part, size in connection.execute(select(storage_size)):
        days[day][StoragePart(part)] = size
    return dict(days)


def load_oldest_sample_day(connection: Connection) -> int | None:
    """Return the start of the day of the oldest stored sample (Unix time in ms); None without samples.

    With SQLite, samples that are still in the journal, not yet in sample files, are ignored.
    """
    if connection.dialect.name == "sqlite":
        day: int | None = connection.exec_driver_sql("SELECT min(day) FROM sample_segment").scalar()
        return None if day is None else day * DAY_MS
    name: str | None = connection.exec_driver_sql(_OLDEST_PARTITION).scalar()
    return None if name is None else to_millis(datetime.strptime(name, "%Y%m%d").replace(tzinfo=UTC))
