"""Chooses the gateway through which a device is asked, and says why (rest-102, rest-193).

What was heard comes from the stored minutes and from the minute under way. The stored part is remembered for
some seconds; the minute under way, failed tries and connections are looked at every time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from meshfleet.db import bulk
from meshfleet.db.samples import SampleKind, SampleQuery
from meshfleet.errors import GatewayOffline, NoGateway, NotFound
from meshfleet.protocol.ids import mac_from_int, mac_to_int
from meshfleet.protocol.times import format_millis
from meshfleet.rest import GatewayCandidate, GatewayChoice
from meshfleet.service.devices.listing import device_not_found
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
"""Milliseconds that the clock of a gateway may be ahead."""

_CACHE_MS: Final = 5_000
"""Milliseconds for which stored minutes are remembered."""

_MAX_CACHED_DEVICES: Final = 10_000
"""Devices."""

_NEVER: Final = 0
"""Stands for the time of a report where none is known."""

_KINDS: Final = frozenset({int(SampleKind.LINK), int(SampleKind.HEARTBEAT)})

_SELECT_DEVICES: Final = (
    "SELECT device.id, device.gateway, gateway_at, rhythm, gateway.device IS NOT NULL"
    " FROM device LEFT JOIN device_state ON device_state.device = device.id"
    " LEFT JOIN gateway ON gateway.device = device.id WHERE device.id IN numbers"
)
_SELECT_CONNECTED: Final = "SELECT id FROM device WHERE connected AND id IN numbers"


class GatewayRoute(NamedTuple):
    """The gateway of a request, and why that one."""

    gateway: Mac
    choice: GatewayChoice


class _Evidence(NamedTuple):
    """What is known of how a device is reached."""

    read_at: int
    """When it was read."""
    is_gateway: bool
    interval: int
    observations: list[LinkObservation]


class GatewaySelector:
    """Chooses gateways by what was heard."""

    def __init__(  # noqa: PLR0913 # by name
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
        """Choose the gateway of a device, or check the one that is asked for.

        Raise `NotFound`, `NoGateway` or `GatewayOffline`.
        """
        number = mac_to_int(device)
        if number not in (known := await self._load_evidence([number])):
            raise device_not_found(device)
        if requested is not None:
            return await self._check_requested(requested)
        if known[number].is_gateway:
            return _build_route(self._now(), [await self._rank_single(number)], "itself")
        ranked = await self._rank(number, known[number])
        if not ranked:
            raise NoGateway(f"no gateway has heard device {device} yet")
        return _build_route(self._now(), ranked, _explain(ranked))

    async def select_many(self, devices: Sequence[int]) -> dict[int, int | None]:
        """Choose the gateway of each of these devices. None: none is connected that has heard it."""
        known = await self._load_evidence(devices)
        chosen: dict[int, int | None] = dict.fromkeys(devices)
        for device, evidence in known.items():
            ranked = (
                [await self._rank_single(device)]
                if evidence.is_gateway
                else await self._rank(device, evidence)
            )
            if ranked and ranked[0].connected:
                chosen[device] = ranked[0].gateway
        return chosen

    # Inside

    async def _check_requested(self, gateway: Mac) -> GatewayRoute:
        number = mac_to_int(gateway)
        known = await self._load_evidence([number])
        if number not in known or not known[number].is_gateway:
            raise NotFound(f"there is no gateway {gateway}")
        return _build_route(self._now(), [await self._rank_single(number)], "asked")

    async def _rank_single(self, gateway: int) -> RankedGateway:
        """Return a gateway that needs no ranking."""
        connected = await self._find_connected({gateway})
        (only,) = rank_gateways(
            [LinkObservation(gateway, _NEVER)],
            connected=connected,
            interval=DEFAULT_INTERVAL_MS,
            failures={},
            now=_NEVER,
        )
        return only

    async def _rank(self, device: int, evidence: _Evidence) -> list[RankedGateway]:
        hearings = keep_newest_links(
            [*evidence.observations, *parse_link_minutes(self._rollups.list_open_minutes(device, _KINDS))]
        )
        gateways = {each.gateway for each in hearings}
        return rank_gateways(
            hearings,
            connected=await self._find_connected(gateways),
            interval=evidence.interval,
            failures=self._failures.get_ages(device, gateways),
            now=self._now(),
        )

    async def _find_connected(self, gateways: Collection[int]) -> Collection[int]:
        """Tell which gateways are connected: as the broker knows, or else by hearing (rest-77)."""
        turns = {each: self._transport.connection_number(mac_from_int(each)) for each in gateways}
        if None in turns.values():
            return await self._database.read(_load_connected, sorted(gateways))
        return [each for each, turn in turns.items() if turn]

    async def _load_evidence(self, devices: Sequence[int]) -> dict[int, _Evidence]:
        """Return what is known of each of these devices that is in the registry."""
        now = self._now()
        known = {
            each: evidence
            for each in devices
            if (evidence := self._cache.get(each)) is not None and 0 <= now - evidence.read_at < _CACHE_MS
        }
        missing = [each for each in devices if each not in known]
        for row in await self._database.read(_load_rows, missing) if missing else ():
            evidence = known[row.device] = await self._read_evidence(row, now)
            if len(self._cache) >= _MAX_CACHED_DEVICES:
                self._cache.clear()
            if (
                evidence.observations or evidence.is_gateway
            ):  # a device that nobody has heard may be heard now
                self._cache[row.device] = evidence
        return known

    async def _read_evidence(self, row: _ReachabilityRow, now: int) -> _Evidence:
        if row.is_gateway:
            return _Evidence(now, is_gateway=True, interval=DEFAULT_INTERVAL_MS, observations=[])
        under_way = self._rollups.list_open_minutes(row.device, _KINDS)  # before the store: see there
        wanted = SampleQuery(
            device=row.device,
            kinds=_KINDS,
            since=now - LOOKBACK_MS,
            until=now + _MAX_CLOCK_LEAD_MS,
            newest_first=True,
        )
        stored = await self._samples.read(wanted, parse_link_minutes)
        last = [] if row.gateway is None else [LinkObservation(row.gateway, row.gateway_at or _NEVER)]
        hearings = keep_newest_links([*stored, *parse_link_minutes(under_way), *last])
        return _Evidence(
            now, is_gateway=False, interval=row.rhythm or DEFAULT_INTERVAL_MS, observations=hearings
        )


class _ReachabilityRow(NamedTuple):
    """What the registry knows of a device."""

    device: int
    gateway: int | None
    gateway_at: int | None
    rhythm: int | None
    is_gateway: bool


def _load_rows(connection: Connection, devices: Sequence[int]) -> list[_ReachabilityRow]:
    return [_ReachabilityRow(*row) for row in bulk.query_in(connection, _SELECT_DEVICES, devices)]


def _load_connected(connection: Connection, gateways: Sequence[int]) -> set[int]:
    return {row[0] for row in bulk.query_in(connection, _SELECT_CONNECTED, gateways)}


def _explain(ranked: Sequence[RankedGateway]) -> SelectionReason:
    """Say why the first one was chosen."""
    first, usable = ranked[0], [each for each in ranked if each.connected]
    preferred = max(usable, key=lambda each: (not each.is_silent, each.score, each.heard_at), default=first)
    if preferred.gateway != first.gateway:
        return "next-best"
    return "last-heard" if first.rssi is None else "strongest"


def _build_route(now: int, ranked: Sequence[RankedGateway], reason: SelectionReason) -> GatewayRoute:
    """Return the route through the first one, or raise `GatewayOffline`."""
    best = ranked[0]
    gateway = mac_from_int(best.gateway)
    if not best.connected:
        others = f", nor any other of {len(ranked)} that have heard the device" if len(ranked) > 1 else ""
        raise GatewayOffline(f"gateway {gateway} is not connected{others}")
    return GatewayRoute(
        gateway, GatewayChoice(reason=reason, candidates=[_to_candidate(each, now) for each in ranked])
    )


def _to_candidate(candidate: RankedGateway, now: int) -> GatewayCandidate:
    failed_ago = candidate.failed_ago
    return GatewayCandidate(
        gateway=mac_from_int(candidate.gateway),
        connected=candidate.connected,
        rssi=None if candidate.rssi is None else round(candidate.rssi, 1),
        heard_at=None if candidate.heard_at == _NEVER else format_millis(candidate.heard_at),
        failed_at=None if failed_ago is None else format_millis(now - failed_ago),
    )
