"""Samples on PostgreSQL: a table with a partition for each day, and another for what belongs to no day."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy.exc import DBAPIError

from meshfleet.db.database import Overtaken
from meshfleet.db.samples import copying
from meshfleet.db.samples.retention import expired_kinds
from meshfleet.db.samples.sample import DAY, More, Result, Sample, SampleKind
from meshfleet.db.samples.scan import scan
from meshfleet.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from meshfleet.db.database import Database
    from meshfleet.db.samples.retention import Retention
    from meshfleet.db.samples.sample import Rows, Use, Wanted

_log = logging.getLogger(__name__)

_SAMPLE: Final = "time, kind, identifier, seq, gateway, number, raw, text, ext, error, error_ext"

_HOUR: Final = 3_600_000
"""Milliseconds between two looks for what is too old."""

_SOON: Final = "500ms"
"""How long everybody else may have to wait for what is only done ahead."""

_STREAMED: Final = {"stream_results": True, "max_row_buffer": 2_000}
"""Rows stay with the server until somebody wants them."""

_CHECK_VIOLATION: Final = "23514"

_LOCK: Final = 0x6D737061
"""Any number, as long as no other lock on the database has it."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


_REPORTED, _ROLLED = "sample_reported", "sample_rolled"
_KINDS: Final = {
    _REPORTED: frozenset(
        {SampleKind.PROPERTY, SampleKind.MEASUREMENT, SampleKind.MEASUREMENT_ERROR, SampleKind.EVENT}
    ),
    _ROLLED: frozenset({SampleKind.LINK, SampleKind.HEARTBEAT}),
}
"""Which kinds are in which table."""
_TABLES: Final[dict[int, str]] = {kind: table for table, kinds in _KINDS.items() for kind in kinds}


class _Part(NamedTuple):
    """A partition: what one table has of one day."""

    table: str
    day: int

    def __str__(self) -> str:
        return f"{self.table}_{_EPOCH + timedelta(days=self.day):%Y%m%d}"

    @classmethod
    def parse(cls, name: str) -> _Part:
        """Read the name of one."""
        table, _, day = name.rpartition("_")
        return cls(table, (datetime.strptime(day, "%Y%m%d").replace(tzinfo=UTC) - _EPOCH).days)


