"""A fleet to look at: what `serve --demo` puts into an empty registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import select

from meshfleet.db.tables import device
from meshfleet.gateway import generate
from meshfleet.gateway.world.products import GATEWAY, Role
from meshfleet.service import clock
from meshfleet.service.accounts.model import COMMAND_LINE
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import Sighting
from meshfleet.service.gateways import store as gateways
from meshfleet.wire.ids import Mac, Version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.gateway import Site
    from meshfleet.gateway.world.site import Fixture


class _Building(NamedTuple):
    gateway: Mac
    name: str
    devices: int


_BUILDINGS: Final = (
    _Building(Mac("02005e000001"), "Head office", 24),
    _Building(Mac("02005e000002"), "Lager 2 / Rampe", 16),
    _Building(Mac("02005e000003"), "東京オフィス", 20),
)

_SILENT: Final = 7
"""Each of so many devices is not heard any more."""


def fill(database: Database) -> None:
    """Put some buildings into the registry, if it is empty."""
    database.write_now(_fill, clock.now())


def _fill(connection: Connection, now: int) -> None:
    if connection.execute(select(device.c.id).limit(1)).first() is not None:
        return
    for building in _BUILDINGS:
        site = generate(building.gateway, devices=building.devices, seed=1)
        gateways.claim(connection, building.gateway, name=building.name, by=COMMAND_LINE, now=now)
        registry.observe(connection, list(_sightings(site, now)))
        registry.attach(connection, list(_labels(site, building)), at=now)


def _sightings(site: Site, now: int) -> Iterator[Sighting]:
    yield Sighting(
        device=site.gateway,
        at=now,
        gateway=site.gateway,
        model=GATEWAY.model,
        firmware=GATEWAY.firmware,
        hardware=_hardware(GATEWAY.hardware),
        connected=True,
        status=0,
    )
    for number, fixture in enumerate(site.devices, start=1):
        yield _sighting(site, fixture, now, connected=number % _SILENT != 0)


def _sighting(site: Site, fixture: Fixture, now: int, *, connected: bool) -> Sighting:
    product = fixture.product
    distance = abs(fixture.place.x) + abs(fixture.place.y) + 4 * abs(fixture.place.floor)
    return Sighting(
        device=fixture.mac,
        at=now,
        gateway=site.gateway,
        parent=site.gateway,
        rssi=max(-95, -50 - round(distance)),
        model=product.model,
        variant=product.variant,
        firmware=product.firmware,
        hardware=_hardware(product.hardware),
        battery=fixture.battery,
        connected=connected,
        status=0 if connected else 1,
    )


def _labels(site: Site, building: _Building) -> Iterator[tuple[str, Mac]]:
    yield "gateways", site.gateway
    for fixture in site.devices:
        yield building.name, fixture.mac
        yield f"floor {fixture.place.floor}", fixture.mac
        if fixture.product.role is Role.EXTENDER:
            yield "extenders", fixture.mac


def _hardware(version: tuple[int, int]) -> Version:
    return Version.parse(f"{version[0]}.{version[1]}")
