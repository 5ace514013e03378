"""Checks of the data directory and the machine: permissions, open files, and the clock."""

from __future__ import annotations

import ctypes
import os
import shlex
import stat
import sys
from typing import TYPE_CHECKING, Final

from meshfleet.errors.startup import UnusableDataFolder
from meshfleet.service.backup.restore import check_restore_finished
from meshfleet.service.doctor.finding import RESTORE_COMMAND, Finding, Level
from meshfleet.service.doctor.process import read_open_file_limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.service.doctor.process import RunningService
    from meshfleet.settings import Settings

_OTHERS_MODE: Final = 0o077
_FILES_PER_CONNECTION: Final = 4
"""Files to allow for each MQTT connection: the service also opens segments, and reconnects overlap."""

_TIMEX_BYTES: Final = 512
"""More bytes than the structure `timex` of any system has."""

_CLOCK_UNSYNCHRONIZED: Final = 5


def check_data_folder(settings: Settings, service: RunningService | None) -> Iterator[Finding]:
    """Check that the data directory exists and is private, and say whether a service uses it."""
    data = settings.data.absolute()
    try:
        status = data.stat()
    except FileNotFoundError:
        text = f"{data} does not exist; the service creates it at its first start"
        yield Finding(Level.FAIL, "data", text, f"meshfleet serve --data {shlex.quote(str(data))}")
        return
    mode = stat.S_IMODE(status.st_mode)
    use = "no service is running" if service is None else f"held by {service}"
    text = f"{data}, {mode:04o}, owner {_find_user_name(status.st_uid)}, {use}"
    try:
        check_restore_finished(data)
    except UnusableDataFolder as exc:
        yield Finding(Level.FAIL, "data", str(exc), RESTORE_COMMAND)
        return
    if os.name != "nt" and mode & _OTHERS_MODE:
        text = f"{text}; other users can access it"
        yield Finding(Level.FAIL, "data", text, f"chmod 700 {shlex.quote(str(data))}")
    else:
        yield Finding(Level.OK, "data", text)


def _find_user_name(uid: int) -> str:
    try:
        import pwd  # noqa: PLC0415 # missing on Windows

        return pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError):
        return str(uid)


def check_open_file_limit(settings: Settings, service: RunningService | None) -> Iterator[Finding]:
    """Check that the limit of open files is high enough for all MQTT connections."""
    limit = read_open_file_limit(None if service is None else service.pid)
    has_listener = any((settings.mqtt, settings.mqtt_tls, settings.mqtt_ws))
    connections = settings.limits.connections if has_listener else 0
    needed = _FILES_PER_CONNECTION * connections
    if limit is None or limit >= needed:
        files = "no limit of open files" if limit is None else f"{limit} open files"
        yield Finding(Level.OK, "descriptors", f"{files}, {connections} MQTT connections")
    else:
        # Not a failure: the service starts, and accepts fewer connections.
        text = (
            f"{limit} open files are allowed; limits.connections = {connections} needs {needed}: "
            "the service accepts fewer connections"
        )
        yield Finding(Level.WARN, "descriptors", text, f"ulimit -n {needed}  # systemd: LimitNOFILE={needed}")


def check_clock(state: int | None) -> Iterator[Finding]:
    """Check that the clock of the machine is synchronized. `state` is the result of `read_clock_state`."""
    if state is None:
        yield Finding(Level.OK, "clock", "not known whether it is synchronized")
    elif state == _CLOCK_UNSYNCHRONIZED:
        text = "not synchronized; wrong times make certificates invalid and samples implausible"
        yield Finding(Level.WARN, "clock", text, "timedatectl status")
    else:
        yield Finding(Level.OK, "clock", "synchronized")


def read_clock_state() -> int | None:
    """Return the state of the Linux clock, as `adjtimex` returns it; None if unknown."""
    if sys.platform != "linux":
        return None
    try:
        state: int = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))  # only reads
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state
