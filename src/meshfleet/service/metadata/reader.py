"""Reads from devices what they never reported of what they are: model, variant, versions (rest-47).

Gently: a few at a time, one through each gateway, with the lowest priority, and later and later when there is
no answer. What is read is taken over as if it had been reported at that moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import UNSET
from sqlalchemy.exc import DBAPIError

from meshfleet.errors import DatabaseUnavailable, GatewayTimeout, MalformedResponse, Unanswered
from meshfleet.errors.protocol import UndecodableValue, WireError
from meshfleet.protocol.codes import Operation, Priority, Status
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.identifiers.numbers import identifier_from_int
from meshfleet.protocol.ids import mac_from_int
from meshfleet.protocol.requests import ReadRequest
from meshfleet.protocol.responses import ReadResponse
from meshfleet.protocol.topics import RequestTopic
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import DeviceObservation
from meshfleet.service.ingest.device_facts import FACT_SIGHTINGS, FACT_VALIDATORS
from meshfleet.service.metadata import candidates
from meshfleet.service.metadata.candidates import CandidateQueue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.db import Database
    from meshfleet.protocol.responses import Response
    from meshfleet.service.clock import Now
    from meshfleet.service.metadata.candidates import MetadataCandidate
    from meshfleet.service.requests.gateway_ranking import SelectGateways
    from meshfleet.service.requests.rpc import RpcClient


# Who is asked again when: the less there is to hope for, the later.

_MINUTE: Final = 60_000
_HOUR: Final = 60 * _MINUTE

_RETRY_DELAYS_MS: Final = (_MINUTE, 5 * _MINUTE, 30 * _MINUTE, 2 * _HOUR, 12 * _HOUR)
"""Milliseconds after each failure in turn."""

_ANSWERED_DELAY_MS: Final = 24 * _HOUR
"""Milliseconds after an answer: what was told, or refused, hardly changes."""

_MAX_KEYS: Final = 20_000
"""Questions; those that nobody asked for longest are forgotten, and may be asked again."""


class ReadKey(NamedTuple):
    """What a device is asked; or, without an identifier, whether a gateway answers at all."""

    device: int
    identifier: int | None = None


class _Pause(NamedTuple):
    until: int
    tries: int


class ReadBackoff:
    """Knows no clock itself: every call brings the time."""

    def __init__(self) -> None:
        self._pauses: OrderedDict[ReadKey, _Pause] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pauses)

    def is_due(self, key: ReadKey, now: int) -> bool:
        """Whether it may be asked again."""
        pause = self._pauses.get(key)
        return pause is None or pause.until <= now

    def record_failure(self, key: ReadKey, now: int) -> None:
        """There was no answer, or none that helps; a later try may."""
        tries = self._pauses[key].tries if key in self._pauses else 0
        self._put(key, _Pause(now + _RETRY_DELAYS_MS[min(tries, len(_RETRY_DELAYS_MS) - 1)], tries + 1))

    def record_response(self, key: ReadKey, now: int) -> None:
        """There was an answer, and the next would be the same."""
        self._put(key, _Pause(now + _ANSWERED_DELAY_MS, 0))

    def reset(self, key: ReadKey) -> None:
        """All is well with it again."""
        self._pauses.pop(key, None)

    def _put(self, key: ReadKey, pause: _Pause) -> None:
        self._pauses[key] = pause
        self._pauses.move_to_end(key)
        if len(self._pauses) > _MAX_KEYS:
            self._pauses.popitem(last=False)


_log = logging.getLogger(__name__)

_MAX_CONCURRENT: Final = 4
"""Devices that are asked at the same time."""

_TIMEOUT_SECONDS: Final = 20.0
"""Seconds for an answer; a gateway itself waits 10 for a device."""

_SCAN_INTERVAL_MS: Final = 10_000
"""Milliseconds between two looks for candidates."""

_FINAL_STATUSES: Final = frozenset(
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


class MetadataReader:
    """Asks devices about themselves."""

    def __init__(  # noqa: PLR0913 # by name
        self,
        database: Database,
        rpc: RpcClient,
        *,
        now: Now,
        steady: Now,
        timeout: float = _TIMEOUT_SECONDS,
        select_gateways: SelectGateways | None = None,
    ) -> None:
        """`now` is the time of answers; `steady` never jumps, so pauses between questions go by it.

        `select` chooses gateways; None: each device is asked through the gateway that it belongs to.
        """
        self._database = database
        self._rpc = rpc
        self._now = now
        self._steady = steady
        self._timeout = timeout
        self._select_gateways = select_gateways
        self._backoff = ReadBackoff()
        self._queue = CandidateQueue()
        self._random = Random()  # noqa: S311 # who is asked first is no secret
        self._scan_positions = dict.fromkeys(candidates.MISSING_CONDITIONS, -1)
        """How far each walk has come."""
        self._scanned_at: int | None = None
        self._is_failing = False

    async def run(self, *, pause: float = 1.0) -> None:
        """Ask until cancelled; so many seconds pass before others are asked."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self.poll(tasks)
                await asyncio.sleep(pause)

    async def poll(self, tasks: asyncio.TaskGroup) -> None:
        """Look for candidates, if it is time to, and ask as many as may be asked."""
        moment = self._steady()
        if self._scanned_at is None or moment - self._scanned_at >= _SCAN_INTERVAL_MS:
            self._scanned_at = moment
            await self._scan(moment)
        while self._queue.active < _MAX_CONCURRENT and (candidate := self._queue.pop()) is not None:
            tasks.create_task(self._read_device(candidate), name=f"inquiry {candidate.device:012x}")

    # Inside

    async def _scan(self, moment: int) -> None:
        now = self._now()
        try:
            found = {
                identifier: await self._database.read(
                    candidates.find_candidates, identifier, after=after, now=now
                )
                for identifier, after in self._scan_positions.items()
            }
            askable = (
                self._drop_paused(each, moment) for each in candidates.merge_candidates(found.values())
            )
            chosen = self._queue.preselect((each for each in askable if each.missing), self._random)
            routed = await self._route(chosen)
        except (DatabaseUnavailable, DBAPIError) as exc:
            self._log_failure(exc)
            return
        self._is_failing = False
        self._scan_positions = {identifier: each.after for identifier, each in found.items()}
        self._queue.add(
            each for each in routed if self._backoff.is_due(ReadKey(each.gateway), self._steady())
        )

    def _drop_paused(self, candidate: MetadataCandidate, moment: int) -> MetadataCandidate:
        """Leave out what may not be asked of a candidate at this moment."""
        device, _, unknown = candidate
        may = tuple(each for each in unknown if self._backoff.is_due(ReadKey(device, each), moment))
        return candidate._replace(missing=may)

    async def _route(self, found: Sequence[MetadataCandidate]) -> Sequence[MetadataCandidate]:
        """Replace the gateway of each candidate by the one through which it is asked.

        This comes before the backlog: its limits and the pauses are those of the gateway that is asked.
        """
        if self._select_gateways is None or not found:
            return found
        chosen = await self._select_gateways([each.device for each in found])
        return [each._replace(gateway=chosen.get(each.device) or each.gateway) for each in found]

    async def _read_device(self, candidate: MetadataCandidate) -> None:
        """Ask a device all that is unknown of it, until it does not answer."""
        try:
            for identifier in candidate.missing:
                if not await self._read_property(candidate, identifier):
                    return
        except (DatabaseUnavailable, DBAPIError) as exc:
            self._log_failure(exc)
        finally:
            self._queue.finish(candidate)

    async def _read_property(self, candidate: MetadataCandidate, identifier: int) -> bool:
        """Whether it is worth while to ask more."""
        device, gateway, _ = candidate
        question = ReadKey(device, identifier)
        try:
            topic = RequestTopic(
                mac_from_int(gateway), mac_from_int(device), Operation.READ, identifier_from_int(identifier)
            )
            response, _, received = await self._rpc.request(
                topic, ReadRequest(priority=Priority.LOWEST), timeout=self._timeout
            )
        except GatewayTimeout:
            self._backoff.record_failure(question, self._steady())
            self._backoff.record_failure(ReadKey(gateway), self._steady())
            self._queue.drop_gateway(gateway)
            return False
        except MalformedResponse as exc:
            _log.debug("a device cannot be asked what it is: %s", exc)
            self._backoff.record_failure(question, self._steady())
            return True
        except Unanswered:
            self._queue.drop_gateway(gateway)
            return False
        self._backoff.reset(ReadKey(gateway))
        return await self._record_response(question, response, received)

    async def _record_response(self, question: ReadKey, response: Response, at: int) -> bool:
        """Whether the device answered, for better or worse."""
        if response.status in _FINAL_STATUSES:
            self._backoff.record_response(question, self._steady())
            return True
        if response.status != Status.OK:
            self._backoff.record_failure(question, self._steady())
            return False
        # Also when nobody believes it, or it says that the device does not know: it would say so again.
        self._backoff.record_response(question, self._steady())
        try:
            sighting = _to_observation(question, response, at)
        except WireError as exc:
            _log.debug("what a device tells of itself is not believed: %s", exc)
        else:
            await self._database.write(registry.record_observations, [sighting])
        return True

    def _log_failure(self, exc: Exception) -> None:
        if not self._is_failing:
            _log.warning("devices are not asked what they are: %s", type(exc).__name__)
        self._is_failing = True


def _to_observation(question: ReadKey, response: Response, at: int) -> DeviceObservation:
    """What an answer says of a device, if it can be true."""
    device, identifier = question
    if identifier is None or not isinstance(response, ReadResponse) or response.value is UNSET:
        raise UndecodableValue("value", "is missing")
    value = BUILTIN_CATALOGUE.decode(identifier_from_int(identifier), bytes.fromhex(response.value)).value
    if not FACT_VALIDATORS[identifier](value):
        raise UndecodableValue("value", "cannot be true")
    return DeviceObservation(
        device=mac_from_int(device), at=at, heard=False, **FACT_SIGHTINGS[identifier](value)
    )
