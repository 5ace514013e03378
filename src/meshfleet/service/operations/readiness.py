"""Whether the service can do its work, and what keeps it from that (rest-160).

Each part knows its own trouble: the broker and the ingest what they cannot commit, the client of another
broker its connection, the database layer what an error code means. Here the troubles are collected and become
sentences. Those name no path, no address and no table: `/readyz` is open to all, and the details are logged.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import DBAPIError

from meshfleet.db.database import words
from meshfleet.db.outages import cause_of
from meshfleet.db.schema import is_current
from meshfleet.errors import DatabaseUnavailable, ReadinessCode, Trouble
from meshfleet.service.operations.descriptors import are_descriptors_scarce
from meshfleet.wire.rest import ReadinessReason

if TYPE_CHECKING:
    from typing import Protocol

    from meshfleet.db import Database

    class Part(Protocol):
        """A part of the service that takes reports: a broker, the client of one, or the ingest."""

        @property
        def trouble(self) -> Trouble | None:
            """Why it takes none at the moment."""


_log = logging.getLogger(__name__)

_PATIENCE: Final = 5.0
"""Seconds that the database has to answer: those who probe wait no longer."""

TEXTS: Final = {
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

_SERVER_DISK_FULL: Final = (
    "The disk of the database server is full. Reports are not acknowledged until space is free."
)


class Readiness:
    """Collects what keeps the service from its work."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._is_awaited = False
        self._is_draining = False
        self._question: asyncio.Task[Trouble | None] | None = None
        self._logged: set[ReadinessCode] = set()

    def await_taker(self) -> None:
        """Count the service as starting until the first part is watched."""
        self._is_awaited = True

    def watch(self, part: Part) -> None:
        """Let the trouble of a part count from now on."""
        self._parts.append(part)

    def drain(self) -> None:
        """Count the service as not ready from now on: it shuts down."""
        self._is_draining = True

    def troubles(self) -> list[Trouble]:
        """Collect what is known without asking the database."""
        found = [each.trouble for each in self._parts]
        if self._is_awaited and not self._parts:
            found.append(Trouble(ReadinessCode.STARTING, "the intake of reports is starting"))
        if are_descriptors_scarce():
            found.append(
                Trouble(ReadinessCode.DESCRIPTORS, "almost no file descriptors are left (ulimit -n)")
            )
        if self._is_draining:
            found.append(Trouble(ReadinessCode.DRAINING, "the service shuts down"))
        return [each for each in found if each is not None]

    async def examine(self, database: Database) -> tuple[ReadinessReason, ...]:
        """Collect all reasons why the service is not ready, each code once; none: it is ready."""
        troubles = self.troubles()
        if (unanswered := await self._ask(database)) is not None:
            troubles.append(unanswered)
        self._log_changes(troubles)
        return tuple(
            reason(code, is_sqlite=database.is_sqlite)
            for code in dict.fromkeys(each.code for each in troubles)
        )

    async def _ask(self, database: Database) -> Trouble | None:
        """Ask the database; probes that come meanwhile share the question, so that they take no threads."""
        question = self._question
        if question is None or question.done():
            question = self._question = asyncio.create_task(_ask(database), name="readiness")
        done, _ = await asyncio.wait({question}, timeout=_PATIENCE)
        if not done:
            late = f"the database has not answered for {_PATIENCE:g} s"
            return Trouble(ReadinessCode.DATABASE_UNREACHABLE, late)
        return question.result()  # of ours: the next probe may have asked again by now

    def _log_changes(self, troubles: list[Trouble]) -> None:
        """Log what is new: a probe comes every few seconds, and says the same every time."""
        codes = {each.code for each in troubles} - {ReadinessCode.STARTING, ReadinessCode.DRAINING}
        for each in troubles:
            if each.code in codes - self._logged:
                _log.warning("not ready (%s): %s", each.code, each.detail)
        if self._logged and not codes:
            _log.warning("ready again")
        self._logged = codes


def reason(code: ReadinessCode, *, is_sqlite: bool = True) -> ReadinessReason:
    """Put a code into words."""
    on_server = code is ReadinessCode.DISK_FULL and not is_sqlite
    return ReadinessReason(code=code, text=_SERVER_DISK_FULL if on_server else TEXTS[code])


async def _ask(database: Database) -> Trouble | None:
    try:
        if await database.read(is_current):
            return None
    except DatabaseUnavailable as exc:
        return exc.trouble
    except DBAPIError as exc:  # such as a permission that was taken away
        return Trouble(cause_of(exc), f"the database refuses to tell its schema: {words(exc)}")
    return Trouble(ReadinessCode.SCHEMA, "the schema of the database was changed by another version")
