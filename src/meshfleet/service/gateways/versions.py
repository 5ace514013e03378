"""Which version of the messaging interface each gateway speaks, and what time it has: it is asked.

The table of gateways has what they told; what is here follows it. Until a gateway answers it counts as the
oldest that there is (version-11). The answers measure its clock, as all answers do; what is known of that is
written to the table here.
"""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import TYPE_CHECKING, Final

from msgspec import UNSET
from sqlalchemy.exc import DBAPIError

from meshfleet.errors import DatabaseUnavailable, FleetError, GatewayTimeout
from meshfleet.errors.protocol import MalformedVersion
from meshfleet.protocol import api_versions
from meshfleet.protocol.codes import Operation, Priority
from meshfleet.protocol.ids import Mac, Version, mac_from_int, mac_to_int
from meshfleet.protocol.requests import ApiVersionRequest
from meshfleet.protocol.responses import ApiVersionResponse
from meshfleet.protocol.topics import RequestTopic
from meshfleet.service.gateways import store
from meshfleet.service.gateways.version_schedule import VersionSchedule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.db import Database
    from meshfleet.service.clock import Now
    from meshfleet.service.gateways.traffic import GatewayTraffic
    from meshfleet.service.presence.gateway_clocks import GatewayClocks
    from meshfleet.service.requests.rpc import RpcClient, RpcResponse
    from meshfleet.service.transport import Transport

_log = logging.getLogger(__name__)

_MAX_CONCURRENT: Final = 20
"""Gateways that are asked at the same time."""

_TIMEOUT_SECONDS: Final = 10.0
"""Seconds for a gateway to answer about itself."""

_CLOCK_JUMP_MS: Final = 2_000
"""Milliseconds by which the clock of this machine has to change within a look if somebody set it."""

_MIN_OFFSET_CHANGE_MS: Final = 500
"""Milliseconds by which the offset of a clock may change before it is written again."""

_RELOAD_MS: Final = 5_000
"""Milliseconds between two looks at the table: gateways are claimed and released."""

_MIN_VERSION, _MAX_VERSION = Version(1, 0, 0), Version(100, 0, 0)
"""Versions that a gateway can have; others nobody believes."""

_FIRST_VERSION_WITH_ACKS: Final = (
    api_versions.find_first_version("request", Operation.ACK, None) or api_versions.LATEST_VERSION
)


