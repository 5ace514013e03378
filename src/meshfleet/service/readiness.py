"""Whether the service can do its work, and what keeps it from that (rest-160).

Each part knows its own trouble: the broker and the ingest what they cannot commit, the client of another
broker its connection, the database layer what an error code means. Here the troubles are collected and become
sentences. Those name no path, no address and no table: `/readyz` is open to all, and the details are logged.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import DBAPIError

from meshfleet.db.database import describe_driver_error
from meshfleet.db.driver_errors import classify_error
from meshfleet.db.schema import is_schema_current
from meshfleet.errors import DatabaseUnavailable
from meshfleet.errors.readiness import ReadinessCode, ReadinessProblem
from meshfleet.rest import ReadinessReason

# How many file descriptors this process has left.

_SPARE_DESCRIPTORS: Final = 16
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
    return soft != resource.RLIM_INFINITY and lowest >= soft - _SPARE_DESCRIPTORS


if TYPE_CHECKING:
    from typing import Protocol

    from meshfleet.db import Database

    class HealthCheck(Protocol):
        """A part of the service that takes reports: a broker, the client of one, or the ingest."""

        @property
        def trouble(self) -> ReadinessProblem | None:
            """Why it takes none at the moment."""


_log = logging.getLogger(__name__)

_DATABASE_TIMEOUT_SECONDS: Final = 5.0
"""Seconds that the database has to answer: those who probe wait no longer."""

READINESS_TEXTS: Final = {
    ReadinessCode.STARTING: "The service is starting.",
    ReadinessCode.DISK_FULL: (
        "The disk of the data folder is full. Reports are not acknowledged until space is free."
    ),
    ReadinessCode.DATABASE_UNREACHABLE: "The database does not answer, or does not store what it is given.",
    ReadinessCode.DATABASE_LOCKED: "Another program keeps the database locked.",
    ReadinessCode.SCHEMA: "The database has another schema than this version of the service needs.",
    ReadinessCode.BROKER: "The MQTT broker cannot be reached, or does not send reports to the service.",
    ReadinessCode.DESCRIPTORS: (
        "The service has almost no file descriptors left, so it may refuse new connections."
    ),
    ReadinessCode.DRAINING: "The service is shutting down.",
}
"""What people read. They may change; the codes do not."""

_SERVER_DISK_FULL_TEXT: Final = (
    "The disk of the database server is full. Reports are not acknowledged until space is free."
)


class Readiness:
    """Collects what keeps the service from its work."""

    def __init__(self) -> None:
        self._checks: list[HealthCheck] = []
        self._expects_intake = False
        self._is_draining = False
        self._database_check: asyncio.Task[ReadinessProblem | None] | None = None
        self._logged: set[ReadinessCode] = set()

    def expect_report_intake(self) -> None:
        """Count the service as starting until the first part is watched."""
        self._expects_intake = True

    def add_check(self, check: HealthCheck) -> None:
        """Let the trouble of a part count from now on."""
        self._checks.append(check)

    def drain(self) -> None:
        """Count the service as not ready from now on: it shuts down."""
        self._is_draining = True

    def list_troubles(self) -> list[ReadinessProblem]:
        """Collect what is known without asking the database."""
        found = [each.trouble for each in self._checks]
        if self._expects_intake and not self._checks:
            found.append(ReadinessProblem(ReadinessCode.STARTING, "the intake of reports is starting"))
        if are_descriptors_scarce():
            found.append(
                ReadinessProblem(ReadinessCode.DESCRIPTORS, "almost no file descriptors are left (ulimit -n)")
            )
        if self._is_draining:
            found.append(ReadinessProblem(ReadinessCode.DRAINING, "the service shuts down"))
        return [each for each in found if each is not None]

    async def list_reasons(self, database: Database) -> tuple[ReadinessReason, ...]:
        """Collect all reasons why the service is not ready, each code once; none: it is ready."""
        troubles = self.list_troubles()
        if (unanswered := await self._check_database(database)) is not None:
            troubles.append(unanswered)
        self._log_changes(troubles)
        return tuple(
            build_reason(code, is_sqlite=database.is_sqlite)
            for code in dict.fromkeys(each.code for each in troubles)
        )

    async def _check_database(self, database: Database) -> ReadinessProblem | None:
        """Ask the database; probes that come meanwhile share the question, so that they take no threads."""
        question = self._database_check
        if question is None or question.done():
            question = self._database_check = asyncio.create_task(_query_schema(database), name="readiness")
        done, _ = await asyncio.wait({question}, timeout=_DATABASE_TIMEOUT_SECONDS)
        if not done:
            late = f"the database has not answered for {_DATABASE_TIMEOUT_SECONDS:g} s"
            return ReadinessProblem(ReadinessCode.DATABASE_UNREACHABLE, late)
        return question.result()  # of ours: the next probe may have asked again by now

    def _log_changes(self, troubles: list[ReadinessProblem]) -> None:
        """Log what is new: a probe comes every few seconds, and says the same every time."""
        codes = {each.code for each in troubles} - {ReadinessCode.STARTING, ReadinessCode.DRAINING}
        for each in troubles:
            if each.code in codes - self._logged:
                _log.warning("not ready (%s): %s", each.code, each.detail)
        if self._logged and not codes:
            _log.warning("ready again")
        self._logged = codes


def build_reason(code: ReadinessCode, *, is_sqlite: bool = True) -> ReadinessReason:
    """Put a code into words."""
    on_server = code is ReadinessCode.DISK_FULL and not is_sqlite
    return ReadinessReason(code=code, text=_SERVER_DISK_FULL_TEXT if on_server else READINESS_TEXTS[code])


async def _query_schema(database: Database) -> ReadinessProblem | None:
    try:
        if await database.read(is_schema_current):
            return None
    except DatabaseUnavailable as exc:
        return exc.readiness_problem
    except DBAPIError as exc:  # such as a permission that was taken away
        return ReadinessProblem(
            classify_error(exc), f"the database refuses to tell its schema: {describe_driver_error(exc)}"
        )
    return ReadinessProblem(ReadinessCode.SCHEMA, "the schema of the database was changed by another version")
