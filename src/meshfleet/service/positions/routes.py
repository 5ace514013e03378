"""REST routes of positions: of a device, now and over time, and of all devices on a site."""

import re
from collections.abc import AsyncIterator
from typing import Annotated, Final

from litestar import Response, Router, get
from litestar.di import NamedDependency as Given
from litestar.di import Provide
from litestar.params import FromPath, QueryParameter, SkipValidation
from msgspec import Struct
from msgspec.structs import replace

from meshfleet.db import Database
from meshfleet.errors.protocol import MalformedText
from meshfleet.protocol.ids import mac_from_int, mac_to_int, to_device_id
from meshfleet.protocol.times import format_millis, parse_millis
from meshfleet.rest import position_csv
from meshfleet.rest.paths import DEVICES_PATH, SITES_PATH
from meshfleet.rest.positions import (
    DEFAULT_WINDOW,
    MAX_WINDOW,
    MIN_WINDOW,
    PastPositionPage,
    PositionAnswer,
    SitePosition,
    SitePositions,
    SuspiciousAnchor,
)
from meshfleet.service.clock import Now
from meshfleet.service.devices import listing
from meshfleet.service.devices.parameters import parse_path_device
from meshfleet.service.http.csv_response import JsonOrCsv, prefers_csv, stream_csv
from meshfleet.service.http.pagination import PageTokens
from meshfleet.service.http.query import FromTime, MaxResults, NextToken, QueryReader, ToTime, parse_limit
from meshfleet.service.http.request import ApiRequest
from meshfleet.service.positions.current_positions import CurrentPosition
from meshfleet.service.positions.past_positions import MAX_STEPS, list_past_positions
from meshfleet.service.positions.positions import PositionFinder
from meshfleet.service.sites.parameters import parse_path_site
from meshfleet.service.sites.places import load_device_names
from meshfleet.service.sites.store import check_site_exists

_HOUR_MS: Final = 3_600_000

WindowText = Annotated[
    str | None,
    QueryParameter(
        name="Window",
        description=f"Seconds of readings before `At`: {MIN_WINDOW} to {MAX_WINDOW}, or {DEFAULT_WINDOW}.",
        schema_extra={"type": "integer", "minimum": MIN_WINDOW, "maximum": MAX_WINDOW},
    ),
]
AtText = Annotated[
    str | None,
    QueryParameter(
        name="At", description="Time of the position, ISO 8601; UTC if without offset. Default: now."
    ),
]
FloorText = Annotated[str | None, QueryParameter(name="Floor", description="Floor of the point. Required.")]
XText = Annotated[str | None, QueryParameter(name="X", description="Meters to the right. Required.")]
YText = Annotated[str | None, QueryParameter(name="Y", description="Meters upwards. Required.")]


class PositionQuery(Struct, frozen=True, kw_only=True):
    """Query parameters of a position."""

    at: int | None
    """Unix time in milliseconds; None for now."""
    window: int
    """Seconds of readings."""


class NearestQuery(Struct, frozen=True, kw_only=True):
    """Point on a floor from which distances are measured."""

    floor: int
    x: float
    y: float


def parse_position_query(at: AtText = None, window: WindowText = None) -> PositionQuery:
    """Parse the query parameters of a position. Raise `InvalidRequest` with all faults."""
    reader = QueryReader()
    query = PositionQuery(
        at=reader.read(parse_millis, at, "At", default=None),
        window=reader.read(_parse_window, window, "Window", default=DEFAULT_WINDOW),
    )
    reader.raise_faults()
    return query


def parse_nearest_query(floor: FloorText = None, x: XText = None, y: YText = None) -> NearestQuery:
    """Parse the point of a search for the nearest devices. Raise `InvalidRequest` with all faults."""
    reader = QueryReader()
    query = NearestQuery(
        floor=reader.read(_parse_floor, floor or "", "Floor", default=0),
        x=reader.read(_parse_meters, x or "", "X", default=0.0),
        y=reader.read(_parse_meters, y or "", "Y", default=0.0),
    )
    reader.raise_faults()
    return query


@get("/{device_id:str}/position")
async def show_position(
    device_id: FromPath[str],
    position_query: Given[PositionQuery],
    database: Given[Database],
    positions: Given[SkipValidation[PositionFinder]],
) -> PositionAnswer:
    """Show where a device is, or was at a time.

    The position is computed from what anchors (devices with a place) read of the device before that time.
    `position` is null with a `reason` if fewer than three anchors received the device.
    """
    device = parse_path_device(device_id)
    await database.read(listing.load_device, device)  # raises NotFound if the device is unknown
    return await positions.locate(mac_to_int(device), at=position_query.at, seconds=position_query.window)