class VersionTracker:
    """Asks gateways for their versions, and knows them."""

    def __init__(  # noqa: PLR0913 # by name
        self,
        database: Database,
        rpc: RpcClient,
        transport: Transport,
        *,
        traffic: GatewayTraffic,
        clocks: GatewayClocks,
        acks_enabled: bool,
        now: Now,
        steady: Now,
        timeout: float = _TIMEOUT_SECONDS,
    ) -> None:
        """`acks`: whether samples are acknowledged at all; without it `acking` stays empty.

        `steady` is the clock by which gateways are asked again: one that is never set.
        """
        self._database = database
        self._rpc = rpc
        self._transport = transport
        self._traffic = traffic
        self._clocks = clocks
        self._acks_enabled = acks_enabled
        self._now = now
        self._steady = steady
        self._wall_clock_lead = now() - steady()
        """Milliseconds that the clock of this machine is ahead of the steady one."""
        self._timeout = timeout
        self._schedule = VersionSchedule(Random())  # noqa: S311 # when to ask is no secret
        self._versions: dict[int, Version] = {}
        self._stored_offsets: dict[int, int | None] = {}
        """Offsets of clocks as the table has them, of all gateways that are claimed."""
        self._unsaved_versions: dict[int, Version] = {}
        """What gateways told and the table does not have yet."""
        self._loaded_at: int | None = None
        self._pending = 0
        """How many are being asked."""
        self._is_failing = False
        self.ack_capable: set[int] = set()
        """Those that take acknowledgements of samples; always the same set, and always current."""

    def get(self, gateway: int) -> Version:
        """What a gateway speaks, as far as we know."""
        return self._versions.get(gateway, api_versions.ASSUMED_VERSION)

    async def restore(self) -> None:
        """Go on with what was known before a start."""
        await self._load(self._steady())
        kept = self._stored_offsets
        self._clocks.restore({gateway: ahead for gateway, ahead in kept.items() if ahead is not None})

    async def run(self, *, pause: float = 1.0) -> None:
        """Ask gateways until cancelled; so many seconds pass between two looks at who is there."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self.poll(tasks)
                await asyncio.sleep(pause)

    async def poll(self, tasks: asyncio.TaskGroup) -> None:
        """See who is there, and ask those whose turn it is."""
        self._detect_clock_change()
        await self._synchronize()
        now = self._steady()
        self._schedule.update_connections(self._connections(), now)
        self._schedule.expedite(self._clocks.gateways_to_measure(), now)
        for gateway in self._schedule.pop_due(now, _MAX_CONCURRENT - self._pending):
            self._pending += 1
            tasks.create_task(self._request_version(gateway), name=f"apiversion {gateway:012x}")

    # Inside

    def _detect_clock_change(self) -> None:
        """Notice that the clock of this machine was set: those of gateways were not."""
        ahead, before = self._now() - self._steady(), self._wall_clock_lead
        self._wall_clock_lead = ahead
        if abs(ahead - before) > _CLOCK_JUMP_MS:
            seconds = abs(ahead - before) / 1000
            _log.warning(
                "the clock of this machine was set %s by %.0f s",
                "ahead" if ahead > before else "back",
                seconds,
            )
            self._clocks.adjust_local_clock(ahead - before)

    def _connections(self) -> Mapping[int, int]:
        """Who is connected; on another broker, who was heard lately."""
        connected = self._transport.connected_gateways()
        if connected is None:
            return dict.fromkeys(self._traffic.recent_gateways(), 0)
        return {mac_to_int(Mac(mac)): number for mac, number in connected.items()}

    async def _request_version(self, gateway: int) -> None:
        mac = mac_from_int(gateway)
        try:
            topic = RequestTopic(mac, mac, Operation.APIVERSION)
            answer = await self._rpc.request(
                topic, ApiVersionRequest(priority=Priority.HIGHEST), timeout=self._timeout
            )
            self._record_version(gateway, answer)
        except FleetError as exc:
            _log.debug("the version of a gateway stays unknown: %s", exc)
            if isinstance(exc, GatewayTimeout):
                self._clocks.mark_unresponsive(gateway)
            self._schedule.record_failure(gateway, self._steady())
        else:
            self._schedule.record_response(gateway, self._steady())
        finally:
            self._pending -= 1

    def _record_version(self, gateway: int, answer: RpcResponse) -> None:
        """Take over the version that a gateway told. Its time was taken when the answer came."""
        response = answer.response
        version = response.version if isinstance(response, ApiVersionResponse) else UNSET
        if response.status or version is UNSET:
            raise MalformedVersion("version", f"is not told, the status is {response.status}")
        if not _MIN_VERSION <= version < _MAX_VERSION:
            raise MalformedVersion("version", f"{version} is not believed")
        self._unsaved_versions[gateway] = version

    async def _synchronize(self) -> None:
        """Write what was told, and follow the table; when the database is away, the next time."""
        now = self._steady()
        is_current = self._loaded_at is not None and now - self._loaded_at < _RELOAD_MS
        if is_current and not self._unsaved_versions and not self._unsaved_offsets():
            return
        try:
            await self._save()
            await self._load(now)
        except (DatabaseUnavailable, DBAPIError) as exc:
            if not self._is_failing:
                _log.warning("versions of gateways cannot be kept: %s", type(exc).__name__)
            self._is_failing = True
        else:
            self._is_failing = False

    async def _save(self) -> None:
        if offsets := self._unsaved_offsets():
            await self._database.write(store.update_clock_offsets, offsets)
        told = dict(self._unsaved_versions)
        if not told:
            return
        await self._database.write(
            store.update_api_versions, {gateway: str(version) for gateway, version in told.items()}
        )
        for gateway, version in told.items():
            if self._unsaved_versions[gateway] == version:
                del self._unsaved_versions[gateway]

    def _unsaved_offsets(self) -> dict[int, int]:
        """Offsets of clocks that the table does not have yet, or has others for."""
        kept = self._stored_offsets
        return {
            gateway: ahead
            for gateway, ahead in self._clocks.offsets.items()
            if gateway in kept and _is_offset_changed(ahead, kept[gateway])
        }

    async def _load(self, now: int) -> None:
        rows = await self._database.read(store.load_gateway_facts)
        self._loaded_at = now
        self._stored_offsets = {gateway: each.clock_offset for gateway, each in rows.items()}
        self._clocks.remove(self._clocks.offsets.keys() - rows.keys())
        known = {gateway: each.api_version for gateway, each in rows.items()}
        self._versions = {gateway: Version.parse(text) for gateway, text in known.items() if text is not None}
        new = {
            each
            for each, version in self._versions.items()
            if self._acks_enabled and version >= _FIRST_VERSION_WITH_ACKS
        }
        self.ack_capable &= new
        self.ack_capable |= new


def _is_offset_changed(ahead: int, kept: int | None) -> bool:
    return kept is None or abs(ahead - kept) >= _MIN_OFFSET_CHANGE_MS
