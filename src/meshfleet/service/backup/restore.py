"""Restores a backup into an empty data directory or database, after it was checked as a whole."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Final

from sqlalchemy import inspect

from meshfleet.db import connect_database, explain_driver_errors
from meshfleet.db.samples.segments import segment_path, sync_path
from meshfleet.db.schema import list_revisions
from meshfleet.errors.backup import BackupDamaged, RestoreRefused
from meshfleet.errors.startup import UnusableDataFolder
from meshfleet.service.backup import postgresql_backup
from meshfleet.service.backup.archive import DESCRIPTION_PATH
from meshfleet.service.backup.sqlite_backup import DATABASE_FILE, IMAGES_FOLDER, SAMPLES_FOLDER
from meshfleet.service.locks import LOCK_FILE, lock_data_folder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Connection

    from meshfleet.service.backup.archive import ArchiveReader, BackupDescription
    from meshfleet.settings import Settings

_UNFINISHED_FILE: Final = "restore.unfinished"
"""File that exists in a data directory while its files are replaced. The service does not start with it."""

_STAGING_PREFIX: Final = "restore-staging-"
_MEMBER_PATH: Final = re.compile(
    rf"{re.escape(DESCRIPTION_PATH)}|{re.escape(DATABASE_FILE)}"
    rf"|{SAMPLES_FOLDER}/[0-9]{{8,}}\.samples|{IMAGES_FOLDER}/[0-9a-f]{{64}}"
)
"""Paths that a backup of SQLite may contain: no file is written anywhere else."""

_COPIED_SECRETS: Final = ("secret", "session")
"""Tables that a copy for a rehearsal must not share with the original: signing secrets and logins."""


def check_version(archive: ArchiveReader) -> None:
    """Raise `RestoreRefused` if a newer version of Meshfleet wrote the backup."""
    if (schema := archive.description.schema) not in list_revisions():
        raise RestoreRefused(
            f"made by a newer Meshfleet ({archive.description.version}, schema {schema}; "
            f"this one knows schema {list_revisions()[-1]})"
        )


def restore_backup(archive: ArchiveReader, settings: Settings, *, replace: str | None, as_copy: bool) -> None:
    """Restore a checked backup to the data directory or database of the settings.

    If `replace` is a name, the files of the data directory are moved to a directory of that name inside;
    otherwise a data directory with files is refused. If `as_copy` is set, all logins end and new signing
    secrets are created, so that the copy cannot be mistaken for the original.
    """
    check_version(archive)
    kind = "sqlite" if settings.database == "sqlite" else "postgresql"
    if archive.description.database != kind:
        raise RestoreRefused(
            f"the backup is of a {archive.description.database} database, but the settings name "
            f"{kind}; choose the database with --database"
        )
    if kind == "sqlite":
        _restore_files(archive, settings.data, replace, as_copy=as_copy)
    else:
        with closing(connect_database(settings.database, settings.data)) as database, explain_driver_errors():
            database.write_now(_restore_tables, archive, as_copy=as_copy)
            database.write_now(_analyze)


def check_restore_finished(folder: Path) -> None:
    """Raise `UnusableDataFolder` if a restore to this data directory was interrupted."""
    if (folder / _UNFINISHED_FILE).exists():
        raise UnusableDataFolder(
            f"a restore to {folder} was interrupted; run `meshfleet restore --replace` again"
        )


def _restore_tables(connection: Connection, archive: ArchiveReader, *, as_copy: bool) -> None:
    postgresql_backup.restore_tables(connection, archive)
    if as_copy:
        for table in _COPIED_SECRETS:
            if inspect(connection).has_table(table):
                connection.exec_driver_sql(f"DELETE FROM {table}")  # noqa: S608 # constant names


def _analyze(connection: Connection) -> None:
    postgresql_backup.disable_timeouts(connection)
    connection.exec_driver_sql("ANALYZE")


def _restore_files(archive: ArchiveReader, folder: Path, replace: str | None, *, as_copy: bool) -> None:
    with lock_data_folder(folder):
        _remove_leftovers(folder)
        existing = sorted(path for path in folder.iterdir() if path.name not in {LOCK_FILE, _UNFINISHED_FILE})
        if existing and replace is None:
            raise RestoreRefused(
                f"{folder} is not empty: it contains {existing[0].name}; "
                "choose another directory with --data, or move its files aside with --replace"
            )
        staging = Path(mkdtemp(prefix=_STAGING_PREFIX, dir=folder))
        try:
            _extract(archive, staging)
            _adapt_database(archive.description, staging, folder, as_copy=as_copy)
            _take_ownership(staging, folder.stat())
            (folder / _UNFINISHED_FILE).touch(mode=0o600)
            sync_path(folder)
            if existing and replace is not None:
                _move_files(existing, folder / replace)
            # The database is last: a directory without one is not mistaken for a restored one.
            _move_files(sorted(staging.iterdir(), key=lambda path: path.name == DATABASE_FILE), folder)
            (folder / _UNFINISHED_FILE).unlink()
            sync_path(folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _remove_leftovers(folder: Path) -> None:
    """Remove what a restore that was killed has extracted. The caller holds the lock of the directory."""
    for path in folder.glob(f"{_STAGING_PREFIX}*"):
        shutil.rmtree(path)


def _extract(archive: ArchiveReader, staging: Path) -> None:
    for name in (SAMPLES_FOLDER, IMAGES_FOLDER):
        (staging / name).mkdir(mode=0o700)
    for member in archive.manifest.members:
        if not _MEMBER_PATH.fullmatch(member.path):
            raise BackupDamaged(member.path, "a backup of SQLite has no such file")
        if member.path == DESCRIPTION_PATH:
            continue
        with (staging / member.path).open("xb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.writelines(archive.read_member(member.path))
            file.flush()
            os.fsync(file.fileno())
    if not (staging / DATABASE_FILE).exists():
        raise BackupDamaged(DATABASE_FILE, "it is missing")
    for name in (SAMPLES_FOLDER, IMAGES_FOLDER):
        sync_path(staging / name)


def _adapt_database(description: BackupDescription, staging: Path, folder: Path, *, as_copy: bool) -> None:
    """Check the extracted database and change what is different in a copy, or in a backup without samples."""
    try:
        with closing(sqlite3.connect(staging / DATABASE_FILE)) as database, database:
            found = database.execute("SELECT version_num FROM alembic_version").fetchall()
            if found != [(description.schema,)]:
                raise BackupDamaged(DATABASE_FILE, f"its schema is not {description.schema}")
            if not description.has_samples:
                _use_existing_segments(database, staging / SAMPLES_FOLDER, folder / SAMPLES_FOLDER)
            for table in _COPIED_SECRETS if as_copy else ():
                database.execute(f"DELETE FROM {table}")  # noqa: S608 # constant names
    except sqlite3.Error as exc:
        raise BackupDamaged(DATABASE_FILE, str(exc)) from exc


def _use_existing_segments(database: sqlite3.Connection, target: Path, existing: Path) -> None:
    """Link the segments that are still there, and forget the others.

    Segments never change, so those in the data directory are the ones that the database knows.
    """
    if not database.execute("SELECT 1 FROM sqlite_schema WHERE name = 'sample_segment'").fetchone():
        return
    for (number,) in database.execute("SELECT id FROM sample_segment").fetchall():
        segment = segment_path(existing, number)
        if segment.exists():
            os.link(segment, segment_path(target, number))
        else:
            database.execute("DELETE FROM sample_segment WHERE id = ?", (number,))


def _take_ownership(staging: Path, owner: os.stat_result) -> None:
    """Give the files to the owner of the data directory, if root restores for another user."""
    if os.geteuid() == 0:
        for path in (*staging.rglob("*"), staging):
            os.chown(path, owner.st_uid, owner.st_gid)


def _move_files(paths: Iterable[Path], target: Path) -> None:
    target.mkdir(mode=0o700, exist_ok=True)
    for path in paths:
        path.rename(target / path.name)
    sync_path(target)
