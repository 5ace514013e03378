"""REST routes of the whole fleet: `/api/v1/fleet/availability` and `/api/v1/fleet/connectivity`."""

from typing import Annotated, Final

from litestar import Router, get
from litestar.di import NamedDependency as Given
from litestar.params import QueryParameter

from meshfleet.db import Database
from meshfleet.errors import Fault
from meshfleet.protocol.times import parse_millis
from meshfleet.rest.availability import (
    AVAILABILITY_PATH,
    DEFAULT_AVAILABILITY_POINTS,
    FLEET_CONNECTIVITY_PATH,
    MAX_AVAILABILITY_DAYS,
    Availability,
    FleetConnectivityPage,
)
from meshfleet.rest.telemetry import MAX_POINTS, MIN_POINTS, parse_points
from meshfleet.service.availability import views
from meshfleet.service.availability.recorder import HOUR_MS
from meshfleet.service.clock import Now
from meshfleet.service.http.pagination import PageTokens
from meshfleet.service.http.query import FromTime, NextToken, QueryReader, ToTime

_DAY_MS: Final = 24 * HOUR_MS

AvailabilityPoints = Annotated[
    str | None,
    QueryParameter(
        name="Points",
        description="Maximum number of points, each of one or more whole hours;"
        f" {DEFAULT_AVAILABILITY_POINTS} by default.",
        schema_extra={"type": "integer", "minimum": MIN_POINTS, "maximum": MAX_POINTS},
    ),
]


@get(AVAILABILITY_PATH)
async def show_availability(
    database: Given[Database],
    now: Given[Now],
    since: FromTime = None,
    until: ToTime = None,
    points: AvailabilityPoints = None,
) -> Availability:
    """Show how many devices were online in whole hours (UTC), by default in the last 24 hours."""
    reader, current = QueryReader(), now()
    end = reader.read(parse_millis, until, "To", default=current)
    start = reader.read(parse_millis, since, "From", default=end - _DAY_MS)
    parts = reader.read(parse_points, points, "Points", default=DEFAULT_AVAILABILITY_POINTS)
    reader.check_span(start, end)
    if end - start > MAX_AVAILABILITY_DAYS * _DAY_MS:
        reader.faults.append(Fault("From", f"must be at most {MAX_AVAILABILITY_DAYS} days before To"))
    reader.raise_faults()
    times = views.AvailabilityRange.divide(start, end, parts=parts)
    return Availability(items=await database.read(views.load_availability, times, now=current))


@get(FLEET_CONNECTIVITY_PATH)
async def list_fleet_connectivity(
    database: Given[Database],
    pages: Given[PageTokens],
    limit: Given[int],
    now: Given[Now],
    since: FromTime = None,
    until: ToTime = None,
    next_token: NextToken = None,
) -> FleetConnectivityPage:
    """List the connects and disconnects of all devices with their causes, the newest first.

    Without `From` and `To` those of the last hour; a page token needs both.
    """
    reader = QueryReader()
    end = reader.read(parse_millis, until, "To", default=now())
    start = reader.read(parse_millis, since, "From", default=end - HOUR_MS)
    reader.check_span(start, end)
    reader.raise_faults()
    query = views.FleetConnectivityListing(since=start, until=end)
    before = None if next_token is None else views.ConnectivityPosition(*pages.decode(query, next_token))
    found = await database.read(views.list_fleet_connectivity, query, before=before, limit=limit + 1)
    page = pages.build_page(query, found, limit, lambda last: last[0])
    return FleetConnectivityPage(items=[each for _, each in page["items"]], next_token=page["next_token"])


router = Router("", route_handlers=[show_availability, list_fleet_connectivity], tags=["Devices"])
