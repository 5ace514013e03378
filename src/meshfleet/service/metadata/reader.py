"""Reads metadata that devices never reported: model, variant and versions (rest-47).

A few devices are read at a time, one per gateway, with the lowest priority. If there is no response, the read
is repeated after increasing delays. A value is stored as if the device had reported it at the time of the
response.
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
from meshfleet.errors.protocol import MalformedInput, UndecodableValue
from meshfleet.protocol.codes import Operation, Priority, Status
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.identifiers.numbers import identifier_from_int
from meshfleet.protocol.ids import mac_from_int
from meshfleet.protocol.requests import ReadRequest
from meshfleet.protocol.responses import ReadResponse
from meshfleet.protocol.topics import RequestTopic
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import DeviceObservation
from meshfleet.service.ingest.device_facts import FACT_FIELD_BUILDERS, FACT_VALIDATORS
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


# Delays between repeated reads.

_MINUTE: Final = 60_000
_HOUR: Final = 60 * _MINUTE

_RETRY_DELAYS_MS: Final = (_MINUTE, 5 * _MINUTE, 30 * _MINUTE, 2 * _HOUR, 12 * _HOUR)
"""Milliseconds to wait after the first, second, … failed read. The last delay repeats."""

_ANSWERED_DELAY_MS: Final = 24 * _HOUR
"""Milliseconds to wait after a response before the next read, because metadata rarely changes."""

_MAX_ENTRIES: Final = 20_000
"""Maximum number of read delays that are kept. If the oldest is dropped, its read may come too early."""


class ReadKey(NamedTuple):
    """Key of a read delay: a property of a device, or all reads through a gateway if `identifier` is None."""

    device: int
    identifier: int | None = None


class _BackoffEntry(NamedTuple):
    """Read delay of one key."""

    until: int
    """Monotonic time in milliseconds before which the read is not repeated."""
    failures: int
    """Number of failed reads since the last response."""


class MetadataReadBackoff:
    """Decides when the metadata of a device may be read again, with longer delays after failed reads.

    Delays are kept by `ReadKey`. Times are monotonic times in milliseconds.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[ReadKey, _BackoffEntry] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of read delays that are kept."""
        return len(self._entries)

    def is_due(self, key: ReadKey, now: int) -> bool:
        """Return whether a property may be read now or, for a gateway key, any property through it."""
        entry = self._entries.get(key)
        return entry is None or entry.until <= now

    def record_failure(self, key: ReadKey, now: int) -> None:
        """Record a read without a usable response. Increase the delay before the next read."""
        failures = self._entries[key].failures if key in self._entries else 0
        self._set_entry(
            key, _BackoffEntry(now + _RETRY_DELAYS_MS[min(failures, len(_RETRY_DELAYS_MS) - 1)], failures + 1)
        )

    def record_response(self, key: ReadKey, now: int) -> None:
        """Record a response. Allow the next read after a day, because metadata rarely changes."""
        self._set_entry(key, _BackoffEntry(now + _ANSWERED_DELAY_MS, 0))

    def reset_delay(self, key: ReadKey) -> None:
        """Allow the next read at once, and count failures from zero."""
        self._entries.pop(key, None)

    def _set_entry(self, key: ReadKey, entry: _BackoffEntry) -> None:
        """Set the delay of a key. Drop the oldest delay if there are too many."""
        self._entries[key] = entry
        self._entries.move_to_end(key)
        if len(self._entries) > _MAX_ENTRIES:
            self._entries.popitem(last=False)


_log = logging.getLogger(__name__)

_MAX_CONCURRENT: Final = 4
"""Maximum number of devices that are read concurrently."""

_TIMEOUT_SECONDS: Final = 20.0
"""Seconds to wait for a response. The gateway itself waits up to 10 seconds for the device."""

_SCAN_INTERVAL_MS: Final = 10_000
"""Milliseconds between two scans of the database for devices with missing metadata."""

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
"""Response statuses that the device would send again if the same property were read again."""


class MetadataReader:
    """Reads missing metadata from devices in the background."""

    def __init__(  # noqa: PLR0913 # mostly optional and keyword-only
        self,
        database: Database,
        rpc: RpcClient,
        *,
        now: Now,
        monotonic: Now,
        timeout: float = _TIMEOUT_SECONDS,
        select_gateways: SelectGateways | None = None,
    ) -> None:
        """Create a metadata reader.

        `now` is the clock for stored values, `monotonic` the clock for delays. `select_gateways` selects
        the gateway for each device; if None, each device is read through its own gateway.
        """
        self._database = database
        self._rpc = rpc
        self._now = now
        self._monotonic = monotonic
        self._timeout = timeout
        self._select_gateways = select_gateways
        self._backoff = MetadataReadBackoff()
        self._queue = CandidateQueue()
        self._random = Random()  # noqa: S311 # order, not cryptography
        self._scan_positions = dict.fromkeys(candidates.MISSING_CONDITIONS, -1)
        """Device after which each scan continues, by identifier of the property; -1 for the start."""
        self._scanned_at: int | None = None
        self._is_failing = False

    async def run(self, *, pause: float = 1.0) -> None:
        """Call `poll` every `pause` seconds until this task is canceled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self.poll(tasks)
                await asyncio.sleep(pause)

    async def poll(self, tasks: asyncio.TaskGroup) -> None:
        """Scan for devices with missing metadata if a scan is due, and start reads up to the limit."""
        monotonic_now = self._monotonic()
        if self._scanned_at is None or monotonic_now - self._scanned_at >= _SCAN_INTERVAL_MS:
            self._scanned_at = monotonic_now
            await self._scan_devices(monotonic_now)
        while (
            self._queue.active_count < _MAX_CONCURRENT
            and (candidate := self._queue.pop_candidate()) is not None
        ):
            tasks.create_task(
                self._read_missing_properties(candidate), name=f"metadata {candidate.device:012x}"
            )

    # Internals

    async def _scan_devices(self, monotonic_now: int) -> None:
        """Find devices with missing metadata on the next page of each scan, and queue these devices."""
        now = self._now()
        try:
            pages = {
                identifier: await self._database.read(
                    candidates.find_candidates, identifier, after=after, now=now
                )
                for identifier, after in self._scan_positions.items()
            }
            due = (
                self._drop_delayed_properties(each, monotonic_now)
                for each in candidates.merge_candidates(pages.values())
            )
            selected = self._queue.preselect_candidates((each for each in due if each.missing), self._random)
            routed = await self._assign_gateways(selected)
        except (DatabaseUnavailable, DBAPIError) as exc:
            self._log_failure(exc)
            return
        self._is_failing = False
        self._scan_positions = {identifier: each.after for identifier, each in pages.items()}
        self._queue.add_candidates(
            each for each in routed if self._backoff.is_due(ReadKey(each.gateway), self._monotonic())
        )

    def _drop_delayed_properties(self, candidate: MetadataCandidate, monotonic_now: int) -> MetadataCandidate:
        """Return a candidate without the properties whose read delay has not ended yet."""
        due = tuple(
            each
            for each in candidate.missing
            if self._backoff.is_due(ReadKey(candidate.device, each), monotonic_now)
        )
        return candidate._replace(missing=due)

    async def _assign_gateways(self, selected: Sequence[MetadataCandidate]) -> Sequence[MetadataCandidate]:
        """Select a gateway for each candidate, and return the candidates with these gateways.

        Call this before candidates are queued, because limits and delays apply to the selected gateway.
        """
        if self._select_gateways is None or not selected:
            return selected
        gateways = await self._select_gateways([each.device for each in selected])
        return [each._replace(gateway=gateways.get(each.device) or each.gateway) for each in selected]

    async def _read_missing_properties(self, candidate: MetadataCandidate) -> None:
        """Read the missing properties of a device one by one. Stop if the device does not respond."""
        try:
            for identifier in candidate.missing:
                if not await self._read_property(candidate, identifier):
                    return
        except (DatabaseUnavailable, DBAPIError) as exc:
            self._log_failure(exc)
        finally:
            self._queue.finish_candidate(candidate)

    async def _read_property(self, candidate: MetadataCandidate, identifier: int) -> bool:
        """Read and store one property of a device. Return whether to continue with the next property."""
        device, gateway, _ = candidate
        key = ReadKey(device, identifier)
        try:
            topic = RequestTopic(
                mac_from_int(gateway), mac_from_int(device), Operation.READ, identifier_from_int(identifier)
            )
            reply = await self._rpc.request(
                topic, ReadRequest(priority=Priority.LOWEST), timeout=self._timeout
            )
        except GatewayTimeout:
            self._backoff.record_failure(key, self._monotonic())
            self._backoff.record_failure(ReadKey(gateway), self._monotonic())
            self._queue.drop_gateway(gateway)
            return False
        except MalformedResponse as exc:
            _log.debug("metadata of device %s could not be read: %s", mac_from_int(device), exc)
            self._backoff.record_failure(key, self._monotonic())
            return True
        except Unanswered:
            self._queue.drop_gateway(gateway)
            return False
        self._backoff.reset_delay(ReadKey(gateway))
        return await self._record_response(key, reply.response, reply.received_at)

    async def _record_response(self, key: ReadKey, response: Response, at: int) -> bool:
        """Store the value in a response, and update the read delay. Return whether the device responded."""
        if response.status in _FINAL_STATUSES:
            self._backoff.record_response(key, self._monotonic())
            return True
        if response.status != Status.OK:
            self._backoff.record_failure(key, self._monotonic())
            return False
        # Even if the value is missing or implausible: the device would send the same again.
        self._backoff.record_response(key, self._monotonic())
        try:
            observation = _build_observation(key, response, at)
        except MalformedInput as exc:
            _log.debug("metadata of device %s was rejected: %s", mac_from_int(key.device), exc)
        else:
            await self._database.write(registry.record_observations, [observation])
        return True

    def _log_failure(self, exc: Exception) -> None:
        """Log that the database is not available, unless the previous access has failed too."""
        if not self._is_failing:
            _log.warning("metadata of devices cannot be read or stored: %s; retrying", type(exc).__name__)
        self._is_failing = True


def _build_observation(key: ReadKey, response: Response, at: int) -> DeviceObservation:
    """Build an observation from a response. Raise `MalformedInput` if the value is missing or implausible."""
    device, identifier = key
    if identifier is None or not isinstance(response, ReadResponse) or response.value is UNSET:
        raise UndecodableValue("value", "is missing")
    value = BUILTIN_CATALOGUE.decode(identifier_from_int(identifier), bytes.fromhex(response.value)).value
    if not FACT_VALIDATORS[identifier](value):
        raise UndecodableValue("value", "is implausible")
    return DeviceObservation(
        device=mac_from_int(device), at=at, heard=False, **FACT_FIELD_BUILDERS[identifier](value)
    )
