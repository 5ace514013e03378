"""Creates backups: describes the data, and writes it to one file or to a pipe."""

from __future__ import annotations

import logging
import os
from contextlib import closing, suppress
from importlib.metadata import version
from typing import IO, TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import make_url

from meshfleet.db import connect_database, explain_driver_errors
from meshfleet.db.schema import list_revisions, load_revision
from meshfleet.errors.backup import BackupFailed
from meshfleet.protocol.times import format_millis
from meshfleet.service.backup import postgresql_backup, sqlite_backup
from meshfleet.service.backup.archive import ArchiveReader, ArchiveWriter, BackupDescription
from meshfleet.service.backup.backup_file import create_unfinished_file, rename_finished_file
from meshfleet.service.backup.postgresql_backup import TablesUnavailable
from meshfleet.service.backup.progress_texts import describe_files, describe_source, describe_tables
from meshfleet.service.locks import is_data_folder_locked, is_service_lock_held
from meshfleet.service.secret_store import format_instance_id

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from threading import Event

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.service.backup.sqlite_backup import StagedFiles
    from meshfleet.settings import Settings


_log = logging.getLogger(__name__)

_ATTEMPTS: Final = 20


class BackupRequest(NamedTuple):
    """Data to back up, and options of the backup."""

    settings: Settings
    with_samples: bool
    now: Callable[[], int]
    stop: Event
    """Ends an unfinished backup with `BackupFailed` when it is set."""
    announce: Callable[[str], None]
    """Called with lines for the user, before the backup is written."""


class BackupResult(NamedTuple):
    """Facts about a finished backup."""

    moment: str
    """Every report that was acknowledged before this time (UTC) is in the backup."""
    size: int
    """Bytes of the file."""
    schema: str
    has_samples: bool
    instance: str | None
    """Id of the installation; None if it has none yet."""


def create_backup_file(request: BackupRequest, path: Path) -> BackupResult:
    """Write a backup to a new file that only its owner can read, and check the file.

    The file gets the name `path` when it is complete and on the disk. Raise `BackupFailed` if `path` exists.
    """
    if os.path.lexists(path):
        raise BackupFailed(f"{path} exists; choose another name, or a directory")
    try:
        with create_unfinished_file(path.parent) as unfinished:
            result = write_backup(request, unfinished.file)
            os.fsync(unfinished.file.fileno())
            ArchiveReader(unfinished.file).check()
            rename_finished_file(unfinished.path, path)
    except FileExistsError as exc:
        raise BackupFailed(f"{path} exists; choose another name, or a directory") from exc
    except OSError as exc:
        raise BackupFailed(f"{exc.filename or path} cannot be used: {exc.strerror}") from exc
    return result


def back_up_before_migration(
    database: Database, settings: Settings, now: Callable[[], int], stop: Event
) -> None:
    """Write a backup without samples to the data directory if this version will change the schema.

    Only the newest two such backups are kept: a service that fails to start again and again must not fill
    the disk. Raise `BackupFailed` if `stop` is set meanwhile.
    """
    with explain_driver_errors():
        schema = database.read_now(load_revision)
    if schema is None or schema not in list_revisions()[:-1]:  # new, current, or of a newer version
        return
    folder = settings.data / "backups"
    path = folder / f"before-{version('meshfleet')}-{format_millis(now()).replace(':', '')}.tar"
    try:
        for each in (settings.data, folder):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        create_backup_file(
            BackupRequest(settings, with_samples=False, now=now, stop=stop, announce=_log.info), path
        )
        for older in sorted(folder.glob("before-*.tar"), key=lambda each: each.stat().st_mtime)[:-2]:
            older.unlink()
    except (OSError, BackupFailed) as exc:
        raise BackupFailed(
            f"the backup before the upgrade failed: {exc}; to upgrade without, set backup-before-migration"
            " to off"
        ) from exc
    _log.info("the database is upgraded from schema %s to %s; backup: %s", schema, list_revisions()[-1], path)


def write_backup(request: BackupRequest, output: IO[bytes]) -> BackupResult:
    """Write a backup to `output`, which may be a pipe. The service may be running."""
    archive = ArchiveWriter(output, request.stop)
    settings = request.settings
    if settings.database == "sqlite":
        schema = sqlite_backup.load_schema(settings.data)
        is_running = is_data_folder_locked(settings.data)
        request.announce(describe_source(settings.data, "SQLite", schema, is_running=is_running))
        with sqlite_backup.stage_files(
            settings.data, request.now, request.stop, with_samples=request.with_samples
        ) as staged:
            return _write_sqlite_backup(request, archive, staged)
    with closing(connect_database(settings.database, settings.data)) as database, explain_driver_errors():
        for _ in range(_ATTEMPTS):
            with suppress(TablesUnavailable):
                return database.read_now(_write_postgresql_backup, request, archive)
            if request.stop.is_set():
                raise BackupFailed("stopped before it was complete")
    raise BackupFailed(
        f"tables were locked or dropped during each of {_ATTEMPTS} attempts; run the backup again"
    )


def _write_sqlite_backup(request: BackupRequest, archive: ArchiveWriter, staged: StagedFiles) -> BackupResult:
    request.announce(describe_files(staged, with_samples=request.with_samples))
    description = BackupDescription(
        version=version("meshfleet"),
        schema=staged.schema,
        database="sqlite",
        moment=format_millis(staged.moment),
        has_samples=request.with_samples,
        instance=None if staged.instance is None else format_instance_id(staged.instance),
    )
    archive.add_description(description)
    archive.add_file(sqlite_backup.DATABASE_FILE, staged.database)
    for folder, paths in (
        (sqlite_backup.SAMPLES_FOLDER, staged.samples),
        (sqlite_backup.IMAGES_FOLDER, staged.images),
    ):
        for path in paths:
            archive.add_file(f"{folder}/{path.name}", path)
    return _finish_archive(archive, description)


def _write_postgresql_backup(
    connection: Connection, request: BackupRequest, archive: ArchiveWriter
) -> BackupResult:
    moment = request.now()  # before the first query, with which the snapshot begins
    postgresql_backup.set_backup_timeouts(connection)
    contents = postgresql_backup.describe_contents(connection, with_samples=request.with_samples)
    address = make_url(request.settings.database)  # it may contain a password
    place = f"{address.database} on {address.host or 'this machine'}"
    is_running = is_service_lock_held(connection)
    request.announce(describe_source(place, "PostgreSQL", contents.schema, is_running=is_running))
    request.announce(describe_tables(contents.tables, with_samples=request.with_samples))
    description = BackupDescription(
        version=version("meshfleet"),
        schema=contents.schema,
        database="postgresql",
        moment=format_millis(moment),
        has_samples=request.with_samples,
        instance=None if contents.instance is None else format_instance_id(contents.instance),
        tables=contents.tables,
        sequences=contents.sequences,
    )
    archive.add_description(description)
    postgresql_backup.write_tables(connection, contents.tables, archive)
    return _finish_archive(archive, description)


def _finish_archive(archive: ArchiveWriter, description: BackupDescription) -> BackupResult:
    archive.finish()
    return BackupResult(
        description.moment,
        archive.size,
        description.schema,
        description.has_samples,
        description.instance,
    )
