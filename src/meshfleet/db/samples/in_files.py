"""Samples on SQLite: a journal, a head and segments.

A batch goes into the journal, as one row, in the transaction that commits it; then into the head, where
readers find it. When the head is full it is written out as segments, and its rows of the journal go. So
every sample is in the journal or in a segment, whatever happens, and nothing is written twice in vain: a
table with a row for each sample would cost several times as much.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from meshfleet.db.samples import segments
from meshfleet.db.samples.chunk import unpack
from meshfleet.db.samples.folder import clear, prepare
from meshfleet.db.samples.head import Head
from meshfleet.db.samples.retention import expired_kinds, kinds_of
from meshfleet.db.samples.sample import ALL_KINDS, DAY, More, Result
from meshfleet.db.samples.scan import scan
from meshfleet.db.samples.segments import Gone, Segment
from meshfleet.db.samples.sweep import Piece, sweep
from meshfleet.errors import SamplesDamaged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from sqlalchemy import Connection

    from meshfleet.db.database import Database
    from meshfleet.db.samples.chunk import ChunkRow
    from meshfleet.db.samples.head import Day
    from meshfleet.db.samples.retention import Retention
    from meshfleet.db.samples.sample import Rows, Sample, Use, Wanted

_log = logging.getLogger(__name__)

_OLD: Final = DAY
"""Milliseconds after which a head is written out however few samples it has."""

_LARGEST: Final = 4
"""The level above which nothing is merged."""

_READERS: Final = 4

_TRIES: Final = 10
"""For a reader who finds that segments went while it read."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(
    dict[int, list[tuple[int, int, int, int, int, float | int | None, bytes | None, More | None]]]
).decode


class Limits(NamedTuple):
    """How much is collected before it is put in order."""

    full: int = 200_000
    """Samples in a head that is to be written out."""
    size: int = 64 * 1024 * 1024
    """Bytes in a head that is to be written out: samples are small, unless somebody means harm."""
    fan: int = 8
    """Segments of one day and level that become one of the next."""


_USUAL: Final = Limits()


