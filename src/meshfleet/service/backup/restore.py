"""Restores a backup into an empty data directory or database, after it was checked as a whole."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from contextlib import closing
from itertools import chain, count
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import inspect

from meshfleet.db import connect_database, explain_driver_errors
from meshfleet.db.samples.segments import segment_path, sync_path
from meshfleet.db.schema import list_revisions
from meshfleet.errors.backup import BackupDamaged, RestoreRefused
from meshfleet.errors.startup import UnusableDataFolder
from meshfleet.service.backup import postgresql_backup
from meshfleet.service.backup.archive import DESCRIPTION_PATH
from meshfleet.service.backup.sqlite_backup import (
    DATABASE_FILE,
    IMAGES_FOLDER,
    SAMPLES_FOLDER,
    link_or_copy,
    query_images,
    query_segments,
    remove_stale_staging,
)
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
    rf"|{SAMPLES_FOLDER}/[0-9]{{8,12}}\.samples|{IMAGES_FOLDER}/[0-9a-f]{{64}}"
)
"""Paths that a backup of SQLite may contain: no file is written anywhere else."""

_KEPT_NAME: Final = re.compile(
    rf"{re.escape(LOCK_FILE)}|restore\.(unfinished|new)|lost\+found|backups|before-.*"
)
"""Names in a data directory that a restore leaves where they are."""

_ASIDE_NAME: Final = re.compile(r"before-[0-9A-Za-z-]+")
"""Name of a directory of old files inside a data directory."""

_NOT_COPIED: Final = (
    *("secret", "session", "api_key"),
    *("channel_alarm", "notification", "notification_route", "channel"),
    *("broker_message", "broker_received", "broker_subscription", "broker_session", "job_outbox"),
    *("sample_reader", "sample_log"),
)
"""Tables that a copy for a rehearsal must not share with the original."""


class RestoreResult(NamedTuple):
    """Facts about a finished restore that the user should know."""

    moved_to: Path | None = None
    """Directory with the files that were there before; None if there were none."""
    missing_segments: int = 0
    """Segments with samples that a backup without samples names, and that no longer exist."""


def check_contents(archive: ArchiveReader) -> None:
    """Raise an error if this version cannot restore a checked backup.

    The error is `RestoreRefused` for a newer backup, and `BackupDamaged` for wrong or missing files.
    """
    description = archive.description
    if description.schema not in list_revisions():
        raise RestoreRefused(
            f"this backup was made by a newer Meshfleet ({description.version}, schema {description.schema}; "
            f"this one knows schema {list_revisions()[-1]})"
        )
    if description.database == "postgresql":
        postgresql_backup.check_members(archive)
        return
    paths = [member.path for member in archive.manifest.members]
    for path in paths:
        if not _MEMBER_PATH.fullmatch(path):
            raise BackupDamaged(path, "a backup of SQLite has no such file")
    if DATABASE_FILE not in paths:
        raise BackupDamaged(DATABASE_FILE, "it is missing")


def restore_backup(
    archive: ArchiveReader, settings: Settings, *, replace: str | None, as_copy: bool
) -> RestoreResult:
    """Restore a backup that was checked, to the data directory or database that the settings name.

    Files in the data directory are moved to its subdirectory `replace`; if `replace` is None, a data
    directory with files is refused. If `as_copy` is set, logins, API keys, signing secrets, MQTT sessions
    and channels of alarms are not restored, so that the copy cannot be mistaken for the original.
    """
    check_contents(archive)
    kind = "sqlite" if settings.database == "sqlite" else "postgresql"
    if archive.description.database != kind:
        raise RestoreRefused(
            f"the backup is of a {archive.description.database} database, but the settings name "
            f"{kind}; choose the database with --database"
        )
    if kind == "sqlite":
        try:
            return _restore_files(archive, settings.data, replace, as_copy=as_copy)
        except OSError as exc:
            raise RestoreRefused(f"{exc.filename or settings.data} cannot be used: {exc.strerror}") from exc
    if replace is not None:
        raise RestoreRefused("--replace is for SQLite only; name an empty database with --database")
    with closing(connect_database(settings.database, settings.data)) as database, explain_driver_errors():
        database.write_now(_restore_tables, archive, as_copy=as_copy)
        database.write_now(_update_statistics)
    return RestoreResult()


def check_restore_finished(folder: Path) -> None:
    """Raise `UnusableDataFolder` if a restore to this data directory was interrupted."""
    if (folder / _UNFINISHED_FILE).exists():
        raise UnusableDataFolder(
            f"a restore to {folder} was interrupted; run `meshfleet restore --replace` again"
        )


def _restore_tables(connection: Connection, archive: ArchiveReader, *, as_copy: bool) -> None:
    postgresql_backup.restore_tables(connection, archive)
    if as_copy:
        for table in _NOT_COPIED:
            if inspect(connection).has_table(table):
                connection.exec_driver_sql(f"DELETE FROM {table}")  # noqa: S608 # constant names


def _update_statistics(connection: Connection) -> None:
    """Update the statistics of the query planner for the restored tables."""
    postgresql_backup.disable_timeouts(connection)
    connection.exec_driver_sql("ANALYZE")


def _restore_files(
    archive: ArchiveReader, folder: Path, replace: str | None, *, as_copy: bool
) -> RestoreResult:
    with lock_data_folder(folder):
        remove_stale_staging(folder)
        for path in folder.glob(f"{_STAGING_PREFIX}*"):  # of a restore that was killed
            shutil.rmtree(path)
        # An interrupted restore has moved some files aside already: the others belong with them.
        aside = folder / (_read_marker(folder) or _choose_unused_name(folder, replace))
        existing = sorted(path for path in folder.iterdir() if not _KEPT_NAME.fullmatch(path.name))
        if existing and replace is None:
            raise RestoreRefused(
                f"{folder} is not empty: it contains {existing[0].name}; "
                "choose another directory with --data, or move its files aside with --replace"
            )
        staging = Path(mkdtemp(prefix=_STAGING_PREFIX, dir=folder))
        try:
            _extract_members(archive, staging)
            missing = _adapt_database(archive.description, staging, [folder, aside], as_copy=as_copy)
            _give_to_owner([staging, folder / LOCK_FILE], folder.stat())
            _replace_files(existing, staging, folder, aside)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return RestoreResult(aside if aside != folder and aside.exists() else None, missing)


def _choose_unused_name(folder: Path, name: str | None) -> str:
    """Return a name for the directory of old files: `name`, or `name-2` and so on if it is in use.

    Return an empty name if `name` is None.
    """
    if name is None:
        return ""
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(each for each in names if not os.path.lexists(folder / each))


def _replace_files(existing: list[Path], staging: Path, folder: Path, aside: Path) -> None:
    """Move the existing files to the directory `aside`, and the restored files in place.

    If one move fails, undo all moves.
    """
    marker = folder / _UNFINISHED_FILE
    is_resumed = marker.exists()
    _write_marker(marker, aside.name if aside != folder else "")
    moves: list[tuple[Path, Path]] = []
    try:
        if existing:
            aside.mkdir(mode=0o700, exist_ok=True)
            _give_to_owner([aside], folder.stat())
        for path in existing:
            if (aside / path.name).exists():  # a restored file of the interrupted restore
                _remove_path(path)
            else:
                _move_path(path, aside / path.name, moves)
        # The database is last: a directory without one is not mistaken for a restored one.
        for path in sorted(staging.iterdir(), key=lambda path: path.name == DATABASE_FILE):
            _move_path(path, folder / path.name, moves)
    except OSError:  # not if it is interrupted: the last move may not be in the list, so the marker stays
        for source, target in reversed(moves):
            target.rename(source)
        if not is_resumed:
            marker.unlink()
        raise
    for path in {folder, aside} if existing else {folder}:
        sync_path(path)
    marker.unlink()
    sync_path(folder)


def _write_marker(marker: Path, text: str) -> None:
    """Write the name of the directory of old files to the marker file of an unfinished restore.

    After a power failure, the marker is either complete or does not exist.
    """
    new = marker.with_suffix(".new")
    new.unlink(missing_ok=True)
    with new.open("x") as file:  # never through a link that another user has made
        file.write(text)
    sync_path(new)
    new.rename(marker)
    sync_path(marker.parent)


def _move_path(source: Path, target: Path, moves: list[tuple[Path, Path]]) -> None:
    """Move a file or directory, and append the move to `moves`, so that it can be undone."""
    source.rename(target)
    moves.append((source, target))


def _remove_path(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _read_marker(folder: Path) -> str:
    """Return the name of the directory to which an interrupted restore has moved files; empty if none.

    The user of the service can write this file, and root reads it: accept only a directory inside.
    """
    path = folder / _UNFINISHED_FILE
    name = path.read_text().strip() if path.is_file() and not path.is_symlink() else ""
    aside = folder / name
    if name and (not _ASIDE_NAME.fullmatch(name) or aside.is_symlink()):
        raise RestoreRefused(f"{path} does not name a directory inside {folder}; delete {path.name}")
    return name


def _extract_members(archive: ArchiveReader, staging: Path) -> None:
    for name in (SAMPLES_FOLDER, IMAGES_FOLDER):
        (staging / name).mkdir(mode=0o700)
    for member in archive.manifest.members:
        if member.path == DESCRIPTION_PATH:
            continue
        descriptor = os.open(staging / member.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(archive.read_member(member))
            file.flush()
            os.fsync(file.fileno())


def _adapt_database(
    description: BackupDescription, staging: Path, places: list[Path], *, as_copy: bool
) -> int:
    """Check the extracted database, and adapt it if it is a copy, or if the backup has no samples.

    Return the number of sample files that are missing. `places` are the data directories to search for them.
    """
    missing = 0
    try:
        with closing(sqlite3.connect(staging / DATABASE_FILE)) as database, database:
            found = database.execute("SELECT version_num FROM alembic_version").fetchall()
            if found != [(description.schema,)]:
                raise BackupDamaged(DATABASE_FILE, f"its schema is not {description.schema}")
            _check_integrity(database)
            if not description.has_samples:
                missing = _adopt_segments(database, staging / SAMPLES_FOLDER, places)
            if as_copy:
                database.execute("PRAGMA secure_delete = ON")
                for table in _NOT_COPIED:
                    if database.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (table,)).fetchone():
                        database.execute(f"DELETE FROM {table}")  # noqa: S608 # constant names
            _check_files(database, staging)
    except sqlite3.Error as exc:
        raise BackupDamaged(DATABASE_FILE, str(exc)) from exc
    for path in (staging / SAMPLES_FOLDER, staging / IMAGES_FOLDER, staging):
        sync_path(path)
    return missing


def _check_integrity(database: sqlite3.Connection) -> None:
    ((result, *_), *_) = database.execute("PRAGMA quick_check(1)").fetchall()
    if result != "ok":
        raise BackupDamaged(DATABASE_FILE, str(result))


def _check_files(database: sqlite3.Connection, staging: Path) -> None:
    """Raise `BackupDamaged` if the database refers to a segment or image that is not in the backup."""
    paths = [segment_path(staging / SAMPLES_FOLDER, number) for number in query_segments(database)]
    paths += [staging / IMAGES_FOLDER / digest.hex() for digest in query_images(database)]
    for path in paths:
        if not path.is_file():
            raise BackupDamaged(
                str(path.relative_to(staging)), "the database of the backup refers to it, but it is missing"
            )


def _adopt_segments(database: sqlite3.Connection, target: Path, places: list[Path]) -> int:
    """Link the sample files (segments) of the restored database that still exist; delete other records.

    A segment never changes, but another data directory may have a different one with this number. So a
    segment is used only if the database in its directory has the same record of it. Return the number of
    deleted records.
    """
    missing = 0
    for number in query_segments(database):
        record = database.execute("SELECT * FROM sample_segment WHERE id = ?", (number,)).fetchone()
        known = (place / SAMPLES_FOLDER for place in places if _has_segment_record(place, number, record))
        found = (path for each in known if (path := segment_path(each, number)).is_file())
        source = next((path for path in found if not path.is_symlink()), None)
        if source is None:
            database.execute("DELETE FROM sample_segment WHERE id = ?", (number,))
            missing += 1
        else:
            link_or_copy(source, segment_path(target, number))
    return missing


def _has_segment_record(place: Path, number: int, record: tuple[object, ...]) -> bool:
    """Return whether the database in a data directory has exactly this record of a segment."""
    path = place / DATABASE_FILE
    if not path.exists():
        return False
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            found = database.execute("SELECT * FROM sample_segment WHERE id = ?", (number,)).fetchone()
    except sqlite3.Error:
        return False
    return bool(found == record)


def _give_to_owner(paths: Iterable[Path], owner: os.stat_result) -> None:
    """Give files and directories to the owner of the data directory, if root restores for another user.

    That user may replace a file by a link to one of root meanwhile: links are not followed, and a directory
    is given away after its contents.
    """
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        for path in paths:
            if path.is_dir() and not path.is_symlink():
                # Relative to open directories: a directory may be replaced by a link meanwhile.
                for _, folders, files, descriptor in os.fwalk(path, topdown=False, follow_symlinks=False):
                    for name in (*folders, *files):
                        os.chown(name, owner.st_uid, owner.st_gid, dir_fd=descriptor, follow_symlinks=False)
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
