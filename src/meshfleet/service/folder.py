"""The data directory: nobody else reads it, and one service at a time uses it (rest-170)."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from meshfleet.errors import UnusableFolder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LOCK: Final = "meshfleet.lock"
_OURS: Final = {_LOCK, "meshfleet.sqlite"}
_OTHERS: Final = 0o077
"""What the group and everybody else may do."""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Make a data directory, or take one that is there; no other service gets it while the block runs.

    The hold ends with the process, however that ends.
    """
    try:
        _make(folder)
        _make_private(folder)
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as exc:
        reason = f"{exc.strerror} ({exc.filename})"
        raise UnusableFolder(f"the data directory {folder} cannot be used: {reason}") from exc
    try:
        _lock(lock, folder)
        yield
    finally:
        os.close(lock)


def _make(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(0o700)
    except FileExistsError:
        if not folder.is_dir():
            raise UnusableFolder(f"{folder} is no directory; give another one with --data") from None


def _make_private(folder: Path) -> None:
    """Shut others out of a directory that is there for us alone."""
    status = folder.stat()
    if os.name == "nt" or not status.st_mode & _OTHERS:  # Windows has no such modes
        return
    if status.st_uid != os.geteuid():
        raise UnusableFolder(
            f"others can read the data directory {folder}, which is not yours; "
            "give a directory of your own with --data, perhaps one inside it"
        )
    # Somebody's home, or all of /tmp, is not shut because of a slip of the pen.
    if _names(folder) and not _names(folder) & _OURS:
        raise UnusableFolder(
            f"others can read the data directory {folder}, which holds other things already; "
            f"give another one with --data, or shut it: chmod 700 {folder}"
        )
    folder.chmod(0o700)


def _names(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


def _lock(file: int, folder: Path) -> None:
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
