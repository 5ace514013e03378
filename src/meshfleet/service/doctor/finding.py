"""Result of a check of `doctor` or `upgrade-check`."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct
from sqlalchemy.exc import DBAPIError

from meshfleet.db.database import describe_driver_error
from meshfleet.errors import FleetError

RESTORE_COMMAND: Final = "meshfleet restore FILE --replace"


class Level(StrEnum):
    """How serious a finding is."""

    OK = "ok"
    WARN = "warn"
    """The service works, but something needs attention before it becomes a failure."""
    FAIL = "fail"
    """The service does not work, does not start, or loses something soon."""


class Finding(Struct, frozen=True, rename="camel"):
    """Result of a check, for operators. It contains no secret."""

    level: Level
    check: str
    text: str
    next_command: str | None = None
    """Command with which the operator goes on; None if there is nothing to do."""


def describe_error(exc: Exception) -> str:
    """Describe an error in one line.

    The text of an error of another library may contain secrets: only the name of its class is returned.
    """
    if isinstance(exc, DBAPIError):
        return describe_driver_error(exc)
    if isinstance(exc, OSError) and exc.strerror:
        return f"{exc.strerror}: {exc.filename}" if exc.filename else exc.strerror
    return str(exc) if isinstance(exc, FleetError) else type(exc).__name__
