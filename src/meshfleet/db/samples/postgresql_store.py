"""Sample store on PostgreSQL.

Samples are in a table with daily partitions. Samples with implausible times are in the table `sample_stray`.
"""

from __future__ import annotations

import logging
import struct
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy.exc import DBAPIError

from meshfleet.db import bulk
from meshfleet.db.database import Database, WriteConflict
from meshfleet.db.samples import sample_log
from meshfleet.db.samples.sample import (
    DAY_MS,
    REPORTED_KINDS,
    ROW_EXTRAS,
    ROW_KIND,
    ROW_TIME,
    Result,
    SampleExtras,
    SampleKind,
    StoredSample,
    find_expired_kinds,
)
from meshfleet.db.samples.sample_log import LogRetention, SampleReader
from meshfleet.db.samples.sorted_merge import scan_days
from meshfleet.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from sqlalchemy import Connection

    from meshfleet.db.samples.sample import (
        Retention,
        SampleConsumer,
        SampleQuery,
        SampleRow,
        SampleRows,
        WindowConsumer,
        WindowQuery,
    )


# Rows in PostgreSQL's binary COPY format, encoded here: the driver takes several times as long.

_COPY_COLUMNS: Final = (
    "device, time, gateway, identifier, number, kind, seq, raw, text, ext, error, error_ext, shift"
)
_COPY_STRAY_COLUMNS: Final = f"{_COPY_COLUMNS}, clock, received_at"

_COPY_HEADER: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_TRAILER: Final = b"\xff\xff"

_NULL: Final = b"\xff\xff\xff\xff"
_pack_with_number = struct.Struct(">hiqiqiqiqidihih").pack
_pack_without_number = struct.Struct(">hiqiqiqiqiihih").pack
_pack_int8 = struct.Struct(">iq").pack
_pack_int2 = struct.Struct(">ih").pack
_pack_length = struct.Struct(">i").pack

_COLUMN_COUNT, _STRAY_COLUMN_COUNT = 13, 15
"""Number of columns in `_COPY_COLUMNS` (13) and in `_COPY_STRAY_COLUMNS` (15)."""


def _encode_row(device: int, row: SampleRow) -> bytes:
    """Encode a sample as a row of the table `sample`, in binary COPY format."""
    return _encode_fields(_COLUMN_COUNT, device, row)


def _encode_stray_row(device: int, row: SampleRow, clock: int, received_at: int) -> bytes:
    """Encode a sample as a row of the table `sample_stray`, in binary COPY format. `clock` is a ClockFlag."""
    return (
        _encode_fields(_STRAY_COLUMN_COUNT, device, row) + _pack_int2(2, clock) + _pack_int8(8, received_at)
    )


def _copy_rows(connection: Connection, table: str, columns: str, rows: Sequence[bytes]) -> None:
    """Insert rows in binary COPY format into a table. Skip rows whose key exists."""
    if not rows:
        return
    # COPY stops at an existing key, so the rows first go to a temporary table of this connection.
    template = f"SELECT {columns} FROM {table} WITH NO DATA"  # noqa: S608 # constant names
    connection.exec_driver_sql(
        f"CREATE TEMPORARY TABLE IF NOT EXISTS new_{table} ON COMMIT DELETE ROWS AS {template}"
    )
    with bulk.open_copy(connection, f"COPY new_{table} ({columns}) FROM STDIN (FORMAT BINARY)") as copy:
        copy.write(b"".join((_COPY_HEADER, *rows, _COPY_TRAILER)))
    connection.exec_driver_sql(
        f"INSERT INTO {table} ({columns}) SELECT {columns} FROM new_{table} ON CONFLICT DO NOTHING"  # noqa: S608 # constant names
    )


def _encode_fields(column_count: int, device: int, row: SampleRow) -> bytes:
    """Encode the fields that both sample tables have, preceded by the number of columns of the table."""
    time, kind, identifier, seq, gateway, number, raw, extras = row
    if number is None:
        fixed_fields = _pack_without_number(
            column_count, 8, device, 8, time, 8, gateway, 8, identifier, -1, 2, kind, 2, seq
        )
    else:
        fixed_fields = _pack_with_number(
            column_count, 8, device, 8, time, 8, gateway, 8, identifier, 8, number, 2, kind, 2, seq
        )
    raw_field = _NULL if raw is None else _pack_length(len(raw)) + raw
    return fixed_fields + raw_field + (5 * _NULL if extras is None else _encode_extras(extras))


