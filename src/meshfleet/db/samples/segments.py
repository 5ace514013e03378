"""Segments: read-only files, each with samples of one day.

A segment is an SQLite file with one or more blocks for each device, ordered by device. The segments of a day
are merged into larger segments, so that a day never has many. Expired samples are removed by deleting files.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import closing, contextmanager
from functools import partial
from heapq import merge
from itertools import chain, groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from meshfleet.db.samples.block import (
    MAX_BLOCK_SAMPLES,
    decode_block,
    encode_blocks,
    sort_unique_samples,
)
from meshfleet.db.samples.sorted_merge import BlockSource, merge_sources
from meshfleet.errors import DatabaseUnavailable, SamplesDamaged

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from meshfleet.db.samples.block import BlockRow
    from meshfleet.db.samples.memtable import Day
    from meshfleet.db.samples.sample import StoredSample


_CREATE_TABLE: Final = """CREATE TABLE chunk (
    device INTEGER NOT NULL,
    part INTEGER NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    samples BLOB NOT NULL,
    PRIMARY KEY (device, part)
) WITHOUT ROWID"""

_ROWS_PER_STATEMENT: Final = 100
"""Number of rows that one SQL statement inserts."""

_UNSAFE_PRAGMAS: Final = ("journal_mode = OFF", "synchronous = OFF", "cache_size = -16384")
"""Fast SQLite settings for writing a segment. A crash is harmless: an unfinished file is never used."""

_device = attrgetter("device")


class _StoredBlock(NamedTuple):
    """Fields of a `BlockRow`, and the path of the segment that contains the block."""

    device: int
    part: int
    first: int
    last: int
    samples: bytes | None
    """Encoded samples; None if the samples are not loaded yet."""
    path: Path


class Segment(NamedTuple):
    """Segment file as registered in the database."""

    number: int
    day: Day
    level: int
    """Number of times that the samples of this segment have been merged."""
    samples: int
    kinds: int
    """Bit mask of the sample kinds that may be in the segment."""
    written_at: int
    origin: int
    """Lowest number among the segments from which this segment was merged.

    Segments are read in the order of `origin`, so that of duplicate samples the first received wins.
    """


class SegmentMissing(Exception):
    """Raised if a segment file was deleted while it was being read, because it was merged or expired."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path.name} no longer exists")
        self.path = path


def segment_path(folder: Path, number: int) -> Path:
    """Return the path of the segment file with this number."""
    return folder / f"{number:08d}.samples"


