"""Sample store on SQLite: a journal, a memtable and segments.

Each batch of samples is written as one row of the journal. After the commit, its samples are added to the
memtable, where readers find them. A full memtable is flushed to segments; then its journal rows are deleted.
So every sample is always in the journal or in a segment. A table with a row for each sample would cost
several times as much.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from meshfleet.db.samples import sample_log, segments
from meshfleet.db.samples.block import BlockRow, decode_block
from meshfleet.db.samples.memtable import Day, Memtable
from meshfleet.db.samples.sample import (
    ALL_KINDS_MASK,
    DAY_MS,
    Result,
    decode_kind_mask,
    find_expired_kinds,
)
from meshfleet.db.samples.sample_log import LogRetention, SampleReader, decode_rows, encode_batch
from meshfleet.db.samples.segments import (
    Segment,
    SegmentMissing,
    create_segment_folder,
    remove_unregistered_files,
)
from meshfleet.db.samples.sorted_merge import BlockSource, merge_sources, scan_days
from meshfleet.errors import SamplesDamaged

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from sqlalchemy import Connection

    from meshfleet.db.database import Database
    from meshfleet.db.samples.sample import (
        DeviceSample,
        Retention,
        SampleConsumer,
        SampleQuery,
        SampleRows,
        StoredSample,
        WindowConsumer,
        WindowQuery,
    )

_log = logging.getLogger(__name__)

_Item = TypeVar("_Item")

_MAX_MEMTABLE_AGE_MS: Final = DAY_MS
"""Milliseconds after which a memtable is flushed even if it is not full."""

_TOP_LEVEL: Final = 4
"""Level (number of merges) at which segments are not merged further."""

_READER_THREADS: Final = 4

_READ_ATTEMPTS: Final = 10
"""Maximum attempts of a read, which starts again whenever a segment is deleted during the read."""


class CompactionLimits(NamedTuple):
    """Thresholds for flushing the memtable to segments and for merging segments."""

    memtable_samples: int = 200_000
    """Number of samples in the memtable at which it is flushed."""
    memtable_bytes: int = 64 * 1024 * 1024
    """Size of the memtable in bytes at which it is flushed; reached first only by unusually large samples."""
    merge_count: int = 8
    """Number of segments of one day and level that are merged into one segment of the next level."""


_DEFAULT_LIMITS: Final = CompactionLimits()

_NO_BATCHES: Final[Mapping[int, int]] = MappingProxyType({})


class SqliteSampleStore:
    """Sample store on SQLite, used by only one process at a time."""

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
        self.retention = retention
        self._limits = limits
        self._memtable = Memtable()
        self._memtable_started_at = now
        self._frozen_memtable: Memtable | None = None
        """Memtable that is being flushed; None if no flush is running."""
        self._flushed_segments: dict[Day, Segment] = {}
        """Segments of the frozen memtable that are written but not registered in the database yet, by day.

        If registering the segments fails, the next attempt uses these segments.
        """
        self._merged_segments: dict[tuple[int, ...], Segment] = {}
        """Merged segments not yet registered in the database, by the numbers of their source segments."""
        self._unregistered_files: set[Path] = set()
        """Segment files that are not registered in the database yet; `close` deletes these files."""
        self._damaged_files: set[Path] = set()
        self._flush_lock = asyncio.Lock()
        self._has_capacity = asyncio.Event()
        self._has_capacity.set()
        self._is_closed = False
        self._reader_pool = ThreadPoolExecutor(_READER_THREADS, "samples.read")
        self._compaction_pool = ThreadPoolExecutor(2, "samples.compact")
        create_segment_folder(folder)
        self._segments: tuple[Segment, ...] = database.read_now(_load_segments)
        self._next_number = remove_unregistered_files(
            folder, self._segments, database.read_now(_load_highest_number)
        )
        self._last_batch = database.read_now(sample_log.find_last_number)
        """Journal row id of the last batch of samples.

        An id must not be used twice: a flush of the first batch would delete the row of the second, and
        readers would skip the second.
        """
        self._log_retention = LogRetention()
        for number, batch in database.read_now(_load_journal):
            self._memtable.add(number, decode_rows(batch))
            self._last_batch = max(self._last_batch, number)

    # Writing

    def write(self, transaction: Connection, rows: SampleRows, now: int) -> int:  # noqa: ARG002 # used by the PostgreSQL store
        """Write a batch of samples as one journal row within the transaction. Return the id of the row."""
        if rows:
            self._last_batch += 1
            insert = "INSERT INTO sample_journal (id, batch) VALUES (?, ?)"
            transaction.exec_driver_sql(insert, (self._last_batch, encode_batch(rows)))
        return self._last_batch

    def publish_committed(self, batch_number: int, rows: SampleRows) -> None:
        """Add a committed batch to the memtable for readers. `batch_number` is the id of its journal row."""
        if rows:
            self._memtable.add(batch_number, rows)
            if self._is_full(times=2):
                self._has_capacity.clear()

    async def wait_for_capacity(self) -> None:
        """Wait for a flush if the memtable has twice the size at which it should be flushed."""
        await self._has_capacity.wait()

    # Reading

    async def read(self, query: SampleQuery, consume: SampleConsumer[Result]) -> Result:
        """Call `consume` with the samples that match `query`. Return the result of `consume`."""
        # Copy the memtables before listing the segments: samples flushed in between are found in both, and
        # none is missed.
        memtable_blocks = [
            memtable.copy_device_blocks(query.device)
            for memtable in (self._frozen_memtable, self._memtable)
            if memtable is not None
        ]
        run = asyncio.get_running_loop().run_in_executor
        scan = partial(self._scan, query, memtable_blocks)
        return await run(self._reader_pool, self._read, scan, consume)

    async def read_window(self, query: WindowQuery, consume: WindowConsumer[Result]) -> Result:
        """Call `consume` with the samples of many devices in a time range. Return the result of `consume`."""
        days = range(query.since // DAY_MS, (query.until - 1) // DAY_MS + 1)
        # Copied before the segments are listed, as in `read`.
        memtable_blocks = [
            (device, bytes(blocks[device]))
            for memtable in (self._frozen_memtable, self._memtable)
            if memtable is not None
            for day in days
            for blocks in [memtable.days.get(day, {})]
            for device in query.devices
            if device in blocks
        ]
        run = asyncio.get_running_loop().run_in_executor
        scan = partial(self._scan_window, query, days, memtable_blocks)
        return await run(self._reader_pool, self._read, scan, consume)

    @staticmethod
    def _read(scan: Callable[[], Iterator[_Item]], consume: Callable[[Iterator[_Item]], Result]) -> Result:
        """Call `consume` with the samples of a scan. Call it again if a segment is deleted meanwhile."""
        for attempts_left in reversed(range(_READ_ATTEMPTS)):
            try:
                return consume(scan())
            except SegmentMissing as exc:
                if not attempts_left:
                    raise SamplesDamaged(exc.path, exc) from exc
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _scan(
        self, query: SampleQuery, memtable_blocks: Sequence[dict[Day, bytes]]
    ) -> Iterator[StoredSample]:
        """Yield the samples of the segments and memtables that match a query, in the requested order."""
        segments_by_day: defaultdict[Day, list[Segment]] = defaultdict(list)
        for segment in self._segments:
            segments_by_day[segment.day].append(segment)

        def load_day(day: Day) -> Iterator[StoredSample]:
            sources = self._find_block_sources(
                query,
                segments_by_day.get(day, ()),
                [blocks[day] for blocks in memtable_blocks if day in blocks],
            )
            return merge_sources(sources, newest_first=query.newest_first)

        days = {day for day in chain(segments_by_day, *memtable_blocks) if day is not None}
        return scan_days(query, days, load_day, load_day(None))

    def _scan_window(
        self, query: WindowQuery, days: range, memtable_blocks: Sequence[tuple[int, bytes]]
    ) -> Iterator[DeviceSample]:
        """Yield the samples of segments and memtables that match a query of many devices."""
        paths = [self._get_path(segment) for segment in self._segments if segment.day in days]
        blocks = chain.from_iterable(
            segments.read_device_blocks(path, query.devices, query.since, query.until) for path in paths
        )
        for device, samples in chain(
            blocks, ((device, decode_block(block)) for device, block in memtable_blocks)
        ):
            for sample in samples:
                if query.matches(sample):
                    yield device, sample

    def _find_block_sources(
        self, query: SampleQuery, day_segments: Iterable[Segment], blocks: Iterable[bytes]
    ) -> Iterator[BlockSource]:
        """Yield the blocks of one day that may contain samples of the query, in the order of writing.

        The blocks are those of `day_segments`, and `blocks` from the memtables.
        """
        since, until = query.time_range
        for segment in day_segments:
            for source in segments.find_block_sources(self._get_path(segment), query.device, since, until):
                yield source._replace(load=partial(_filter_samples, query, source.load))
        for block in blocks:
            yield BlockSource(since, until, partial(_filter_samples, query, partial(decode_block, block)))

    async def open_reader(self, name: str) -> SampleReader:
        """Open the reader of all samples with this name. A new reader begins with the next batch."""
        position = await self._database.write(sample_log.add_reader, name, self._last_batch)
        return SampleReader(self._database, name, position, self._count_in_memory)

    async def remove_other_readers(self, names: Collection[str]) -> list[str]:
        """Forget the positions of all readers except those with these names. Return the forgotten names."""
        return await self._database.write(sample_log.remove_other_readers, names)

    def _count_in_memory(self, position: int) -> int:
        """Count the samples of batches after `position` that are only in the journal and in memory."""
        memtables = (memtable for memtable in (self._frozen_memtable, self._memtable) if memtable is not None)
        batches = chain.from_iterable(memtable.batches.items() for memtable in memtables)
        return sum(count for number, count in batches if number > position)

    # Maintenance

    async def ensure_capacity(self, now: int) -> None:
        """Flush the memtable to segments if it is full or a day old."""
        async with self._flush_lock:
            if self._frozen_memtable is None and self._is_flush_due(now):
                self._frozen_memtable, self._memtable = self._memtable, Memtable()
                self._memtable_started_at = now
            if self._frozen_memtable is not None:
                await self._flush_memtable(self._frozen_memtable, now)
                self._frozen_memtable = None
                self._has_capacity.set()

    async def maintain(self, now: int) -> None:
        """Flush the memtable if due, merge segments, and delete samples whose retention has ended."""
        await self.ensure_capacity(now)
        while group := self._find_merge_group():
            await self._replace_segments(group, frozenset(), level=group[0].level + 1)
        for segment in self._segments:
            kinds = decode_kind_mask(segment.kinds)
            expired = find_expired_kinds(self.retention, kinds, _get_retention_start(segment), now)
            if expired == kinds:
                await self._delete_segment(segment)
            elif expired and self._get_path(segment) not in self._damaged_files:
                await self._replace_segments([segment], expired, level=segment.level)
        await self._log_retention.delete_expired(self._database, self.retention, now)

    def close(self) -> None:
        """Wait for running reads and compactions, then delete segment files that were not registered."""
        self._is_closed = True
        self._compaction_pool.shutdown()
        self._reader_pool.shutdown()
        for path in self._unregistered_files:
            path.unlink(missing_ok=True)

    def _is_flush_due(self, now: int) -> bool:
        """Return whether the memtable is full, or has samples and is a day old or the clock was set back."""
        return self._is_full() or (
            self._memtable.sample_count > 0
            and not 0 <= now - self._memtable_started_at < _MAX_MEMTABLE_AGE_MS
        )

    def _is_full(self, *, times: int = 1) -> bool:
        """Return whether the memtable has at least `times` the samples or bytes at which it is flushed."""
        limits = self._limits
        return (
            self._memtable.sample_count >= times * limits.memtable_samples
            or self._memtable.byte_size >= times * limits.memtable_bytes
        )

    async def _flush_memtable(self, memtable: Memtable, now: int) -> None:
        """Write a memtable to one segment for each day, and delete its batches from the journal."""
        for day in memtable.days.keys() - self._flushed_segments.keys():
            number = await self._write_segment(memtable.build_day_rows(day))
            self._flushed_segments[day] = Segment(
                number, day, 0, memtable.count_samples(day), ALL_KINDS_MASK, now, number
            )
        await self._register(list(self._flushed_segments.values()), (), memtable.batches, now)
        self._flushed_segments = {}

    async def _delete_segment(self, segment: Segment) -> None:
        """Delete a segment whose samples have all expired."""
        await self._register((), [segment])
        self._get_path(segment).unlink(missing_ok=True)

    async def _replace_segments(
        self, sources: Sequence[Segment], dropped_kinds: frozenset[int], *, level: int
    ) -> None:
        """Merge segments into one segment of `level`, without the dropped kinds, and delete the old files."""
        numbers = tuple(segment.number for segment in sources)
        try:
            if numbers not in self._merged_segments:
                self._merged_segments[numbers] = await self._merge_segments(
                    sources, dropped_kinds, level=level
                )
        except (SamplesDamaged, SegmentMissing) as exc:
            _log.error("a damaged segment is not compacted: %s", exc)
            self._damaged_files.add(exc.path)
            return
        await self._register([self._merged_segments[numbers]], sources)
        del self._merged_segments[numbers]
        for segment in sources:
            self._get_path(segment).unlink(missing_ok=True)

    async def _merge_segments(
        self, sources: Sequence[Segment], dropped_kinds: frozenset[int], *, level: int
    ) -> Segment:
        """Write one segment with the samples of several segments, without the dropped kinds."""
        merger = segments.SegmentMerger([self._get_path(segment) for segment in sources], dropped_kinds)
        number = await self._write_segment(merger)
        written_at = max(segment.written_at for segment in sources)
        origin = min(segment.origin for segment in sources)
        return Segment(number, sources[0].day, level, merger.samples, merger.kinds, written_at, origin)

    async def _write_segment(self, rows: Iterable[BlockRow]) -> int:
        """Write a segment file with these blocks. Return the number of the segment."""
        number, self._next_number = self._next_number, self._next_number + 1
        path = segments.segment_path(self._folder, number)
        self._unregistered_files.add(path)
        run = asyncio.get_running_loop().run_in_executor
        await run(self._compaction_pool, segments.write_segment, path, self._stop_when_closed(rows))
        return number

    def _stop_when_closed(self, rows: Iterable[BlockRow]) -> Iterator[BlockRow]:
        """Yield the rows. Raise InterruptedError once the store is closed, to abort writing the segment."""
        for row in rows:
            if self._is_closed:
                raise InterruptedError("the sample store is closed")
            yield row

    async def _register(
        self,
        new: Sequence[Segment],
        old: Sequence[Segment],
        batches: Mapping[int, int] = _NO_BATCHES,
        now: int = 0,
    ) -> None:
        """Register `new` segments, remove `old` segments and delete journal batches in one transaction.

        Batches that a reader has not read are kept in the log of samples, with the time `now`.
        """
        self._unregistered_files.difference_update(map(self._get_path, new))
        await self._database.write(_register_segments, new, old, batches, now)
        removed = {segment.number for segment in old}
        remaining = (segment for segment in self._segments if segment.number not in removed)
        self._segments = tuple(sorted((*remaining, *new), key=attrgetter("origin")))

    def _find_merge_group(self) -> list[Segment]:
        """Return segments of one day and level to merge, or an empty list if there are too few segments."""
        groups: defaultdict[tuple[Day, int], list[Segment]] = defaultdict(list)
        for segment in self._segments:
            if segment.level < _TOP_LEVEL and self._get_path(segment) not in self._damaged_files:
                groups[segment.day, segment.level].append(segment)
        return next((group for group in groups.values() if len(group) >= self._limits.merge_count), [])

    def _get_path(self, segment: Segment) -> Path:
        return segments.segment_path(self._folder, segment.number)


def _filter_samples(query: SampleQuery, load: Callable[[], Iterable[StoredSample]]) -> Iterator[StoredSample]:
    """Yield the samples of a block that match a query; `load` returns all its samples."""
    return filter(query.matches, load())


def _get_retention_start(segment: Segment) -> int:
    """Return the time, in Unix milliseconds, from which the retention of a segment counts.

    Return the end of the segment's day. If its samples have implausible times, return the time at which the
    segment was written.
    """
    return segment.written_at if segment.day is None else (segment.day + 1) * DAY_MS


def _load_segments(connection: Connection) -> tuple[Segment, ...]:
    """Return the registered segments, in the order in which readers must read them."""
    query = "SELECT id, day, level, samples, kinds, written_at, origin FROM sample_segment ORDER BY origin"
    return tuple(Segment(*row) for row in connection.exec_driver_sql(query))


def _load_highest_number(connection: Connection) -> int:
    """Return the highest segment number ever registered in the database; 0 if there was none."""
    query = "SELECT seq FROM sqlite_sequence WHERE name = 'sample_segment'"
    return connection.exec_driver_sql(query).scalar() or 0


def _load_journal(connection: Connection) -> list[tuple[int, bytes]]:
    """Return the row id and the encoded samples of each batch in the journal, in the order of writing."""
    rows = connection.exec_driver_sql("SELECT id, batch FROM sample_journal ORDER BY id")
    return [(number, batch) for number, batch in rows]


def _register_segments(
    connection: Connection,
    new: Sequence[Segment],
    old: Sequence[Segment],
    batches: Mapping[int, int],
    now: int,
) -> None:
    """Add `new` segments, remove `old` segments, and delete journal batches that no reader needs.

    This function is idempotent, because it runs again if its commit was not confirmed.
    """
    sample_log.copy_unread_batches(connection, batches, now)
    for statement, values in (
        ("INSERT OR REPLACE INTO sample_segment VALUES (?, ?, ?, ?, ?, ?, ?)", list(map(tuple, new))),
        ("DELETE FROM sample_segment WHERE id = ?", [(segment.number,) for segment in old]),
        ("DELETE FROM sample_journal WHERE id = ?", [(number,) for number in batches]),
    ):
        if values:
            connection.exec_driver_sql(statement, values)
