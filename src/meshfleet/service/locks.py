"""Locks so that only one service processes reports with a database; a second service fails at its start.

A SQLite database is in a data directory, which one service locks (`lock_data_folder`). On PostgreSQL the
service holds an advisory lock on a connection of its own; the server releases the lock when that connection
ends. A service that has lost the lock cannot write, because of the token in the table `broker_owner`.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from meshfleet.db import explain_driver_errors
from meshfleet.errors.startup import UnusableDatabase, UnusableDataFolder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.settings import Settings


# The data directory: not accessible to other users, and used by one service at a time (rest-170).

LOCK_FILE: Final = "meshfleet.lock"
_KNOWN_FILES: Final = {LOCK_FILE, "meshfleet.sqlite"}
_LOCK_ATTEMPTS: Final = 5
_LOCK_RETRY_SECONDS: Final = 0.1
"""Seconds between two attempts to lock a data directory: a backup locks it for an instant, to see if it is
in use."""

_OTHERS_MODE: Final = 0o077
"""File permission bits of the group and of other users."""


@contextmanager
def lock_data_folder(folder: Path) -> Iterator[None]:
    """Create the data directory if needed, and lock it against other services during the `with` block.

    The lock ends with the process, even after a crash. Raise `UnusableDataFolder` if the directory cannot be
    used, or another service has locked it.
    """
    try:
        _create_directory(folder)
        _make_private(folder)
        lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    except OSError as exc:
        reason = f"{exc.strerror} ({exc.filename})"
        raise UnusableDataFolder(f"the data directory {folder} cannot be used: {reason}") from exc
    try:
        _lock_file(lock, folder)
        yield
    finally:
        os.close(lock)


def _create_directory(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(0o700)
    except FileExistsError:
        if not folder.is_dir():
            raise UnusableDataFolder(f"{folder} is not a directory; choose another one with --data") from None


def _make_private(folder: Path) -> None:
    """Remove the permissions of other users from the data directory, if there are any.

    Raise `UnusableDataFolder` if the directory belongs to another user, or only has files of other programs.
    """
    status = folder.stat()
    if os.name == "nt" or not status.st_mode & _OTHERS_MODE:  # Windows has no such modes
        return
    if status.st_uid != os.geteuid():
        raise UnusableDataFolder(
            f"the data directory {folder} belongs to another user and is accessible to others; "
            "choose a directory of your own with --data, for example one inside it"
        )
    # A mistyped --data must not change the permissions of a home directory or of /tmp.
    if _list_names(folder) and not _list_names(folder) & _KNOWN_FILES:
        raise UnusableDataFolder(
            f"the data directory {folder} is accessible to other users"
            " and contains files that are not Meshfleet's; "
            f"choose another one with --data, or restrict it: chmod 700 {folder}"
        )
    folder.chmod(0o700)


def _list_names(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


def _lock_file(file: int, folder: Path) -> None:
    """Lock the lock file of a data directory. Retry for a while if another service has locked it."""
    try:
        for attempt in range(_LOCK_ATTEMPTS):
            time.sleep(_LOCK_RETRY_SECONDS if attempt else 0)
            if try_lock_file(file):
                return
    except OSError as exc:
        raise UnusableDataFolder(f"the data directory {folder} cannot be locked: {exc.strerror}") from exc
    raise UnusableDataFolder(
        f"the data directory {folder} is in use by another meshfleet serve; "
        "stop that service, or choose another directory with --data"
    )


def is_data_folder_locked(folder: Path) -> bool:
    """Return whether a running service has locked a data directory."""
    try:
        lock = os.open(folder / LOCK_FILE, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not try_lock_file(lock)
    finally:
        os.close(lock)


def try_lock_file(file: int) -> bool:
    """Lock an open file until it is closed. Return False if another process has locked the file."""
    try:
        import fcntl  # noqa: PLC0415 # missing on Windows, where nothing is locked
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_ADVISORY_LOCK_ID: Final = 0x6D717474
"""Key of the PostgreSQL advisory lock of the service; no other lock on the database uses this key."""


@contextmanager
def hold_service_lock(database: Database, settings: Settings) -> Iterator[None]:
    """Hold the lock of the only service that processes reports with a database, during the `with` block.

    Raise `UnusableDatabase` if another service holds the lock. A service without reports takes no lock.
    """
    if not accepts_reports(settings):
        yield
        return
    with ExitStack() as stack:
        with explain_driver_errors():
            is_acquired = stack.enter_context(database.hold_advisory_lock(_ADVISORY_LOCK_ID))
        if not is_acquired:
            raise UnusableDatabase(
                "another Meshfleet service already processes reports on this database; "
                "stop that service, use another database, or start this one without reports: "
                "--broker embedded --mqtt off"
            )
        yield


def is_service_lock_held(connection: Connection) -> bool:
    """Return whether a service that processes reports uses a PostgreSQL database."""
    statement = (
        "SELECT EXISTS (SELECT FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database"
        " WHERE datname = current_database() AND locktype = 'advisory' AND objid = %s)"
    )
    return bool(connection.exec_driver_sql(statement, (_ADVISORY_LOCK_ID,)).scalar())


def accepts_reports(settings: Settings) -> bool:
    """Return whether a service with these settings receives reports, from either kind of MQTT broker."""
    return any((settings.external_broker, settings.mqtt, settings.mqtt_tls, settings.mqtt_ws))
