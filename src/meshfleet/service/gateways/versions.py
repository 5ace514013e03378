"""Requests API versions from gateways, and stores the versions.

Versions are stored in the table `gateway`; `GatewayVersions` is a copy in memory. Until a gateway responds,
the oldest version is assumed (version-11). Responses also measure the offset of the gateway's clock, which is
stored in the table `gateway`, too.
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
"""Maximum number of concurrent version requests to all gateways together."""

_TIMEOUT_SECONDS: Final = 10.0
"""Seconds to wait for the response to a version request."""

_CLOCK_JUMP_MS: Final = 2_000
"""Minimum change of the local clock between two polls that means that the clock was set, in milliseconds.

The change is measured against the monotonic clock.
"""

_MIN_OFFSET_CHANGE_MS: Final = 500
"""Minimum change of a gateway's clock offset that is stored, in milliseconds."""

_RELOAD_MS: Final = 5_000
"""Milliseconds between two reloads of the table `gateway`, because users claim and release gateways."""

_MIN_VERSION: Final = Version(1, 0, 0)
"""Lowest plausible API version (inclusive)."""
_MAX_VERSION: Final = Version(100, 0, 0)
"""Upper bound of plausible API versions (exclusive)."""

_FIRST_VERSION_WITH_ACKS: Final = (
    api_versions.find_first_version("request", Operation.ACK, None) or api_versions.LATEST_VERSION
)


class GatewayVersions:
    """API versions of gateways in memory. `VersionTracker` updates the versions."""

    def __init__(self, *, acks_enabled: bool) -> None:
        """Create without versions. If `acks_enabled` is False, no gateway counts as able to accept acks."""
        self._acks_enabled = acks_enabled
        self._versions: Mapping[int, Version] = {}
        self.ack_capable: set[int] = set()
        """Gateways that support acknowledgements of samples.

        Ingest holds a reference to this set, so the set is modified but never replaced.
        """

    def get(self, gateway: int) -> Version:
        """Return the API version of a gateway, or the oldest version if the version is unknown."""
        return self._versions.get(gateway, api_versions.ASSUMED_VERSION)

    def replace_versions(self, versions: Mapping[int, Version]) -> None:
        """Replace the versions of all gateways."""
        self._versions = versions
        ack_capable = {
            gateway
            for gateway, version in versions.items()
            if self._acks_enabled and version >= _FIRST_VERSION_WITH_ACKS
        }
        self.ack_capable &= ack_capable
        self.ack_capable |= ack_capable


