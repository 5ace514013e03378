"""Database access for commands that work without a running service."""

from __future__ import annotations

from contextlib import closing, contextmanager
from threading import Event
from typing import TYPE_CHECKING

from meshfleet.cli.shutdown import end_on_signals
from meshfleet.db import connect_database, upgrade_database
from meshfleet.errors.startup import UnusableDataFolder
from meshfleet.service.backup.creation import back_up_before_migration
from meshfleet.service.backup.restore import check_restore_finished
from meshfleet.service.clock import now

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.db import Database
    from meshfleet.settings import Settings


@contextmanager
def open_existing_database(settings: Settings) -> Iterator[Database]:
    """Open the database of a service and migrate it. Raise `UnusableDataFolder` if it does not exist."""
    check_database_exists(settings)
    with closing(connect_database(settings.database, settings.data)) as database:
        if settings.backup_before_migration:
            with end_on_signals() as stop:
                back_up_before_migration(database, settings, now, stop)
        upgrade_database(database, Event())
        yield database


def check_database_exists(settings: Settings) -> None:
    """Raise `UnusableDataFolder` if the database file is missing or unusable. PostgreSQL is not checked."""
    if settings.database != "sqlite":
        return
    try:
        check_restore_finished(settings.data)
        (settings.data / "meshfleet.sqlite").open("r+b").close()
    except FileNotFoundError:
        reason = f"there is no database in {settings.data}; give the data directory with --data"
        raise UnusableDataFolder(reason) from None
    except OSError as exc:
        raise UnusableDataFolder(f"the database in {settings.data} cannot be used: {exc.strerror}") from exc