class SamplesInTables:
    """The samples of a service on PostgreSQL. Several programs may use them at a time."""

    def __init__(self, database: Database, retention: Retention, *, now: int) -> None:
        self._database = database
        self._retention = retention
        self._parts = set(database.read_now(_parts))
        """Partitions that are known to be there."""
        self._filled: set[_Part] = set()
        """Those that were written to, when that is committed."""
        self._cleaned: dict[_Part, frozenset[int]] = {}
        """Kinds that were removed from partitions that stay."""
        self._next_look = now

    # Writing

    def write(self, transaction: Connection, rows: Rows, now: int) -> int:
        """See `SampleStore`."""
        placed: list[bytes] = []
        strays: list[bytes] = []
        days: set[tuple[int, int]] = set()
        for device, samples in rows.items():
            for row in samples:
                if (more := row[7]) is None or more.clock is None:
                    placed.append(copying.placed(device, row))
                    days.add((row[1], row[0] // DAY))
                else:
                    strays.append(copying.stray(device, row, more.clock, now))
        self._filled = {_Part(_TABLES[kind], day) for kind, day in days}
        for part in sorted(self._filled - self._parts):
            _make(transaction, part)
        try:
            copying.insert(transaction, "sample", copying.COLUMNS, placed)
        except DBAPIError as exc:
            if (
                getattr(exc.orig, "sqlstate", None) == _CHECK_VIOLATION
            ):  # another program removed the partition
                self._parts.clear()
                raise Overtaken from exc
            raise
        copying.insert(transaction, "sample_stray", copying.STRAY_COLUMNS, strays)
        return 0

    def committed(self, number: int, rows: Rows) -> None:  # noqa: ARG002 # readers see it anyway
        """See `SampleStore`."""
        self._parts |= self._filled
        for part in self._filled & self._cleaned.keys():  # late samples
            del self._cleaned[part]

    async def room(self) -> None:
        """See `SampleStore`."""

    # Reading

    async def read(self, wanted: Wanted, use: Use[Result]) -> Result:
        """See `SampleStore`."""
        return await self._database.read(_read, wanted, use)

    # Keeping order

    async def make_room(self, now: int) -> None:
        """See `SampleStore`."""
        await self._make_ahead(now // DAY)

    async def tend(self, now: int) -> None:
        """See `SampleStore`."""
        await self.make_room(now)
        if self._next_look - _HOUR <= now < self._next_look:  # else the clock was set back
            return
        self._next_look = now + _HOUR
        for part in await self._database.read(_parts):
            gone = expired_kinds(self._retention, _KINDS[part.table], (part.day + 1) * DAY, now)
            if gone == _KINDS[part.table]:
                self._parts.discard(part)
                await self._database.write(_drop, part)
            elif gone != self._cleaned.get(part, frozenset()):
                await self._clean(part, gone)
        for kind, kept in self._retention.items():
            if kept is not None:
                await self._database.write(_delete_strays, kind, now - kept)

    async def _make_ahead(self, today: int) -> None:
        """Make the partitions of today and tomorrow before a batch needs them, and waits for them."""
        wanted = {_Part(table, day) for table in _KINDS for day in (today, today + 1)}
        for part in sorted(wanted - self._parts):
            try:
                await self._database.write(_make_soon, part)
            except DatabaseUnavailable as exc:
                _log.info("partition %s is made later: %s", part, exc)
                return
            self._parts.add(part)

    async def _clean(self, part: _Part, kinds: frozenset[int]) -> None:
        self._cleaned[part] = kinds  # before it is: what comes meanwhile makes it unclean again
        try:
            await self._database.write(_delete, part, kinds)
        except BaseException:
            self._cleaned.pop(part, None)
            raise

    def close(self) -> None:
        """See `SampleStore`."""


def _make(connection: Connection, part: _Part) -> None:
    # One after the other: two programs that make the same one would get in each other's way.
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
    if connection.exec_driver_sql(f"SELECT to_regclass('{part}')").scalar() is not None:
        return
    # In two steps, for which no reader or writer of other days has to wait, nor be waited for.
    connection.exec_driver_sql(f"CREATE TABLE {part} (LIKE {part.table} INCLUDING STORAGE)")
    connection.exec_driver_sql(
        f"ALTER TABLE {part.table} ATTACH PARTITION {part}"
        f" FOR VALUES FROM ({part.day * DAY}) TO ({(part.day + 1) * DAY})"
    )


def _make_soon(connection: Connection, part: _Part) -> None:
    # Who waits for readers makes all others wait.
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_SOON}'")
    _make(connection, part)


def _drop(connection: Connection, part: _Part) -> None:
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
    connection.exec_driver_sql(f"DROP TABLE IF EXISTS {part}")


def _delete(connection: Connection, part: _Part, kinds: frozenset[int]) -> None:
    # It may be many rows: this takes as long as it takes.
    connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
    # Not by its own name: another program may have dropped it.
    statement = (
        f"DELETE FROM {part.table} WHERE kind = ANY(%(kinds)s)"  # noqa: S608 # our own names
        f" AND time >= {part.day * DAY} AND time < {(part.day + 1) * DAY}"
    )
    connection.exec_driver_sql(statement, {"kinds": list(kinds)})


def _delete_strays(connection: Connection, kind: int, before: int) -> None:
    statement = "DELETE FROM sample_stray WHERE kind = %(kind)s AND received_at <= %(before)s"
    connection.exec_driver_sql(statement, {"kind": kind, "before": before})


def _parts(connection: Connection) -> list[_Part]:
    """The partitions that are there."""
    rows = connection.exec_driver_sql(
        "SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid"
        " WHERE inhparent IN ('sample_reported'::regclass, 'sample_rolled'::regclass)"
    )
    return [_Part.parse(name) for (name,) in rows]


def _read(connection: Connection, wanted: Wanted, use: Use[Result]) -> Result:
    since, until = wanted.bounds
    # What was not read to its end is closed before others get the connection.
    with ExitStack() as opened:

        def load(day: int) -> Iterator[Sample]:
            begin, end = max(since, day * DAY), min(until, (day + 1) * DAY)
            query, values = _query(f"{_SAMPLE}, NULL AS clock, shift FROM sample", wanted, begin, end)
            return _samples(opened, connection, query, values)

        query, values = _query(f"{_SAMPLE}, clock, shift FROM sample_stray", wanted, since, until)
        strays = _samples(opened, connection, query, values)
        days = {part.day for part in _parts(connection) if wanted.kinds & _KINDS[part.table]}
        return use(scan(wanted, days, load, strays))


def _query(source: str, wanted: Wanted, begin: int, end: int) -> tuple[str, dict[str, Any]]:
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


def _samples(
    opened: ExitStack, connection: Connection, query: str, values: dict[str, Any]
) -> Iterator[Sample]:
    rows = connection.exec_driver_sql(query, values, execution_options=_STREAMED)
    for row in opened.enter_context(rows):
        time, kind, identifier, seq, gateway, number, raw, *more = row
        rest = More(*more) if any(each is not None for each in more) else None
        yield Sample(time, kind, identifier, seq, gateway, number, raw, rest)
