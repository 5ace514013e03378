"""`/api/v1/devices/{id}/holes`."""

from litestar import Router, get
from litestar.di import NamedDependency as Given
from litestar.params import FromPath

from meshfleet.db import Database
from meshfleet.service.devices import listing
from meshfleet.service.devices.paths import device_in_path
from meshfleet.service.http.pages import Pages
from meshfleet.service.http.parameters import NextToken
from meshfleet.service.telemetry import holes
from meshfleet.service.telemetry.identifiers import foreign_names, title
from meshfleet.service.telemetry.rows import WORDS
from meshfleet.wire.ids import mac_number
from meshfleet.wire.rest import Hole, HolePage
from meshfleet.wire.times import write_millis


@get("/{device_id:str}/holes")
async def list_holes(
    device_id: FromPath[str],
    limit: Given[int],
    database: Given[Database],
    pages: Given[Pages],
    next_token: NextToken = None,
) -> HolePage:
    """List where samples of a device are missing, of the series that are acknowledged."""
    device = device_in_path(device_id)
    asked = holes.HoleListing(device=mac_number(device))
    after = holes.START if next_token is None else pages.read(asked, next_token)
    found = await database.read(holes.page, asked.device, after=after, limit=limit + 1)
    if not found:
        await database.read(listing.device, device)  # it may be unknown, and then says so
    cut = pages.cut(asked, found, limit, lambda last: last.position)
    foreign = await foreign_names(database, (each.identifier for each in cut["items"]))
    return HolePage(items=[_shown(each, foreign) for each in cut["items"]], next_token=cut["next_token"])


def _shown(found: holes.Found, foreign: dict[int, str]) -> Hole:
    called = title(found.identifier, foreign)
    return Hole(
        kind=WORDS[found.kind],
        identifier=called.identifier,
        name=called.name,
        since=write_millis(found.since),
        until=write_millis(found.until),
        found_at=write_millis(found.found_at),
        lost_at=None if found.lost_at is None else write_millis(found.lost_at),
    )


router = Router("/api/v1/devices", route_handlers=[list_holes], tags=["Samples"])
