"""Samples on PostgreSQL: a table with a partition for each day, and another for what belongs to no day."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from psycopg.errors import CheckViolation
from sqlalchemy.exc import DBAPIError

from meshfleet.db.database import Overtaken
from meshfleet.db.samples import copying
from meshfleet.db.samples.retention import expired_kinds
from meshfleet.db.samples.sample import ALL_KINDS, DAY, More, Result, Sample, SampleKind
from meshfleet.db.samples.scan import scan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection

    from meshfleet.db.database import Database
    from meshfleet.db.samples.retention import Retention
    from meshfleet.db.samples.sample import Rows, Use, Wanted

_SAMPLE: Final = "time, kind, identifier, seq, gateway, number, raw, text, ext, error, error_ext"

_HOUR: Final = 3_600_000
"""Milliseconds between two looks for what is too old."""

_LOCK: Final = 0x6D737061
"""Any number, as long as no other lock on the database has it."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class SamplesInTables:
    """The samples of a service on PostgreSQL. Several programs may use them at a time."""

    def __init__(self, database: Database, retention: Retention, *, now: int) -> None:
        self._database = database
        self._retention = retention
        self._days = frozenset(database.read_now(_days))
        """Those that are known to have a partition."""
        self._next_look = now

    # Writing

    def write(self, transaction: Connection, rows: Rows, now: int) -> int:
        """See `SampleStore`."""
        placed: list[bytes] = []
        strays: list[bytes] = []
        days: set[int] = set()
        for device, samples in rows.items():
            for row in samples:
                if (more := row[7]) is None or more.clock is None:
                    placed.append(copying.placed(device, row))
                    days.add(row[0] // DAY)
                else:
                    strays.append(copying.stray(device, row, more.clock, now))
        for day in sorted(days - self._days):
            _make_partition(transaction, day)
        try:
            copying.insert(transaction, "sample", copying.COLUMNS, placed)
        except DBAPIError as exc:
            if isinstance(exc.orig, CheckViolation):  # another program has removed the partition
                self._days = frozenset()
                raise Overtaken from exc
            raise
        copying.insert(transaction, "sample_stray", copying.STRAY_COLUMNS, strays)
        return 0

    def committed(self, number: int, rows: Rows) -> None:  # noqa: ARG002 # there is nothing to number
        """See `SampleStore`."""
        days = {
            row[0] // DAY
            for samples in rows.values()
            for row in samples
            if row[7] is None or row[7].clock is None
        }
        if not days <= self._days:
            self._days |= days

    async def room(self) -> None:
        """See `SampleStore`."""

    # Reading

    async def read(self, wanted: Wanted, use: Use[Result]) -> Result:
        """See `SampleStore`."""
        return await self._database.read(_read, wanted, use)

    # Keeping order

    async def tend(self, now: int) -> None:
        """See `SampleStore`."""
        if now < self._next_look:
            return
        self._next_look = now + _HOUR
        for day in await self._database.read(_days):
            gone = expired_kinds(self._retention, ALL_KINDS, (day + 1) * DAY, now)
            if gone == set(SampleKind):
                self._days -= {day}
                await self._database.write(_drop_partition, day)
            elif gone:
                await self._database.write(_delete, _partition(day), sorted(gone))
        for kind, kept in self._retention.items():
            if kept is not None:
                await self._database.write(_delete_strays, kind, now - kept)

    def close(self) -> None:
        """See `SampleStore`."""


def _partition(day: int) -> str:
    return f"sample_{_EPOCH + timedelta(days=day):%Y%m%d}"


def _make_partition(connection: Connection, day: int) -> None:
    # One after the other: two programs that make the same one would get in each other's way.
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
    connection.exec_driver_sql(
        f"CREATE TABLE IF NOT EXISTS {_partition(day)} PARTITION OF sample"
        f" FOR VALUES FROM ({day * DAY}) TO ({(day + 1) * DAY})"
    )


def _drop_partition(connection: Connection, day: int) -> None:
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
    connection.exec_driver_sql(f"DROP TABLE IF EXISTS {_partition(day)}")


def _delete(connection: Connection, table: str, kinds: Sequence[int]) -> None:
    statement = f"DELETE FROM {table} WHERE kind = ANY(%(kinds)s)"  # noqa: S608 # our own names
    connection.exec_driver_sql(statement, {"kinds": list(kinds)})


def _delete_strays(connection: Connection, kind: int, before: int) -> None:
    statement = "DELETE FROM sample_stray WHERE kind = %(kind)s AND received_at <= %(before)s"
    connection.exec_driver_sql(statement, {"kind": kind, "before": before})


def _days(connection: Connection) -> list[int]:
    """The days that have a partition."""
    rows = connection.exec_driver_sql(
        "SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid"
        " WHERE inhparent = 'sample'::regclass"
    )
    names = [name.removeprefix("sample_") for (name,) in rows]
    return [(datetime.strptime(name, "%Y%m%d").replace(tzinfo=UTC) - _EPOCH).days for name in names]


def _read(connection: Connection, wanted: Wanted, use: Use[Result]) -> Result:
    def load(day: int) -> Iterator[Sample]:
        begin, end = max(wanted.since, day * DAY), min(wanted.until, (day + 1) * DAY)
        return _samples(connection, f"{_SAMPLE}, NULL AS clock FROM sample", wanted, begin, end)

    strays = _samples(connection, f"{_SAMPLE}, clock FROM sample_stray", wanted, wanted.since, wanted.until)
    return use(scan(wanted, _days(connection), load, strays))


def _samples(connection: Connection, source: str, wanted: Wanted, begin: int, end: int) -> Iterator[Sample]:
    """What is wanted between two times, without an order."""
    identifier = "" if wanted.identifier is None else " AND identifier = %(identifier)s"
    query = (
        f"SELECT {source} WHERE device = %(device)s AND kind = ANY(%(kinds)s){identifier}"
        " AND time >= %(begin)s AND time < %(end)s"
    )
    values: dict[str, Any] = {
        "device": wanted.device,
        "kinds": list(wanted.kinds),
        "identifier": wanted.identifier,
        "begin": begin,
        "end": end,
    }
    for row in connection.exec_driver_sql(query, values):
        time, kind, identifier_number, seq, gateway, number, raw, *more = row
        rest = More(*more) if any(each is not None for each in more) else None
        yield Sample(time, kind, identifier_number, seq, gateway, number, raw, rest)
