"""Backup file: written under a temporary name, and renamed when it is complete and on the disk."""

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
    """Backup file that is being written, and its temporary path."""

    path: Path
    file: IO[bytes]


@contextmanager
def create_unfinished_file(folder: Path) -> Iterator[UnfinishedFile]:
    """Create a locked file with a temporary name, which only its owner can read.

    The temporary name is removed after the `with` block. First remove the files that killed backups left.
    """
    _remove_unfinished_files(folder)
    while True:
        try:
            descriptor, name = mkstemp(prefix=_UNFINISHED_PREFIX, dir=folder)
        except OSError as exc:
            raise OSError(exc.errno, exc.strerror, str(folder)) from exc  # not with the temporary name
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
    """Remove the files that killed backups left. Files of running backups are locked, and stay.

    Files that this user cannot open stay too: the directory may be shared with other users.
    """
    for path in folder.glob(f"{_UNFINISHED_PREFIX}*"):
        with suppress(FileNotFoundError, PermissionError):
            if not S_ISREG(path.lstat().st_mode):  # opening a named pipe would wait forever
                continue
            with path.open("rb") as file:
                if try_lock_file(file.fileno()):
                    path.unlink()


def rename_finished_file(
    unfinished: Path, path: Path, *, link: Callable[[Path, Path], None] = os.link
) -> None:
    """Give a backup file that is on the disk its final name. Raise `FileExistsError` if the name is in use.

    Only tests pass `link`, the function that creates a hard link.
    """
    try:
        link(unfinished, path)  # unlike a rename, it never replaces a file
    except OSError as exc:
        if exc.errno not in _NO_LINK_ERRNOS:
            raise
        if os.path.lexists(path):
            raise FileExistsError from exc
        unfinished.rename(path)
    sync_path(path.parent)
