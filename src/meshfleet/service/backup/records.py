"""Records finished backups in the database, so that their age can be monitored."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final

from sqlalchemy import delete, inspect, select

from meshfleet.db import connect_database, explain_driver_errors
from meshfleet.db.bulk import insert_rows
from meshfleet.db.tables import backup
from meshfleet.errors import FleetError
from meshfleet.errors.backup import BackupNotRecorded
from meshfleet.protocol.times import parse_millis

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from meshfleet.service.backup.creation import BackupResult
    from meshfleet.settings import Settings

_MAX_RECORDS: Final = 100


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


def load_newest_moments(connection: Connection, count: int) -> Sequence[int]:
    """Return the times of the newest `count` backups with samples (Unix time in ms), the newest first."""
    query = select(backup.c.moment).where(backup.c.has_samples).order_by(backup.c.moment.desc())
    return connection.execute(query.limit(count)).scalars().all()
