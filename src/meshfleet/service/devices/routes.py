"""REST routes `/api/v1/devices`."""

from litestar import Router, delete, get, put
from litestar.di import NamedDependency as Given
from litestar.di import Provide
from litestar.params import FromPath, JSONBody

from meshfleet.db import Database
from meshfleet.rest.devices import Device, DeviceDetail, DevicePage, FriendlyName, Summary
from meshfleet.rest.inputs import parse_friendly_name
from meshfleet.service.actor import Actor
from meshfleet.service.clock import Now
from meshfleet.service.devices import listing, registry
from meshfleet.service.devices.model import DeviceFilter, DeviceListQuery, SortOrder
from meshfleet.service.devices.parameters import (
    parse_device_filter,
    parse_include_live,
    parse_path_device,
    parse_sort_order,
)
from meshfleet.service.devices.state_writer import StateWriter
from meshfleet.service.devices.summary import SummaryCache
from meshfleet.service.http.pagination import PageTokens
from meshfleet.service.http.query import NextToken


@get()
async def list_devices(
    device_filter: Given[DeviceFilter],
    order: Given[SortOrder],
    live: Given[bool],
    limit: Given[int],
    database: Given[Database],
    pages: Given[PageTokens],
    next_token: NextToken = None,
) -> DevicePage:
    """List the devices that match all filters."""
    query = DeviceListQuery(device_filter=device_filter, order=order)
    after = pages.decode(query, next_token) if next_token is not None else None
    found = await database.read(
        listing.list_devices, device_filter, order, after=after, limit=limit, live=live
    )
    return DevicePage(
        items=found.devices, next_token=None if found.end is None else pages.encode(query, found.end)
    )


@get("/summary", problems=(429,))
async def summarize(device_filter: Given[DeviceFilter], device_summaries: Given[SummaryCache]) -> Summary:
    """Count the devices that match all filters, by model, firmware and label."""
    return await device_summaries.get_summary(device_filter)


@get("/{device_id:str}")
async def show_device(device_id: FromPath[str], database: Given[Database]) -> DeviceDetail:
    """Get all fields of a device."""
    return await database.read(listing.load_device_detail, parse_path_device(device_id))


@delete("/{device_id:str}", problems=(409,))
async def forget_device(
    device_id: FromPath[str],
    actor: Given[Actor],
    database: Given[Database],
    state_writer: Given[StateWriter],
    now: Given[Now],
) -> None:
    """Delete a device from the registry, but keep its history. Its next report adds the device again."""
    await state_writer.write()  # a report that came before must not add the device again
    await database.write(registry.forget_device, parse_path_device(device_id), by=actor, now=now())


@put("/{device_id:str}/friendly-name")
async def rename_device(
    device_id: FromPath[str],
    data: JSONBody[FriendlyName],
    actor: Given[Actor],
    database: Given[Database],
    now: Given[Now],
) -> Device:
    """Rename a device."""
    mac = parse_path_device(device_id)
    return await database.write(
        registry.rename_device, mac, parse_friendly_name(data.name), by=actor, now=now()
    )


router = Router(
    "/api/v1/devices",
    route_handlers=[list_devices, summarize, show_device, forget_device, rename_device],
    dependencies={
        "device_filter": Provide(parse_device_filter, sync_to_thread=False),
        "order": Provide(parse_sort_order, sync_to_thread=False),
        "live": Provide(parse_include_live, sync_to_thread=False),
    },
    tags=["Devices"],
)
