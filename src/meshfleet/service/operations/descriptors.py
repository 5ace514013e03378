"""How many file descriptors this process has left."""

from __future__ import annotations

import errno
import os
from typing import Final

_SPARE: Final = 16
"""Descriptors that files of samples and new database connections need at least."""


def are_descriptors_scarce() -> bool:
    """Tell whether no more than `_SPARE` descriptors are left below the soft limit of this process.

    A new descriptor gets the lowest free number, so one probe tells how many are in use without listing
    them: with 10,000 connections that would take milliseconds of the event loop.
    """
    try:
        import resource  # noqa: PLC0415 # not there on Windows, which has no such limit
    except ImportError:
        return False
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        lowest = os.open(os.devnull, os.O_RDONLY)
    except OSError as exc:
        return exc.errno in {errno.EMFILE, errno.ENFILE}
    os.close(lowest)
    return soft != resource.RLIM_INFINITY and lowest >= soft - _SPARE
