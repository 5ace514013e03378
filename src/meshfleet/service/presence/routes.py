"""`/api/v1/devices/{id}/connectivity`."""

from litestar import Router, get
from litestar.di import NamedDependency as Given
from litestar.params import FromPath

from meshfleet.db import Database
from meshfleet.service.devices import listing
from meshfleet.service.devices.paths import device_in_path
from meshfleet.service.http.pages import Pages
from meshfleet.service.http.parameters import NextToken
from meshfleet.service.presence import history
from meshfleet.wire.ids import mac_number
from meshfleet.wire.rest import ConnectivityPage


@get("/{device_id:str}/connectivity")
async def list_connectivity(
    device_id: FromPath[str],
    limit: Given[int],
    database: Given[Database],
    pages: Given[Pages],
    next_token: NextToken = None,
) -> ConnectivityPage:
    """List when a device was connected and when no longer, and why, the newest change first."""
    device = device_in_path(device_id)
    asked = history.HistoryListing(device=mac_number(device))
    before = pages.after(asked, next_token, start=None)
    found = await database.read(history.page, asked.device, before=before, limit=limit + 1)
    if not found:
        await database.read(listing.device, device)  # it may be unknown, and then says so
    cut = pages.cut(asked, found, limit, lambda last: (last.number,))
    return ConnectivityPage(items=[each.shown for each in cut["items"]], next_token=cut["next_token"])


router = Router("/api/v1/devices", route_handlers=[list_connectivity], tags=["Devices"])