def write_segment(path: Path, rows: Iterable[BlockRow]) -> None:
    """Write blocks, sorted by device and part, to a new segment file. After a failure, there is no file."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        with closing(sqlite3.connect(unfinished, isolation_level=None)) as file:
            for pragma in _UNSAFE_PRAGMAS:
                file.execute(f"PRAGMA {pragma}")
            file.execute(_CREATE_TABLE)
            file.execute("BEGIN")
            _insert_blocks(file, rows)
            file.execute("COMMIT")
        _sync_and_rename(unfinished, path)
    except BaseException:
        # After a failure on a full disk this is retried: leftovers would fill the disk further.
        for file_path in (unfinished, path):
            file_path.unlink(missing_ok=True)
        raise


def _insert_blocks(file: sqlite3.Connection, rows: Iterable[BlockRow]) -> None:
    """Insert blocks into a segment file, many blocks with each SQL statement.

    After each statement the driver has to wait for the GIL, which a busy event loop releases late.
    """
    source = iter(rows)
    while batch := list(islice(source, _ROWS_PER_STATEMENT)):
        placeholders = ", ".join(["(?, ?, ?, ?, ?)"] * len(batch))
        file.execute(f"INSERT INTO chunk VALUES {placeholders}", list(chain.from_iterable(batch)))  # noqa: S608 # only placeholders


def find_block_sources(path: Path, device: int, since: int, until: int) -> list[BlockSource]:
    """Find the blocks of a device that may have samples from `since` to before `until` (Unix time in ms)."""
    with _open_segment(path) as file:
        query = "SELECT part, first, last FROM chunk WHERE device = ? AND last >= ? AND first < ?"
        blocks = file.execute(query, (device, since, until)).fetchall()
        if len(blocks) == 1:  # nearly always; load it while the file is open
            ((part, first, last),) = blocks
            return [
                BlockSource(first, last, partial(_decode_block, path, _read_block_data(file, device, part)))
            ]
    return [
        BlockSource(first, last, partial(_load_block, path, device, part)) for part, first, last in blocks
    ]


def read_device_blocks(
    path: Path, devices: Sequence[int], since: int, until: int
) -> Iterator[tuple[int, list[StoredSample]]]:
    """Yield the blocks of devices that may have samples from `since` to before `until`, with the device."""
    query = (
        "SELECT device, samples FROM chunk WHERE device IN (SELECT value FROM json_each(?))"
        " AND last >= ? AND first < ?"
    )
    numbers = msgspec.json.encode(list(devices)).decode()
    with _open_segment(path) as file:
        for device, data in file.execute(query, (numbers, since, until)):
            yield device, _decode_block(path, data)


class SegmentMerger:
    """Merges several segments: iterating yields the merged blocks, without samples of the dropped kinds.

    After the iteration, `samples` is the number of yielded samples, and `kinds` the bit mask of their kinds.
    """

    def __init__(self, paths: Sequence[Path], dropped_kinds: frozenset[int]) -> None:
        self._paths = paths
        self._dropped_kinds = dropped_kinds
        self.samples = 0
        self.kinds = 0

    def __iter__(self) -> Iterator[BlockRow]:
        blocks = merge(*map(_read_blocks, self._paths), key=_device)
        for device, device_blocks in groupby(blocks, key=_device):
            yield from encode_blocks(device, self._merge_device(list(device_blocks)))

    def _merge_device(self, blocks: Sequence[_StoredBlock]) -> Iterable[StoredSample]:
        """Return the samples of a device from its blocks of all segments, in order, without duplicates."""
        if len(blocks) <= len(self._paths):  # few blocks: sorting all at once is faster
            return self._keep_samples(sort_unique_samples(chain.from_iterable(map(_load_samples, blocks))))
        merged = merge_sources(
            BlockSource(block.first, block.last, partial(_load_samples, block)) for block in blocks
        )
        chunks = iter(lambda: list(islice(merged, MAX_BLOCK_SAMPLES)), [])
        return chain.from_iterable(map(self._keep_samples, chunks))

    def _keep_samples(self, samples: list[StoredSample]) -> list[StoredSample]:
        """Return the samples that are not of a dropped kind. Add them to `samples` and `kinds`."""
        kept = [sample for sample in samples if sample.kind not in self._dropped_kinds]
        self.samples += len(kept)
        for kind in {sample.kind for sample in kept}:
            self.kinds |= 1 << kind
        return kept


def _read_blocks(path: Path) -> Iterator[_StoredBlock]:
    """Yield the blocks of a segment file, ordered by device.

    Only the samples of a device's first block are loaded; most devices have only one block.
    """
    with _open_segment(path) as file:
        query = "SELECT device, part, first, last, CASE part WHEN 0 THEN samples END FROM chunk"
        for device, part, first, last, samples in file.execute(f"{query} ORDER BY device, part"):
            yield _StoredBlock(device, part, first, last, samples, path)


def count_samples(path: Path) -> int:
    """Decode all samples of a segment, and return their number. Raise an error if a sample is damaged."""
    return sum(len(_load_samples(block)) for block in _read_blocks(path))


def _load_samples(block: _StoredBlock) -> list[StoredSample]:
    """Decode the samples of a block; read them from the segment if they are not loaded yet."""
    if block.samples is None:
        return _load_block(block.path, block.device, block.part)
    return _decode_block(block.path, block.samples)


def _load_block(path: Path, device: int, part: int) -> list[StoredSample]:
    """Read and decode one block of a segment."""
    with _open_segment(path) as file:
        return decode_block(_read_block_data(file, device, part))


def _decode_block(path: Path, data: bytes) -> list[StoredSample]:
    """Decode a block that was read from a segment. Raise an error that names the segment if it fails."""
    try:
        return decode_block(data)
    except msgspec.MsgspecError as exc:
        raise _classify_failure(path, exc) from exc


def _read_block_data(file: sqlite3.Connection, device: int, part: int) -> bytes:
    """Return the encoded samples of a block in an open segment."""
    query = "SELECT samples FROM chunk WHERE device = ? AND part = ?"
    (data,) = file.execute(query, (device, part)).fetchone()
    return bytes(data)


@contextmanager
def _open_segment(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a segment for reading, without file locks, as segments never change."""
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    try:
        # The connection may be closed in another thread, for instance with an error passed to that thread.
        with closing(sqlite3.connect(uri, uri=True, check_same_thread=False)) as file:
            yield file
    except (sqlite3.DatabaseError, msgspec.MsgspecError) as exc:
        raise _classify_failure(path, exc) from exc


