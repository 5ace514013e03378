"""Selects the gateway through which a request is sent to a device (rest-102, rest-193).

The selection is based on the minute roll-ups of heartbeats and radio readings. Stored roll-ups are cached for
a few seconds. Roll-ups in memory, failed attempts and connections are checked for every selection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from meshfleet.db import bulk
from meshfleet.db.samples import SampleKind, SampleQuery
from meshfleet.errors import GatewayOffline, NoGateway, NotFound
from meshfleet.protocol.ids import mac_from_int, mac_to_int
from meshfleet.protocol.times import format_millis
from meshfleet.rest.requests import GatewayCandidate, GatewayChoice
from meshfleet.service.devices.listing import build_device_not_found
from meshfleet.service.presence.last_seen import DEFAULT_INTERVAL_MS
from meshfleet.service.requests.gateway_ranking import (
    LOOKBACK_MS,
    LinkObservation,
    keep_newest_links,
    parse_link_minutes,
    rank_gateways,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.db.samples import SampleStore
    from meshfleet.protocol.ids import Mac
    from meshfleet.service.clock import Now
    from meshfleet.service.ingest.rollups import Rollups
    from meshfleet.service.requests.gateway_ranking import FailedAttempts, RankedGateway
    from meshfleet.service.transport import Transport

SelectionReason = Literal["asked", "itself", "strongest", "last-heard", "next-best"]

_MAX_CLOCK_LEAD_MS: Final = 10 * 60_000
"""Milliseconds by which readings may be in the future, because clocks of gateways may be ahead."""

_CACHE_MS: Final = 5_000
"""Milliseconds for which the stored roll-ups of a device are cached."""

_MAX_CACHED_DEVICES: Final = 10_000
"""Maximum number of devices in the roll-up cache. A full cache is cleared."""

_NEVER: Final = 0
"""Placeholder time for a report whose time is unknown."""

_KINDS: Final = frozenset({int(SampleKind.LINK), int(SampleKind.HEARTBEAT)})

_SELECT_DEVICES: Final = (
    "SELECT device.id, device.gateway, gateway_at, rhythm, gateway.device IS NOT NULL"
    " FROM device LEFT JOIN device_state ON device_state.device = device.id"
    " LEFT JOIN gateway ON gateway.device = device.id WHERE device.id IN numbers"
)
_SELECT_CONNECTED: Final = "SELECT id FROM device WHERE connected AND id IN numbers"


class GatewayRoute(NamedTuple):
    """Gateway through which a request is sent, and why the gateway was selected."""

    gateway: Mac
    choice: GatewayChoice


class _Evidence(NamedTuple):
    """Stored data about one device from which its gateway is selected."""

    read_at: int
    """Unix time in milliseconds when the data was loaded."""
    is_gateway: bool
    interval: int
    """Usual milliseconds between two heartbeats of the device."""
    observations: list[LinkObservation]


class GatewaySelector:
    """Selects the gateway with the best radio link to a device."""

    def __init__(  # noqa: PLR0913 # the collaborators of a selection
        self,
        database: Database,
        samples: SampleStore,
        transport: Transport,
        *,
        rollups: Rollups,
        failures: FailedAttempts,
        now: Now,
    ) -> None:
        self._database = database
        self._samples = samples
        self._transport = transport
        self._rollups = rollups
        self._failures = failures
        self._now = now
        self._cache: dict[int, _Evidence] = {}

    async def select(self, device: Mac, requested: Mac | None = None) -> GatewayRoute:
        """Select the best connected gateway for a device, or use the gateway `requested`.

        Raise `NotFound` if the device or requested gateway does not exist, `NoGateway` if no gateway has
        received the device, and `GatewayOffline` if the best or requested gateway is not connected.
        """
        number = mac_to_int(device)
        if number not in (evidence := await self._load_evidence([number])):
            raise build_device_not_found(device)
        if requested is not None:
            return await self._build_requested_route(requested)
        if evidence[number].is_gateway:
            return _build_route(self._now(), [await self._rank_single_gateway(number)], "itself")
        ranked = await self._rank_gateways(number, evidence[number])
        if not ranked:
            raise NoGateway(f"no gateway has seen device {device} yet")
        return _build_route(self._now(), ranked, _explain_selection(ranked))

    async def select_gateways(self, devices: Sequence[int]) -> dict[int, int | None]:
        """Select a gateway for each device, by device; None if no connected gateway has received it."""
        loaded = await self._load_evidence(devices)
        selected: dict[int, int | None] = dict.fromkeys(devices)
        for device, evidence in loaded.items():
            ranked = (
                [await self._rank_single_gateway(device)]
                if evidence.is_gateway
                else await self._rank_gateways(device, evidence)
            )
            if ranked and ranked[0].connected:
                selected[device] = ranked[0].gateway
        return selected

    # Internals

    async def _build_requested_route(self, gateway: Mac) -> GatewayRoute:
        """Return the route through the gateway that the client requests.

        Raise `NotFound` if the gateway does not exist, and `GatewayOffline` if it is not connected.
        """
        number = mac_to_int(gateway)
        evidence = await self._load_evidence([number])
        if number not in evidence or not evidence[number].is_gateway:
            raise NotFound(f"gateway {gateway} not found")
        return _build_route(self._now(), [await self._rank_single_gateway(number)], "asked")

    async def _rank_single_gateway(self, gateway: int) -> RankedGateway:
        """Return a `RankedGateway` for the only possible gateway, whether it is connected or not."""
        connected = await self._find_connected_gateways({gateway})
        (only,) = rank_gateways(
            [LinkObservation(gateway, _NEVER)],
            connected=connected,
            interval=DEFAULT_INTERVAL_MS,
            failures={},
            now=_NEVER,
        )
        return only

    async def _rank_gateways(self, device: int, evidence: _Evidence) -> list[RankedGateway]:
        """Rank the gateways that have received a device, the best first."""
        observations = keep_newest_links(
            [
                *evidence.observations,
                *parse_link_minutes(self._rollups.list_unwritten_minutes(device, _KINDS)),
            ]
        )
        gateways = {each.gateway for each in observations}
        return rank_gateways(
            observations,
            connected=await self._find_connected_gateways(gateways),
            interval=evidence.interval,
            failures=self._failures.get_ages(device, gateways),
            now=self._now(),
        )

    async def _find_connected_gateways(self, gateways: Collection[int]) -> Collection[int]:
        """Return the connected gateways among `gateways` (rest-77).

        The embedded broker knows its connections. With an external broker, gateways that sent reports
        recently, according to the database, count as connected.
        """
        connections = {each: self._transport.connection_id(mac_from_int(each)) for each in gateways}
        if None in connections.values():
            return await self._database.read(_load_connected_gateways, sorted(gateways))
        return [each for each, connection in connections.items() if connection]

    async def _load_evidence(self, devices: Sequence[int]) -> dict[int, _Evidence]:
        """Load the data from which gateways are selected, by device, from the cache or the database.

        Devices that are not registered are missing in the result.
        """
        now = self._now()
        loaded = {
            each: evidence
            for each in devices
            if (evidence := self._cache.get(each)) is not None and 0 <= now - evidence.read_at < _CACHE_MS
        }
        missing = [each for each in devices if each not in loaded]
        for row in await self._database.read(_load_reachability, missing) if missing else ():
            evidence = loaded[row.device] = await self._read_evidence(row, now)
            if len(self._cache) >= _MAX_CACHED_DEVICES:
                self._cache.clear()
            # A device without observations is not cached: a gateway may receive it at any time.
            if evidence.observations or evidence.is_gateway:
                self._cache[row.device] = evidence
        return loaded

    async def _read_evidence(self, row: _ReachabilityRow, now: int) -> _Evidence:
        """Read from the sample store and from memory by which gateways a device was received."""
        if row.is_gateway:
            return _Evidence(now, is_gateway=True, interval=DEFAULT_INTERVAL_MS, observations=[])
        # Read before the stored roll-ups: then a minute that closes in between is read twice, not missed.
        open_minutes = self._rollups.list_unwritten_minutes(row.device, _KINDS)
        query = SampleQuery(
            device=row.device,
            kinds=_KINDS,
            since=now - LOOKBACK_MS,
            until=now + _MAX_CLOCK_LEAD_MS,
            newest_first=True,
        )
        stored = await self._samples.read(query, parse_link_minutes)
        last_report = [] if row.gateway is None else [LinkObservation(row.gateway, row.gateway_at or _NEVER)]
        observations = keep_newest_links([*stored, *parse_link_minutes(open_minutes), *last_report])
        return _Evidence(
            now, is_gateway=False, interval=row.rhythm or DEFAULT_INTERVAL_MS, observations=observations
        )


class _ReachabilityRow(NamedTuple):
    """Row of `_SELECT_DEVICES`: a device, its gateway, time of the last report, and heartbeat interval."""

    device: int
    gateway: int | None
    gateway_at: int | None
    rhythm: int | None
    is_gateway: bool


def _load_reachability(connection: Connection, devices: Sequence[int]) -> list[_ReachabilityRow]:
    """Load the row of `_SELECT_DEVICES` of each device. Leave out devices that are not registered."""
    return [_ReachabilityRow(*row) for row in bulk.query_in(connection, _SELECT_DEVICES, devices)]


def _load_connected_gateways(connection: Connection, gateways: Sequence[int]) -> set[int]:
    """Return the gateways that are stored as connected."""
    return {row[0] for row in bulk.query_in(connection, _SELECT_CONNECTED, gateways)}


def _explain_selection(ranked: Sequence[RankedGateway]) -> SelectionReason:
    """Return the reason for selecting the first gateway of a ranking."""
    first, usable = ranked[0], [each for each in ranked if each.connected]
    preferred = max(usable, key=lambda each: (not each.is_silent, each.score, each.heard_at), default=first)
    if preferred.gateway != first.gateway:
        return "next-best"
    return "last-heard" if first.rssi is None else "strongest"


def _build_route(now: int, ranked: Sequence[RankedGateway], reason: SelectionReason) -> GatewayRoute:
    """Return the route through the first gateway of a ranking.

    Raise `GatewayOffline` if the first gateway is not connected.
    """
    best = ranked[0]
    gateway = mac_from_int(best.gateway)
    if not best.connected:
        others = (
            f", nor is any other of the {len(ranked)} gateways in range of the device"
            if len(ranked) > 1
            else ""
        )
        raise GatewayOffline(f"gateway {gateway} is not connected{others}")
    return GatewayRoute(
        gateway,
        GatewayChoice(reason=reason, candidates=[_build_rest_candidate(each, now) for each in ranked]),
    )


def _build_rest_candidate(candidate: RankedGateway, now: int) -> GatewayCandidate:
    failed_ago = candidate.failed_ago
    return GatewayCandidate(
        gateway=mac_from_int(candidate.gateway),
        connected=candidate.connected,
        rssi=None if candidate.rssi is None else round(candidate.rssi, 1),
        heard_at=None if candidate.heard_at == _NEVER else format_millis(candidate.heard_at),
        failed_at=None if failed_ago is None else format_millis(now - failed_ago),
    )
