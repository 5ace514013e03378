"""REST route of the visits of devices to zones."""

from datetime import UTC, datetime
from typing import Final

from litestar import Router, get
from litestar.di import NamedDependency as Given
from litestar.params import FromPath
from msgspec import Struct

from meshfleet.db import Database
from meshfleet.protocol.times import parse_millis, to_millis
from meshfleet.rest.paths import SITES_PATH
from meshfleet.rest.positions import ZoneVisitPage
from meshfleet.service.http.pagination import PageTokens
from meshfleet.service.http.query import FromTime, NextToken, QueryReader, ToTime
from meshfleet.service.positions import visit_store
from meshfleet.service.sites.parameters import parse_path_site, parse_path_zone

_MIN_TIME: Final = to_millis(datetime.min.replace(tzinfo=UTC))
_TIME_END: Final = to_millis(datetime.max.replace(tzinfo=UTC)) + 1


class VisitListing(Struct, frozen=True):
    """Query of the visits to a zone; a page token is valid only for an equal query."""

    zone: int
    since: int
    until: int


@get("/{site_id:str}/zones/{zone_id:str}/visits")
async def list_visits(  # injected by name
    site_id: FromPath[str],
    zone_id: FromPath[str],
    limit: Given[int],
    database: Given[Database],
    pages: Given[PageTokens],
    since: FromTime = None,
    until: ToTime = None,
    next_token: NextToken = None,
) -> ZoneVisitPage:
    """List the visits of devices to a zone that overlap a time range, the newest first."""
    site, zone = parse_path_site(site_id), parse_path_zone(zone_id)
    reader = QueryReader()
    query = VisitListing(
        zone=zone,
        since=reader.read(parse_millis, since, "From", default=_MIN_TIME),
        until=reader.read(parse_millis, until, "To", default=_TIME_END),
    )
    reader.check_span(query.since, query.until)
    reader.raise_faults()
    before = None if next_token is None else visit_store.VisitPosition(*pages.decode(query, next_token))
    found = await database.read(
        visit_store.list_visits,
        site,
        zone,
        since=query.since,
        until=query.until,
        before=before,
        limit=limit + 1,
    )
    page = pages.build_page(query, found, limit, lambda last: last[0])
    return ZoneVisitPage(items=[visit for _, visit in page["items"]], next_token=page["next_token"])


router = Router(SITES_PATH, route_handlers=[list_visits], tags=["Positions"])
