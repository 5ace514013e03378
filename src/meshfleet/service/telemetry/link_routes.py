"""`/api/v1/devices/{id}/links`."""

import asyncio

from litestar import Router, get
from litestar.di import NamedDependency as Given
from litestar.di import Provide
from litestar.params import FromPath, SkipValidation

from meshfleet.db import Database
from meshfleet.db.samples.sample import SampleStore, Wanted
from meshfleet.service.devices import listing
from meshfleet.service.devices.paths import device_in_path
from meshfleet.service.ingest.rollups import Rollups
from meshfleet.service.telemetry.choosing import LINKS, LinkChoice, choose_links
from meshfleet.service.telemetry.links import Links
from meshfleet.service.telemetry.reading import Blocks, in_blocks
from meshfleet.wire import rest
from meshfleet.wire.ids import mac_number


@get("/{device_id:str}/links")
async def show_links(
    device_id: FromPath[str],
    asked: Given[LinkChoice],
    database: Given[Database],
    samples: Given[SkipValidation[SampleStore]],
    rollups: Given[SkipValidation[Rollups]],
    blocks: Given[SkipValidation[Blocks]],
) -> rest.Links:
    """Show which parents heard a device, how well at last, and how well over time in buckets of equal length.

    The minute under way is included. The parent that heard the device in the newest minute comes first, and
    the best within it; there are 50 at most.
    """
    device = device_in_path(device_id)
    # Before the store is read, so that a minute that is committed meanwhile is not missed.
    under_way = asked.chosen(rollups.minutes_of(mac_number(device), LINKS))
    links = await _read(samples, asked.of(device), blocks, Links(asked.grid))
    links.add(under_way)
    if links.is_crowded:
        links = await _read(samples, asked.of(device), blocks, Links(asked.grid, only=links.parents))
        links.add(under_way)
    items = await asyncio.to_thread(links.told)
    if not items:
        await database.read(listing.device, device)  # it may be unknown, and then says so
    return rest.Links(items=items)


async def _read(samples: SampleStore, wanted: Wanted, blocks: Blocks, links: Links) -> Links:
    async for _ in in_blocks(samples, wanted, links.add, size=blocks.minutes):
        pass
    return links


router = Router(
    "/api/v1/devices",
    route_handlers=[show_links],
    dependencies={"asked": Provide(choose_links, sync_to_thread=False)},
    tags=["Samples"],
)
