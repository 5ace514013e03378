"""Samples on PostgreSQL: a table with a partition for each day, and another for what belongs to no day."""

from __future__ import annotations

import logging
import struct
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy.exc import DBAPIError

from meshfleet.db.database import WriteConflict
from meshfleet.db.samples.sample import (
    DAY_MS,
    Result,
    SampleExtras,
    SampleKind,
    StoredSample,
    find_expired_kinds,
)
from meshfleet.db.samples.sorted_merge import scan_days
from meshfleet.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection

    from meshfleet.db.database import Database
    from meshfleet.db.samples.sample import Retention, SampleConsumer, SampleQuery, SampleRow, SampleRows


# Samples as PostgreSQL's binary COPY has them: the driver's own way takes several times as long.

COPY_COLUMNS: Final = (
    "device, time, gateway, identifier, number, kind, seq, raw, text, ext, error, error_ext, shift"
)
COPY_STRAY_COLUMNS: Final = f"{COPY_COLUMNS}, clock, received_at"

_COPY_HEADER: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_TRAILER: Final = b"\xff\xff"

_NULL: Final = b"\xff\xff\xff\xff"
_pack_with_number = struct.Struct(">hiqiqiqiqidihih").pack
_pack_without_number = struct.Struct(">hiqiqiqiqiihih").pack
_pack_int8 = struct.Struct(">iq").pack
_pack_int2 = struct.Struct(">ih").pack
_pack_length = struct.Struct(">i").pack

_COLUMN_COUNT, _STRAY_COLUMN_COUNT = 13, 15
"""How many columns there are."""


def encode_row(device: int, row: SampleRow) -> bytes:
    """A row of `sample`."""
    return _encode_fields(_COLUMN_COUNT, device, row)


def encode_stray_row(device: int, row: SampleRow, clock: int, received_at: int) -> bytes:
    """A row of `sample_stray`."""
    return (
        _encode_fields(_STRAY_COLUMN_COUNT, device, row) + _pack_int2(2, clock) + _pack_int8(8, received_at)
    )


def copy_rows(connection: Connection, table: str, columns: str, rows: Sequence[bytes]) -> None:
    """Add rows, but for those that are there already."""
    if not rows:
        return
    # COPY itself would stop at a row that exists, so it goes to a table that only this connection sees.
    template = f"SELECT {columns} FROM {table} WITH NO DATA"  # noqa: S608 # our own names
    connection.exec_driver_sql(
        f"CREATE TEMPORARY TABLE IF NOT EXISTS new_{table} ON COMMIT DELETE ROWS AS {template}"
    )
    driver: Any = connection.connection.driver_connection
    dbapi: Any = connection.dialect.dbapi  # not by its name: who uses SQLite never loads it
    statement = f"COPY new_{table} ({columns}) FROM STDIN (FORMAT BINARY)"
    try:
        with driver.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(b"".join((_COPY_HEADER, *rows, _COPY_TRAILER)))
    except dbapi.Error as exc:
        # As SQLAlchemy would raise it: it does not see what happens here.
        raise DBAPIError.instance(statement, None, exc, dbapi.Error, dialect=connection.dialect) from exc
    connection.exec_driver_sql(
        f"INSERT INTO {table} ({columns}) SELECT {columns} FROM new_{table} ON CONFLICT DO NOTHING"  # noqa: S608
    )


def _encode_fields(columns: int, device: int, row: SampleRow) -> bytes:
    time, kind, identifier, seq, gateway, number, raw, more = row
    if number is None:
        front = _pack_without_number(
            columns, 8, device, 8, time, 8, gateway, 8, identifier, -1, 2, kind, 2, seq
        )
    else:
        front = _pack_with_number(
            columns, 8, device, 8, time, 8, gateway, 8, identifier, 8, number, 2, kind, 2, seq
        )
    tail = _NULL if raw is None else _pack_length(len(raw)) + raw
    return front + tail + (5 * _NULL if more is None else _encode_extras(more))


def _encode_extras(more: SampleExtras) -> bytes:
    error, error_ext, shift = (
        _encode_integer(more.error),
        _encode_integer(more.error_ext),
        _encode_integer(more.shift),
    )
    return b"".join((_encode_text(more.text), _encode_text(more.ext), error, error_ext, shift))


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
"""Milliseconds between two looks for what is too old."""

_EARLY_LOCK_TIMEOUT: Final = "500ms"
"""How long everybody else may have to wait for what is only done ahead."""

_STREAM_OPTIONS: Final = {"stream_results": True, "max_row_buffer": 2_000}
"""Rows stay with the server until somebody wants them."""

_CHECK_VIOLATION: Final = "23514"