@get("/{device_id:str}/positions", operation_class=JsonOrCsv)
async def list_positions(
    request: ApiRequest,
    device_id: FromPath[str],
    database: Given[Database],
    positions: Given[SkipValidation[PositionFinder]],
    pages: Given[PageTokens],
    now: Given[Now],
    since: FromTime = None,
    until: ToTime = None,
    max_results: MaxResults = None,
    next_token: NextToken = None,
) -> Response[PastPositionPage]:
    """List the positions of a device over time, the oldest first: the last hour by default.

    Positions are 3 s apart while readings are frequent and not older than an hour, else a minute. With
    `Accept: text/csv` all positions are returned as CSV, without pages.
    """
    device = parse_path_device(device_id)
    reader = QueryReader()
    end = reader.read(parse_millis, until, "To", default=now())
    start = reader.read(parse_millis, since, "From", default=end - _HOUR_MS)
    reader.check_span(start, end)
    reader.raise_faults()
    await database.read(listing.load_device, device)
    if prefers_csv(request):
        return await stream_csv(  # type: ignore[return-value] # documented by JsonOrCsv
            request,
            position_csv.encode_history_header(),
            _encode_history(positions, mac_to_int(device), start, end),
            file_name=f"positions-{device}.csv",
        )
    # Without From and To, later pages must have the time range of the first one: it is in the token.
    scope = f"positions/{device}/{since}/{until}"
    if next_token is not None:
        start, end = pages.decode(scope, next_token)
    # More than in other lists by default: a page is smoothed as a whole.
    limit = MAX_STEPS if max_results is None else parse_limit(max_results)
    found = await list_past_positions(positions, mac_to_int(device), start, end, limit=min(limit, MAX_STEPS))
    next_page = None if found.end is None else pages.encode(scope, (found.end, end))
    return Response(PastPositionPage(items=found.items, next_token=next_page))


async def _encode_history(
    positions: PositionFinder, device: int, since: int, until: int
) -> AsyncIterator[bytes]:
    """Yield the positions of a device over time as CSV."""
    start: int | None = since
    while start is not None:
        found = await list_past_positions(positions, device, start, until, limit=MAX_STEPS)
        yield position_csv.encode_history_rows(found.items)
        start = found.end


@get("/{site_id:str}/positions", operation_class=JsonOrCsv)
async def list_site_positions(
    request: ApiRequest,
    site_id: FromPath[str],
    database: Given[Database],
    positions: Given[SkipValidation[PositionFinder]],
) -> Response[SitePositions]:
    """List where the devices on a site are, and anchors that do not seem to be at their places.

    With `Accept: text/csv` only the devices are returned, as CSV.
    """
    number = parse_path_site(site_id)
    await database.read(check_site_exists, number)
    current = await positions.list_current(number)
    names = await database.read(load_device_names, [each.device for each in current])
    items = [_to_site_position(each, names) for each in current if each.device in names]
    if prefers_csv(request):
        return await stream_csv(  # type: ignore[return-value] # documented by JsonOrCsv
            request,
            position_csv.encode_site_header(),
            _yield_once(position_csv.encode_site_rows(items)),
            file_name="positions.csv",
        )
    suspicious = await positions.list_suspicious_anchors(number)
    anchors = [
        SuspiciousAnchor(anchor=mac_from_int(anchor), difference=round(difference, 1))
        for anchor, difference in suspicious
    ]
    return Response(SitePositions(items=items, suspicious_anchors=anchors))


async def _yield_once(content: bytes) -> AsyncIterator[bytes]:
    yield content


@get("/{site_id:str}/nearest", dependencies={"point": Provide(parse_nearest_query, sync_to_thread=False)})
async def list_nearest(
    site_id: FromPath[str],
    point: Given[NearestQuery],
    limit: Given[int],
    database: Given[Database],
    positions: Given[SkipValidation[PositionFinder]],
) -> SitePositions:
    """List the devices on a floor that are nearest to a point, the nearest first."""
    number = parse_path_site(site_id)
    await database.read(check_site_exists, number)
    current = [
        each for each in await positions.list_current(number) if each.located.estimate.floor == point.floor
    ]
    current.sort(key=lambda each: each.located.estimate.measure_distance(point.x, point.y))
    names = await database.read(load_device_names, [each.device for each in current])
    return SitePositions(
        items=[_to_site_position(each, names, point) for each in current if each.device in names][:limit],
        suspicious_anchors=[],
    )


def _to_site_position(
    current: CurrentPosition, names: dict[int, str], point: NearestQuery | None = None
) -> SitePosition:
    estimate = current.located.estimate
    body = SitePosition(
        device=to_device_id(mac_from_int(current.device)),
        name=names[current.device],
        time=format_millis(current.time),
        floor=estimate.floor,
        x=round(estimate.x, 3),
        y=round(estimate.y, 3),
        radius=round(estimate.radius, 2),
    )
    if point is None:
        return body
    return replace(body, distance=round(estimate.measure_distance(point.x, point.y), 2))


def _parse_window(text: str, field: str) -> int:
    if not _WHOLE_NUMBER.fullmatch(text) or not MIN_WINDOW <= int(text) <= MAX_WINDOW:
        raise MalformedText(field, f"must be a whole number from {MIN_WINDOW} to {MAX_WINDOW}")
    return int(text)


def _parse_floor(text: str, field: str) -> int:
    if not _WHOLE_NUMBER.fullmatch(text):
        raise MalformedText(field, "must be the number of a floor")
    return int(text)


def _parse_meters(text: str, field: str) -> float:
    try:
        meters = float(text)
    except ValueError:
        meters = float("nan")
    if not abs(meters) <= _MAX_METERS:
        raise MalformedText(field, "must be a number of meters")
    return meters


_MAX_METERS: Final = 1e5
_WHOLE_NUMBER: Final = re.compile(r"-?[0-9]{1,6}")

device_router = Router(
    DEVICES_PATH,
    route_handlers=[show_position, list_positions],
    dependencies={"position_query": Provide(parse_position_query, sync_to_thread=False)},
    tags=["Positions"],
)
site_router = Router(
    SITES_PATH,
    route_handlers=[
        list_site_positions,
        list_nearest,
    ],
    tags=["Positions"],
)