def _encode_extras(extras: SampleExtras) -> bytes:
    """Encode the extra fields of a sample that both sample tables have."""
    texts = _encode_text(extras.text) + _encode_text(extras.ext)
    numbers = map(_encode_integer, (extras.error, extras.error_ext, extras.shift))
    return b"".join((texts, *numbers))


def _encode_text(text: str | None) -> bytes:
    if text is None:
        return _NULL
    data = text.encode()
    return _pack_length(len(data)) + data


def _encode_integer(number: int | None) -> bytes:
    return _NULL if number is None else _pack_int8(8, number)


_log = logging.getLogger(__name__)

_SAMPLE_COLUMNS: Final = "time, kind, identifier, seq, gateway, number, raw, text, ext, error, error_ext"

_RETENTION_CHECK_MS: Final = 3_600_000
"""Milliseconds between two deletions of expired samples."""

_EARLY_LOCK_TIMEOUT: Final = "500ms"
"""PostgreSQL lock timeout: maximum time for which creating a partition in advance may block others."""

_DROP_LOCK_TIMEOUT: Final = "1s"
"""PostgreSQL lock timeout: maximum time for which dropping a partition may block other transactions."""

_DROP_RETRY_MS: Final = 60_000
"""Milliseconds before the next attempt to drop an expired partition that a reader uses."""

_STREAM_OPTIONS: Final = {"stream_results": True, "max_row_buffer": 2_000}
"""SQLAlchemy options for a server-side cursor, which fetches up to 2,000 rows at a time."""

_CHECK_VIOLATION: Final = "23514"

