"""Reads from devices what they never reported of what they are: model, variant, versions (rest-47).

Gently: a few at a time, one through each gateway, with the lowest priority, and later and later when there is
no answer. What is read is taken over as if it had been reported at that moment.
"""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import TYPE_CHECKING, Final

from msgspec import UNSET
from sqlalchemy.exc import DBAPIError

from meshfleet.errors import (
    DatabaseUnavailable,
    GatewayTimeout,
    MalformedResponse,
    Unanswered,
    UndecodableValue,
    WireError,
)
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import Sighting
from meshfleet.service.ingest.facts import FACTS, SEEN
from meshfleet.service.inquiry import candidates
from meshfleet.service.inquiry.backlog import Backlog
from meshfleet.service.inquiry.backoff import Backoff, Question
from meshfleet.wire.codes import Operation, Priority, Status
from meshfleet.wire.identifiers import BUILTIN
from meshfleet.wire.identifiers.numbers import number_identifier
from meshfleet.wire.ids import number_mac
from meshfleet.wire.requests import Read
from meshfleet.wire.responses import ReadResponse
from meshfleet.wire.topics import RequestTopic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.db import Database
    from meshfleet.service.clock import Now
    from meshfleet.service.inquiry.candidates import Candidate
    from meshfleet.service.requests.asking import Asking
    from meshfleet.service.requests.gateway_selection import SelectGateways
    from meshfleet.wire.responses import Response

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 4
"""Devices that are asked at the same time."""

_PATIENCE: Final = 20.0
"""Seconds for an answer; a gateway itself waits 10 for a device."""

_BETWEEN: Final = 10_000
"""Milliseconds between two looks for candidates."""

_REFUSALS: Final = frozenset(
    {
        Status.INVALID_REQUEST,
        Status.UNKNOWN_OPERATION,
        Status.UNKNOWN_IDENTIFIER,
        Status.NOT_SUPPORTED,
        Status.ACCESS_NOT_ALLOWED,
        Status.ACCESS_DENIED,
    }
)
"""Answers that another try does not change."""