def _classify_failure(path: Path, exc: Exception) -> Exception:
    """Return the exception to raise for an error while reading a segment file.

    Return SegmentMissing if the file was deleted, DatabaseUnavailable if reading may succeed later, and
    SamplesDamaged otherwise.
    """
    if not path.exists():
        return SegmentMissing(path)
    if _is_temporary(exc):
        return DatabaseUnavailable(f"{path.name} cannot be read at the moment: {exc}")
    return SamplesDamaged(path, exc)


def _is_temporary(exc: Exception) -> bool:
    """Return whether an error while reading a segment is temporary, such as too many open files.

    A file without the table of blocks is damaged, although SQLite raises an OperationalError for that too.
    """
    return isinstance(exc, sqlite3.OperationalError) and exc.sqlite_errorcode != sqlite3.SQLITE_ERROR


def _sync_and_rename(unfinished: Path, path: Path) -> None:
    """Sync a finished segment file to the disk, then rename the file to its final name."""
    sync_path(unfinished)
    unfinished.rename(path)
    sync_path(path.parent)


def sync_path(path: Path) -> None:
    """Sync a file or the entries of a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# The directory of segments: its creation, and cleanup of files that are not registered in the database.

_log = logging.getLogger(__name__)

_QUARANTINE_FOLDER: Final = "unknown"


def create_segment_folder(folder: Path) -> None:
    """Create the directory of segment files if it is missing, and sync its parent directory to the disk."""
    folder.mkdir(mode=0o700, exist_ok=True)
    sync_path(folder.parent)


def remove_unregistered_files(folder: Path, segments: Iterable[Segment], highest_number: int) -> int:
    """Remove segment files that are not registered in the database. Return the next free segment number.

    `segments` are the registered segments; `highest_number` is the highest number ever registered. A file
    with a number up to `highest_number` was merged into another file and is deleted. A file with a higher
    number is moved to the quarantine directory: it may be left over from a crash, but if an older database
    was restored, it is the only copy of its samples.
    """
    for path in folder.glob("*.unfinished"):
        path.unlink()
    registered = {segment.number for segment in segments}
    unregistered = [
        path for path in _list_segment_files(folder) if _parse_segment_number(path) not in registered
    ]
    unknown = [path for path in unregistered if _parse_segment_number(path) > highest_number]
    for path in unregistered:
        if _parse_segment_number(path) <= highest_number:
            path.unlink()
    _move_to_quarantine(folder / _QUARANTINE_FOLDER, unknown)
    return (
        max(
            [
                highest_number,
                *registered,
                *map(_parse_segment_number, _list_segment_files(folder / _QUARANTINE_FOLDER)),
            ]
        )
        + 1
    )


def _move_to_quarantine(quarantine: Path, paths: list[Path]) -> None:
    """Move segment files to the quarantine directory, and log a warning that says what to do with them."""
    if not paths:
        return
    quarantine.mkdir(mode=0o700, exist_ok=True)
    for path in paths:
        path.rename(_find_unused_path(quarantine / path.name))
    sync_path(quarantine)
    sync_path(quarantine.parent)
    _log.warning(
        "%d segment files are not registered in the database and were moved to %s. If an older copy of the"
        " database was restored: stop the service, restore the newer copy, and move the files back. If the"
        " service or its machine crashed: their samples are stored elsewhere, and you may delete the files.",
        len(paths),
        quarantine,
    )


def _find_unused_path(path: Path) -> Path:
    """Return `path`, with a number added if this file exists: the file must not be overwritten."""
    suffix_number = 0
    candidate = path
    while candidate.exists():
        suffix_number += 1
        candidate = path.with_name(f"{path.stem}.{suffix_number}{path.suffix}")
    return candidate


def _list_segment_files(folder: Path) -> list[Path]:
    """Return the segment files in a directory, also those whose name got a number in quarantine."""
    return list(folder.glob("[0-9]" * 8 + "*.samples"))


def _parse_segment_number(path: Path) -> int:
    return int(path.name.partition(".")[0])
