"""Through which gateway a device is reached, and why (rest-102).

Of the gateways that are connected the one behind which the device was heard best of late: the radio reaches
both ways. What was heard of late is in the minutes of its links.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from meshfleet.db import bulk
from meshfleet.db.samples import SampleKind, Wanted
from meshfleet.errors import GatewayOffline, NoGateway, NotFound
from meshfleet.service.devices.listing import unknown
from meshfleet.service.ingest.rollups import read_minute
from meshfleet.wire.ids import mac_number, number_mac
from meshfleet.wire.rest import GatewayCandidate, GatewayChoice
from meshfleet.wire.times import write_millis

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.db.samples import Sample, SampleStore
    from meshfleet.service.clock import Now
    from meshfleet.service.mqtt.carrier import Carrier
    from meshfleet.wire.ids import Mac

Reason = Literal["asked", "itself", "strongest", "last-heard"]

_LATE: Final = 15 * 60_000
"""Milliseconds that count as of late."""

_AHEAD: Final = 10 * 60_000
"""Milliseconds that the clock of a gateway may be ahead."""

_MOMENT: Final = 5_000
"""Milliseconds for which the ways to a device are remembered; who is connected is looked at every time."""

_REMEMBERED: Final = 10_000

_LINKS: Final = frozenset({int(SampleKind.LINK)})

_KNOWN: Final = (
    "SELECT device.gateway, device_state.gateway_at, gateway.device IS NOT NULL FROM device"
    " LEFT JOIN device_state ON device_state.device = device.id"
    " LEFT JOIN gateway ON gateway.device = device.id WHERE device.id IN numbers"
)
_CONNECTED: Final = "SELECT id FROM device WHERE connected AND id IN numbers"


class Candidate(NamedTuple):
    """A gateway that may reach a device."""

    gateway: int
    connected: bool
    rssi: float | None = None
    at: int | None = None
    """When the device was last heard through it, in milliseconds."""


def _rank(each: Candidate) -> tuple[bool, float, int]:
    """Of two, the one that ranks higher is taken."""
    return each.connected, -inf if each.rssi is None else each.rssi, each.at or 0


class Way(NamedTuple):
    """How a request goes."""

    gateway: Mac
    choice: GatewayChoice


class _Known(NamedTuple):
    """What is known of the ways to a device."""

    at: int
    """When that was so."""
    is_gateway: bool
    candidates: list[Candidate]


class Ways:
    """Finds gateways."""

    def __init__(self, database: Database, samples: SampleStore, carrier: Carrier, now: Now) -> None:
        self._database = database
        self._samples = samples
        self._carrier = carrier
        self._now = now
        self._remembered: dict[Mac, _Known] = {}

    async def find(self, device: Mac, asked: Mac | None) -> Way:
        """The way to a device, or `NotFound`, `NoGateway`, `GatewayOffline`."""
        known = await self._look_up(device)
        if asked is not None:
            if not await self._is_gateway(asked):
                raise NotFound(f"there is no gateway {asked}")
            return _way(await self._with_presence([Candidate(mac_number(asked), connected=False)]), "asked")
        if not known.candidates:
            raise NoGateway(f"no gateway has heard device {device} yet")
        present = sorted(await self._with_presence(known.candidates), key=_rank, reverse=True)
        if known.is_gateway:
            return _way(present, "itself")
        return _way(present, "last-heard" if present[0].rssi is None else "strongest")

    async def _is_gateway(self, mac: Mac) -> bool:
        try:
            return (await self._look_up(mac)).is_gateway
        except NotFound:
            return False

    async def _look_up(self, device: Mac) -> _Known:
        """What is known of a device. It is remembered for a moment: who asks once asks again."""
        now = self._now()
        known = self._remembered.get(device)
        if known is None or not 0 <= now - known.at < _MOMENT:
            known = await self._read(device, now)
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            if known.candidates:  # that nobody hears it may change at any moment
                self._remembered[device] = known
        return known

    async def _read(self, device: Mac, now: int) -> _Known:
        number = mac_number(device)
        row = await self._database.read(_row, number)
        if row is None:
            raise unknown(device)
        last, last_at, is_gateway = row
        if is_gateway:
            return _Known(now, is_gateway=True, candidates=[Candidate(number, connected=False)])
        candidates = await self._heard_of_late(device, now)
        if last is not None and all(each.gateway != last for each in candidates):
            candidates.append(Candidate(last, connected=False, at=last_at))
        return _Known(now, is_gateway=False, candidates=candidates)

    async def _heard_of_late(self, device: Mac, now: int) -> list[Candidate]:
        wanted = Wanted(
            device=mac_number(device),
            kinds=_LINKS,
            since=now - _LATE,
            until=now + _AHEAD,
            newest_first=True,
        )
        return await self._samples.read(wanted, strongest)

    async def _with_presence(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The same, with whether they are connected: as the broker knows, or else by hearing (rest-77)."""
        turns = [self._carrier.turn(number_mac(each.gateway)) for each in candidates]
        if None in turns:
            numbers = [each.gateway for each in candidates]
            present = await self._database.read(_connected, numbers)
            return [each._replace(connected=each.gateway in present) for each in candidates]
        return [each._replace(connected=bool(turn)) for each, turn in zip(candidates, turns, strict=True)]


def strongest(links: Iterator[Sample]) -> list[Candidate]:
    """Of the minutes of links, newest first: each gateway with the parent that heard best at last."""
    seen: set[int] = set()
    best: dict[int, Candidate] = {}
    for link in links:
        parent, rssi = link.identifier, link.number
        if parent in seen or rssi is None:
            continue
        seen.add(parent)
        if _is_unreachable(link):
            continue
        before = best.get(link.gateway)
        if before is None or before.rssi is None or before.rssi < rssi:
            best[link.gateway] = Candidate(link.gateway, connected=False, rssi=float(rssi), at=link.time)
    return list(best.values())


def _is_unreachable(link: Sample) -> bool:
    """Whether the device could not be reached through this parent (report-15)."""
    minute = read_minute(link)
    return minute is not None and minute.unreachable


def _row(connection: Connection, number: int) -> tuple[int | None, int | None, bool] | None:
    """The gateway of a device, when that was, and whether it is one itself."""
    rows = bulk.pick(connection, _KNOWN, [number])
    return (rows[0][0], rows[0][1], bool(rows[0][2])) if rows else None


def _connected(connection: Connection, numbers: Sequence[int]) -> set[int]:
    return {row[0] for row in bulk.pick(connection, _CONNECTED, numbers)}


def _way(candidates: Sequence[Candidate], reason: Reason) -> Way:
    """The way through the first of them, if that is there."""
    best = candidates[0]
    gateway = number_mac(best.gateway)
    if not best.connected:
        others = (
            f", nor any other of {len(candidates)} that have heard the device" if len(candidates) > 1 else ""
        )
        raise GatewayOffline(f"gateway {gateway} is not connected{others}")
    return Way(gateway, GatewayChoice(reason=reason, candidates=[*map(_shown, candidates)]))


def _shown(candidate: Candidate) -> GatewayCandidate:
    return GatewayCandidate(
        gateway=number_mac(candidate.gateway),
        connected=candidate.connected,
        rssi=None if candidate.rssi is None else round(candidate.rssi, 1),
        heard_at=None if candidate.at is None else write_millis(candidate.at),
    )