class SamplesInFiles:
    """The samples of a service on SQLite. Only one program uses them at a time."""

    def __init__(
        self, database: Database, folder: Path, retention: Retention, *, now: int, limits: Limits = _USUAL
    ) -> None:
        self._database = database
        self._folder = folder
        self._retention = retention
        self._limits = limits
        self._head = Head()
        self._began = now
        self._frozen: Head | None = None
        """A head that is being written out."""
        self._written: dict[Day, Segment] = {}
        """What was made of that head, until the database knows of it: a try that fails leaves no litter."""
        self._merged: dict[tuple[int, ...], Segment] = {}
        """The same for what was made of segments, by their numbers."""
        self._untold: set[Path] = set()
        """Files that the database was never told of."""
        self._damaged: set[Path] = set()
        self._writing_out = asyncio.Lock()
        self._room = asyncio.Event()
        self._room.set()
        self._is_closed = False
        self._readers = ThreadPoolExecutor(_READERS, "samples.read")
        self._keeper = ThreadPoolExecutor(2, "samples.keep")
        prepare(folder)
        self._segments: tuple[Segment, ...] = database.read_now(_registered)
        self._next = clear(folder, self._segments, database.read_now(_highest))
        self._batch = 0
        """The number of the last batch. None comes again, or a batch could be taken for one that may go."""
        for number, batch in database.read_now(_journal):
            self._head.add(number, _decode(batch))
            self._batch = number

    # Writing

    def write(self, transaction: Connection, rows: Rows, now: int) -> int:  # noqa: ARG002 # known later, in `tend`
        """See `SampleStore`."""
        if rows:
            self._batch += 1
            insert = "INSERT INTO sample_journal (id, batch) VALUES (?, ?)"
            transaction.exec_driver_sql(insert, (self._batch, _encode(rows)))
        return self._batch

    def committed(self, number: int, rows: Rows) -> None:
        """See `SampleStore`."""
        if rows:
            self._head.add(number, rows)
            if self._is_full(times=2):
                self._room.clear()

    async def room(self) -> None:
        """See `SampleStore`."""
        await self._room.wait()

    # Reading

    async def read(self, wanted: Wanted, use: Use[Result]) -> Result:
        """See `SampleStore`."""
        # Before the segments: what goes from here to there meanwhile is seen twice, and not never.
        heads = [head.of(wanted.device) for head in (self._frozen, self._head) if head is not None]
        work = asyncio.get_running_loop().run_in_executor
        return await work(self._readers, self._read, wanted, heads, use)

    def _read(self, wanted: Wanted, heads: Sequence[dict[Day, bytes]], use: Use[Result]) -> Result:
        for tries_left in reversed(range(_TRIES)):
            try:
                return use(self._scan(wanted, heads))
            except Gone as exc:
                if not tries_left:
                    raise SamplesDamaged(exc.place, exc) from exc
        raise AssertionError("the last try returns or raises")

    def _scan(self, wanted: Wanted, heads: Sequence[dict[Day, bytes]]) -> Iterator[Sample]:
        by_day: defaultdict[Day, list[Segment]] = defaultdict(list)
        for segment in self._segments:
            by_day[segment.day].append(segment)

        def load(day: Day) -> Iterator[Sample]:
            found = self._pieces(wanted, by_day.get(day, ()), [head[day] for head in heads if day in head])
            return sweep(found, newest_first=wanted.newest_first)

        days = {day for day in chain(by_day, *heads) if day is not None}
        return scan(wanted, days, load, load(None))

    def _pieces(self, wanted: Wanted, stored: Iterable[Segment], heads: Iterable[bytes]) -> Iterator[Piece]:
        """What may be wanted of one day, in the order in which it came."""
        since, until = wanted.bounds
        for segment in stored:
            for piece in segments.pieces(self._place(segment), wanted.device, since, until):
                yield piece._replace(load=partial(_wanted, wanted, piece.load))
        for chunk in heads:
            yield Piece(since, until, partial(_wanted, wanted, partial(unpack, chunk)))

    # Keeping order

    async def make_room(self, now: int) -> None:
        """See `SampleStore`."""
        async with self._writing_out:
            if self._frozen is None and self._is_due(now):
                self._frozen, self._head, self._began = self._head, Head(), now
            if self._frozen is not None:
                await self._write_out(self._frozen, now)
                self._frozen = None
                self._room.set()

    async def tend(self, now: int) -> None:
        """See `SampleStore`."""
        await self.make_room(now)
        while group := self._to_merge():
            await self._replace(group, frozenset(), level=group[0].level + 1)
        for segment in self._segments:
            kinds = kinds_of(segment.kinds)
            gone = expired_kinds(self._retention, kinds, _age_from(segment), now)
            if gone == kinds:
                await self._drop(segment)
            elif gone and self._place(segment) not in self._damaged:
                await self._replace([segment], gone, level=segment.level)

    def close(self) -> None:
        """See `SampleStore`."""
        self._is_closed = True
        self._keeper.shutdown()
        self._readers.shutdown()
        for place in self._untold:
            place.unlink(missing_ok=True)

    def _is_due(self, now: int) -> bool:
        return self._is_full() or (self._head.samples > 0 and not 0 <= now - self._began < _OLD)

    def _is_full(self, *, times: int = 1) -> bool:
        """Whether the head has what it may have, or so many times as much."""
        limits = self._limits
        return self._head.samples >= times * limits.full or self._head.size >= times * limits.size

    async def _write_out(self, head: Head, now: int) -> None:
        for day in head.days.keys() - self._written.keys():
            number = await self._make(head.chunks(day))
            self._written[day] = Segment(number, day, 0, head.count(day), ALL_KINDS, now, number)
        await self._register(list(self._written.values()), (), head.batches)
        self._written = {}

    async def _drop(self, segment: Segment) -> None:
        await self._register((), [segment])
        self._place(segment).unlink(missing_ok=True)

    async def _replace(self, old: Sequence[Segment], without: frozenset[int], *, level: int) -> None:
        """Make one segment of several, but for what nobody wants any more."""
        numbers = tuple(each.number for each in old)
        try:
            if numbers not in self._merged:
                self._merged[numbers] = await self._merge(old, without, level=level)
        except (SamplesDamaged, Gone) as exc:
            _log.error("a segment stays as it is: %s", exc)
            self._damaged.add(exc.place)
            return
        await self._register([self._merged[numbers]], old)
        del self._merged[numbers]
        for each in old:
            self._place(each).unlink(missing_ok=True)

    async def _merge(self, old: Sequence[Segment], without: frozenset[int], *, level: int) -> Segment:
        chunks = segments.Merged([self._place(each) for each in old], without)
        number = await self._make(chunks)
        written_at = max(each.written_at for each in old)
        origin = min(each.origin for each in old)
        return Segment(number, old[0].day, level, chunks.samples, chunks.kinds, written_at, origin)

    async def _make(self, chunks: Iterable[ChunkRow]) -> int:
        """Write a file, and give its number."""
        number, self._next = self._next, self._next + 1
        place = segments.path(self._folder, number)
        self._untold.add(place)
        work = asyncio.get_running_loop().run_in_executor
        await work(self._keeper, segments.write, place, self._unless_closed(chunks))
        return number

    def _unless_closed(self, chunks: Iterable[ChunkRow]) -> Iterator[ChunkRow]:
        """Nobody waits for a file that is made in order to be of use later."""
        for chunk in chunks:
            if self._is_closed:
                raise InterruptedError("the samples are closed")
            yield chunk

    async def _register(
        self, new: Sequence[Segment], old: Sequence[Segment], batches: Sequence[int] = ()
    ) -> None:
        """Let the database know, in one transaction, where samples are now."""
        self._untold.difference_update(map(self._place, new))
        await self._database.write(_move, new, old, batches)
        gone = {each.number for each in old}
        left = (each for each in self._segments if each.number not in gone)
        self._segments = tuple(sorted((*left, *new), key=attrgetter("origin")))

    def _to_merge(self) -> list[Segment]:
        """Segments that should be one."""
        groups: defaultdict[tuple[Day, int], list[Segment]] = defaultdict(list)
        for segment in self._segments:
            if segment.level < _LARGEST and self._place(segment) not in self._damaged:
                groups[segment.day, segment.level].append(segment)
        return next((group for group in groups.values() if len(group) >= self._limits.fan), [])

    def _place(self, segment: Segment) -> Path:
        return segments.path(self._folder, segment.number)