class VersionTracker:
    """Requests API versions from gateways, stores the versions, and updates `GatewayVersions`."""

    def __init__(  # noqa: PLR0913 # keyword-only except the first three
        self,
        database: Database,
        rpc: RpcClient,
        transport: Transport,
        *,
        versions: GatewayVersions,
        traffic: GatewayTraffic,
        clocks: GatewayClocks,
        now: Now,
        monotonic: Now,
        timeout: float = _TIMEOUT_SECONDS,
    ) -> None:
        """Create a tracker. `monotonic` is the monotonic clock in milliseconds that times the requests."""
        self._database = database
        self._rpc = rpc
        self._transport = transport
        self._versions = versions
        self._traffic = traffic
        self._clocks = clocks
        self._now = now
        self._monotonic = monotonic
        self._wall_clock_lead = now() - monotonic()
        """Milliseconds by which the wall clock is ahead of the monotonic clock."""
        self._timeout = timeout
        self._schedule = VersionSchedule(Random())  # noqa: S311 # timing, not cryptography
        self._stored_offsets: dict[int, int | None] = {}
        """Stored clock offsets of all claimed gateways in milliseconds; None if unknown."""
        self._unsaved_versions: dict[int, Version] = {}
        """API versions that are not stored yet, by gateway."""
        self._loaded_at: int | None = None
        self._pending = 0
        """Number of version requests that wait for a response."""
        self._is_failing = False

    async def restore(self) -> None:
        """Load the stored API versions and clock offsets of gateways. Call this at start-up."""
        await self._load_gateway_facts(self._monotonic())
        self._clocks.restore(
            {gateway: ahead for gateway, ahead in self._stored_offsets.items() if ahead is not None}
        )

    async def run(self, *, pause: float = 1.0) -> None:
        """Call `poll` every `pause` seconds until this task is canceled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self.poll(tasks)
                await asyncio.sleep(pause)

    async def poll(self, tasks: asyncio.TaskGroup) -> None:
        """Store new versions and clock offsets, reload the table `gateway`, and send due version requests."""
        self._detect_clock_change()
        await self._synchronize_database()
        now = self._monotonic()
        self._schedule.update_connections(self._list_gateway_connections(), now)
        self._schedule.expedite_requests(self._clocks.gateways_to_measure(), now)
        for gateway in self._schedule.pop_due_gateways(now, _MAX_CONCURRENT - self._pending):
            self._pending += 1
            tasks.create_task(self._request_version(gateway), name=f"apiversion {gateway:012x}")

    # Internals

    def _detect_clock_change(self) -> None:
        """Correct the clock offsets of all gateways if the local clock was set since the last call."""
        lead, lead_before = self._now() - self._monotonic(), self._wall_clock_lead
        self._wall_clock_lead = lead
        if abs(lead - lead_before) > _CLOCK_JUMP_MS:
            seconds = abs(lead - lead_before) / 1000
            _log.warning(
                "clock of this machine was set %s by %.0f s; clock offsets of gateways are corrected",
                "ahead" if lead > lead_before else "back",
                seconds,
            )
            self._clocks.handle_local_clock_change(lead - lead_before)

    def _list_gateway_connections(self) -> Mapping[int, int]:
        """Return the connected gateways, each with its connection number.

        With an external broker, return the gateways that reported recently, each with number 0.
        """
        connected = self._transport.connected_gateways()
        if connected is None:
            return dict.fromkeys(self._traffic.recent_gateways(), 0)
        return {mac_to_int(Mac(mac)): number for mac, number in connected.items()}

    async def _request_version(self, gateway: int) -> None:
        """Request the API version of a gateway, and record the version or the failure."""
        mac = mac_from_int(gateway)
        try:
            topic = RequestTopic(mac, mac, Operation.APIVERSION)
            reply = await self._rpc.request(
                topic, ApiVersionRequest(priority=Priority.HIGHEST), timeout=self._timeout
            )
            self._record_version(gateway, reply)
        except FleetError as exc:
            _log.debug("API version of a gateway could not be read: %s", exc)
            if isinstance(exc, GatewayTimeout):
                self._clocks.mark_unresponsive(gateway)
            self._schedule.record_failure(gateway, self._monotonic())
        else:
            self._schedule.record_response(gateway, self._monotonic())
        finally:
            self._pending -= 1

    def _record_version(self, gateway: int, reply: RpcResponse) -> None:
        """Keep the API version in a response until it is stored.

        Raise `MalformedVersion` if the version is missing or implausible.
        """
        response = reply.response
        version = response.version if isinstance(response, ApiVersionResponse) else UNSET
        if response.status or version is UNSET:
            raise MalformedVersion("version", f"is missing, the status is {response.status}")
        if not _MIN_VERSION <= version < _MAX_VERSION:
            raise MalformedVersion("version", f"{version} is implausible")
        self._unsaved_versions[gateway] = version

    async def _synchronize_database(self) -> None:
        """Store new versions and clock offsets, and reload the table `gateway`. On errors, retry later."""
        now = self._monotonic()
        is_current = self._loaded_at is not None and now - self._loaded_at < _RELOAD_MS
        if is_current and not self._unsaved_versions and not self._find_unsaved_offsets():
            return
        try:
            await self._store_versions_and_offsets()
            await self._load_gateway_facts(now)
        except (DatabaseUnavailable, DBAPIError) as exc:
            if not self._is_failing:
                _log.warning(
                    "versions and clock offsets of gateways cannot be stored: %s; retrying",
                    type(exc).__name__,
                )
            self._is_failing = True
        else:
            self._is_failing = False

    async def _store_versions_and_offsets(self) -> None:
        """Store the clock offsets and API versions that changed since they were last stored."""
        if offsets := self._find_unsaved_offsets():
            await self._database.write(store.update_clock_offsets, offsets)
        versions = dict(self._unsaved_versions)
        if not versions:
            return
        await self._database.write(
            store.update_api_versions, {gateway: str(version) for gateway, version in versions.items()}
        )
        for gateway, version in versions.items():
            if self._unsaved_versions[gateway] == version:
                del self._unsaved_versions[gateway]

    def _find_unsaved_offsets(self) -> dict[int, int]:
        """Return the clock offsets of claimed gateways that differ from the stored offsets."""
        stored_offsets = self._stored_offsets
        return {
            gateway: ahead
            for gateway, ahead in self._clocks.offsets.items()
            if gateway in stored_offsets and _is_offset_changed(ahead, stored_offsets[gateway])
        }

    async def _load_gateway_facts(self, now: int) -> None:
        """Load the table `gateway`, update `GatewayVersions`, and drop clock data of unclaimed gateways."""
        rows = await self._database.read(store.load_gateway_facts)
        self._loaded_at = now
        self._stored_offsets = {gateway: each.clock_offset for gateway, each in rows.items()}
        self._clocks.remove_gateways(self._clocks.offsets.keys() - rows.keys())
        self._versions.replace_versions(
            {
                gateway: Version.parse(each.api_version)
                for gateway, each in rows.items()
                if each.api_version is not None
            }
        )


def _is_offset_changed(ahead: int, stored: int | None) -> bool:
    """Return whether a clock offset in milliseconds is not stored, or differs by at least half a second."""
    return stored is None or abs(ahead - stored) >= _MIN_OFFSET_CHANGE_MS