class Inquiry:
    """Asks devices about themselves."""

    def __init__(  # noqa: PLR0913 # by name
        self,
        database: Database,
        asking: Asking,
        *,
        now: Now,
        steady: Now,
        patience: float = _PATIENCE,
        select: SelectGateways | None = None,
    ) -> None:
        """`now` is the time of answers; `steady` never jumps, so pauses between questions go by it.

        `select` chooses gateways; None: each device is asked through the gateway that it belongs to.
        """
        self._database = database
        self._asking = asking
        self._now = now
        self._steady = steady
        self._patience = patience
        self._select = select
        self._backoff = Backoff()
        self._backlog = Backlog()
        self._random = Random()  # noqa: S311 # who is asked first is no secret
        self._after = dict.fromkeys(candidates.UNKNOWN, -1)
        """How far each walk has come."""
        self._looked_at: int | None = None
        self._is_failing = False

    async def run(self, *, pause: float = 1.0) -> None:
        """Ask until cancelled; so many seconds pass before others are asked."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self.go_on(tasks)
                await asyncio.sleep(pause)

    async def go_on(self, tasks: asyncio.TaskGroup) -> None:
        """Look for candidates, if it is time to, and ask as many as may be asked."""
        moment = self._steady()
        if self._looked_at is None or moment - self._looked_at >= _BETWEEN:
            self._looked_at = moment
            await self._look(moment)
        while self._backlog.asked < _AT_ONCE and (candidate := self._backlog.take()) is not None:
            tasks.create_task(self._visit(candidate), name=f"inquiry {candidate.device:012x}")

    # Inside

    async def _look(self, moment: int) -> None:
        now = self._now()
        try:
            found = {
                identifier: await self._database.read(candidates.look, identifier, after=after, now=now)
                for identifier, after in self._after.items()
            }
            askable = (self._without_pauses(each, moment) for each in candidates.merged(found.values()))
            chosen = self._backlog.preselect((each for each in askable if each.unknown), self._random)
            routed = await self._route(chosen)
        except (DatabaseUnavailable, DBAPIError) as exc:
            self._complain(exc)
            return
        self._is_failing = False
        self._after = {identifier: each.after for identifier, each in found.items()}
        self._backlog.add(
            each for each in routed if self._backoff.may_ask(Question(each.gateway), self._steady())
        )

    def _without_pauses(self, candidate: Candidate, moment: int) -> Candidate:
        """Leave out what may not be asked of a candidate at this moment."""
        device, _, unknown = candidate
        may = tuple(each for each in unknown if self._backoff.may_ask(Question(device, each), moment))
        return candidate._replace(unknown=may)

    async def _route(self, found: Sequence[Candidate]) -> Sequence[Candidate]:
        """Replace the gateway of each candidate by the one through which it is asked.

        This comes before the backlog: its limits and the pauses are those of the gateway that is asked.
        """
        if self._select is None or not found:
            return found
        chosen = await self._select([each.device for each in found])
        return [each._replace(gateway=chosen.get(each.device) or each.gateway) for each in found]

    async def _visit(self, candidate: Candidate) -> None:
        """Ask a device all that is unknown of it, until it does not answer."""
        try:
            for identifier in candidate.unknown:
                if not await self._ask(candidate, identifier):
                    return
        except (DatabaseUnavailable, DBAPIError) as exc:
            self._complain(exc)
        finally:
            self._backlog.done(candidate)

    async def _ask(self, candidate: Candidate, identifier: int) -> bool:
        """Whether it is worth while to ask more."""
        device, gateway, _ = candidate
        question = Question(device, identifier)
        try:
            topic = RequestTopic(
                number_mac(gateway), number_mac(device), Operation.READ, number_identifier(identifier)
            )
            response, _, received = await self._asking.ask(
                topic, Read(priority=Priority.LOWEST), timeout=self._patience
            )
        except GatewayTimeout:
            self._backoff.fail(question, self._steady())
            self._backoff.fail(Question(gateway), self._steady())
            self._backlog.drop(gateway)
            return False
        except MalformedResponse as exc:
            _log.debug("a device cannot be asked what it is: %s", exc)
            self._backoff.fail(question, self._steady())
            return True
        except Unanswered:
            self._backlog.drop(gateway)
            return False
        self._backoff.forget(Question(gateway))
        return await self._take_over(question, response, received)

    async def _take_over(self, question: Question, response: Response, at: int) -> bool:
        """Whether the device answered, for better or worse."""
        if response.status in _REFUSALS:
            self._backoff.settle(question, self._steady())
            return True
        if response.status != Status.OK:
            self._backoff.fail(question, self._steady())
            return False
        # Also when nobody believes it, or it says that the device does not know: it would say so again.
        self._backoff.settle(question, self._steady())
        try:
            sighting = _sighting(question, response, at)
        except WireError as exc:
            _log.debug("what a device tells of itself is not believed: %s", exc)
        else:
            await self._database.write(registry.observe, [sighting])
        return True

    def _complain(self, exc: Exception) -> None:
        if not self._is_failing:
            _log.warning("devices are not asked what they are: %s", type(exc).__name__)
        self._is_failing = True


def _sighting(question: Question, response: Response, at: int) -> Sighting:
    """What an answer says of a device, if it can be true."""
    device, identifier = question
    if identifier is None or not isinstance(response, ReadResponse) or response.value is UNSET:
        raise UndecodableValue("value", "is missing")
    value = BUILTIN.decode(number_identifier(identifier), bytes.fromhex(response.value)).value
    if not FACTS[identifier](value):
        raise UndecodableValue("value", "cannot be true")
    return Sighting(device=number_mac(device), at=at, heard=False, **SEEN[identifier](value))
