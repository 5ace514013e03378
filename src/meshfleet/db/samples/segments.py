"""Segments: files with samples of one day, ordered by device and time, that are written once.

Each is an SQLite file with a chunk or more of each device. What belongs together more closely is merged into
larger files from time to time, so that there are never many; what is too old is removed with its file.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, contextmanager
from heapq import merge
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from meshfleet.db.samples.chunk import ChunkRow, pack, unique, unpack
from meshfleet.errors import SamplesDamaged

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

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

_UNSAFE: Final = ("journal_mode = OFF", "synchronous = OFF", "cache_size = -16384")
"""While a file is made nobody needs it; before anybody does, it is on the disk as a whole."""


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
            file.executemany("INSERT INTO chunk VALUES (?, ?, ?, ?, ?)", rows)
            file.execute("COMMIT")
        _finish(unfinished, place)
    except BaseException:
        # A full disk is tried again and again, and must not get fuller by that.
        for each in (unfinished, place):
            each.unlink(missing_ok=True)
        raise


def read(place: Path, device: int, since: int, until: int) -> Iterator[Sample]:
    """The samples of a device that may lie between two times."""
    with _opened(place) as file:
        query = "SELECT samples FROM chunk WHERE device = ? AND last >= ? AND first < ?"
        for (chunk,) in file.execute(query, (device, since, until)):
            yield from unpack(chunk)


class Merged:
    """The chunks of several files together, but for the samples of some kinds; and what came out."""

    def __init__(self, places: Sequence[Path], without: frozenset[int]) -> None:
        self._places = places
        self._without = without
        self.samples = 0
        self.kinds = 0

    def __iter__(self) -> Iterator[ChunkRow]:
        chunks = merge(*map(_chunks, self._places), key=itemgetter(0))
        for device, parts in groupby(chunks, key=itemgetter(0)):
            samples = unique(chain.from_iterable(chunk for _, chunk in parts))
            kept = [sample for sample in samples if sample.kind not in self._without]
            self.samples += len(kept)
            for kind in {sample.kind for sample in kept}:
                self.kinds |= 1 << kind
            for part, (first, last, data) in enumerate(pack(kept)):
                yield device, part, first, last, data


def _chunks(place: Path) -> Iterator[tuple[int, list[Sample]]]:
    with _opened(place) as file:
        for device, chunk in file.execute("SELECT device, samples FROM chunk ORDER BY device, part"):
            yield device, unpack(chunk)


@contextmanager
def _opened(place: Path) -> Iterator[sqlite3.Connection]:
    """A file for reading, which nobody will ever change."""
    address = f"{place.absolute().as_uri()}?mode=ro&immutable=1"
    try:
        # Closed wherever the last one lets go of it, such as of an error on its way to another thread.
        with closing(sqlite3.connect(address, uri=True, check_same_thread=False)) as file:
            yield file
    except (sqlite3.DatabaseError, msgspec.MsgspecError) as exc:
        if place.exists():
            raise SamplesDamaged(place, exc) from exc
        raise Gone(place) from exc


def _finish(unfinished: Path, place: Path) -> None:
    """Let a file be on the disk before its name is."""
    for each in (unfinished, unfinished.parent):
        if each is not unfinished:
            unfinished.rename(place)
        handle = os.open(each, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
