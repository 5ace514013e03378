"""Exports a site to JSON, and imports it again: floors, walkable areas, places and zones, but no plans."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

import click
from msgspec import UNSET

from meshfleet.cli.terminal import to_printable
from meshfleet.client.arguments import normalize_device_id
from meshfleet.errors import FleetError
from meshfleet.errors.protocol import MalformedInput
from meshfleet.rest.bodies import RequestBody, decode_body
from meshfleet.rest.inputs import MAX_RESULTS
from meshfleet.rest.sites import MAX_BATCH_PLACES, BatchPlace, Floor, NewFloor, NewZone, Site

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from meshfleet.client import Fleet
    from meshfleet.protocol.ids import DeviceId

Item = TypeVar("Item")

_MAX_NAMED: Final = 5
"""Maximum number of devices that an error message names."""


class SiteFile(RequestBody, frozen=True, kw_only=True):
    """Content of a file with a site, as `meshfleet sites export` writes it."""

    name: str
    floors: tuple[NewFloor, ...]
    places: tuple[BatchPlace, ...] = ()
    zones: tuple[NewZone, ...] = ()


async def export_site(fleet: Fleet, site_id: str) -> SiteFile:
    """Load a site with its places and zones."""
    site = await fleet.sites.show(site_id)
    return SiteFile(
        name=site.name,
        floors=tuple(map(_to_new_floor, site.floors)),
        places=tuple(
            [
                BatchPlace(device=each.device, floor=each.floor, x=each.x, y=each.y)
                async for each in fleet.sites.places(site_id)
            ]
        ),
        zones=tuple(
            [
                NewZone(name=each.name, floor=each.floor, polygon=each.polygon)
                async for each in fleet.sites.zones(site_id)
            ]
        ),
    )


def read_site_file(path: Path) -> SiteFile:
    """Read a file with a site. Raise `ClickException` that names the wrong field."""
    try:
        return decode_body(SiteFile, path.read_bytes())
    except MalformedInput as exc:
        raise click.ClickException(to_printable(f"{path}: {exc}")) from None


async def import_site(fleet: Fleet, file: SiteFile) -> Site:
    """Create a site with the places and zones of a file. If that fails, delete the site again.

    Raise `ClickException` if the fleet does not have all devices of the file.
    """
    devices = [normalize_device_id(each.device, "places.device") for each in file.places]
    if unknown := await find_unknown_devices(fleet, devices):
        more = f" and {len(unknown) - _MAX_NAMED} others" if len(unknown) > _MAX_NAMED else ""
        named = ", ".join(unknown[:_MAX_NAMED])
        raise click.ClickException(f"nothing was imported: the fleet does not have {named}{more}")
    site = await fleet.sites.create(file.name, file.floors)
    try:
        for zone in file.zones:
            await fleet.sites.create_zone(site, zone.name, zone.floor, zone.polygon)
        for batch in split_into_batches(file.places, MAX_BATCH_PLACES):
            await fleet.sites.set_places(site, batch)
    except BaseException:
        with suppress(FleetError):
            await fleet.sites.remove(site)
        raise
    return site


async def find_unknown_devices(fleet: Fleet, devices: Sequence[DeviceId]) -> list[DeviceId]:
    """Return the devices that are not in the fleet, in the order of `devices`."""
    known = set()
    for batch in split_into_batches(devices, MAX_RESULTS):
        known |= {each.id async for each in fleet.devices.list(ids=batch)}
    return [each for each in devices if each not in known]


def split_into_batches(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """Yield the items in their order, in batches of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _to_new_floor(floor: Floor) -> NewFloor:
    return NewFloor(
        floor=floor.floor,
        name=floor.name,
        min_x=floor.min_x,
        min_y=floor.min_y,
        max_x=floor.max_x,
        max_y=floor.max_y,
        walkable=None if floor.walkable is UNSET else floor.walkable,
    )
