"""Segments: files with samples of one day, ordered by device and time, that are written once.

Each is an SQLite file with a chunk or more of each device. What belongs together more closely is merged into
larger files from time to time, so that there are never many; what is too old is removed with its file.
"""

from __future__ import annotations

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

from meshfleet.db.samples.chunk import MOST, ChunkRow, pack, unique, unpack
from meshfleet.db.samples.sweep import Piece, sweep
from meshfleet.errors import DatabaseUnavailable, SamplesDamaged

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from meshfleet.db.samples.head import Day
    from meshfleet.db.samples.sample import Sample

_TABLE: Final = """CREATE TABLE chunk (
    device INTEGER NOT NULL,
    part INTEGER NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    samples BLOB NOT NULL,
    PRIMARY KEY (device, part)
) WITHOUT ROWID"""

_AT_ONCE: Final = 100
"""Rows in one statement."""

_UNSAFE: Final = ("journal_mode = OFF", "synchronous = OFF", "cache_size = -16384")
"""While a file is made nobody needs it; before anybody does, it is on the disk as a whole."""


_Stored = tuple[int, int, int, int, bytes | None, Path]
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


class Gone(Exception):
    """A segment was merged into another one, or is too old, since somebody began to read."""

    def __init__(self, place: Path) -> None:
        super().__init__(f"{place.name} is gone")
        self.place = place


def path(folder: Path, number: int) -> Path:
    """Where a segment is."""
    return folder / f"{number:08d}.samples"


def write(place: Path, rows: Iterable[ChunkRow]) -> None:
    """Make a file of chunks, which come in order. It is there whole or not at all."""
    unfinished = place.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        with closing(sqlite3.connect(unfinished, isolation_level=None)) as file:
            for pragma in _UNSAFE:
                file.execute(f"PRAGMA {pragma}")
            file.execute(_TABLE)
            file.execute("BEGIN")
            _insert(file, rows)
            file.execute("COMMIT")
        _finish(unfinished, place)
    except BaseException:
        # A full disk is tried again and again, and must not get fuller by that.
        for each in (unfinished, place):
            each.unlink(missing_ok=True)
        raise


def _insert(file: sqlite3.Connection, rows: Iterable[ChunkRow]) -> None:
    """Insert many rows with each statement.

    Between two of them the driver hands Python's lock to whoever wants it, and a busy event loop gives it
    back late.
    """
    source = iter(rows)
    while some := list(islice(source, _AT_ONCE)):
        places = ", ".join(["(?, ?, ?, ?, ?)"] * len(some))
        file.execute(f"INSERT INTO chunk VALUES {places}", list(chain.from_iterable(some)))  # noqa: S608


def pieces(place: Path, device: int, since: int, until: int) -> list[Piece]:
    """The samples of a device that may lie between two times, chunk by chunk."""
    with _opened(place) as file:
        query = "SELECT part, first, last FROM chunk WHERE device = ? AND last >= ? AND first < ?"
        found = file.execute(query, (device, since, until)).fetchall()
        if len(found) == 1:  # as nearly always; it is read while the file is open anyway
            ((part, first, last),) = found
            return [Piece(first, last, partial(_unpack, place, _chunk(file, device, part)))]
    return [Piece(first, last, partial(_load, place, device, part)) for part, first, last in found]


class Merged:
    """The chunks of several files together, but for the samples of some kinds; and what came out."""

    def __init__(self, places: Sequence[Path], without: frozenset[int]) -> None:
        self._places = places
        self._without = without
        self.samples = 0
        self.kinds = 0

    def __iter__(self) -> Iterator[ChunkRow]:
        chunks = merge(*map(_stored, self._places), key=itemgetter(0))
        for device, found in groupby(chunks, key=itemgetter(0)):
            for part, (first, last, data) in enumerate(pack(self._kept(list(found)))):
                yield device, part, first, last, data

    def _kept(self, found: Sequence[_Stored]) -> Iterable[Sample]:
        if len(found) <= len(self._places):  # few: then all at once takes less time
            return self._counted(unique(chain.from_iterable(map(_samples, found))))
        swept = sweep(Piece(each[2], each[3], partial(_samples, each)) for each in found)
        blocks = iter(lambda: list(islice(swept, MOST)), [])
        return chain.from_iterable(map(self._counted, blocks))

    def _counted(self, samples: list[Sample]) -> list[Sample]:
        """Those that are kept."""
        kept = [sample for sample in samples if sample.kind not in self._without]
        self.samples += len(kept)
        for kind in {sample.kind for sample in kept}:
            self.kinds |= 1 << kind
        return kept


def _stored(place: Path) -> Iterator[_Stored]:
    """All of a file by device. The first of a device, nearly always the only one, is read at once."""
    with _opened(place) as file:
        query = "SELECT device, part, first, last, CASE part WHEN 0 THEN samples END FROM chunk"
        for row in file.execute(f"{query} ORDER BY device, part"):
            yield (*row, place)


def _samples(stored: _Stored) -> list[Sample]:
    device, part, _, _, chunk, place = stored
    return _load(place, device, part) if chunk is None else _unpack(place, chunk)


def _load(place: Path, device: int, part: int) -> list[Sample]:
    with _opened(place) as file:
        return unpack(_chunk(file, device, part))


def _unpack(place: Path, chunk: bytes) -> list[Sample]:
    try:
        return unpack(chunk)
    except msgspec.MsgspecError as exc:
        raise _reason(place, exc) from exc


def _chunk(file: sqlite3.Connection, device: int, part: int) -> bytes:
    query = "SELECT samples FROM chunk WHERE device = ? AND part = ?"
    (chunk,) = file.execute(query, (device, part)).fetchone()
    return bytes(chunk)


@contextmanager
def _opened(place: Path) -> Iterator[sqlite3.Connection]:
    """A file for reading, which nobody will ever change."""
    address = f"{place.absolute().as_uri()}?mode=ro&immutable=1"
    try:
        # Closed wherever the last one lets go of it, such as of an error on its way to another thread.
        with closing(sqlite3.connect(address, uri=True, check_same_thread=False)) as file:
            yield file
    except (sqlite3.DatabaseError, msgspec.MsgspecError) as exc:
        raise _reason(place, exc) from exc


def _reason(place: Path, exc: Exception) -> Exception:
    """What is wrong with a file: that it is not there, that it is damaged, or nothing but the moment."""
    if not place.exists():
        return Gone(place)
    if _is_passing(exc):
        return DatabaseUnavailable(f"{place.name} cannot be read now: {exc}")
    return SamplesDamaged(place, exc)


def _is_passing(exc: Exception) -> bool:
    """Whether a file may be all right: there are too many open files, or the disk does not answer.

    A file without the table is damaged, although that is an operational error as well.
    """
    return isinstance(exc, sqlite3.OperationalError) and exc.sqlite_errorcode != sqlite3.SQLITE_ERROR


def _finish(unfinished: Path, place: Path) -> None:
    """Let a file be on the disk before its name is."""
    sync(unfinished)
    unfinished.rename(place)
    sync(place.parent)


def sync(place: Path) -> None:
    """Let a file, or what a folder has, be on the disk."""
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
