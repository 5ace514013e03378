"""Readiness of the service, and the reasons why it is not ready (rest-160).

Parts of the service report problems: the embedded broker and the ingest pipeline report failed commits, the
client of an external broker reports a lost connection, and the database layer reports failed reads and writes
of all parts, so also those of users and jobs while no reports arrive. This
module collects the problems and turns them into sentences for operators. The sentences contain no path,
address or table, because `/readyz` needs no authentication; the details are logged.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import DBAPIError

from meshfleet.db.database import describe_driver_error
from meshfleet.db.driver_errors import classify_error
from meshfleet.db.schema import is_schema_current
from meshfleet.errors import DatabaseUnavailable
from meshfleet.errors.readiness import ReadinessCode, ReadinessProblem
from meshfleet.rest.operations import ReadinessReason

# Check whether this process has file descriptors left.

_SPARE_DESCRIPTORS: Final = 16
"""Number of file descriptors to keep free for sample files and new database connections."""


def are_descriptors_scarce() -> bool:
    """Return whether this process has at most `_SPARE_DESCRIPTORS` file descriptors left (soft limit).

    A new descriptor gets the lowest free number, so the number of a newly opened file shows how many are in
    use. Listing all descriptors would block the event loop for milliseconds with 10,000 connections.
    """
    try:
        import resource  # noqa: PLC0415 # missing on Windows, which has no such limit
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

    from sqlalchemy import Connection

    from meshfleet.db import Database

    class HealthCheck(Protocol):
        """Part of the service that processes reports: embedded broker, external broker client, or ingest."""

        @property
        def problem(self) -> ReadinessProblem | None:
            """Problem that keeps this part of the service from processing reports, or None."""


_log = logging.getLogger(__name__)

_DATABASE_TIMEOUT_SECONDS: Final = 5.0
"""Maximum seconds that a readiness check waits for the database; health probes do not wait longer."""

_RETRY_SECONDS: Final = 3.0
"""Seconds between two trial writes after a failed write."""

READINESS_TEXTS: Final = {
    ReadinessCode.STARTING: "The service is starting.",
    ReadinessCode.DISK_FULL: (
        "The disk of the data directory is full. Reports are not acknowledged until space is free."
    ),
    ReadinessCode.DATABASE_UNREACHABLE: (
        "The database does not respond, or cannot store data. See the log of the service."
    ),
    ReadinessCode.DATABASE_LOCKED: "Another process keeps the database locked. Find and stop it.",
    ReadinessCode.SCHEMA: "Another version of the service has changed the database schema. Run that version.",
    ReadinessCode.BROKER: (
        "The MQTT broker cannot be reached, or does not deliver reports. See the log of the service."
    ),
    ReadinessCode.DESCRIPTORS: (
        "The service has almost no file descriptors left and may refuse new connections. Raise its limit."
    ),
    ReadinessCode.DRAINING: "The service is shutting down.",
}
"""Sentence for operators by readiness code. The sentences may change, but the codes do not."""

_SERVER_DISK_FULL_TEXT: Final = (
    "The disk of the database server is full. Reports are not acknowledged until space is free."
)


class Readiness:
    """Collects the reasons why the service is not ready."""

    def __init__(self) -> None:
        self._checks: list[HealthCheck] = []
        self._expects_intake = False
        self._is_draining = False
        self._database_check: asyncio.Task[ReadinessProblem | None] | None = None
        self._logged: set[ReadinessCode] = set()

    def expect_report_intake(self) -> None:
        """Report a service that receives reports as starting, until `add_check` is called."""
        self._expects_intake = True

    def add_check(self, check: HealthCheck) -> None:
        """Add a check of a part of the service. A problem of this part makes the service not ready."""
        self._checks.append(check)

    def drain(self) -> None:
        """Report the service as shutting down from now on."""
        self._is_draining = True

    def list_problems(self) -> list[ReadinessProblem]:
        """Return all current readiness problems, except those that need a database query."""
        problems = [each.problem for each in self._checks]
        if self._expects_intake and not self._checks:
            problems.append(ReadinessProblem(ReadinessCode.STARTING, "report processing is starting"))
        if are_descriptors_scarce():
            problems.append(
                ReadinessProblem(
                    ReadinessCode.DESCRIPTORS,
                    "almost no file descriptors are left, raise the limit (ulimit -n)",
                )
            )
        if self._is_draining:
            problems.append(ReadinessProblem(ReadinessCode.DRAINING, "the service is shutting down"))
        return [each for each in problems if each is not None]

    async def list_reasons(self, database: Database) -> tuple[ReadinessReason, ...]:
        """Return the reasons why the service is not ready, each code once; empty if the service is ready."""
        database_problems = (database.write_problem, await self._check_database(database))
        problems: dict[ReadinessCode, ReadinessProblem] = {}
        for each in (*self.list_problems(), *database_problems):
            if each is not None:
                problems.setdefault(each.code, each)
        self._log_changes(problems)
        return tuple(build_reason(code, is_sqlite=database.is_sqlite) for code in problems)

    async def _check_database(self, database: Database) -> ReadinessProblem | None:
        """Query the database and return its problem, or None. Concurrent health probes share one query."""
        check = self._database_check
        if check is None or check.done():
            check = self._database_check = asyncio.create_task(_query_schema(database), name="readiness")
        done, _ = await asyncio.wait({check}, timeout=_DATABASE_TIMEOUT_SECONDS)
        if not done:
            detail = f"the database did not respond within {_DATABASE_TIMEOUT_SECONDS:g} s"
            return ReadinessProblem(ReadinessCode.DATABASE_UNREACHABLE, detail)
        return check.result()  # the local task: another probe may have replaced the attribute by now

    def _log_changes(self, problems: dict[ReadinessCode, ReadinessProblem]) -> None:
        """Log only problems that are new since the last health probe, as probes come every few seconds."""
        codes = problems.keys() - {ReadinessCode.STARTING, ReadinessCode.DRAINING}
        for code, problem in problems.items():
            if code in codes - self._logged:
                _log.warning("not ready (%s): %s", code, problem.detail)
        if self._logged and not codes:
            _log.warning("ready again")
        self._logged = codes


def build_reason(code: ReadinessCode, *, is_sqlite: bool = True) -> ReadinessReason:
    """Return the reason that `/readyz` returns for a code: the code and its sentence for operators."""
    is_server_disk = code is ReadinessCode.DISK_FULL and not is_sqlite
    return ReadinessReason(
        code=code, text=_SERVER_DISK_FULL_TEXT if is_server_disk else READINESS_TEXTS[code]
    )


async def retry_failed_writes(database: Database, *, pause: float = _RETRY_SECONDS) -> None:
    """Make a trial write every `pause` seconds while the last write has failed. Run until canceled.

    A service that is not ready may get no requests: without trial writes it would not become ready again.
    """
    while True:
        await asyncio.sleep(pause)
        if database.write_problem is not None:
            with suppress(DatabaseUnavailable, DBAPIError):  # the problem stays
                await database.write(_rewrite_schema_version)


def _rewrite_schema_version(connection: Connection) -> None:
    """Write the only row that every database has, without changing it. This needs disk space."""
    connection.exec_driver_sql("UPDATE alembic_version SET version_num = version_num")


async def _query_schema(database: Database) -> ReadinessProblem | None:
    """Return the problem of the database or its schema; None if there is none."""
    try:
        if await database.read(is_schema_current):
            return None
    except DatabaseUnavailable as exc:
        return exc.readiness_problem
    except DBAPIError as exc:  # for example a revoked permission
        return ReadinessProblem(
            classify_error(exc),
            f"the schema version of the database cannot be read: {describe_driver_error(exc)}",
        )
    return ReadinessProblem(
        ReadinessCode.SCHEMA, "the database schema was changed by another version of the service"
    )