_PARTITION_LOCK: Final = 0x6D737061
"""Any number, as long as no other lock on the database has it."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


_REPORTED, _ROLLED = "sample_reported", "sample_rolled"
_KINDS_BY_TABLE: Final = {
    _REPORTED: frozenset(
        {SampleKind.PROPERTY, SampleKind.MEASUREMENT, SampleKind.MEASUREMENT_ERROR, SampleKind.EVENT}
    ),
    _ROLLED: frozenset({SampleKind.LINK, SampleKind.HEARTBEAT}),
}
"""Which kinds are in which table."""
_TABLE_BY_KIND: Final[dict[int, str]] = {
    kind: table for table, kinds in _KINDS_BY_TABLE.items() for kind in kinds
}


class _Partition(NamedTuple):
    """A partition: what one table has of one day."""

    table: str
    day: int

    def __str__(self) -> str:
        return f"{self.table}_{_EPOCH + timedelta(days=self.day):%Y%m%d}"

    @classmethod
    def parse(cls, name: str) -> _Partition:
        """Read the name of one."""
        table, _, day = name.rpartition("_")
        return cls(table, (datetime.strptime(day, "%Y%m%d").replace(tzinfo=UTC) - _EPOCH).days)


class PostgresqlSampleStore:
    """The samples of a service on PostgreSQL. Several programs may use them at a time."""

    def __init__(self, database: Database, retention: Retention, *, now: int) -> None:
        self._database = database
        self._retention = retention
        self._known_partitions = set(database.read_now(_list_partitions))
        """Partitions that are known to be there."""
        self._written_partitions: set[_Partition] = set()
        """Those that were written to, when that is committed."""
        self._removed_kinds: dict[_Partition, frozenset[int]] = {}
        """Kinds that were removed from partitions that stay."""
        self._next_retention_check = now

    # Writing

    def write(self, transaction: Connection, rows: SampleRows, now: int) -> int:
        """See `SampleStore`."""
        placed: list[bytes] = []
        strays: list[bytes] = []
        days: set[tuple[int, int]] = set()
        for device, samples in rows.items():
            for row in samples:
                if (more := row[7]) is None or more.clock is None:
                    placed.append(encode_row(device, row))
                    days.add((row[1], row[0] // DAY_MS))
                else:
                    strays.append(encode_stray_row(device, row, more.clock, now))
        self._written_partitions = {_Partition(_TABLE_BY_KIND[kind], day) for kind, day in days}
        for part in sorted(self._written_partitions - self._known_partitions):
            _create_partition(transaction, part)
        try:
            copy_rows(transaction, "sample", COPY_COLUMNS, placed)
        except DBAPIError as exc:
            if (
                getattr(exc.orig, "sqlstate", None) == _CHECK_VIOLATION
            ):  # another program removed the partition
                self._known_partitions.clear()
                raise WriteConflict from exc
            raise
        copy_rows(transaction, "sample_stray", COPY_STRAY_COLUMNS, strays)
        return 0

    def publish_committed(self, number: int, rows: SampleRows) -> None:  # noqa: ARG002 # readers see it anyway
        """See `SampleStore`."""
        self._known_partitions |= self._written_partitions
        for part in self._written_partitions & self._removed_kinds.keys():  # late samples
            del self._removed_kinds[part]

    async def wait_for_capacity(self) -> None:
        """See `SampleStore`."""

    # Reading

    async def read(self, query: SampleQuery, consume: SampleConsumer[Result]) -> Result:
        """See `SampleStore`."""
        return await self._database.read(_read_samples, query, consume)

    # Keeping order

    async def ensure_capacity(self, now: int) -> None:
        """See `SampleStore`."""
        await self._create_upcoming_partitions(now // DAY_MS)

    async def maintain(self, now: int) -> None:
        """See `SampleStore`."""
        await self.ensure_capacity(now)
        if (
            self._next_retention_check - _RETENTION_CHECK_MS <= now < self._next_retention_check
        ):  # else the clock was set back
            return
        self._next_retention_check = now + _RETENTION_CHECK_MS
        for part in await self._database.read(_list_partitions):
            gone = find_expired_kinds(
                self._retention, _KINDS_BY_TABLE[part.table], (part.day + 1) * DAY_MS, now
            )
            if gone == _KINDS_BY_TABLE[part.table]:
                self._known_partitions.discard(part)
                await self._database.write(_drop_partition, part)
            elif gone != self._removed_kinds.get(part, frozenset()):
                await self._delete_kinds(part, gone)
        for kind, kept in self._retention.items():
            if kept is not None:
                await self._database.write(_delete_strays, kind, now - kept)

    async def _create_upcoming_partitions(self, today: int) -> None:
        """Make the partitions of today and tomorrow before a batch needs them, and waits for them."""
        wanted = {_Partition(table, day) for table in _KINDS_BY_TABLE for day in (today, today + 1)}
        for part in sorted(wanted - self._known_partitions):
            try:
                await self._database.write(_create_partition_early, part)
            except DatabaseUnavailable as exc:
                _log.info("partition %s is made later: %s", part, exc)
                return
            self._known_partitions.add(part)

    async def _delete_kinds(self, part: _Partition, kinds: frozenset[int]) -> None:
        self._removed_kinds[part] = kinds  # before it is: what comes meanwhile makes it unclean again
        try:
            await self._database.write(_delete_samples, part, kinds)
        except BaseException:
            self._removed_kinds.pop(part, None)
            raise

    def close(self) -> None:
        """See `SampleStore`."""


def _create_partition(connection: Connection, part: _Partition) -> None:
    # One after the other: two programs that make the same one would get in each other's way.
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_PARTITION_LOCK})")
    if connection.exec_driver_sql(f"SELECT to_regclass('{part}')").scalar() is not None:
        return
    # In two steps, for which no reader or writer of other days has to wait, nor be waited for.
    connection.exec_driver_sql(f"CREATE TABLE {part} (LIKE {part.table} INCLUDING STORAGE)")
    connection.exec_driver_sql(
        f"ALTER TABLE {part.table} ATTACH PARTITION {part}"
        f" FOR VALUES FROM ({part.day * DAY_MS}) TO ({(part.day + 1) * DAY_MS})"
    )


def _create_partition_early(connection: Connection, part: _Partition) -> None:
    # Who waits for readers makes all others wait.
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_EARLY_LOCK_TIMEOUT}'")
    _create_partition(connection, part)


def _drop_partition(connection: Connection, part: _Partition) -> None:
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_PARTITION_LOCK})")
    connection.exec_driver_sql(f"DROP TABLE IF EXISTS {part}")


def _delete_samples(connection: Connection, part: _Partition, kinds: frozenset[int]) -> None:
    # It may be many rows: this takes as long as it takes.
    connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
    # Not by its own name: another program may have dropped it.
    statement = (
        f"DELETE FROM {part.table} WHERE kind = ANY(%(kinds)s)"  # noqa: S608 # our own names
        f" AND time >= {part.day * DAY_MS} AND time < {(part.day + 1) * DAY_MS}"
    )
    connection.exec_driver_sql(statement, {"kinds": list(kinds)})


def _delete_strays(connection: Connection, kind: int, before: int) -> None:
    statement = "DELETE FROM sample_stray WHERE kind = %(kind)s AND received_at <= %(before)s"
    connection.exec_driver_sql(statement, {"kind": kind, "before": before})


def _list_partitions(connection: Connection) -> list[_Partition]:
    """The partitions that are there."""
    rows = connection.exec_driver_sql(
        "SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid"
        " WHERE inhparent IN ('sample_reported'::regclass, 'sample_rolled'::regclass)"
    )
    return [_Partition.parse(name) for (name,) in rows]


def _read_samples(connection: Connection, wanted: SampleQuery, use: SampleConsumer[Result]) -> Result:
    since, until = wanted.time_range
    # What was not read to its end is closed before others get the connection.
    with ExitStack() as opened:

        def load(day: int) -> Iterator[StoredSample]:
            begin, end = max(since, day * DAY_MS), min(until, (day + 1) * DAY_MS)
            query, values = _build_query(
                f"{_SAMPLE_COLUMNS}, NULL AS clock, shift FROM sample", wanted, begin, end
            )
            return _stream_samples(opened, connection, query, values)

        query, values = _build_query(
            f"{_SAMPLE_COLUMNS}, clock, shift FROM sample_stray", wanted, since, until
        )
        strays = _stream_samples(opened, connection, query, values)
        days = {
            part.day for part in _list_partitions(connection) if wanted.kinds & _KINDS_BY_TABLE[part.table]
        }
        return use(scan_days(wanted, days, load, strays))


def _build_query(source: str, wanted: SampleQuery, begin: int, end: int) -> tuple[str, dict[str, Any]]:
    """What is wanted between two times, in order."""
    conditions = ["device = %(device)s", "kind = ANY(%(kinds)s)", "time >= %(begin)s", "time < %(end)s"]
    values = {"device": wanted.device, "kinds": list(wanted.kinds), "begin": begin, "end": end}
    if wanted.identifier is not None:
        conditions.append("identifier = %(identifier)s")
        values["identifier"] = wanted.identifier
    if wanted.after is not None:
        follows = "<" if wanted.newest_first else ">"
        after = "%(after_time)s, %(after_kind)s, %(after_identifier)s, %(after_seq)s"
        conditions.append(f"(time, kind, identifier, seq) {follows} ({after})")
        names = ("after_time", "after_kind", "after_identifier", "after_seq")
        values |= dict(zip(names, wanted.after, strict=True))
    order = ", ".join(
        f"{each} DESC" if wanted.newest_first else each for each in ("time", "kind", "identifier", "seq")
    )
    return f"SELECT {source} WHERE {' AND '.join(conditions)} ORDER BY {order}", values


def _stream_samples(
    opened: ExitStack, connection: Connection, query: str, values: dict[str, Any]
) -> Iterator[StoredSample]:
    rows = connection.exec_driver_sql(query, values, execution_options=_STREAM_OPTIONS)
    for row in opened.enter_context(rows):
        time, kind, identifier, seq, gateway, number, raw, *more = row
        rest = SampleExtras(*more) if any(each is not None for each in more) else None
        yield StoredSample(time, kind, identifier, seq, gateway, number, raw, rest)
