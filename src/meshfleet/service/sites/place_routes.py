"""REST routes `/api/v1/devices/{device_id}/place` and `/api/v1/sites/{site_id}/places`."""

from litestar import Router, delete, get, post, put
from litestar.di import NamedDependency as Given
from litestar.params import FromPath, JSONBody, SkipValidation

from meshfleet.db import Database
from meshfleet.protocol.ids import Mac, mac_to_int, parse_device_id, to_mac
from meshfleet.rest.devices import Place
from meshfleet.rest.paths import DEVICES_PATH, SITES_PATH
from meshfleet.rest.sites import NewPlace, PlaceBatch, PlaceCount, SitePlacePage
from meshfleet.service.actor import Actor
from meshfleet.service.clock import Now
from meshfleet.service.devices.parameters import parse_path_device
from meshfleet.service.http.pagination import PageTokens
from meshfleet.service.http.query import NextToken
from meshfleet.service.sites import places
from meshfleet.service.sites.changes import SiteChanges
from meshfleet.service.sites.parameters import parse_path_site, parse_place, parse_places, parse_site_id


@get("/{device_id:str}/place")
async def show_place(device_id: FromPath[str], database: Given[Database]) -> Place:
    """Show the place of a device: site, floor, and coordinates in meters."""
    return await database.read(places.load_place, mac_to_int(parse_path_device(device_id)))


@put("/{device_id:str}/place")
async def set_place(
    device_id: FromPath[str],
    data: JSONBody[NewPlace],
    actor: Given[Actor],
    database: Given[Database],
    site_changes: Given[SkipValidation[SiteChanges]],
    now: Given[Now],
) -> Place:
    """Set the place of a device. A device with a place that hears others is an anchor for positions."""
    anchor = parse_place(data, mac_to_int(parse_path_device(device_id)))
    site = parse_site_id(data.site)
    place = await database.write(places.set_place, site, anchor, by=actor, now=now())
    await site_changes.check()
    return place


@delete("/{device_id:str}/place")
async def remove_place(
    device_id: FromPath[str],
    actor: Given[Actor],
    database: Given[Database],
    site_changes: Given[SkipValidation[SiteChanges]],
    now: Given[Now],
) -> None:
    """Remove the place of a device."""
    device = mac_to_int(parse_path_device(device_id))
    await database.write(places.delete_place, device, by=actor, now=now())
    await site_changes.check()


@get("/{site_id:str}/places")
async def list_places(
    site_id: FromPath[str],
    database: Given[Database],
    pages: Given[PageTokens],
    limit: Given[int],
    next_token: NextToken = None,
) -> SitePlacePage:
    """List the devices with a place on a site, sorted by device."""
    number = parse_path_site(site_id)
    query = f"places of {number}"
    after = pages.decode_start(query, next_token, start=-1)
    found = await database.read(places.list_places, number, after=after, limit=limit + 1)
    return SitePlacePage(**pages.build_page(query, found, limit, lambda last: (_to_number(last.device),)))


@post("/{site_id:str}/places", status_code=200)
async def set_places(
    site_id: FromPath[str],
    data: JSONBody[PlaceBatch],
    actor: Given[Actor],
    database: Given[Database],
    site_changes: Given[SkipValidation[SiteChanges]],
    now: Given[Now],
) -> PlaceCount:
    """Set the places of up to 1,000 devices on a site: all of them, or none."""
    number, anchors = parse_path_site(site_id), parse_places(data.places)
    count = await database.write(places.set_places, number, anchors, by=actor, now=now())
    await site_changes.check()
    return PlaceCount(count=count)


def _to_number(device_id: str) -> int:
    mac: Mac = to_mac(parse_device_id(device_id))
    return mac_to_int(mac)


router = Router(SITES_PATH, route_handlers=[list_places, set_places], tags=["Sites"])
device_router = Router(DEVICES_PATH, route_handlers=[show_place, set_place, remove_place], tags=["Sites"])
