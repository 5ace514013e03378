"""REST routes `/api/v1/sites`: sites with their floors, and zones."""

from litestar import Router, delete, get, post, put
from litestar.di import NamedDependency as Given
from litestar.params import FromPath, JSONBody, SkipValidation

from meshfleet.db import Database
from meshfleet.rest.paths import SITES_PATH
from meshfleet.rest.sites import NewSite, NewZone, Site, SitePage, Zone, ZonePage
from meshfleet.service.actor import Actor
from meshfleet.service.clock import Now
from meshfleet.service.devices.model import normalize_name
from meshfleet.service.http.pagination import PageTokens
from meshfleet.service.http.query import NextToken
from meshfleet.service.sites import store, zones
from meshfleet.service.sites.changes import SiteChanges
from meshfleet.service.sites.parameters import parse_path_site, parse_path_zone, parse_site, parse_zone


@post(problems=(409,))
async def create_site(
    data: JSONBody[NewSite],
    actor: Given[Actor],
    database: Given[Database],
    site_changes: Given[SkipValidation[SiteChanges]],
    now: Given[Now],
) -> Site:
    """Create a site with its floors."""
    created = await database.write(store.insert_site, parse_site(data), by=actor, now=now())
    await site_changes.check()
    return created


@get()
async def list_sites(
    database: Given[Database],
    pages: Given[PageTokens],
    limit: Given[int],
    next_token: NextToken = None,
) -> SitePage:
    """List sites in the order of their creation, without the walkable areas of floors."""
    after = None if next_token is None else store.SitePosition(*pages.decode("sites", next_token))
    found = await database.read(store.list_sites, after=after, limit=limit)
    return SitePage(
        items=found.sites, next_token=None if found.end is None else pages.encode("sites", found.end)
    )


@get("/{site_id:str}")
async def show_site(site_id: FromPath[str], database: Given[Database]) -> Site:
    """Show a site with its floors."""
    return await database.read(store.load_site, parse_path_site(site_id))


@put("/{site_id:str}", problems=(409,))
async def change_site(
    site_id: FromPath[str],
    data: JSONBody[NewSite],
    actor: Given[Actor],
    database: Given[Database],
    site_changes: Given[SkipValidation[SiteChanges]],
    now: Given[Now],
) -> Site:
    """Replace the name and the floors of a site. Floors that stay keep their plans, places and zones."""
    number, described = parse_path_site(site_id), parse_site(data)
    changed = await database.write(store.replace_site, number, described, by=actor, now=now())
    await site_changes.check()
    return changed


@delete("/{site_id:str}")
async def remove_site(
    site_id: FromPath[str],
    actor: Given[Actor],
    database: Given[Database],
    site_changes: Given[SkipValidation[SiteChanges]],
    now: Given[Now],
) -> None:
    """Delete a site with everything on it: floors, plans, places, zones and their visits, survey points."""
    await database.write(store.delete_site, parse_path_site(site_id), by=actor, now=now())
    await site_changes.check()


@post("/{site_id:str}/zones", problems=(409,))
async def create_zone(
    site_id: FromPath[str],
    data: JSONBody[NewZone],
    actor: Given[Actor],
    database: Given[Database],
    now: Given[Now],
) -> Zone:
    """Create a zone: a named area on a floor."""
    number = parse_path_site(site_id)
    return await database.write(zones.insert_zone, number, parse_zone(data), by=actor, now=now())


@get("/{site_id:str}/zones")
async def list_zones(
    site_id: FromPath[str],
    database: Given[Database],
    pages: Given[PageTokens],
    limit: Given[int],
    next_token: NextToken = None,
) -> ZonePage:
    """List the zones of a site, sorted by name."""
    number = parse_path_site(site_id)
    query = f"zones of {number}"
    after = pages.decode_start(query, next_token, start="")
    found = await database.read(zones.list_zones, number, after=after, limit=limit + 1)
    return ZonePage(**pages.build_page(query, found, limit, lambda last: (normalize_name(last.name),)))


@get("/{site_id:str}/zones/{zone_id:str}")
async def show_zone(site_id: FromPath[str], zone_id: FromPath[str], database: Given[Database]) -> Zone:
    """Show a zone."""
    return await database.read(zones.load_zone, parse_path_site(site_id), parse_path_zone(zone_id))


@put("/{site_id:str}/zones/{zone_id:str}", problems=(409,))
async def change_zone(
    site_id: FromPath[str],
    zone_id: FromPath[str],
    data: JSONBody[NewZone],
    actor: Given[Actor],
    database: Given[Database],
    now: Given[Now],
) -> Zone:
    """Replace the name, floor and area of a zone."""
    number, zone, described = parse_path_site(site_id), parse_path_zone(zone_id), parse_zone(data)
    return await database.write(zones.replace_zone, number, zone, described, by=actor, now=now())


@delete("/{site_id:str}/zones/{zone_id:str}")
async def remove_zone(
    site_id: FromPath[str],
    zone_id: FromPath[str],
    actor: Given[Actor],
    database: Given[Database],
    now: Given[Now],
) -> None:
    """Delete a zone."""
    number, zone = parse_path_site(site_id), parse_path_zone(zone_id)
    await database.write(zones.delete_zone, number, zone, by=actor, now=now())


router = Router(
    SITES_PATH,
    route_handlers=[
        create_site,
        list_sites,
        show_site,
        change_site,
        remove_site,
        create_zone,
        list_zones,
        show_zone,
        change_zone,
        remove_zone,
    ],
    tags=["Sites"],
)
