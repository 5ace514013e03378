"""Classification of database and disk errors by error code, never by error message."""

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
"""Readiness code of the service by primary result code of SQLite."""

_SQLITE_DAMAGED: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
"""Primary result codes of SQLite for a damaged file."""

_POSTGRESQL: Final = {
    "53100": ReadinessCode.DISK_FULL,
    "55P03": ReadinessCode.DATABASE_LOCKED,  # lock_not_available: `lock_timeout` has passed
    "42P01": ReadinessCode.SCHEMA,  # undefined_table
    "42703": ReadinessCode.SCHEMA,  # undefined_column
}
"""Readiness code of the service by SQLSTATE of PostgreSQL."""

_ERRNO: Final = {
    errno.ENOSPC: ReadinessCode.DISK_FULL,
    errno.EDQUOT: ReadinessCode.DISK_FULL,
    errno.EMFILE: ReadinessCode.DESCRIPTORS,
    errno.ENFILE: ReadinessCode.DESCRIPTORS,
}

_PRIMARY_CODE_MASK: Final = 0xFF
"""Bits of an extended SQLite result code that hold the primary code."""


def classify_error(exc: Exception) -> ReadinessCode:
    """Return the readiness code of a database or disk error; DATABASE_UNREACHABLE for all other errors."""
    if isinstance(exc, DatabaseUnavailable):
        return exc.readiness_problem.code
    reason = exc.orig if isinstance(exc, DBAPIError) else exc
    if isinstance(reason, OSError):
        code = _ERRNO.get(reason.errno or 0)
    elif isinstance(reason, sqlite3.Error):
        code = _SQLITE.get(_read_primary_code(reason))
    else:
        code = _POSTGRESQL.get(getattr(reason, "sqlstate", None) or "")
    return code or ReadinessCode.DATABASE_UNREACHABLE


def is_sqlite_damaged(exc: Exception) -> bool:
    """Return whether an error was raised because the file of an SQLite database is damaged."""
    reason = exc.orig if isinstance(exc, DBAPIError) else exc
    return isinstance(reason, sqlite3.Error) and _read_primary_code(reason) in _SQLITE_DAMAGED


def _read_primary_code(reason: sqlite3.Error) -> int:
    return int(getattr(reason, "sqlite_errorcode", 0)) & _PRIMARY_CODE_MASK
