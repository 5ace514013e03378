"""Backup of a service with SQLite, without its cooperation: it may run, or not.

Segments and images never change once they are written, so hard links in a staging directory keep them from
being deleted. The database is copied by one statement, which sees a single snapshot. Files that the copy
names but that were merged or removed before they could be linked mean that staging begins again.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meshfleet.db.samples.segments import segment_path
from meshfleet.errors.backup import BackupFailed
from meshfleet.service.locks import try_lock_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DATABASE_FILE: Final = "meshfleet.sqlite"
SAMPLES_FOLDER: Final = "samples"
IMAGES_FOLDER: Final = "images"

_log = logging.getLogger(__name__)

_STAGING_PREFIX: Final = "backup-staging-"
_LOCK_FILE: Final = "lock"
_ATTEMPTS: Final = 5
_BUSY_TIMEOUT_MS: Final = 10_000
_SPARE_FACTOR: Final = 1.1
"""Factor of the free disk space that a copy of the database needs."""


class StagedFiles(NamedTuple):
    """Copy of the database and links to the files that it names, all of one moment."""

    database: Path
    samples: list[Path]
    images: list[Path]
    schema: str
    moment: int
    """Time at which copying began, in milliseconds. Everything committed before is in the copy."""


@contextmanager
def stage_files(data: Path, now: Callable[[], int], *, with_samples: bool) -> Iterator[StagedFiles]:
    """Collect the files of a backup in a staging directory, which is removed after the `with` block.

    Raise `BackupFailed` if the disk is too full, or if the service keeps replacing files.
    """
    remove_stale_staging(data)
    _check_free_space(data, with_samples=with_samples)
    with _create_staging(data) as staging:
        missing: list[Path] = []
        for _ in range(_ATTEMPTS):
            staged = _stage(data, staging, now, with_samples=with_samples)
            missing = [path for path in (*staged.samples, *staged.images) if not path.exists()]
            if not missing:
                yield staged
                return
        name = missing[0].relative_to(staging)
        raise BackupFailed(
            f"{name} is missing in {data}, or the service replaced files during each of {_ATTEMPTS} attempts"
        )


def remove_stale_staging(data: Path) -> None:
    """Remove staging directories of backups that were killed. Those of running backups are locked."""
    for staging in data.glob(f"{_STAGING_PREFIX}*"):
        try:
            with (staging / _LOCK_FILE).open("ab") as lock:
                if try_lock_file(lock.fileno()):
                    shutil.rmtree(staging)
        except OSError as exc:  # it may belong to root
            _log.warning(
                "files of an interrupted backup cannot be removed, delete them: %s (%s)", staging, exc
            )


@contextmanager
def _create_staging(data: Path) -> Iterator[Path]:
    staging = Path(mkdtemp(prefix=_STAGING_PREFIX, dir=data))
    with (staging / _LOCK_FILE).open("wb") as lock:
        try_lock_file(lock.fileno())
        try:
            yield staging
        finally:
            shutil.rmtree(staging)


def _check_free_space(data: Path, *, with_samples: bool) -> None:
    """Raise `BackupFailed` if the disk has no room for a copy of the database.

    While the copy is made, the write-ahead log of the service grows too. Files on another disk cannot be
    linked, and need room as well.
    """
    parts = [data / DATABASE_FILE, data / f"{DATABASE_FILE}-wal"]
    for name in (IMAGES_FOLDER, *([SAMPLES_FOLDER] if with_samples else [])):
        if (data / name).is_dir() and (data / name).stat().st_dev != data.stat().st_dev:
            parts += (data / name).iterdir()
    needed = int(sum(path.stat().st_size for path in parts if path.exists()) * _SPARE_FACTOR)
    free = shutil.disk_usage(data).free
    if free < needed:
        raise BackupFailed(
            f"the disk of {data} is too full: a copy of the database needs {needed:,} bytes, "
            f"and {free:,} are free"
        )


def _stage(data: Path, staging: Path, now: Callable[[], int], *, with_samples: bool) -> StagedFiles:
    """Copy the database and link the files that the copy names. Some of them may be gone already."""
    folders = [IMAGES_FOLDER, *([SAMPLES_FOLDER] if with_samples else [])]
    for name in folders:
        _link_files(data / name, staging / name)
    copy = staging / DATABASE_FILE
    copy.unlink(missing_ok=True)
    moment = now()
    _copy_database(data / DATABASE_FILE, copy)
    for name in folders:  # what was written while the database was copied
        _link_files(data / name, staging / name)
    with closing(sqlite3.connect(copy)) as connection:
        schemas = _query(connection, "alembic_version", "version_num")
        segments = _query(connection, "sample_segment", "id") if with_samples else []
        hashes = _query(connection, "firmware", "DISTINCT sha256")
    if not schemas:
        raise BackupFailed(
            f"{data / DATABASE_FILE} has no tables of Meshfleet; was the service started once?"
        )
    samples = [segment_path(staging / SAMPLES_FOLDER, number) for number in segments]
    images = [staging / IMAGES_FOLDER / digest.hex() for digest in hashes]
    return StagedFiles(copy, sorted(samples), sorted(images), schemas[0], moment)


def _link_files(source: Path, target: Path) -> None:
    """Link all files of a directory that are not linked yet. Copy them if links do not work there."""
    target.mkdir(mode=0o700, exist_ok=True)
    if not source.is_dir():
        return
    for entry in os.scandir(source):
        link = target / entry.name
        with suppress(FileNotFoundError):  # merged or removed just now: needed only if the snapshot names it
            if entry.is_file(follow_symlinks=False) and not (link.exists() and link.samefile(entry.path)):
                link.unlink(missing_ok=True)  # after a restart of the service a number may be used again
                link_or_copy(Path(entry.path), link)


def link_or_copy(source: Path, target: Path) -> None:
    """Link a file that never changes, or copy it where links do not work, as between two disks."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)


def _copy_database(source: Path, target: Path) -> None:
    """Copy a database that other processes may be writing to. One statement sees one snapshot.

    The backup interface of SQLite would begin again with every write of the service.
    """
    try:
        with closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=rw", uri=True)) as connection:
            connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
            connection.execute("VACUUM INTO ?", (str(target),))
    except sqlite3.Error as exc:
        raise BackupFailed(f"{source} cannot be copied: {exc}") from exc


def _query(connection: sqlite3.Connection, table: str, column: str) -> list[Any]:
    """Return a column of a table; nothing if the schema is older than the table."""
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (table,)).fetchone():
        return []
    return [value for (value,) in connection.execute(f"SELECT {column} FROM {table}")]  # noqa: S608 # constant names
