"""Which condition an error of the database or of the disk stands for, by its code and never by its text."""

from __future__ import annotations

import errno
import sqlite3
from typing import Final

from sqlalchemy.exc import DBAPIError

from meshfleet.errors import DatabaseUnavailable
from meshfleet.errors.readiness import ReadinessCode

_SQLITE: Final = {
    sqlite3.SQLITE_FULL: ReadinessCode.DISK_FULL,
    sqlite3.SQLITE_BUSY: ReadinessCode.DATABASE_LOCKED,
    sqlite3.SQLITE_LOCKED: ReadinessCode.DATABASE_LOCKED,
}
"""By primary result code."""

_POSTGRESQL: Final = {
    "53100": ReadinessCode.DISK_FULL,
    "55P03": ReadinessCode.DATABASE_LOCKED,  # lock_not_available: `lock_timeout` has passed
    "42P01": ReadinessCode.SCHEMA,  # undefined_table
    "42703": ReadinessCode.SCHEMA,  # undefined_column
}
"""By SQLSTATE."""

_ERRNO: Final = {
    errno.ENOSPC: ReadinessCode.DISK_FULL,
    errno.EDQUOT: ReadinessCode.DISK_FULL,
    errno.EMFILE: ReadinessCode.DESCRIPTORS,
    errno.ENFILE: ReadinessCode.DESCRIPTORS,
}

_PRIMARY_CODE_MASK: Final = 0xFF
"""The bits of an extended result code of SQLite that are its primary code."""


def classify_error(exc: Exception) -> ReadinessCode:
    """Classify an error. What no code tells more about counts as a database that cannot be reached."""
    if isinstance(exc, DatabaseUnavailable):
        return exc.readiness_problem.code
    reason = exc.orig if isinstance(exc, DBAPIError) else exc
    if isinstance(reason, OSError):
        found = _ERRNO.get(reason.errno or 0)
    elif isinstance(reason, sqlite3.Error):
        found = _SQLITE.get(getattr(reason, "sqlite_errorcode", 0) & _PRIMARY_CODE_MASK)
    else:
        found = _POSTGRESQL.get(getattr(reason, "sqlstate", None) or "")
    return found or ReadinessCode.DATABASE_UNREACHABLE
