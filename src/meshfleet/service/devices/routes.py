"""`/api/v1/devices`: the list of devices, and each of them."""

from litestar import Router, delete, get, put
from litestar.di import NamedDependency as Given
from litestar.di import Provide
from litestar.params import FromPath, JSONBody

from meshfleet.db import Database
from meshfleet.service.accounts.model import Actor
from meshfleet.service.clock import Now
from meshfleet.service.devices import changes, listing
from meshfleet.service.devices.choosing import choose, read_live, read_order
from meshfleet.service.devices.counting import Counting
from meshfleet.service.devices.model import Filter, Listing, Order
from meshfleet.service.devices.paths import device_in_path
from meshfleet.service.http.pages import Pages
from meshfleet.service.http.parameters import NextToken
from meshfleet.wire.rest import (
    Device,
    DeviceDetail,
    DevicePage,
    FriendlyName,
    Summary,
    parse_friendly_name,
)


@get()
async def list_devices(
    chosen: Given[Filter],
    order: Given[Order],
    live: Given[bool],
    limit: Given[int],
    database: Given[Database],
    pages: Given[Pages],
    next_token: NextToken = None,
) -> DevicePage:
    """List the devices that meet all filters."""
    asked = Listing(chosen=chosen, order=order)
    after = pages.read(asked, next_token) if next_token is not None else None
    devices, end = await database.read(listing.page, chosen, order, after=after, limit=limit, live=live)
    return DevicePage(items=devices, next_token=None if end is None else pages.write(asked, end))


@get("/summary", problems=(429,))
async def summarize(chosen: Given[Filter], counting: Given[Counting]) -> Summary:
    """Count the devices that meet all filters, by model, firmware and label."""
    return await counting.count(chosen)


@get("/{device_id:str}")
async def show_device(device_id: FromPath[str], database: Given[Database]) -> DeviceDetail:
    """Show all about a device."""
    return await database.read(listing.detail, device_in_path(device_id))


@delete("/{device_id:str}", problems=(409,))
async def forget_device(
    device_id: FromPath[str],
    actor: Given[Actor],
    database: Given[Database],
    now: Given[Now],
) -> None:
    """Forget a device. Its history stays, and it comes back when it is heard again."""
    await database.write(changes.forget, device_in_path(device_id), by=actor, now=now())


@put("/{device_id:str}/friendly-name")
async def rename_device(
    device_id: FromPath[str],
    data: JSONBody[FriendlyName],
    actor: Given[Actor],
    database: Given[Database],
    now: Given[Now],
) -> Device:
    """Rename a device."""
    mac = device_in_path(device_id)
    return await database.write(changes.rename, mac, parse_friendly_name(data.name), by=actor, now=now())


router = Router(
    "/api/v1/devices",
    route_handlers=[list_devices, summarize, show_device, forget_device, rename_device],
    dependencies={
        "chosen": Provide(choose, sync_to_thread=False),
        "order": Provide(read_order, sync_to_thread=False),
        "live": Provide(read_live, sync_to_thread=False),
    },
    tags=["Devices"],
)
