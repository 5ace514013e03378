"""A fleet to look at: the buildings of `serve --demo`, and how they get into a registry."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from msgspec.structs import replace
from sqlalchemy import select

from meshfleet.db.tables import device
from meshfleet.errors import NotFound
from meshfleet.gateway import Mode, generate
from meshfleet.gateway.world.products import GATEWAY, Role
from meshfleet.service import clock
from meshfleet.service.accounts.model import COMMAND_LINE
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import Sighting
from meshfleet.service.gateways import store as gateways
from meshfleet.wire.gating import NEWEST
from meshfleet.wire.ids import Mac, Version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.gateway import Site
    from meshfleet.gateway.world.site import Fixture


class Past(Protocol):
    """What the devices of the demo have lived through."""

    until: int

    def write(self, connection: Connection) -> None:
        """Write it down, now that they are known."""


class Building(NamedTuple):
    """A gateway and how many devices it has."""

    gateway: Mac
    name: str
    devices: int
    room: str
    """What somebody called the second device."""
    mode: Mode = Mode.RAW
    api_version: Version = NEWEST


BUILDINGS: Final = (
    Building(Mac("02005e000001"), "Head office", 24, "Meeting room “Ada”"),
    Building(Mac("02005e000002"), "Lager 2 / Rampe", 16, "Kühlraum Süd", mode=Mode.DECODED),
    Building(Mac("02005e000003"), "東京オフィス", 20, "会議室 3", api_version=Version(2, 1, 0)),
)

_ORDERED: Final = (Mac("02005e000004"), "Neubau (ab März)")
"""A gateway that is claimed, and was never heard."""

_EMPTY: Final = 7
"""Each of so many devices has an empty battery, if nobody depends on it."""

DAY: Final = 24 * 60 * 60 * 1000
"""Milliseconds since the devices were put up."""


@cache
def site_of(building: Building) -> Site:
    """What stands in a building: the same at every start."""
    site = generate(building.gateway, devices=building.devices, seed=1)
    devices = (_drained(number, each) for number, each in enumerate(site.devices, start=1))
    return replace(site, devices=tuple(devices))


def _drained(number: int, fixture: Fixture) -> Fixture:
    is_spare = fixture.product.battery and fixture.product.role is Role.LEAF
    return replace(fixture, battery=0) if is_spare and number % _EMPTY == 0 else fixture


def is_empty(database: Database) -> bool:
    """Whether a registry has no devices, so that the demo may fill it."""
    return database.read_now(_is_empty)


def _is_empty(connection: Connection) -> bool:
    return connection.execute(select(device.c.id).limit(1)).first() is None


def fill(database: Database, *, still: bool, past: Past | None = None) -> dict[Mac, str]:
    """Put the buildings into a registry that is empty; gives their gateways passwords that hold from now on.

    In one that is not empty only gateways of the demo that are claimed get one. A fleet that stands still
    gets none, and looks as it would if it lived. A past comes with the fleet, in one transaction: who dies
    halfway leaves an empty registry, and the next start begins anew.
    """
    now = clock.now() if past is None else past.until
    return database.write_now(_fill, now, still=still, past=past)


def _fill(connection: Connection, now: int, *, still: bool, past: Past | None) -> dict[Mac, str]:
    if _is_empty(connection):
        made = {each.gateway: _put_up(connection, each, now, still=still) for each in BUILDINGS}
        mac, name = _ORDERED
        gateways.claim(connection, mac, name=name, by=COMMAND_LINE, now=now)
        registry.attach(connection, [("gateways", mac)], at=now)
        if past is not None:
            past.write(connection)
        return {} if still else made
    return {} if still else _rotated(connection, now)


def _rotated(connection: Connection, now: int) -> dict[Mac, str]:
    """New passwords: the old ones were told once, to another process."""
    made = {}
    for each in BUILDINGS:
        with suppress(NotFound):  # somebody has released it, or never had a demo here
            made[each.gateway] = gateways.rotate(connection, each.gateway, by=COMMAND_LINE, now=now)
    return made


def _put_up(connection: Connection, building: Building, now: int, *, still: bool) -> str:
    site = site_of(building)
    registry.observe(connection, list(_sightings(site, now - DAY, connected=still)))
    registry.attach(connection, list(_labels(site, building)), at=now)
    registry.rename(connection, [(site.devices[1].mac, building.room)])
    return gateways.claim(connection, building.gateway, name=building.name, by=COMMAND_LINE, now=now)


def _sightings(site: Site, at: int, *, connected: bool) -> Iterator[Sighting]:
    """What is known of devices from the time when they were put up."""
    yield Sighting(
        device=site.gateway,
        at=at,
        gateway=site.gateway,
        model=GATEWAY.model,
        firmware=GATEWAY.firmware,
        hardware=_hardware(GATEWAY.hardware),
        connected=connected,
        status=0,
    )
    for fixture in site.devices:
        yield _sighting(site, fixture, at, connected=connected and fixture.battery > 0)


def _sighting(site: Site, fixture: Fixture, at: int, *, connected: bool) -> Sighting:
    product = fixture.product
    distance = abs(fixture.place.x) + abs(fixture.place.y) + 4 * abs(fixture.place.floor)
    return Sighting(
        device=fixture.mac,
        at=at,
        gateway=site.gateway,
        parent=site.gateway,
        rssi=max(-95, -50 - round(distance)),
        model=product.model,
        variant=product.variant,
        firmware=product.firmware,
        hardware=_hardware(product.hardware),
        battery=fixture.battery,
        connected=connected,
        status=0 if fixture.battery else 1,
    )


def _labels(site: Site, building: Building) -> Iterator[tuple[str, Mac]]:
    yield "gateways", site.gateway
    for fixture in site.devices:
        yield building.name, fixture.mac
        yield f"floor {fixture.place.floor}", fixture.mac
        if fixture.product.role is Role.EXTENDER:
            yield "extenders", fixture.mac


def _hardware(version: tuple[int, int]) -> Version:
    return Version.parse(f"{version[0]}.{version[1]}")
