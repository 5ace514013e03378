"""Checks of an upgrade, run with the new version before the service is started with it."""

from __future__ import annotations

import platform
import time
from contextlib import closing
from importlib.metadata import version
from threading import Event
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace
from sqlalchemy import func, select

from meshfleet.db import connect_database, open_read_only, upgrade_database
from meshfleet.db.schema import estimate_migration, list_revisions, load_migration_summary, load_revision
from meshfleet.db.tables import job
from meshfleet.errors import FleetError
from meshfleet.rest.jobs import JobState
from meshfleet.rest.operations import StoragePart
from meshfleet.service.backup.archive import ArchiveReader
from meshfleet.service.backup.creation import BackupRequest, create_backup_file
from meshfleet.service.backup.restore import restore_backup
from meshfleet.service.byte_format import format_bytes
from meshfleet.service.doctor import database
from meshfleet.service.doctor.examination import check_database
from meshfleet.service.doctor.finding import Finding, Level, describe_error
from meshfleet.service.storage.sizes import measure_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import Connection

    from meshfleet.service.clock import Now
    from meshfleet.settings import Settings

_BACKUP_COPIES: Final = 2
"""Copies of the database that a backup needs at the same time: the snapshot, and the file."""

_ACTIVE_JOB_STATES: Final = (JobState.IN_PROGRESS, JobState.CANCELING)


def examine_upgrade(settings: Settings) -> Iterator[Finding]:
    """Yield findings about what this version would change in an installation, without changing anything."""
    yield Finding(
        Level.OK, "version", f"Meshfleet {version('meshfleet')}, Python {platform.python_version()}"
    )
    with open_read_only(settings.database, settings.data) as connection:
        revision = load_revision(connection)
        yield from database.check_server(connection, settings)
        if revision is None or revision not in list_revisions():
            yield from database.check_schema(revision)
            return
        yield from _list_migrations(connection, revision)
        if revision != list_revisions()[-1]:
            yield from _check_disk(settings)
        yield from _check_jobs(connection)


def _list_migrations(connection: Connection, revision: str) -> Iterator[Finding]:
    """Yield the schema changes that the next start will make, from this revision on."""
    newest = list_revisions()[-1]
    if revision == newest:
        yield Finding(Level.OK, "schema", f"{revision}, current: the database is not changed")
        return
    yield Finding(Level.OK, "schema", f"{revision} is upgraded to {newest} at the next start")
    for number in list_revisions():
        if number > revision:
            rows, seconds = estimate_migration(connection, number)
            duration = f"about {seconds:.0f} s for {rows:,} rows" if seconds >= 1 else "less than a second"
            text = f"{load_migration_summary(number)} Takes {duration}."
            yield Finding(Level.OK, f"migration {number}", text)


def _check_disk(settings: Settings) -> Iterator[Finding]:
    """Check that there is room for the backup before the migration."""
    if settings.database != "sqlite" or not settings.backup_before_migration:
        return
    measured = measure_files(settings.data)
    needed = _BACKUP_COPIES * measured.sizes[StoragePart.DATABASE]
    text = f"{format_bytes(needed)} needed for the backup before the upgrade"
    if measured.free is not None and measured.free < needed:
        text = f"{text}, {format_bytes(measured.free)} free"
        yield Finding(Level.FAIL, "disk", text, f"du -xh --max-depth=1 {settings.data.absolute()}")
    else:
        yield Finding(Level.OK, "disk", text)


def _check_jobs(connection: Connection) -> Iterator[Finding]:
    query = select(func.count()).select_from(job).where(job.c.state.in_(_ACTIVE_JOB_STATES))
    if count := connection.execute(query).scalar_one():
        text = f"{count} in progress: their updates wait until the service has started again"
        yield Finding(Level.WARN, "jobs", text, "meshfleet jobs list")
    else:
        yield Finding(Level.OK, "jobs", "none in progress")


def rehearse_upgrade(settings: Settings, folder: Path, *, copy_database: str, now: Now) -> Iterator[Finding]:
    """Back up an installation, restore it as a copy into `folder`, upgrade the copy, and check all its data.

    `copy_database` is `sqlite`, or the URL of an empty PostgreSQL database for the copy.
    """
    copy = replace(settings, data=folder / "data", database=copy_database)
    path = folder / "rehearsal.tar"
    try:
        started = time.monotonic()
        request = BackupRequest(
            settings, with_samples=True, now=now, stop=Event(), announce=_discard_progress
        )
        result = create_backup_file(request, path)
        with path.open("rb") as file:
            archive = ArchiveReader(file)
            archive.check()
            restore_backup(archive, copy, replace=None, as_copy=True)
        seconds = time.monotonic() - started
        text = f"{format_bytes(result.size)} backed up and restored to a copy in {seconds:.0f} s"
        yield Finding(Level.OK, "backup", text)
        started = time.monotonic()
        with closing(connect_database(copy.database, copy.data)) as opened:
            upgrade_database(opened, Event())
    except (FleetError, OSError) as exc:
        yield Finding(Level.FAIL, "rehearsal", describe_error(exc), "meshfleet doctor --deep")
        return
    seconds = time.monotonic() - started
    yield Finding(Level.OK, "upgrade", f"the copy was upgraded in {seconds:.1f} s")
    yield from check_database(copy, now, is_deep=True)


def _discard_progress(_line: str) -> None:
    """Discard a progress line of the backup: the findings contain the same facts."""
