"""Log of long-running commands on standard error: text or JSON, with priorities for the systemd journal."""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_TEXT: Final = "%(asctime)s %(levelname)s %(message)s"
_JOURNAL_TEXT: Final = "%(levelname)s %(message)s"  # the journal has the time

_PRIORITIES: Final = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
"""Lowest level of each syslog priority; lower levels have the priority 7 (debug)."""


def log_to_terminal(level: int, log_format: str = "text") -> None:
    """Log messages of this level and above to standard error. `log_format` is `text` or `json`."""
    is_journal = is_journal_stream(os.environ)
    formatter = (
        _JsonFormatter()
        if log_format == "json"
        else logging.Formatter(_JOURNAL_TEXT if is_journal else _TEXT)
    )
    handler = logging.StreamHandler()
    handler.setFormatter(_JournalFormatter(formatter) if is_journal else formatter)
    logging.basicConfig(handlers=[handler], level=level)
    _limit_uvicorn(level)


def set_log_level(level: int) -> None:
    """Set the lowest level of log messages that are written to standard error."""
    logging.getLogger().setLevel(level)
    _limit_uvicorn(level)


def _limit_uvicorn(level: int) -> None:
    """Suppress warnings of uvicorn: with one for each malformed request, any client could flood the log."""
    logging.getLogger("uvicorn.error").setLevel(max(level, logging.ERROR))


def is_journal_stream(variables: Mapping[str, str]) -> bool:
    """Return whether standard error is connected to the systemd journal.

    systemd sets JOURNAL_STREAM to the device and inode numbers of standard error. A child process inherits
    the variable, but its standard error may be another file.
    """
    try:
        status = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):  # closed, or replaced by an object without a file
        return False
    return variables.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


class _JsonFormatter(logging.Formatter):
    """Formats a record as one line with a JSON object. All characters beyond ASCII are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class _JournalFormatter(logging.Formatter):
    """Puts the priority in front of each line of another formatter, such as `<3>`; the journal removes it."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self._formatter = formatter

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        priority = next((number for least, number in _PRIORITIES if record.levelno >= least), 7)
        return "\n".join(f"<{priority}>{line}" for line in self._formatter.format(record).splitlines())
