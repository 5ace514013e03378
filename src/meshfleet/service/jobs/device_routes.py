"""`/api/v1/devices/{id}/updates`."""

from litestar import Router, get
from litestar.di import NamedDependency as Given
from litestar.params import FromPath

from meshfleet.db import Database
from meshfleet.service.devices import listing
from meshfleet.service.devices.paths import device_in_path
from meshfleet.service.http.pages import Pages
from meshfleet.service.http.parameters import NextToken
from meshfleet.service.jobs.shown import updates
from meshfleet.wire.ids import mac_number
from meshfleet.wire.rest import DeviceUpdatePage


@get("/{device_id:str}/updates")
async def list_device_updates(
    device_id: FromPath[str],
    limit: Given[int],
    database: Given[Database],
    pages: Given[Pages],
    next_token: NextToken = None,
) -> DeviceUpdatePage:
    """List what becomes of a device in jobs that are not over, the newest job first."""
    device = device_in_path(device_id)
    asked = updates.UpdateListing(device=mac_number(device))
    before = pages.after(asked, next_token, start=None)
    found = await database.read(updates.page, asked, before=before, limit=limit + 1)
    if not found:
        await database.read(listing.device, device)  # it may be unknown, and then says so
    cut = pages.cut(asked, found, limit, lambda last: (int(last.job_id.removeprefix("job-")),))
    return DeviceUpdatePage(**cut)


router = Router("/api/v1/devices", route_handlers=[list_device_updates], tags=["Devices"])
