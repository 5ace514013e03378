"""Segments: files with samples of one day, ordered by device and time, that are written once.

Each is an SQLite file with a chunk or more of each device. What belongs together more closely is merged into
larger files from time to time, so that there are never many; what is too old is removed with its file.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import closing, contextmanager
from functools import partial
from heapq import merge
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from meshfleet.db.samples.block import (
    MAX_BLOCK_SAMPLES,
    BlockRow,
    decode_block,
    encode_blocks,
    sort_unique_samples,
)
from meshfleet.db.samples.sorted_merge import BlockSource, merge_sources
from meshfleet.errors import DatabaseUnavailable, SamplesDamaged

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

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
"""Rows in one statement."""

_UNSAFE_PRAGMAS: Final = ("journal_mode = OFF", "synchronous = OFF", "cache_size = -16384")
"""While a file is made nobody needs it; before anybody does, it is on the disk as a whole."""


_StoredBlock = tuple[int, int, int, int, bytes | None, Path]
"""Device, part, first, last, samples if they are read already, and the file that has them."""


class Segment(NamedTuple):
    """A file, as the database knows it."""

    number: int
    day: Day
    level: int
    """How often its samples were merged."""
    samples: int
    kinds: int
    """A bit for each kind that may be in it."""
    written_at: int
    origin: int
    """The lowest number among those it was made of: what came first counts."""


class SegmentMissing(Exception):
    """A segment was merged into another one, or is too old, since somebody began to read."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path.name} is gone")
        self.path = path


def segment_path(folder: Path, number: int) -> Path:
    """Where a segment is."""
    return folder / f"{number:08d}.samples"


def write_segment(path: Path, rows: Iterable[BlockRow]) -> None:
    """Make a file of chunks, which come in order. It is there whole or not at all."""
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
        _publish_file(unfinished, path)
    except BaseException:
        # A full disk is tried again and again, and must not get fuller by that.
        for each in (unfinished, path):
            each.unlink(missing_ok=True)
        raise


def _insert_blocks(file: sqlite3.Connection, rows: Iterable[BlockRow]) -> None:
    """Insert many rows with each statement.

    Between two of them the driver hands Python's lock to whoever wants it, and a busy event loop gives it
    back late.
    """
    source = iter(rows)
    while some := list(islice(source, _ROWS_PER_STATEMENT)):
        places = ", ".join(["(?, ?, ?, ?, ?)"] * len(some))
        file.execute(f"INSERT INTO chunk VALUES {places}", list(chain.from_iterable(some)))  # noqa: S608


def find_block_sources(path: Path, device: int, since: int, until: int) -> list[BlockSource]:
    """The samples of a device that may lie between two times, chunk by chunk."""
    with _open_segment(path) as file:
        query = "SELECT part, first, last FROM chunk WHERE device = ? AND last >= ? AND first < ?"
        found = file.execute(query, (device, since, until)).fetchall()
        if len(found) == 1:  # as nearly always; it is read while the file is open anyway
            ((part, first, last),) = found
            return [BlockSource(first, last, partial(_decode_block, path, _select_block(file, device, part)))]
    return [BlockSource(first, last, partial(_load_block, path, device, part)) for part, first, last in found]


class SegmentMerger:
    """The chunks of several files together, but for the samples of some kinds; and what came out."""

    def __init__(self, paths: Sequence[Path], dropped_kinds: frozenset[int]) -> None:
        self._places = paths
        self._without = dropped_kinds
        self.samples = 0
        self.kinds = 0

    def __iter__(self) -> Iterator[BlockRow]:
        chunks = merge(*map(_read_blocks, self._places), key=itemgetter(0))
        for device, found in groupby(chunks, key=itemgetter(0)):
            for part, (first, last, data) in enumerate(encode_blocks(self._merge_device(list(found)))):
                yield device, part, first, last, data

    def _merge_device(self, found: Sequence[_StoredBlock]) -> Iterable[StoredSample]:
        if len(found) <= len(self._places):  # few: then all at once takes less time
            return self._keep_samples(sort_unique_samples(chain.from_iterable(map(_decode_stored, found))))
        swept = merge_sources(BlockSource(each[2], each[3], partial(_decode_stored, each)) for each in found)
        blocks = iter(lambda: list(islice(swept, MAX_BLOCK_SAMPLES)), [])
        return chain.from_iterable(map(self._keep_samples, blocks))

    def _keep_samples(self, samples: list[StoredSample]) -> list[StoredSample]:
        """Those that are kept."""
        kept = [sample for sample in samples if sample.kind not in self._without]
        self.samples += len(kept)
        for kind in {sample.kind for sample in kept}:
            self.kinds |= 1 << kind
        return kept


def _read_blocks(path: Path) -> Iterator[_StoredBlock]:
    """All of a file by device. The first of a device, nearly always the only one, is read at once."""
    with _open_segment(path) as file:
        query = "SELECT device, part, first, last, CASE part WHEN 0 THEN samples END FROM chunk"
        for row in file.execute(f"{query} ORDER BY device, part"):
            yield (*row, path)


