"""One service that takes reports per database: a second one is refused before it listens or changes anything.

A SQLite database belongs to a data folder, and that is locked for one service (`folder.held`). On PostgreSQL
the service holds an advisory lock on a connection of its own, which the server drops when that connection
ends. The whole check is here, and nothing else relies on it: a service that lost its place is kept from
writing by the token of `broker_owner`.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from meshfleet.db import explain_driver_errors
from meshfleet.errors.startup import UnusableDatabase, UnusableFolder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from meshfleet.db import Database
    from meshfleet.settings import Settings


# The data directory: nobody else reads it, and one service at a time uses it (rest-170).

_LOCK_FILE: Final = "meshfleet.lock"
_KNOWN_FILES: Final = {_LOCK_FILE, "meshfleet.sqlite"}
_OTHERS_MODE: Final = 0o077
"""What the group and everybody else may do."""


@contextmanager
def hold_data_folder(folder: Path) -> Iterator[None]:
    """Make a data directory, or take one that is there; no other service gets it while the block runs.

    The hold ends with the process, however that ends.
    """
    try:
        _create_folder(folder)
        _make_private(folder)
        lock = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as exc:
        reason = f"{exc.strerror} ({exc.filename})"
        raise UnusableFolder(f"the data directory {folder} cannot be used: {reason}") from exc
    try:
        _lock_file(lock, folder)
        yield
    finally:
        os.close(lock)


def _create_folder(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(0o700)
    except FileExistsError:
        if not folder.is_dir():
            raise UnusableFolder(f"{folder} is no directory; give another one with --data") from None


def _make_private(folder: Path) -> None:
    """Shut others out of a directory that is there for us alone."""
    status = folder.stat()
    if os.name == "nt" or not status.st_mode & _OTHERS_MODE:  # Windows has no such modes
        return
    if status.st_uid != os.geteuid():
        raise UnusableFolder(
            f"others can read the data directory {folder}, which is not yours; "
            "give a directory of your own with --data, perhaps one inside it"
        )
    # Somebody's home, or all of /tmp, is not shut because of a slip of the pen.
    if _list_names(folder) and not _list_names(folder) & _KNOWN_FILES:
        raise UnusableFolder(
            f"others can read the data directory {folder}, which holds other things already; "
            f"give another one with --data, or shut it: chmod 700 {folder}"
        )
    folder.chmod(0o700)


def _list_names(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


def _lock_file(file: int, folder: Path) -> None:
    try:
        import fcntl  # noqa: PLC0415 # not there on Windows: there it is up to the operator
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UnusableFolder(
            f"the data directory {folder} is in use by another meshfleet serve; "
            "stop that one, or give this one a directory of its own with --data"
        ) from None
    except OSError as exc:
        raise UnusableFolder(f"the data directory {folder} cannot be locked: {exc.strerror}") from exc


_ADVISORY_LOCK_ID: Final = 0x6D717474
"""Any number, as long as no other lock on the database has it."""


@contextmanager
def hold_service_lock(database: Database, settings: Settings) -> Iterator[None]:
    """Be the only service that takes reports into this database while the block runs, or raise.

    A service without any way in for reports shares its database with others.
    """
    if not accepts_reports(settings):
        yield
        return
    with ExitStack() as stack:
        with explain_driver_errors():
            is_alone = stack.enter_context(database.hold_advisory_lock(_ADVISORY_LOCK_ID))
        if not is_alone:
            raise UnusableDatabase(
                "another Meshfleet takes reports into this database, with its own broker or from another; "
                "stop that one, give this one a database of its own, or let it take no reports: "
                "--broker embedded --mqtt off"
            )
        yield


def accepts_reports(settings: Settings) -> bool:
    """Tell whether gateways or another broker can bring reports to a service with these settings."""
    return any((settings.external_broker, settings.mqtt, settings.mqtt_tls, settings.mqtt_ws))
