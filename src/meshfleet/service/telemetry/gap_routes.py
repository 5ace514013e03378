"""`/api/v1/devices/{id}/holes`."""

from typing import Any, Final, NamedTuple, TypeAlias

from litestar import Router, get
from litestar.di import NamedDependency as Given
from litestar.params import FromPath
from msgspec import Struct
from sqlalchemy import Connection, Row, select, tuple_

from meshfleet.db import Database
from meshfleet.db.tables import hole
from meshfleet.protocol.ids import mac_to_int
from meshfleet.protocol.times import format_millis
from meshfleet.rest import Hole, HolePage
from meshfleet.service.devices import listing
from meshfleet.service.devices.parameters import parse_path_device
from meshfleet.service.http.pagination import PageTokens
from meshfleet.service.http.query import NextToken
from meshfleet.service.telemetry.identifiers import describe_identifier, load_foreign_names
from meshfleet.service.telemetry.rest_sample import NAMES_BY_KIND

# Where samples of a device are missing, series by series.

GapPosition: TypeAlias = tuple[int, int, int]
"""Where a page ended: kind, identifier and time."""

FIRST_POSITION: Final[GapPosition] = (-1, 0, 0)


class GapListing(Struct, frozen=True, kw_only=True):
    """What the pages of a list of holes belong to."""

    device: int


class GapRecord(NamedTuple):
    """A hole."""

    kind: int
    identifier: int
    since: int
    until: int
    found_at: int
    lost_at: int | None

    @property
    def position(self) -> GapPosition:
        """Where it is in the list."""
        return self.kind, self.identifier, self.since


def list_gaps(connection: Connection, device: int, *, after: GapPosition, limit: int) -> list[GapRecord]:
    """Some holes of a device, behind that position."""
    columns = hole.c
    order = columns.kind, columns.identifier, columns.since
    query = select(hole).where(columns.device == device, tuple_(*order) > after).order_by(*order).limit(limit)
    return [_to_record(row) for row in connection.execute(query)]


def _to_record(row: Row[Any]) -> GapRecord:
    return GapRecord(row.kind, row.identifier, row.since, row.until, row.found_at, row.lost_at)


@get("/{device_id:str}/holes")
async def list_holes(
    device_id: FromPath[str],
    limit: Given[int],
    database: Given[Database],
    pages: Given[PageTokens],
    next_token: NextToken = None,
) -> HolePage:
    """List where samples of a device are missing, of the series that are acknowledged."""
    device = parse_path_device(device_id)
    asked = GapListing(device=mac_to_int(device))
    after = FIRST_POSITION if next_token is None else pages.decode(asked, next_token)
    found = await database.read(list_gaps, asked.device, after=after, limit=limit + 1)
    if not found:
        await database.read(listing.load_device, device)  # it may be unknown, and then says so
    cut = pages.build_page(asked, found, limit, lambda last: last.position)
    foreign = await load_foreign_names(database, (each.identifier for each in cut["items"]))
    return HolePage(
        items=[_to_rest_gap(each, foreign) for each in cut["items"]], next_token=cut["next_token"]
    )


def _to_rest_gap(found: GapRecord, foreign: dict[int, str]) -> Hole:
    called = describe_identifier(found.identifier, foreign)
    return Hole(
        kind=NAMES_BY_KIND[found.kind],
        identifier=called.identifier,
        name=called.name,
        since=format_millis(found.since),
        until=format_millis(found.until),
        found_at=format_millis(found.found_at),
        lost_at=None if found.lost_at is None else format_millis(found.lost_at),
    )


router = Router("/api/v1/devices", route_handlers=[list_holes], tags=["Samples"])
