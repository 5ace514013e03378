"""Log of committed samples. Each integration reads all samples in commit order, from its own position.

Every committed batch of samples has a number, and batches are committed in the order of their numbers. So
the position of a reader is the number of the last batch that the reader has processed; it is stored by the
name of the reader. A reader stores the position after it has delivered the samples: after a crash some
samples are delivered twice, and none is skipped.

On SQLite the number of a batch is the id of its journal row, and new batches are read from the journal. When
a memtable is flushed, its batches are moved from the journal to the table `sample_log` if a reader has not
read them yet. Segments are not read, so their merges and their retention do not matter. On PostgreSQL each
batch is also written to `sample_log` while there are readers. A lock that is held until the end of the
transaction makes batches visible in the order of their numbers.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from meshfleet.db import bulk
from meshfleet.db.samples.sample import (
    REPORTED_KINDS,
    ROW_KIND,
    SampleExtras,
    StoredSample,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.db.database import Database
    from meshfleet.db.samples.sample import Retention, SampleRows

_log = logging.getLogger(__name__)

_NUMBER_LOCK: Final = 0x6D736C6F
"""Key of the PostgreSQL advisory lock for the next batch number. No other lock uses this key."""

_EXPIRY_CHECK_MS: Final = 3_600_000
"""Milliseconds between two deletions of expired batches."""

_STREAM_OPTIONS: Final = {"stream_results": True, "max_row_buffer": 100}
"""SQLAlchemy options for a server-side cursor, as there may be far more batches than one call reads."""

_SELECT_FROM_LOG: Final = "SELECT id, batch FROM sample_log WHERE id > ?"
_SELECT_FROM_JOURNAL: Final = "SELECT id, batch FROM sample_journal WHERE id > ?"

encode_batch = msgspec.msgpack.Encoder().encode
decode_rows = msgspec.msgpack.Decoder(
    dict[int, list[tuple[int, int, int, int, int, float | int | None, bytes | None, SampleExtras | None]]]
).decode
"""Decode a batch to rows by device, which the memtable stores."""
_decode_samples = msgspec.msgpack.Decoder(dict[int, list[StoredSample]]).decode


class UnreadSamples(NamedTuple):
    """Samples that a reader has not processed yet."""

    position: int
    """Position to store when the samples are processed."""
    samples: list[tuple[int, StoredSample]]
    """Pairs of a device (MAC as an integer) and a sample, in the order of commits.

    A sample that a device sent twice is included twice.
    """


class SampleReader:
    """Reads the committed samples of all devices in commit order, from a position stored in the database.

    The position is stored by the name of the reader. Only one reader at a time may have the same name.
    """

    def __init__(
        self, database: Database, name: str, position: int, count_in_memory: Callable[[int], int]
    ) -> None:
        """Create a reader. `count_in_memory` counts the samples after a position that are not in the log."""
        self.name = name
        self._database = database
        self._position = position
        self._count_in_memory = count_in_memory

    async def read(self, limit: int) -> UnreadSamples | None:
        """Read whole batches after the position, until there are at least `limit` samples or no more batches.

        Return None if there is no batch after the position. Only `advance` moves the position: until then,
        `read` returns the same samples again.
        """
        return await self._database.read(_read_batches, self._position, limit)

    async def advance(self, position: int) -> None:
        """Move the position of this reader, after all samples up to `position` have been processed."""
        await self._database.write(_store_position, self.name, position)
        self._position = position

    async def count_unread(self) -> int:
        """Count the samples after the position of this reader."""
        in_memory = self._count_in_memory(self._position)
        return in_memory + await self._database.read(_count_logged, self._position)

    async def count_missed(self) -> int:
        """Return how many samples this reader missed, because their retention ended before they were read."""
        return await self._database.read(_load_missed, self.name)


def count_reported(rows: SampleRows) -> int:
    """Count the samples of a batch that devices reported; 0 for a batch of minute roll-ups.

    Readers get only reported samples. A batch has either reported samples or roll-ups, never both.
    """
    first = next(iter(rows.values()), None)
    return sum(map(len, rows.values())) if first and first[0][ROW_KIND] in REPORTED_KINDS else 0


def has_readers(connection: Connection) -> bool:
    """Return whether a position of any reader is stored."""
    return connection.exec_driver_sql("SELECT 1 FROM sample_reader LIMIT 1").scalar() is not None


def find_last_number(connection: Connection) -> int:
    """Return the highest batch number in the log and in the positions of readers; 0 if there is none."""
    query = (
        "SELECT coalesce(max(number), 0) FROM (SELECT max(id) AS number FROM sample_log"
        " UNION ALL SELECT max(position) FROM sample_reader) AS numbers"
    )
    return int(connection.exec_driver_sql(query).scalar_one())


def add_reader(connection: Connection, name: str, position: int) -> int:
    """Store a reader that begins after `position`, unless a reader with this name is stored already.

    Return the stored position of the reader.
    """
    values = (name, position)
    statement = "INSERT INTO sample_reader VALUES (?, ?, 0) ON CONFLICT (name) DO NOTHING"
    bulk.execute_one(connection, statement, values)
    ((stored,),) = bulk.query_rows(connection, "SELECT position FROM sample_reader WHERE name = ?", (name,))
    return int(stored)


def remove_other_readers(connection: Connection, names: Collection[str]) -> list[str]:
    """Remove all readers except those with the given names, and return the names of removed readers.

    Also delete the batches that all remaining readers have processed.
    """
    stored = connection.exec_driver_sql("SELECT name FROM sample_reader").scalars().all()
    removed = sorted(set(stored) - set(names))
    bulk.execute_many(connection, "DELETE FROM sample_reader WHERE name = ?", [(name,) for name in removed])
    if removed:
        _delete_processed(connection)
    return removed


def append_batch(connection: Connection, rows: SampleRows, now: int) -> None:
    """Write a batch to the log with the next number, in the transaction that writes the samples.

    The lock is held until the commit, so a reader that sees this batch sees all batches with lower numbers.
    Only for PostgreSQL.
    """
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_NUMBER_LOCK})")
    # A new statement: it sees what was committed while this transaction waited for the lock.
    number = find_last_number(connection) + 1
    # %b: as text the batch would be twice as long, and be escaped byte by byte.
    statement = "INSERT INTO sample_log VALUES (%s, %s, %s, %b)"
    connection.exec_driver_sql(statement, (number, now, count_reported(rows), encode_batch(rows)))


def copy_unread_batches(connection: Connection, batches: Mapping[int, int], now: int) -> None:
    """Copy batches that some reader has not read from the journal to the log, before they leave the journal.

    `batches` maps the journal id of each batch to the number of its reported samples. Only for SQLite.
    """
    position = connection.exec_driver_sql("SELECT min(position) FROM sample_reader").scalar()
    if position is None:
        return
    statement = "INSERT OR IGNORE INTO sample_log SELECT id, ?, ?, batch FROM sample_journal WHERE id = ?"
    rows = [(now, count, number) for number, count in batches.items() if number > position and count]
    bulk.execute_many(connection, statement, rows)


class LogRetention:
    """Deletes batches from the log when the retention of all samples in the batch has ended."""

    def __init__(self) -> None:
        self._next_check: int | None = None

    async def delete_expired(self, database: Database, retention: Retention, now: int) -> None:
        """Delete expired batches, at most once an hour. Count and log the samples that readers missed.

        `now` is the Unix time in milliseconds.
        """
        # `now` far below the next check means that the clock was set back.
        if self._next_check is not None and self._next_check - _EXPIRY_CHECK_MS <= now < self._next_check:
            return
        self._next_check = now + _EXPIRY_CHECK_MS
        periods = [retention.get(kind) for kind in REPORTED_KINDS]
        longest = None if None in periods else max(period for period in periods if period is not None)
        if longest is None or not await database.read(_has_expired, now - longest):
            return
        for name, count in (await database.write(_delete_expired, now - longest)).items():
            _log.warning(
                "%s missed %d samples: their retention ended before they could be delivered", name, count
            )


def _read_batches(connection: Connection, position: int, limit: int) -> UnreadSamples | None:
    """Read whole batches after a position, until there are at least `limit` samples. None without batches."""
    values: tuple[int, ...]
    if connection.dialect.name == "sqlite":
        statement, values = f"{_SELECT_FROM_LOG} UNION ALL {_SELECT_FROM_JOURNAL} ORDER BY 1", (position,) * 2
    else:
        statement, values = f"{_SELECT_FROM_LOG} ORDER BY id".replace("?", "%s"), (position,)
    samples: list[tuple[int, StoredSample]] = []
    last_number = None
    with connection.exec_driver_sql(statement, values, execution_options=_STREAM_OPTIONS) as batches:
        for number, batch in batches:
            last_number = number
            samples += _list_reported(batch)
            if len(samples) >= limit:
                break
    return None if last_number is None else UnreadSamples(last_number, samples)


def _list_reported(batch: Any) -> list[tuple[int, StoredSample]]:
    """Decode an encoded batch to pairs of device and reported sample."""
    return [
        (device, sample)
        for device, samples in _decode_samples(batch).items()
        for sample in samples
        if sample.kind in REPORTED_KINDS
    ]


def _store_position(connection: Connection, name: str, position: int) -> None:
    values: Sequence[object] = (position, name)
    bulk.execute_one(connection, "UPDATE sample_reader SET position = ? WHERE name = ?", values)
    _delete_processed(connection)


def _delete_processed(connection: Connection) -> None:
    """Delete the batches that all readers have processed; all batches if there is no reader."""
    position = connection.exec_driver_sql("SELECT min(position) FROM sample_reader").scalar()
    if position is None:
        connection.exec_driver_sql("DELETE FROM sample_log")
    else:
        bulk.execute_one(connection, "DELETE FROM sample_log WHERE id <= ?", (position,))


def _count_logged(connection: Connection, position: int) -> int:
    query = "SELECT coalesce(sum(samples), 0) FROM sample_log WHERE id > ?"
    ((count,),) = bulk.query_rows(connection, query, (position,))
    return int(count)


def _load_missed(connection: Connection, name: str) -> int:
    rows = bulk.query_rows(connection, "SELECT missed FROM sample_reader WHERE name = ?", (name,))
    return int(rows[0][0]) if rows else 0


def _has_expired(connection: Connection, before: int) -> bool:
    """Return whether the oldest batch of the log was written before a Unix time in milliseconds."""
    oldest = connection.exec_driver_sql("SELECT written_at FROM sample_log ORDER BY id LIMIT 1").scalar()
    return oldest is not None and oldest < before


def _delete_expired(connection: Connection, before: int) -> dict[str, int]:
    """Delete batches written before a Unix time in milliseconds, and move the readers past these batches.

    Return how many samples each reader missed, by name of the reader.
    """
    query = "SELECT max(id) FROM sample_log WHERE written_at < ?"
    ((last,),) = bulk.query_rows(connection, query, (before,))
    if last is None:
        return {}
    query = (
        "SELECT name, (SELECT coalesce(sum(samples), 0) FROM sample_log WHERE id > position AND id <= ?)"
        " FROM sample_reader WHERE position < ?"
    )
    missed = {name: int(count) for name, count in bulk.query_rows(connection, query, (last, last))}
    statement = "UPDATE sample_reader SET missed = missed + ?, position = ? WHERE name = ?"
    bulk.execute_many(connection, statement, [(count, last, name) for name, count in missed.items()])
    bulk.execute_one(connection, "DELETE FROM sample_log WHERE id <= ?", (last,))
    return missed
