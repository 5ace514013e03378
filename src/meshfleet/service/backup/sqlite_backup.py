"""Backup of a service with SQLite, without its cooperation: it may run, or not.

Segments and images never change once they are written, so hard links in a staging directory keep them from
being deleted. The database is copied by one statement, which sees a single snapshot. The copy may refer to
files that were merged or removed before they could be linked; then staging begins again.
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
from meshfleet.service.secret_store import INSTANCE_SECRET

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from threading import Event

DATABASE_FILE: Final = "meshfleet.sqlite"
SAMPLES_FOLDER: Final = "samples"
IMAGES_FOLDER: Final = "images"

_log = logging.getLogger(__name__)

_STAGING_PREFIX: Final = "backup-staging-"
_ATTEMPTS: Final = 5
_BUSY_TIMEOUT_MS: Final = 10_000
_STEPS_PER_STOP_CHECK: Final = 100_000
"""Instructions of SQLite between two checks whether copying is to be stopped: some milliseconds."""

_SPARE_FACTOR: Final = 1.1
"""Factor of the free disk space that a copy of the database needs."""


class StagedFiles(NamedTuple):
    """Copy of the database, and links to the files that it refers to, all as of the same time."""

    database: Path
    samples: list[Path]
    images: list[Path]
    schema: str
    instance: bytes | None
    """Secret of the installation; None if it has none yet."""
    moment: int
    """Time at which copying began, in milliseconds. Everything committed before is in the copy."""


@contextmanager
def stage_files(
    data: Path, now: Callable[[], int], stop: Event, *, with_samples: bool
) -> Iterator[StagedFiles]:
    """Collect the files of a backup in a staging directory, which is removed after the `with` block.

    Raise `BackupFailed` if the disk is too full, if the service keeps replacing files, or if `stop` is set.
    """
    remove_stale_staging(data)
    _check_free_space(data, with_samples=with_samples)
    with _create_staging(data) as staging:
        missing: list[Path] = []
        for _ in range(_ATTEMPTS):
            staged = _stage(data, staging, now, stop, with_samples=with_samples)
            missing = [path for path in (*staged.samples, *staged.images) if not path.exists()]
            if not missing:
                yield staged
                return
        name = missing[0].relative_to(staging)
        raise BackupFailed(
            f"{name} is missing in {data}, or the service replaced files during each of {_ATTEMPTS} attempts"
        )


def remove_stale_staging(data: Path) -> None:
    """Remove the staging directories that killed backups left. Those of running backups are locked."""
    for staging in data.glob(f"{_STAGING_PREFIX}*"):
        try:
            if (lock := _try_lock_staging(staging)) is not None:
                _remove_staging(staging, lock)
        except OSError as exc:  # it may belong to root
            _log.warning(
                "files of an interrupted backup cannot be removed, delete them: %s (%s)", staging, exc
            )


@contextmanager
def _create_staging(data: Path) -> Iterator[Path]:
    # Until a new directory is locked, another process may take it for that of a killed backup.
    while (lock := _try_lock_staging(staging := Path(mkdtemp(prefix=_STAGING_PREFIX, dir=data)))) is None:
        pass
    try:
        yield staging
    finally:
        _remove_staging(staging, lock)


def _try_lock_staging(staging: Path) -> int | None:
    """Lock a staging directory. The lock ends when the returned descriptor is closed.

    Return None if another process has locked it, or removed it.
    """
    with suppress(FileNotFoundError):
        lock = os.open(staging, os.O_RDONLY)
        if try_lock_file(lock) and staging.exists():
            return lock
        os.close(lock)
    return None


def _remove_staging(staging: Path, lock: int) -> None:
    """Remove a staging directory, then close `lock`, the descriptor that locks it."""
    try:
        shutil.rmtree(staging)
    finally:
        os.close(lock)


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


def _stage(
    data: Path, staging: Path, now: Callable[[], int], stop: Event, *, with_samples: bool
) -> StagedFiles:
    """Copy the database, and link the files that the copy refers to. Some files may already be deleted."""
    folders = [IMAGES_FOLDER, *([SAMPLES_FOLDER] if with_samples else [])]
    for name in folders:
        _link_files(data / name, staging / name)
    copy = staging / DATABASE_FILE
    copy.unlink(missing_ok=True)
    moment = now()
    _copy_database(data / DATABASE_FILE, copy, stop)
    for name in folders:  # what was written while the database was copied
        _link_files(data / name, staging / name)
    with closing(sqlite3.connect(copy)) as connection:
        schemas = _query(connection, "alembic_version", "version_num")
        segments = query_segments(connection) if with_samples else []
        hashes = query_images(connection)
        secrets = _query(connection, "secret", "value", f"name = '{INSTANCE_SECRET}'")
    samples = [segment_path(staging / SAMPLES_FOLDER, number) for number in segments]
    images = [staging / IMAGES_FOLDER / digest.hex() for digest in hashes]
    instance = secrets[0] if secrets else None
    return StagedFiles(copy, sorted(samples), sorted(images), schemas[0], instance, moment)


def load_schema(data: Path) -> str:
    """Return the schema revision of the database. Raise `BackupFailed` if it has no tables."""
    with _open_database(data / DATABASE_FILE) as connection:
        schemas = _query(connection, "alembic_version", "version_num")
    if not schemas:
        raise BackupFailed(
            f"{data / DATABASE_FILE} has no tables of Meshfleet; was the service started once?"
        )
    return str(schemas[0])


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
    """Link a file that never changes, or copy it where links do not work, as between two disks.

    A symbolic link is not followed: root may run this in a directory of another user.
    """
    try:
        os.link(source, target, follow_symlinks=False)
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError:
        shutil.copyfile(source, target, follow_symlinks=False)


def _copy_database(source: Path, target: Path, stop: Event) -> None:
    """Copy a database that other processes may be writing to. One statement sees one snapshot.

    The backup interface of SQLite would begin again with every write of the service.
    """
    with _open_database(source) as connection:
        # Also lets Python handle signals, which wait for the end of the statement otherwise.
        connection.set_progress_handler(stop.is_set, _STEPS_PER_STOP_CHECK)
        try:
            connection.execute("VACUUM INTO ?", (str(target),))
        except sqlite3.OperationalError as exc:
            if stop.is_set():
                raise BackupFailed("stopped before it was complete") from exc
            raise


@contextmanager
def _open_database(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database that exists. Raise `BackupFailed` for errors of SQLite."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as connection:
            connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
            yield connection
    except sqlite3.Error as exc:
        raise BackupFailed(f"{path} cannot be copied: {exc}") from exc


def query_segments(connection: sqlite3.Connection) -> list[int]:
    """Return the numbers of the sample files (segments) that a database refers to."""
    return _query(connection, "sample_segment", "CAST(id AS INTEGER)", "id IS NOT NULL")


def query_images(connection: sqlite3.Connection) -> list[bytes]:
    """Return the SHA-256 of each firmware image that a database refers to."""
    return _query(connection, "firmware", "DISTINCT CAST(sha256 AS BLOB)", "sha256 IS NOT NULL")


def _query(connection: sqlite3.Connection, table: str, column: str, condition: str = "true") -> list[Any]:
    """Return the values of a table's column; an empty list if the schema is older than the table."""
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (table,)).fetchone():
        return []
    query = f"SELECT {column} FROM {table} WHERE {condition}"  # noqa: S608 # constant texts
    return [value for (value,) in connection.execute(query)]
