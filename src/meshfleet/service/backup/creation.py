"""Creates backups: describes the data, and writes it to one file or to a pipe."""

from __future__ import annotations

import logging
import os
from contextlib import closing, suppress
from importlib.metadata import version
from tempfile import NamedTemporaryFile
from typing import IO, TYPE_CHECKING, Final, NamedTuple

from meshfleet.db import connect_database, explain_driver_errors
from meshfleet.db.samples.segments import sync_path
from meshfleet.db.schema import list_revisions, load_revision
from meshfleet.errors.backup import BackupFailed
from meshfleet.protocol.times import format_millis
from meshfleet.service.backup import postgresql_backup, sqlite_backup
from meshfleet.service.backup.archive import ArchiveReader, ArchiveWriter, BackupDescription
from meshfleet.service.backup.postgresql_backup import TablesChanged
from meshfleet.service.locks import try_lock_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.service.backup.sqlite_backup import StagedFiles
    from meshfleet.settings import Settings


_log = logging.getLogger(__name__)

_UNFINISHED_PREFIX: Final = ".meshfleet-backup-"
_ATTEMPTS: Final = 5


class BackupResult(NamedTuple):
    """Finished backup."""

    moment: str
    """Every report that was acknowledged before this time (UTC) is in the backup."""
    size: int
    """Bytes of the file."""
    schema: str


def create_backup_file(
    settings: Settings, path: Path, now: Callable[[], int], *, with_samples: bool
) -> BackupResult:
    """Write a backup to a new file that only its owner can read, and check it.

    The file gets its name when it is complete and on the disk. Raise `BackupFailed` if that name exists.
    """
    if path.exists():
        raise BackupFailed(f"{path} exists; choose another name, or a directory")
    try:
        _remove_unfinished(path.parent)
        with NamedTemporaryFile(prefix=_UNFINISHED_PREFIX, dir=path.parent) as file:
            try_lock_file(file.fileno())
            result = write_backup(settings, file.file, now, with_samples=with_samples)
            os.fsync(file.fileno())
            ArchiveReader(file.file).check()
            os.link(file.name, path)  # unlike a rename, it never replaces a file
        sync_path(path.parent)
    except FileExistsError as exc:
        raise BackupFailed(f"{path} exists; choose another name, or a directory") from exc
    except OSError as exc:
        raise BackupFailed(f"{exc.filename or path} cannot be used: {exc.strerror}") from exc
    return result


def _remove_unfinished(folder: Path) -> None:
    """Remove files of backups that were killed. Those of running backups are locked."""
    for path in folder.glob(f"{_UNFINISHED_PREFIX}*"):
        with path.open("rb") as file:
            if try_lock_file(file.fileno()):
                path.unlink(missing_ok=True)


def back_up_before_migration(database: Database, settings: Settings, now: Callable[[], int]) -> None:
    """Write a backup without samples to the data directory if this version will change the schema.

    Only the newest two such backups are kept: a service that fails to start again and again must not fill
    the disk.
    """
    with explain_driver_errors():
        schema = database.read_now(load_revision)
    if schema is None or schema not in list_revisions()[:-1]:  # new, current, or of a newer version
        return
    folder = settings.data / "backups"
    path = folder / f"before-{version('meshfleet')}-{format_millis(now()).replace(':', '')}.tar"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        create_backup_file(settings, path, now, with_samples=False)
        for older in sorted(folder.glob("before-*.tar"), key=lambda each: each.stat().st_mtime)[:-2]:
            older.unlink()
    except (OSError, BackupFailed) as exc:
        raise BackupFailed(
            f"the backup before the upgrade failed: {exc}; to upgrade without, set backup-before-migration"
            " to off"
        ) from exc
    _log.info("the database is upgraded from schema %s to %s; backup: %s", schema, list_revisions()[-1], path)


def write_backup(
    settings: Settings, output: IO[bytes], now: Callable[[], int], *, with_samples: bool
) -> BackupResult:
    """Write a backup front to back. The service may be running."""
    archive = ArchiveWriter(output)
    if settings.database == "sqlite":
        with sqlite_backup.stage_files(settings.data, now, with_samples=with_samples) as staged:
            return _write_files(archive, staged, with_samples=with_samples)
    with closing(connect_database(settings.database, settings.data)) as database, explain_driver_errors():
        for _ in range(_ATTEMPTS):
            with suppress(TablesChanged):
                return database.read_now(_write_database, archive, now, with_samples=with_samples)
    raise BackupFailed(f"tables were dropped during each of {_ATTEMPTS} attempts; run the backup again")


def _write_files(archive: ArchiveWriter, staged: StagedFiles, *, with_samples: bool) -> BackupResult:
    description = BackupDescription(
        version=version("meshfleet"),
        schema=staged.schema,
        database="sqlite",
        moment=format_millis(staged.moment),
        has_samples=with_samples,
    )
    archive.add_description(description)
    archive.add_file(sqlite_backup.DATABASE_FILE, staged.database)
    for folder, paths in (
        (sqlite_backup.SAMPLES_FOLDER, staged.samples),
        (sqlite_backup.IMAGES_FOLDER, staged.images),
    ):
        for path in paths:
            archive.add_file(f"{folder}/{path.name}", path)
    archive.finish()
    return BackupResult(description.moment, archive.size, description.schema)


def _write_database(
    connection: Connection, archive: ArchiveWriter, now: Callable[[], int], *, with_samples: bool
) -> BackupResult:
    moment = now()  # before the first query, with which the snapshot begins
    postgresql_backup.disable_timeouts(connection)
    contents = postgresql_backup.describe_contents(connection, with_samples=with_samples)
    description = BackupDescription(
        version=version("meshfleet"),
        schema=contents.schema,
        database="postgresql",
        moment=format_millis(moment),
        has_samples=with_samples,
        tables=contents.tables,
        sequences=contents.sequences,
    )
    archive.add_description(description)
    postgresql_backup.write_tables(connection, contents.tables, archive)
    archive.finish()
    return BackupResult(description.moment, archive.size, description.schema)
