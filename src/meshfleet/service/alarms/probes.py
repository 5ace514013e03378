"""Probes of extenders: one read of a device that may be lost although it still counts as connected.

An evaluation asks for a probe with a condition of the rule `relay-probe`. The prober carries it out and
stores the result in this condition, where the next evaluation finds it. If the service is stopped in between,
the read is repeated.
"""

from __future__ import annotations

import asyncio
import logging
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy.exc import DBAPIError

from meshfleet.db import bulk
from meshfleet.errors import DatabaseUnavailable, GatewayTimeout, Unanswered
from meshfleet.mqtt.broker import check_ownership
from meshfleet.protocol.codes import Operation, Origin, Priority, Status
from meshfleet.protocol.identifiers.numbers import identifier_from_int
from meshfleet.protocol.ids import mac_from_int
from meshfleet.protocol.requests import ReadRequest
from meshfleet.protocol.topics import RequestTopic

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.protocol.responses import Response
    from meshfleet.service.clock import Now
    from meshfleet.service.requests.rpc import RpcClient

_log = logging.getLogger(__name__)

PROBE_PAUSE_MS: Final = 15_000
"""Milliseconds after which devices that wait for a probe are judged again."""
PROBE_LIMIT_MS: Final = 5 * 60_000
"""Milliseconds after which devices do not wait for a probe any more."""
PROBE_KEPT_MS: Final = 10 * 60_000
"""Milliseconds for which the result of a probe counts."""

_MAX_CONCURRENT: Final = 4
"""Maximum number of probes at a time, through all gateways together."""
_GATEWAY_PAUSE_MS: Final = 60_000
"""Milliseconds between two probes through a gateway."""
_TIMEOUT_SECONDS: Final = 20.0
"""Seconds to wait for a response. The gateway itself waits up to 10 seconds for the device."""
_MODEL_NUMBER: Final = 0x8000
"""Property that is read: every device has it."""

_SELECT_AWAITED: Final = (
    "SELECT subject, gateway FROM alarm_condition"
    " WHERE rule = 'relay-probe' AND cause = '' AND since > ? AND gateway IS NOT NULL"
    " ORDER BY since LIMIT 100"
)
_STORE_RESULT: Final = (
    "UPDATE alarm_condition SET cause = ?, since = ?, due = ?"
    " WHERE rule = 'relay-probe' AND subject = ? AND cause = ''"
)


class ProbeResult(StrEnum):
    """Result of a probe, as the cause of its condition."""

    AWAITED = ""
    ANSWERED = "answered"
    LOST = "lost"
    """The device did not answer."""
    NOT_KNOWN = "not-known"
    """No probe was possible."""


class AwaitedProbe(NamedTuple):
    """Probe that an evaluation asks for."""

    device: int
    gateway: int


def list_awaited(connection: Connection, now: int) -> list[AwaitedProbe]:
    """List the probes that evaluations have asked for, the oldest first."""
    return [
        AwaitedProbe(*row) for row in bulk.query_rows(connection, _SELECT_AWAITED, (now - PROBE_LIMIT_MS,))
    ]


def store_result(connection: Connection, device: int, result: ProbeResult, now: int) -> None:
    """Store the result of a probe, unless nothing asks for it any more."""
    bulk.execute_one(connection, _STORE_RESULT, (str(result), now, now + PROBE_KEPT_MS, device))


class RelayProber:
    """Carries out the probes that evaluations ask for: with the lowest priority, and few at a time."""

    def __init__(  # noqa: PLR0913 # keyword-only after the first two
        self,
        database: Database,
        rpc: RpcClient,
        *,
        owner: bytes | None,
        now: Now,
        monotonic: Now,
        timeout: float = _TIMEOUT_SECONDS,
    ) -> None:
        """Create a prober. `now` is the clock of the evaluation, `monotonic` the one for pauses."""
        self._database = database
        self._rpc = rpc
        self._owner = owner
        self._now = now
        self._monotonic = monotonic
        self._timeout = timeout
        self._probed_at: dict[int, int] = {}
        """Monotonic time of the last probe through each gateway that was used in the last minute."""
        self._active: set[int] = set()
        """Devices that are being probed."""

    async def run(self, *, pause: float = 5.0) -> None:
        """Call `poll` every `pause` seconds until this task is canceled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self.poll(tasks)
                await asyncio.sleep(pause)

    async def poll(self, tasks: asyncio.TaskGroup) -> None:
        """Start the probes that are asked for, as far as the limits permit."""
        try:
            awaited = await self._database.read(list_awaited, self._now())
        except (DatabaseUnavailable, DBAPIError):
            return  # the evaluation of alarms logs it
        now = self._monotonic()
        self._probed_at = {
            gateway: at for gateway, at in self._probed_at.items() if now - at < _GATEWAY_PAUSE_MS
        }
        for each in awaited:
            if len(self._active) >= _MAX_CONCURRENT:
                return
            if each.device not in self._active and each.gateway not in self._probed_at:
                self._probed_at[each.gateway] = now
                self._active.add(each.device)
                tasks.create_task(self._probe(each), name=f"alarms.probe {each.device:012x}")

    async def _probe(self, probe: AwaitedProbe) -> None:
        try:
            result = await self._ask(probe)
            if result is not ProbeResult.AWAITED:
                await self._database.write(self._store, probe.device, result)
        except (DatabaseUnavailable, DBAPIError):
            _log.info("the result of a probe could not be stored; it is repeated")
        finally:
            self._active.discard(probe.device)

    async def _ask(self, probe: AwaitedProbe) -> ProbeResult:
        """Read a property of a device. A probe whose result says nothing about the device is repeated."""
        topic = RequestTopic(
            mac_from_int(probe.gateway),
            mac_from_int(probe.device),
            Operation.READ,
            identifier_from_int(_MODEL_NUMBER),
        )
        request = ReadRequest(priority=Priority.LOWEST)
        try:
            reply = await self._rpc.request(topic, request, timeout=self._timeout)
        except GatewayTimeout:
            return ProbeResult.LOST
        except Unanswered:
            return ProbeResult.AWAITED
        return judge_response(reply.response)

    def _store(self, connection: Connection, device: int, result: ProbeResult) -> None:
        if self._owner is not None:
            check_ownership(connection, self._owner)
        store_result(connection, device, result, self._now())


def judge_response(response: Response) -> ProbeResult:
    """Return what the response of a gateway says about the device that was read."""
    if response.status in {Status.TIMEOUT, Status.UNREACHABLE}:
        return ProbeResult.LOST
    # Others may answer in place of the device, and a gateway that is busy has not asked it.
    if response.status == Status.BUSY or response.origin in {Origin.EXTENDER, Origin.GATEWAY}:
        return ProbeResult.AWAITED
    return ProbeResult.ANSWERED
