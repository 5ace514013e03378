"""File of a backup: written under a temporary name, and named when it is complete and on the disk."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from errno import EMLINK, ENOSYS, EOPNOTSUPP, EPERM
from pathlib import Path
from stat import S_ISREG
from tempfile import mkstemp
from typing import IO, TYPE_CHECKING, Final, NamedTuple

from meshfleet.db.samples.segments import sync_path
from meshfleet.service.locks import try_lock_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_UNFINISHED_PREFIX: Final = ".meshfleet-backup-"
_NO_LINK_ERRNOS: Final = {EMLINK, ENOSYS, EOPNOTSUPP, EPERM}
"""Error numbers of a file system without hard links, such as that of a USB stick or a network share."""


class UnfinishedFile(NamedTuple):
    """File that has only a temporary name."""

    path: Path
    file: IO[bytes]


@contextmanager
def create_unfinished_file(folder: Path) -> Iterator[UnfinishedFile]:
    """Create a locked file that only its owner can read. It is removed after the `with` block.

    Files of backups that were killed are removed before.
    """
    _remove_unfinished_files(folder)
    while True:
        descriptor, name = mkstemp(prefix=_UNFINISHED_PREFIX, dir=folder)
        path = Path(name)
        with os.fdopen(descriptor, "w+b") as file:
            # Until it is locked, another backup may take it for the file of a killed one, and remove it.
            if not try_lock_file(descriptor) or os.fstat(descriptor).st_nlink == 0:
                continue
            try:
                yield UnfinishedFile(path, file)
            finally:
                path.unlink(missing_ok=True)
            return


def _remove_unfinished_files(folder: Path) -> None:
    """Remove files of backups that were killed. Those of running backups are locked.

    Leave alone what this user cannot open: the directory may be shared with other users.
    """
    for path in folder.glob(f"{_UNFINISHED_PREFIX}*"):
        with suppress(FileNotFoundError, PermissionError):
            if not S_ISREG(path.lstat().st_mode):  # opening a named pipe would wait forever
                continue
            with path.open("rb") as file:
                if try_lock_file(file.fileno()):
                    path.unlink()


def publish_file(unfinished: Path, path: Path, *, link: Callable[[Path, Path], None] = os.link) -> None:
    """Give a synced file its final name. Raise `FileExistsError` instead of replacing a file."""
    try:
        link(unfinished, path)  # unlike a rename, it never replaces a file
    except OSError as exc:
        if exc.errno not in _NO_LINK_ERRNOS:
            raise
        if os.path.lexists(path):
            raise FileExistsError from exc
        unfinished.rename(path)
    sync_path(path.parent)
