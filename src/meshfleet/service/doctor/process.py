"""Facts about other processes: which service uses a data directory, and which process uses a port."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.service.locks import LOCK_FILE, try_lock_file

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROC: Final = Path("/proc")
_LISTENING: Final = "0A"
"""State of a listening socket in /proc/net/tcp."""

_STATE_COLUMN, _INODE_COLUMN = 3, 9


class RunningService(NamedTuple):
    """Service that has locked a data directory."""

    pid: int | None
    """Process id; None if this system does not show it."""

    def __str__(self) -> str:
        return "a running service" if self.pid is None else f"pid {self.pid}"


def find_running_service(data: Path) -> RunningService | None:
    """Return the service that uses a data directory; None if there is none."""
    try:
        file = os.open(data / LOCK_FILE, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        if try_lock_file(file):  # released at once: closing the file ends the lock
            return None
        return RunningService(_find_lock_owner(os.fstat(file).st_ino))
    finally:
        os.close(file)


def _find_lock_owner(inode: int) -> int | None:
    """Return the id of the process that has locked the file with this inode; None if unknown."""
    with suppress(OSError):
        for line in (_PROC / "locks").read_text().splitlines():
            _, kind, *_, pid, place, _, _ = line.split()
            if kind == "FLOCK" and place.endswith(f":{inode}") and int(pid) > 0:
                return int(pid)
    return None


def find_port_owner(port: int) -> str | None:
    """Return the process that listens on a port, as text; None if this user is not allowed to see it."""
    sockets = {f"socket:[{inode}]" for inode in _list_listening_inodes(port)}
    for folder in _PROC.glob("[0-9]*"):
        with suppress(OSError):
            if any(str(link.readlink()) in sockets for link in (folder / "fd").iterdir()):
                return f"pid {folder.name} ({(folder / 'comm').read_text().strip()})"
    return None


def _list_listening_inodes(port: int) -> Iterator[str]:
    """Yield the inodes of the sockets that listen on a TCP port."""
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (_PROC / "net" / name).read_text().splitlines()[1:]:
                columns = line.split()
                is_listening = columns[_STATE_COLUMN] == _LISTENING
                if is_listening and int(columns[1].rpartition(":")[2], 16) == port:
                    yield columns[_INODE_COLUMN]


def read_open_file_limit(pid: int | None) -> int | None:
    """Return the maximum number of open files of a process; None if there is no limit.

    If `pid` is None, the limit is that of this process.
    """
    if pid is not None:
        with suppress(OSError):
            for line in (_PROC / str(pid) / "limits").read_text().splitlines():
                if line.startswith("Max open files"):
                    hard = line.split()[4]
                    return int(hard) if hard.isdecimal() else None
    try:
        import resource  # noqa: PLC0415 # missing on Windows, which has no such limit
    except ImportError:
        return None
    hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if hard_limit == resource.RLIM_INFINITY else hard_limit
