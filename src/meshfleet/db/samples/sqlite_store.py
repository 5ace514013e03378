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
from meshfleet.db.samples.block import decode_block
from meshfleet.db.samples.memtable import Memtable
from meshfleet.db.samples.sample import (
    ALL_KINDS_MASK,
    DAY_MS,
    Result,
    SampleExtras,
    decode_kind_mask,
    find_expired_kinds,
)
from meshfleet.db.samples.segments import (
    Segment,
    SegmentMissing,
    clean_segment_folder,
    prepare_segment_folder,
)
from meshfleet.db.samples.sorted_merge import BlockSource, merge_sources, scan_days
from meshfleet.errors import SamplesDamaged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from sqlalchemy import Connection

    from meshfleet.db.database import Database
    from meshfleet.db.samples.block import BlockRow
    from meshfleet.db.samples.memtable import Day
    from meshfleet.db.samples.sample import Retention, SampleConsumer, SampleQuery, SampleRows, StoredSample

_log = logging.getLogger(__name__)

_MAX_MEMTABLE_AGE_MS: Final = DAY_MS
"""Milliseconds after which a head is written out however few samples it has."""

_TOP_LEVEL: Final = 4
"""The level above which nothing is merged."""

_READER_THREADS: Final = 4

_READ_ATTEMPTS: Final = 10
"""For a reader who finds that segments went while it read."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(
    dict[int, list[tuple[int, int, int, int, int, float | int | None, bytes | None, SampleExtras | None]]]
).decode


class CompactionLimits(NamedTuple):
    """How much is collected before it is put in order."""

    memtable_samples: int = 200_000
    """Samples in a head that is to be written out."""
    memtable_bytes: int = 64 * 1024 * 1024
    """Bytes in a head that is to be written out: samples are small, unless somebody means harm."""
    merge_count: int = 8
    """Segments of one day and level that become one of the next."""


_DEFAULT_LIMITS: Final = CompactionLimits()


class SqliteSampleStore:
    """The samples of a service on SQLite. Only one program uses them at a time."""

    def __init__(
        self,
        database: Database,
        folder: Path,
        retention: Retention,
        *,
        now: int,
        limits: CompactionLimits = _DEFAULT_LIMITS,
    ) -> None:
        self._database = database
        self._folder = folder
        self._retention = retention
        self._limits = limits
        self._memtable = Memtable()
        self._memtable_started_at = now
        self._frozen_memtable: Memtable | None = None
        """A head that is being written out."""
        self._flushed_segments: dict[Day, Segment] = {}
        """What was made of that head, until the database knows of it: a try that fails leaves no litter."""
        self._merged_segments: dict[tuple[int, ...], Segment] = {}
        """The same for what was made of segments, by their numbers."""
        self._unregistered_files: set[Path] = set()
        """Files that the database was never told of."""
        self._damaged_files: set[Path] = set()
        self._flush_lock = asyncio.Lock()
        self._has_capacity = asyncio.Event()
        self._has_capacity.set()
        self._is_closed = False
        self._reader_pool = ThreadPoolExecutor(_READER_THREADS, "samples.read")
        self._compaction_pool = ThreadPoolExecutor(2, "samples.keep")
        prepare_segment_folder(folder)
        self._segments: tuple[Segment, ...] = database.read_now(_load_segments)
        self._next_number = clean_segment_folder(
            folder, self._segments, database.read_now(_load_highest_number)
        )
        self._last_batch = 0
        """The number of the last batch. None comes again, or a batch could be taken for one that may go."""
        for number, batch in database.read_now(_load_journal):
            self._memtable.add(number, _decode(batch))
            self._last_batch = number

    # Writing

    def write(self, transaction: Connection, rows: SampleRows, now: int) -> int:  # noqa: ARG002 # known later, in `tend`
        """See `SampleStore`."""
        if rows:
            self._last_batch += 1
            insert = "INSERT INTO sample_journal (id, batch) VALUES (?, ?)"
            transaction.exec_driver_sql(insert, (self._last_batch, _encode(rows)))
        return self._last_batch

    def publish_committed(self, number: int, rows: SampleRows) -> None:
        """See `SampleStore`."""
        if rows:
            self._memtable.add(number, rows)
            if self._is_full(times=2):
                self._has_capacity.clear()

    async def wait_for_capacity(self) -> None:
        """See `SampleStore`."""
        await self._has_capacity.wait()

    # Reading

    async def read(self, query: SampleQuery, consume: SampleConsumer[Result]) -> Result:
        """See `SampleStore`."""
        # Before the segments: what goes from here to there meanwhile is seen twice, and not never.
        heads = [
            head.device_blocks(query.device)
            for head in (self._frozen_memtable, self._memtable)
            if head is not None
        ]
        work = asyncio.get_running_loop().run_in_executor
        return await work(self._reader_pool, self._read, query, heads, consume)

    def _read(
        self, wanted: SampleQuery, heads: Sequence[dict[Day, bytes]], use: SampleConsumer[Result]
    ) -> Result:
        for tries_left in reversed(range(_READ_ATTEMPTS)):
            try:
                return use(self._scan(wanted, heads))
            except SegmentMissing as exc:
                if not tries_left:
                    raise SamplesDamaged(exc.path, exc) from exc
        raise AssertionError("the last try returns or raises")

    def _scan(self, wanted: SampleQuery, heads: Sequence[dict[Day, bytes]]) -> Iterator[StoredSample]:
        by_day: defaultdict[Day, list[Segment]] = defaultdict(list)
        for segment in self._segments:
            by_day[segment.day].append(segment)

        def load(day: Day) -> Iterator[StoredSample]:
            found = self._block_sources(
                wanted, by_day.get(day, ()), [head[day] for head in heads if day in head]
            )
            return merge_sources(found, newest_first=wanted.newest_first)

        days = {day for day in chain(by_day, *heads) if day is not None}
        return scan_days(wanted, days, load, load(None))

    def _block_sources(
        self, wanted: SampleQuery, stored: Iterable[Segment], heads: Iterable[bytes]
    ) -> Iterator[BlockSource]:
        """What may be wanted of one day, in the order in which it came."""
        since, until = wanted.time_range
        for segment in stored:
            for piece in segments.find_block_sources(
                self._segment_path(segment), wanted.device, since, until
            ):
                yield piece._replace(load=partial(_filter_samples, wanted, piece.load))
        for chunk in heads:
            yield BlockSource(since, until, partial(_filter_samples, wanted, partial(decode_block, chunk)))

    # Keeping order

    async def ensure_capacity(self, now: int) -> None:
        """See `SampleStore`."""
        async with self._flush_lock:
            if self._frozen_memtable is None and self._is_flush_due(now):
                self._frozen_memtable, self._memtable, self._memtable_started_at = (
                    self._memtable,
                    Memtable(),
                    now,
                )
            if self._frozen_memtable is not None:
                await self._flush_memtable(self._frozen_memtable, now)
                self._frozen_memtable = None
                self._has_capacity.set()

    async def maintain(self, now: int) -> None:
        """See `SampleStore`."""
        await self.ensure_capacity(now)
        while group := self._find_merge_group():
            await self._replace(group, frozenset(), level=group[0].level + 1)
        for segment in self._segments:
            kinds = decode_kind_mask(segment.kinds)
            gone = find_expired_kinds(self._retention, kinds, _retention_start(segment), now)
            if gone == kinds:
                await self._drop(segment)
            elif gone and self._segment_path(segment) not in self._damaged_files:
                await self._replace([segment], gone, level=segment.level)

    def close(self) -> None:
        """See `SampleStore`."""
        self._is_closed = True
        self._compaction_pool.shutdown()
        self._reader_pool.shutdown()
        for place in self._unregistered_files:
            place.unlink(missing_ok=True)

    def _is_flush_due(self, now: int) -> bool:
        return self._is_full() or (
            self._memtable.sample_count > 0
            and not 0 <= now - self._memtable_started_at < _MAX_MEMTABLE_AGE_MS
        )

    def _is_full(self, *, times: int = 1) -> bool:
        """Whether the head has what it may have, or so many times as much."""
        limits = self._limits
        return (
            self._memtable.sample_count >= times * limits.memtable_samples
            or self._memtable.byte_size >= times * limits.memtable_bytes
        )

    async def _flush_memtable(self, head: Memtable, now: int) -> None:
        for day in head.days.keys() - self._flushed_segments.keys():
            number = await self._write_segment(head.day_blocks(day))
            self._flushed_segments[day] = Segment(
                number, day, 0, head.count_samples(day), ALL_KINDS_MASK, now, number
            )
        await self._register(list(self._flushed_segments.values()), (), head.batches)
        self._flushed_segments = {}

    async def _drop(self, segment: Segment) -> None:
        await self._register((), [segment])
        self._segment_path(segment).unlink(missing_ok=True)

    async def _replace(self, old: Sequence[Segment], without: frozenset[int], *, level: int) -> None:
        """Make one segment of several, but for what nobody wants any more."""
        numbers = tuple(each.number for each in old)
        try:
            if numbers not in self._merged_segments:
                self._merged_segments[numbers] = await self._merge(old, without, level=level)
        except (SamplesDamaged, SegmentMissing) as exc:
            _log.error("a segment stays as it is: %s", exc)
            self._damaged_files.add(exc.path)
            return
        await self._register([self._merged_segments[numbers]], old)
        del self._merged_segments[numbers]
        for each in old:
            self._segment_path(each).unlink(missing_ok=True)

    async def _merge(self, old: Sequence[Segment], without: frozenset[int], *, level: int) -> Segment:
        chunks = segments.SegmentMerger([self._segment_path(each) for each in old], without)
        number = await self._write_segment(chunks)
        written_at = max(each.written_at for each in old)
        origin = min(each.origin for each in old)
        return Segment(number, old[0].day, level, chunks.samples, chunks.kinds, written_at, origin)

    async def _write_segment(self, chunks: Iterable[BlockRow]) -> int:
        """Write a file, and give its number."""
        number, self._next_number = self._next_number, self._next_number + 1
        place = segments.segment_path(self._folder, number)
        self._unregistered_files.add(place)
        work = asyncio.get_running_loop().run_in_executor
        await work(self._compaction_pool, segments.write_segment, place, self._stop_when_closed(chunks))
        return number

    def _stop_when_closed(self, chunks: Iterable[BlockRow]) -> Iterator[BlockRow]:
        """Nobody waits for a file that is made in order to be of use later."""
        for chunk in chunks:
            if self._is_closed:
                raise InterruptedError("the samples are closed")
            yield chunk

    async def _register(
        self, new: Sequence[Segment], old: Sequence[Segment], batches: Sequence[int] = ()
    ) -> None:
        """Let the database know, in one transaction, where samples are now."""
        self._unregistered_files.difference_update(map(self._segment_path, new))
        await self._database.write(_register_segments, new, old, batches)
        gone = {each.number for each in old}
        left = (each for each in self._segments if each.number not in gone)
        self._segments = tuple(sorted((*left, *new), key=attrgetter("origin")))

    def _find_merge_group(self) -> list[Segment]:
        """Segments that should be one."""
        groups: defaultdict[tuple[Day, int], list[Segment]] = defaultdict(list)
        for segment in self._segments:
            if segment.level < _TOP_LEVEL and self._segment_path(segment) not in self._damaged_files:
                groups[segment.day, segment.level].append(segment)
        return next((group for group in groups.values() if len(group) >= self._limits.merge_count), [])

    def _segment_path(self, segment: Segment) -> Path:
        return segments.segment_path(self._folder, segment.number)


def _filter_samples(
    wanted: SampleQuery, load: Callable[[], Iterable[StoredSample]]
) -> Iterator[StoredSample]:
    return filter(wanted.matches, load())


def _retention_start(segment: Segment) -> int:
    """From when on the age of a segment's youngest sample counts."""
    return segment.written_at if segment.day is None else (segment.day + 1) * DAY_MS


def _load_segments(connection: Connection) -> tuple[Segment, ...]:
    query = "SELECT id, day, level, samples, kinds, written_at, origin FROM sample_segment ORDER BY origin"
    return tuple(Segment(*row) for row in connection.exec_driver_sql(query))


def _load_highest_number(connection: Connection) -> int:
    """The highest number that a segment ever had."""
    query = "SELECT seq FROM sqlite_sequence WHERE name = 'sample_segment'"
    return connection.exec_driver_sql(query).scalar() or 0


def _load_journal(connection: Connection) -> list[tuple[int, bytes]]:
    rows = connection.exec_driver_sql("SELECT id, batch FROM sample_journal ORDER BY id")
    return [(number, batch) for number, batch in rows]


def _register_segments(
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
