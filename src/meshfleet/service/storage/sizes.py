"""Measures the bytes of each part of the data, and the free bytes of its disk."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.rest.operations import StoragePart

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sqlalchemy import Connection

_DATABASE_FILES: Final = ("meshfleet.sqlite", "meshfleet.sqlite-wal")
_FOLDERS: Final = {StoragePart.SAMPLES: "samples", StoragePart.IMAGES: "images"}

_TABLE_SIZES: Final = """
    SELECT CASE WHEN relname = 'image_chunk' THEN 'images'
                WHEN relispartition OR relname = 'sample_stray' THEN 'samples'
                ELSE 'database' END,
           coalesce(sum(pg_total_relation_size(oid)), 0)::bigint
    FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r' GROUP BY 1
"""
"""Bytes of all tables with their indexes. The database belongs to Meshfleet; only samples have partitions."""


class Measurement(NamedTuple):
    """Size of each part of the data in bytes, and the free bytes of the disk."""

    sizes: Mapping[StoragePart, int]
    free: int | None
    """Free bytes on the disk of the data; None with PostgreSQL, whose disk is not known."""


def measure_files(data: Path) -> Measurement:
    """Measure the files in the data directory of a service with SQLite."""
    sizes = {part: _measure_folder(data / name) for part, name in _FOLDERS.items()}
    sizes[StoragePart.DATABASE] = sum(_measure_file(data / name) for name in _DATABASE_FILES)
    return Measurement(sizes, shutil.disk_usage(data).free)


def measure_tables(connection: Connection) -> Measurement:
    """Measure the tables of a PostgreSQL database."""
    found = {part: size for part, size in connection.exec_driver_sql(_TABLE_SIZES)}  # noqa: C416 # rows
    return Measurement({part: int(found.get(part, 0)) for part in StoragePart}, free=None)


def _measure_folder(folder: Path) -> int:
    """Return the total size of all files below a directory, in bytes. Files may be deleted meanwhile."""
    total = 0
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                total += (
                    _measure_folder(folder / entry.name)
                    if entry.is_dir(follow_symlinks=False)
                    else entry.stat(follow_symlinks=False).st_size
                )
    return total


def _measure_file(path: Path) -> int:
    """Return the size of a file in bytes; 0 if the file was deleted meanwhile."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
