"""REST route of gaps in the samples of a device: `/api/v1/devices/{id}/holes`."""

from typing import Final, NamedTuple, TypeAlias

from litestar import Router, get
from litestar.di import NamedDependency as Given
from litestar.params import FromPath
from msgspec import Struct
from sqlalchemy import Connection, select, tuple_

from meshfleet.db import Database
from meshfleet.db.tables import hole
from meshfleet.protocol.ids import mac_to_int
from meshfleet.protocol.times import format_millis, format_optional_millis
from meshfleet.rest.telemetry import SampleGap, SampleGapPage
from meshfleet.service.devices import listing
from meshfleet.service.devices.parameters import parse_path_device
from meshfleet.service.http.pagination import PageTokens
from meshfleet.service.http.query import NextToken
from meshfleet.service.telemetry.identifiers import describe_identifier, load_foreign_names
from meshfleet.service.telemetry.rest_sample import NAMES_BY_KIND

GapPosition: TypeAlias = tuple[int, int, int]
"""Position of a gap in the gap list of a device: sample kind, identifier, and start time of the gap."""

FIRST_POSITION: Final[GapPosition] = (-1, 0, 0)


class GapListing(Struct, frozen=True, kw_only=True):
    """Query of the gap list of a device; a page token is valid only for an equal query."""

    device: int


class GapRecord(NamedTuple):
    """Stored gap in a series of samples. Times are Unix times in milliseconds."""

    kind: int
    identifier: int
    since: int
    until: int
    found_at: int
    lost_at: int | None

    @property
    def position(self) -> GapPosition:
        """Position of the gap in the gap list of its device."""
        return self.kind, self.identifier, self.since


def list_gaps(connection: Connection, device: int, *, after: GapPosition, limit: int) -> list[GapRecord]:
    """List the gaps of a device after a position, sorted by kind, identifier and start time."""
    columns = hole.c
    order = columns.kind, columns.identifier, columns.since
    query = select(*order, columns.until, columns.found_at, columns.lost_at)
    query = query.where(columns.device == device, tuple_(*order) > after).order_by(*order).limit(limit)
    return [GapRecord(*row) for row in connection.execute(query)]


@get("/{device_id:str}/holes")
async def list_holes(
    device_id: FromPath[str],
    limit: Given[int],
    database: Given[Database],
    pages: Given[PageTokens],
    next_token: NextToken = None,
) -> SampleGapPage:
    """List the gaps in the acknowledged samples of a device: time ranges in which samples are missing."""
    device = parse_path_device(device_id)
    request_key = GapListing(device=mac_to_int(device))
    after = FIRST_POSITION if next_token is None else pages.decode(request_key, next_token)
    gaps = await database.read(list_gaps, request_key.device, after=after, limit=limit + 1)
    if not gaps:
        await database.read(listing.load_device, device)  # raises NotFound if the device is unknown
    page = pages.build_page(request_key, gaps, limit, lambda last: last.position)
    foreign_names = await load_foreign_names(database, (gap.identifier for gap in page["items"]))
    return SampleGapPage(
        items=[_to_rest_gap(gap, foreign_names) for gap in page["items"]], next_token=page["next_token"]
    )


def _to_rest_gap(gap: GapRecord, foreign_names: dict[int, str]) -> SampleGap:
    title = describe_identifier(gap.identifier, foreign_names)
    return SampleGap(
        kind=NAMES_BY_KIND[gap.kind],
        identifier=title.identifier,
        name=title.name,
        since=format_millis(gap.since),
        until=format_millis(gap.until),
        found_at=format_millis(gap.found_at),
        lost_at=format_optional_millis(gap.lost_at),
    )


router = Router("/api/v1/devices", route_handlers=[list_holes], tags=["Samples"])
