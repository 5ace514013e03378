"""Records finished backups in the database, so that their age can be monitored."""

from __future__ import annotations

from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import delete, inspect, select

from meshfleet.db import connect_database, explain_driver_errors
from meshfleet.db.bulk import insert_rows
from meshfleet.db.tables import backup
from meshfleet.errors import FleetError
from meshfleet.errors.backup import BackupNotRecorded
from meshfleet.protocol.times import parse_millis

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.service.backup.creation import BackupResult
    from meshfleet.settings import Settings

_MAX_RECORDS: Final = 100

MIN_BACKUPS: Final = 4
_MAX_BACKUPS: Final = 8
"""Minimum and maximum number of backups from which their usual interval is derived."""


def record_backup(settings: Settings, result: BackupResult, finished_at: int) -> None:
    """Record a backup that was written and checked. Only the newest records are kept.

    Raise `BackupNotRecorded` if the database cannot be written, or has an older schema.
    """
    try:
        with closing(connect_database(settings.database, settings.data)) as database, explain_driver_errors():
            database.write_now(_insert_record, result, finished_at)
    except BackupNotRecorded:
        raise
    except FleetError as exc:
        raise BackupNotRecorded(str(exc)) from exc


def _insert_record(connection: Connection, result: BackupResult, finished_at: int) -> None:
    if not inspect(connection).has_table(backup.name):
        raise BackupNotRecorded("its schema is older; it is upgraded when the service starts")
    record = (finished_at, parse_millis(result.moment), result.size, result.has_samples)
    insert_rows(connection, backup, [record])
    newest = select(backup.c.finished_at).order_by(backup.c.finished_at.desc()).limit(_MAX_RECORDS)
    connection.execute(delete(backup).where(backup.c.finished_at.not_in(newest)))


class BackupTimes(NamedTuple):
    """Facts about the recorded backups that contain samples."""

    newest: int | None = None
    """Unix time in milliseconds of the newest backup; None if there is none."""
    interval: float | None = None
    """Median interval between two backups in milliseconds; None with fewer than 4 backups."""
    size: int = 0
    """Size of the newest backup in bytes."""


def load_backup_times(connection: Connection) -> BackupTimes:
    """Load the time of the newest backup with samples, and compute the usual interval between backups."""
    query = (
        select(backup.c.moment, backup.c.size).where(backup.c.has_samples).order_by(backup.c.moment.desc())
    )
    newest = connection.execute(query.limit(_MAX_BACKUPS)).all()
    if not newest:
        return BackupTimes()
    intervals = sorted(later.moment - earlier.moment for later, earlier in pairwise(newest))
    usual = intervals[len(intervals) // 2] if len(newest) >= MIN_BACKUPS else None
    return BackupTimes(newest[0].moment, usual, newest[0].size)