def _decode_stored(stored: _StoredBlock) -> list[StoredSample]:
    device, part, _, _, chunk, place = stored
    return _load_block(place, device, part) if chunk is None else _decode_block(place, chunk)


def _load_block(path: Path, device: int, part: int) -> list[StoredSample]:
    with _open_segment(path) as file:
        return decode_block(_select_block(file, device, part))


def _decode_block(path: Path, chunk: bytes) -> list[StoredSample]:
    try:
        return decode_block(chunk)
    except msgspec.MsgspecError as exc:
        raise _classify_failure(path, exc) from exc


def _select_block(file: sqlite3.Connection, device: int, part: int) -> bytes:
    query = "SELECT samples FROM chunk WHERE device = ? AND part = ?"
    (chunk,) = file.execute(query, (device, part)).fetchone()
    return bytes(chunk)


@contextmanager
def _open_segment(path: Path) -> Iterator[sqlite3.Connection]:
    """A file for reading, which nobody will ever change."""
    address = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    try:
        # Closed wherever the last one lets go of it, such as of an error on its way to another thread.
        with closing(sqlite3.connect(address, uri=True, check_same_thread=False)) as file:
            yield file
    except (sqlite3.DatabaseError, msgspec.MsgspecError) as exc:
        raise _classify_failure(path, exc) from exc


def _classify_failure(path: Path, exc: Exception) -> Exception:
    """What is wrong with a file: that it is not there, that it is damaged, or nothing but the moment."""
    if not path.exists():
        return SegmentMissing(path)
    if _is_temporary(exc):
        return DatabaseUnavailable(f"{path.name} cannot be read now: {exc}")
    return SamplesDamaged(path, exc)


def _is_temporary(exc: Exception) -> bool:
    """Whether a file may be all right: there are too many open files, or the disk does not answer.

    A file without the table is damaged, although that is an operational error as well.
    """
    return isinstance(exc, sqlite3.OperationalError) and exc.sqlite_errorcode != sqlite3.SQLITE_ERROR


def _publish_file(unfinished: Path, path: Path) -> None:
    """Let a file be on the disk before its name is."""
    sync_path(unfinished)
    unfinished.rename(path)
    sync_path(path.parent)


def sync_path(path: Path) -> None:
    """Let a file, or what a folder has, be on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# The folder of segments: how it is made, and what becomes of files in it that the database does not know.

_log = logging.getLogger(__name__)

_QUARANTINE_FOLDER: Final = "unknown"


def prepare_segment_folder(folder: Path) -> None:
    """Make the folder, and let it be on the disk before anything is in it."""
    folder.mkdir(mode=0o700, exist_ok=True)
    sync_path(folder.parent)


def clean_segment_folder(folder: Path, known: Iterable[Segment], highest: int) -> int:
    """Remove what is of no use; gives the first number that no file has, or ever had.

    `highest` is the highest number that the database ever knew. A file with a number up to that one was
    replaced by others. One above it may be what a crash has left, but also the only copy of its samples,
    where an older database was put back: it is put aside.
    """
    for place in folder.glob("*.unfinished"):
        place.unlink()
    needed = {each.number for each in known}
    unknown = [place for place in _list_segment_files(folder) if _segment_number(place) not in needed]
    above = [place for place in unknown if _segment_number(place) > highest]
    for place in unknown:
        if _segment_number(place) <= highest:
            place.unlink()
    _quarantine(folder / _QUARANTINE_FOLDER, above)
    return (
        max([highest, *needed, *map(_segment_number, _list_segment_files(folder / _QUARANTINE_FOLDER))]) + 1
    )


def _quarantine(quarantine: Path, paths: list[Path]) -> None:
    if not paths:
        return
    quarantine.mkdir(mode=0o700, exist_ok=True)
    for place in paths:
        place.rename(_unused_path(quarantine / place.name))
    sync_path(quarantine)
    sync_path(quarantine.parent)
    _log.warning(
        "%d files with samples are unknown to the database, and were moved to %s. If an older copy of the"
        " database was put back: stop the service, put back the newer one, and move them to where they were."
        " If the service, or its machine, just ended in the middle of its work: their samples are stored"
        " elsewhere, and they may be deleted.",
        len(paths),
        quarantine,
    )


def _unused_path(path: Path) -> Path:
    """A name that nothing has: none of them may be the only copy that another one replaces."""
    copies = 0
    free = path
    while free.exists():
        copies += 1
        free = path.with_name(f"{path.stem}.{copies}{path.suffix}")
    return free


def _list_segment_files(folder: Path) -> list[Path]:
    """Files with names that are ours."""
    return list(folder.glob("[0-9]" * 8 + "*.samples"))


def _segment_number(path: Path) -> int:
    return int(path.name.partition(".")[0])