def _wanted(wanted: Wanted, load: Callable[[], Iterable[Sample]]) -> Iterator[Sample]:
    return filter(wanted.holds, load())


def _age_from(segment: Segment) -> int:
    """From when on the age of a segment's youngest sample counts."""
    return segment.written_at if segment.day is None else (segment.day + 1) * DAY


def _registered(connection: Connection) -> tuple[Segment, ...]:
    query = "SELECT id, day, level, samples, kinds, written_at, origin FROM sample_segment ORDER BY origin"
    return tuple(Segment(*row) for row in connection.exec_driver_sql(query))


def _highest(connection: Connection) -> int:
    """The highest number that a segment ever had."""
    query = "SELECT seq FROM sqlite_sequence WHERE name = 'sample_segment'"
    return connection.exec_driver_sql(query).scalar() or 0


def _journal(connection: Connection) -> list[tuple[int, bytes]]:
    rows = connection.exec_driver_sql("SELECT id, batch FROM sample_journal ORDER BY id")
    return [(number, batch) for number, batch in rows]


def _move(
    connection: Connection, new: Sequence[Segment], old: Sequence[Segment], batches: Sequence[int]
) -> None:
    """May run again when nobody knows whether it was committed."""
    for statement, values in (
        ("INSERT OR REPLACE INTO sample_segment VALUES (?, ?, ?, ?, ?, ?, ?)", list(map(tuple, new))),
        ("DELETE FROM sample_segment WHERE id = ?", [(each.number,) for each in old]),
        ("DELETE FROM sample_journal WHERE id = ?", [(number,) for number in batches]),
    ):
        if values:
            connection.exec_driver_sql(statement, values)