_PARTITION_LOCK: Final = 0x6D737061
"""Key of the advisory lock for creating and dropping partitions; any number that no other lock uses."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


_REPORTED, _ROLLED = "sample_reported", "sample_rolled"
_KINDS_BY_TABLE: Final = {
    _REPORTED: REPORTED_KINDS,
    _ROLLED: frozenset({SampleKind.LINK, SampleKind.HEARTBEAT}),
}
"""Sample kinds that each of the two partitioned tables stores."""
_TABLE_BY_KIND: Final[dict[int, str]] = {
    kind: table for table, kinds in _KINDS_BY_TABLE.items() for kind in kinds
}


class _Partition(NamedTuple):
    """Partition of a sample table, with the samples of one day; `day` is counted from 1970-01-01."""

    table: str
    day: int

    def __str__(self) -> str:
        return f"{self.table}_{_EPOCH + timedelta(days=self.day):%Y%m%d}"

    @classmethod
    def parse(cls, name: str) -> _Partition:
        """Parse the name of a partition, such as `sample_rolled_20260131`."""
        table, _, day = name.rpartition("_")
        return cls(table, (datetime.strptime(day, "%Y%m%d").replace(tzinfo=UTC) - _EPOCH).days)


class PostgresqlSampleStore:
    """Sample store on PostgreSQL, which several processes may use at the same time."""

    def __init__(self, database: Database, retention: Retention, *, now: int) -> None:
        self._database = database
        self.retention = retention
        self._known_partitions = set(database.read_now(_list_partitions))
        """Partitions that this process knows to exist. Another process may have dropped some of them."""
        self._written_partitions: set[_Partition] = set()
        """Partitions with samples of the batch that is being committed."""
        self._removed_kinds: dict[_Partition, frozenset[int]] = {}
        """Sample kinds that were deleted from a partition, because they expire before its other kinds."""
        self._next_retention_check = now
        self._has_readers = database.read_now(sample_log.has_readers)
        """Whether batches are also written to the log of samples, because there are readers."""
        self._log_retention = LogRetention()

    # Writing

    def write(self, transaction: Connection, rows: SampleRows, now: int) -> int:
        """Write samples within the transaction, and create missing partitions. Return 0, an unused value."""
        plausible_rows: list[bytes] = []
        stray_rows: list[bytes] = []
        kinds_and_days: set[tuple[int, int]] = set()
        for device, samples in rows.items():
            for row in samples:
                if (extras := row[ROW_EXTRAS]) is None or extras.clock is None:
                    plausible_rows.append(_encode_row(device, row))
                    kinds_and_days.add((row[ROW_KIND], row[ROW_TIME] // DAY_MS))
                else:
                    stray_rows.append(_encode_stray_row(device, row, extras.clock, now))
        self._written_partitions = {_Partition(_TABLE_BY_KIND[kind], day) for kind, day in kinds_and_days}
        for partition in sorted(self._written_partitions - self._known_partitions):
            _create_partition(transaction, partition)
        try:
            _copy_rows(transaction, "sample", _COPY_COLUMNS, plausible_rows)
        except DBAPIError as exc:
            # Another process has dropped a partition. Write again: the retry creates it.
            if getattr(exc.orig, "sqlstate", None) == _CHECK_VIOLATION:
                self._known_partitions.clear()
                raise WriteConflict from exc
            raise
        _copy_rows(transaction, "sample_stray", _COPY_STRAY_COLUMNS, stray_rows)
        if self._has_readers and sample_log.count_reported(rows):
            sample_log.append_batch(transaction, rows, now)
        return 0

    def publish_committed(self, batch_number: int, rows: SampleRows) -> None:  # noqa: ARG002 # readers see committed rows anyway
        """Record that the partitions of the committed batch exist. Readers see the samples already."""
        self._known_partitions |= self._written_partitions
        for partition in self._written_partitions & self._removed_kinds.keys():  # late samples have arrived
            del self._removed_kinds[partition]

    async def wait_for_capacity(self) -> None:
        """Return at once: writes go directly to the database."""

    # Reading

    async def read(self, query: SampleQuery, consume: SampleConsumer[Result]) -> Result:
        """Call `consume` with the samples that match `query`. Return the result of `consume`."""
        return await self._database.read(_read_samples, query, consume)

    async def read_window(self, query: WindowQuery, consume: WindowConsumer[Result]) -> Result:
        """Call `consume` with the samples of many devices in a time range. Return the result of `consume`."""
        return await self._database.read(_read_window, query, consume)

    async def open_reader(self, name: str) -> SampleReader:
        """Open the reader of all samples with this name. A new reader begins with the next batch."""
        self._has_readers = True
        position = await self._database.write(_add_reader_at_end, name)
        return SampleReader(self._database, name, position, lambda _position: 0)

    async def remove_other_readers(self, names: Collection[str]) -> list[str]:
        """Forget the positions of all readers except those with these names. Return the forgotten names."""
        removed = await self._database.write(sample_log.remove_other_readers, names)
        self._has_readers = await self._database.read(sample_log.has_readers)
        return removed

    # Maintenance

    async def ensure_capacity(self, now: int) -> None:
        """Create the partitions of today and tomorrow, so that no batch waits for a partition."""
        await self._create_upcoming_partitions(now // DAY_MS)

    async def maintain(self, now: int) -> None:
        """Create the partitions of today and tomorrow; once an hour, delete samples that have expired."""
        await self.ensure_capacity(now)
        # `now` below this range means that the clock was set back; above it, the check is due.
        if self._next_retention_check - _RETENTION_CHECK_MS <= now < self._next_retention_check:
            return
        self._next_retention_check = now + _RETENTION_CHECK_MS
        for partition in await self._database.read(_list_partitions):
            expired = find_expired_kinds(
                self.retention, _KINDS_BY_TABLE[partition.table], (partition.day + 1) * DAY_MS, now
            )
            if expired == _KINDS_BY_TABLE[partition.table]:
                self._known_partitions.discard(partition)
                await self._drop_partition(partition, now)
            elif expired != self._removed_kinds.get(partition, frozenset()):
                await self._delete_kinds(partition, expired)
        await self._log_retention.delete_expired(self._database, self.retention, now)
        for kind, retention_ms in self.retention.items():
            if retention_ms is not None:
                await self._database.write(_delete_strays, kind, now - retention_ms)

    async def _create_upcoming_partitions(self, today: int) -> None:
        """Create the partitions of the days `today` and `today` + 1, counted from 1970-01-01."""
        upcoming = {_Partition(table, day) for table in _KINDS_BY_TABLE for day in (today, today + 1)}
        for partition in sorted(upcoming - self._known_partitions):
            try:
                await self._database.write(_create_partition_early, partition)
            except DatabaseUnavailable as exc:
                _log.info(
                    "partition %s could not be created in advance and will be retried: %s", partition, exc
                )
                return
            self._known_partitions.add(partition)

    async def _drop_partition(self, partition: _Partition, now: int) -> None:
        """Drop an expired partition, or try again a minute later if a reader uses the partition."""
        try:
            await self._database.write(_drop_partition, partition)
        except DatabaseUnavailable as exc:
            _log.info("expired partition %s could not be dropped and will be retried: %s", partition, exc)
            self._next_retention_check = now + _DROP_RETRY_MS

    async def _delete_kinds(self, partition: _Partition, kinds: frozenset[int]) -> None:
        """Delete the samples of the expired `kinds` from a partition."""
        # Set before deleting: if samples of these kinds are written meanwhile, the entry is removed again.
        self._removed_kinds[partition] = kinds
        try:
            await self._database.write(_delete_samples, partition, kinds)
        except BaseException:
            self._removed_kinds.pop(partition, None)
            raise

    def close(self) -> None:
        """Do nothing: the `Database` closes the connections."""


def _create_partition(connection: Connection, partition: _Partition) -> None:
    """Create a daily partition and attach it to its table, unless the partition exists."""
    # Serialized by a lock: two processes that create the same partition would fail or deadlock.
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_PARTITION_LOCK})")
    if connection.exec_driver_sql(f"SELECT to_regclass('{partition}')").scalar() is not None:
        return
    # Create and attach in two steps: readers and writers of other days are not blocked.
    connection.exec_driver_sql(f"CREATE TABLE {partition} (LIKE {partition.table} INCLUDING STORAGE)")
    connection.exec_driver_sql(
        f"ALTER TABLE {partition.table} ATTACH PARTITION {partition}"
        f" FOR VALUES FROM ({partition.day * DAY_MS}) TO ({(partition.day + 1) * DAY_MS})"
    )


def list_partition_names(connection: Connection) -> list[str]:
    """Return the names of all daily partitions of samples; an empty list in an older schema."""
    if connection.exec_driver_sql("SELECT to_regclass('sample_rolled')").scalar() is None:
        return []
    return list(map(str, _list_partitions(connection)))


def create_partition_by_name(connection: Connection, name: str) -> None:
    """Create a daily partition by its name. Raise `ValueError` if the name is not that of a partition."""
    partition = _Partition.parse(name)
    if str(partition) != name or partition.table not in _KINDS_BY_TABLE:
        raise ValueError(f"{name} is not the name of a partition")
    _create_partition(connection, partition)


def _create_partition_early(connection: Connection, partition: _Partition) -> None:
    """Create a daily partition before it is needed, and fail rather than block other transactions long."""
    # While ATTACH waits for running readers, all later transactions wait too: limit that time.
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_EARLY_LOCK_TIMEOUT}'")
    _create_partition(connection, partition)


def _drop_partition(connection: Connection, partition: _Partition) -> None:
    """Drop a daily partition, and fail rather than block other transactions long."""
    # While DROP waits for a reader, such as a backup, all later transactions wait too: limit that time.
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_DROP_LOCK_TIMEOUT}'")
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_PARTITION_LOCK})")
    connection.exec_driver_sql(f"DROP TABLE IF EXISTS {partition}")


def _delete_samples(connection: Connection, partition: _Partition, kinds: frozenset[int]) -> None:
    """Delete the samples of these kinds on the day of a partition."""
    # Deleting many rows may take long.
    connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
    # Delete through the parent table: another process may have dropped the partition.
    statement = (
        f"DELETE FROM {partition.table} WHERE kind = ANY(%(kinds)s)"  # noqa: S608 # constant names
        f" AND time >= {partition.day * DAY_MS} AND time < {(partition.day + 1) * DAY_MS}"
    )
    connection.exec_driver_sql(statement, {"kinds": list(kinds)})


def _delete_strays(connection: Connection, kind: int, before: int) -> None:
    """Delete samples of a kind with implausible times, received up to `before` (Unix time in ms)."""
    statement = "DELETE FROM sample_stray WHERE kind = %(kind)s AND received_at <= %(before)s"
    connection.exec_driver_sql(statement, {"kind": kind, "before": before})


def _add_reader_at_end(connection: Connection, name: str) -> int:
    """Store a reader that begins with the next batch of samples. Return its position."""
    return sample_log.add_reader(connection, name, sample_log.find_last_number(connection))


def _list_partitions(connection: Connection) -> list[_Partition]:
    """Return the daily partitions of both sample tables."""
    rows = connection.exec_driver_sql(
        "SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid"
        " WHERE inhparent IN ('sample_reported'::regclass, 'sample_rolled'::regclass)"
    )
    return [_Partition.parse(name) for (name,) in rows]


def _read_samples(connection: Connection, query: SampleQuery, consume: SampleConsumer[Result]) -> Result:
    """Call `consume` with the samples that match a query, one day after the other. Return its result."""
    since, until = query.time_range
    # Cursors that were not read to the end must be closed before the connection is reused.
    with ExitStack() as open_cursors:

        def load_day(day: int) -> Iterator[StoredSample]:
            day_start, day_end = max(since, day * DAY_MS), min(until, (day + 1) * DAY_MS)
            statement, values = _build_query(
                f"{_SAMPLE_COLUMNS}, NULL AS clock, shift FROM sample", query, day_start, day_end
            )
            return _stream_samples(open_cursors, connection, statement, values)

        statement, values = _build_query(
            f"{_SAMPLE_COLUMNS}, clock, shift FROM sample_stray", query, since, until
        )
        strays = _stream_samples(open_cursors, connection, statement, values)
        days = {
            partition.day
            for partition in _list_partitions(connection)
            if query.kinds & _KINDS_BY_TABLE[partition.table]
        }
        return consume(scan_days(query, days, load_day, strays))


def _read_window(connection: Connection, query: WindowQuery, consume: WindowConsumer[Result]) -> Result:
    """Call `consume` with the samples of many devices in a time range. Return its result."""
    conditions = (
        "device = ANY(%(devices)s) AND kind = ANY(%(kinds)s) AND time >= %(begin)s AND time < %(end)s"
    )
    columns = f"device, {_SAMPLE_COLUMNS}, NULL AS clock, shift"
    statement = f"SELECT {columns} FROM sample WHERE {conditions}"  # noqa: S608 # constant names
    values = {
        "devices": list(query.devices),
        "kinds": list(query.kinds),
        "begin": query.since,
        "end": query.until,
    }
    with connection.exec_driver_sql(statement, values, execution_options=_STREAM_OPTIONS) as rows:
        return consume((device, _build_sample(fields)) for device, *fields in rows)


def _build_query(source: str, query: SampleQuery, begin: int, end: int) -> tuple[str, dict[str, Any]]:
    """Build the SQL that selects a query's samples from `begin` to before `end`, in the requested order.

    `source` is the column list and the FROM clause. Return the SQL and the values of its placeholders.
    """
    conditions = ["device = %(device)s", "kind = ANY(%(kinds)s)", "time >= %(begin)s", "time < %(end)s"]
    values = {"device": query.device, "kinds": list(query.kinds), "begin": begin, "end": end}
    if query.identifier is not None:
        conditions.append("identifier = %(identifier)s")
        values["identifier"] = query.identifier
    if query.after is not None:
        comparison = "<" if query.newest_first else ">"
        after = "%(after_time)s, %(after_kind)s, %(after_identifier)s, %(after_seq)s"
        conditions.append(f"(time, kind, identifier, seq) {comparison} ({after})")
        names = ("after_time", "after_kind", "after_identifier", "after_seq")
        values |= dict(zip(names, query.after, strict=True))
    order = ", ".join(
        f"{column} DESC" if query.newest_first else column for column in ("time", "kind", "identifier", "seq")
    )
    return f"SELECT {source} WHERE {' AND '.join(conditions)} ORDER BY {order}", values


def _stream_samples(
    open_cursors: ExitStack, connection: Connection, statement: str, values: dict[str, Any]
) -> Iterator[StoredSample]:
    """Yield the samples that an SQL query selects, through a server-side cursor in `open_cursors`."""
    rows = connection.exec_driver_sql(statement, values, execution_options=_STREAM_OPTIONS)
    for row in open_cursors.enter_context(rows):
        yield _build_sample(row)


def _build_sample(row: Sequence[Any]) -> StoredSample:
    """Build a sample from the columns that a query selects."""
    time, kind, identifier, seq, gateway, number, raw, *extra_fields = row
    extras = SampleExtras(*extra_fields) if any(field is not None for field in extra_fields) else None
    return StoredSample(time, kind, identifier, seq, gateway, number, raw, extras)
