"""Chooses the gateway through which a device is asked, and says why (rest-102, rest-193).

What was heard comes from the stored minutes and from the minute under way. The stored part is remembered for
some seconds; the minute under way, failed tries and connections are looked at every time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from meshfleet.db import bulk
from meshfleet.db.samples import SampleKind, Wanted
from meshfleet.errors import GatewayOffline, NoGateway, NotFound
from meshfleet.service.devices.listing import unknown
from meshfleet.service.presence.rhythm import UNKNOWN
from meshfleet.service.requests.gateway_selection import (
    LOOKED_BACK,
    Hearing,
    hearings_of,
    newest,
    rank_gateways,
)
from meshfleet.wire.ids import mac_number, number_mac
from meshfleet.wire.rest import GatewayCandidate, GatewayChoice
from meshfleet.wire.times import write_millis

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.db.samples import SampleStore
    from meshfleet.service.clock import Now
    from meshfleet.service.ingest.rollups import Rollups
    from meshfleet.service.mqtt.carrier import Carrier
    from meshfleet.service.requests.gateway_selection import Candidate, FailedTries
    from meshfleet.wire.ids import Mac

Reason = Literal["asked", "itself", "strongest", "last-heard", "next-best"]

_AHEAD: Final = 10 * 60_000
"""Milliseconds that the clock of a gateway may be ahead."""

_FRESH_FOR: Final = 5_000
"""Milliseconds for which stored minutes are remembered."""

_REMEMBERED: Final = 10_000
"""Devices."""

_NEVER: Final = 0
"""Stands for the time of a report where none is known."""

_KINDS: Final = frozenset({int(SampleKind.LINK), int(SampleKind.HEARTBEAT)})

_KNOWN: Final = (
    "SELECT device.id, device.gateway, gateway_at, rhythm, gateway.device IS NOT NULL"
    " FROM device LEFT JOIN device_state ON device_state.device = device.id"
    " LEFT JOIN gateway ON gateway.device = device.id WHERE device.id IN numbers"
)
_CONNECTED: Final = "SELECT id FROM device WHERE connected AND id IN numbers"


class Route(NamedTuple):
    """The gateway of a request, and why that one."""

    gateway: Mac
    choice: GatewayChoice


class _Evidence(NamedTuple):
    """What is known of how a device is reached."""

    at: int
    """When it was read."""
    is_gateway: bool
    interval: int
    hearings: list[Hearing]


class GatewaySelector:
    """Chooses gateways by what was heard."""

    def __init__(  # noqa: PLR0913 # by name
        self,
        database: Database,
        samples: SampleStore,
        carrier: Carrier,
        *,
        rollups: Rollups,
        failures: FailedTries,
        now: Now,
    ) -> None:
        self._database = database
        self._samples = samples
        self._carrier = carrier
        self._rollups = rollups
        self._failures = failures
        self._now = now
        self._remembered: dict[int, _Evidence] = {}

    async def select(self, device: Mac, asked: Mac | None = None) -> Route:
        """Choose the gateway of a device, or check the one that is asked for.

        Raise `NotFound`, `NoGateway` or `GatewayOffline`.
        """
        number = mac_number(device)
        if number not in (known := await self._evidence_of([number])):
            raise unknown(device)
        if asked is not None:
            return await self._asked(asked)
        if known[number].is_gateway:
            return _route(self._now(), [await self._alone(number)], "itself")
        ranked = await self._rank(number, known[number])
        if not ranked:
            raise NoGateway(f"no gateway has heard device {device} yet")
        return _route(self._now(), ranked, _reason(ranked))

    async def select_many(self, devices: Sequence[int]) -> dict[int, int | None]:
        """Choose the gateway of each of these devices. None: none is connected that has heard it."""
        known = await self._evidence_of(devices)
        chosen: dict[int, int | None] = dict.fromkeys(devices)
        for device, evidence in known.items():
            ranked = (
                [await self._alone(device)] if evidence.is_gateway else await self._rank(device, evidence)
            )
            if ranked and ranked[0].connected:
                chosen[device] = ranked[0].gateway
        return chosen

    # Inside

    async def _asked(self, gateway: Mac) -> Route:
        number = mac_number(gateway)
        known = await self._evidence_of([number])
        if number not in known or not known[number].is_gateway:
            raise NotFound(f"there is no gateway {gateway}")
        return _route(self._now(), [await self._alone(number)], "asked")

    async def _alone(self, gateway: int) -> Candidate:
        """Return a gateway that needs no ranking."""
        connected = await self._connected({gateway})
        (only,) = rank_gateways(
            [Hearing(gateway, _NEVER)], connected=connected, interval=UNKNOWN, failures={}, now=_NEVER
        )
        return only

    async def _rank(self, device: int, evidence: _Evidence) -> list[Candidate]:
        hearings = newest([*evidence.hearings, *hearings_of(self._rollups.minutes_of(device, _KINDS))])
        gateways = {each.gateway for each in hearings}
        return rank_gateways(
            hearings,
            connected=await self._connected(gateways),
            interval=evidence.interval,
            failures=self._failures.of(device, gateways),
            now=self._now(),
        )

    async def _connected(self, gateways: Collection[int]) -> Collection[int]:
        """Tell which gateways are connected: as the broker knows, or else by hearing (rest-77)."""
        turns = {each: self._carrier.turn(number_mac(each)) for each in gateways}
        if None in turns.values():
            return await self._database.read(_connected, sorted(gateways))
        return [each for each, turn in turns.items() if turn]

    async def _evidence_of(self, devices: Sequence[int]) -> dict[int, _Evidence]:
        """Return what is known of each of these devices that is in the registry."""
        now = self._now()
        known = {
            each: evidence
            for each in devices
            if (evidence := self._remembered.get(each)) is not None and 0 <= now - evidence.at < _FRESH_FOR
        }
        missing = [each for each in devices if each not in known]
        for row in await self._database.read(_rows, missing) if missing else ():
            evidence = known[row.device] = await self._read(row, now)
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            if evidence.hearings or evidence.is_gateway:  # a device that nobody has heard may be heard now
                self._remembered[row.device] = evidence
        return known

    async def _read(self, row: _Row, now: int) -> _Evidence:
        if row.is_gateway:
            return _Evidence(now, is_gateway=True, interval=UNKNOWN, hearings=[])
        under_way = self._rollups.minutes_of(row.device, _KINDS)  # before the store: see there
        wanted = Wanted(
            device=row.device,
            kinds=_KINDS,
            since=now - LOOKED_BACK,
            until=now + _AHEAD,
            newest_first=True,
        )
        stored = await self._samples.read(wanted, hearings_of)
        last = [] if row.gateway is None else [Hearing(row.gateway, row.gateway_at or _NEVER)]
        hearings = newest([*stored, *hearings_of(under_way), *last])
        return _Evidence(now, is_gateway=False, interval=row.rhythm or UNKNOWN, hearings=hearings)


class _Row(NamedTuple):
    """What the registry knows of a device."""

    device: int
    gateway: int | None
    gateway_at: int | None
    rhythm: int | None
    is_gateway: bool


def _rows(connection: Connection, devices: Sequence[int]) -> list[_Row]:
    return [_Row(*row) for row in bulk.pick(connection, _KNOWN, devices)]


def _connected(connection: Connection, gateways: Sequence[int]) -> set[int]:
    return {row[0] for row in bulk.pick(connection, _CONNECTED, gateways)}


def _reason(ranked: Sequence[Candidate]) -> Reason:
    """Say why the first one was chosen."""
    first, usable = ranked[0], [each for each in ranked if each.connected]
    preferred = max(usable, key=lambda each: (not each.is_silent, each.score, each.at), default=first)
    if preferred.gateway != first.gateway:
        return "next-best"
    return "last-heard" if first.rssi is None else "strongest"


def _route(now: int, ranked: Sequence[Candidate], reason: Reason) -> Route:
    """Return the route through the first one, or raise `GatewayOffline`."""
    best = ranked[0]
    gateway = number_mac(best.gateway)
    if not best.connected:
        others = f", nor any other of {len(ranked)} that have heard the device" if len(ranked) > 1 else ""
        raise GatewayOffline(f"gateway {gateway} is not connected{others}")
    return Route(gateway, GatewayChoice(reason=reason, candidates=[_shown(each, now) for each in ranked]))


def _shown(candidate: Candidate, now: int) -> GatewayCandidate:
    failed_ago = candidate.failed_ago
    return GatewayCandidate(
        gateway=number_mac(candidate.gateway),
        connected=candidate.connected,
        rssi=None if candidate.rssi is None else round(candidate.rssi, 1),
        heard_at=None if candidate.at == _NEVER else write_millis(candidate.at),
        failed_at=None if failed_ago is None else write_millis(now - failed_ago),
    )
