"""`/api/v1/devices/{id}/links`."""

import asyncio

from litestar import Router, get
from litestar.di import NamedDependency as Given
from litestar.di import Provide
from litestar.params import FromPath, SkipValidation

from meshfleet import rest
from meshfleet.db import Database
from meshfleet.db.samples.sample import SampleQuery, SampleStore
from meshfleet.protocol.ids import mac_to_int
from meshfleet.service.devices import listing
from meshfleet.service.devices.parameters import parse_path_device
from meshfleet.service.ingest.rollups import Rollups
from meshfleet.service.telemetry.chunked_read import ChunkSizes, read_in_chunks
from meshfleet.service.telemetry.links import LinkAggregator
from meshfleet.service.telemetry.query_params import LINK_KINDS, LinkSelection, parse_link_selection


@get("/{device_id:str}/links")
async def show_links(
    device_id: FromPath[str],
    asked: Given[LinkSelection],
    database: Given[Database],
    samples: Given[SkipValidation[SampleStore]],
    rollups: Given[SkipValidation[Rollups]],
    blocks: Given[SkipValidation[ChunkSizes]],
) -> rest.Links:
    """Show which parents heard a device, how well at last, and how well over time in buckets of equal length.

    The minute under way is included. The parent that heard the device in the newest minute comes first, and
    the best within it; there are 50 at most.
    """
    device = parse_path_device(device_id)
    # Before the store is read, so that a minute that is committed meanwhile is not missed.
    under_way = asked.filter_minutes(rollups.list_open_minutes(mac_to_int(device), LINK_KINDS))
    links = await _aggregate(samples, asked.to_query(device), blocks, LinkAggregator(asked.grid))
    links.add(under_way)
    if links.is_truncated:
        links = await _aggregate(
            samples, asked.to_query(device), blocks, LinkAggregator(asked.grid, only=links.parents)
        )
        links.add(under_way)
    items = await asyncio.to_thread(links.build_links)
    if not items:
        await database.read(listing.load_device, device)  # it may be unknown, and then says so
    return rest.Links(items=items)


async def _aggregate(
    samples: SampleStore, wanted: SampleQuery, blocks: ChunkSizes, links: LinkAggregator
) -> LinkAggregator:
    async for _ in read_in_chunks(samples, wanted, links.add, size=blocks.link_minutes):
        pass
    return links


router = Router(
    "/api/v1/devices",
    route_handlers=[show_links],
    dependencies={"asked": Provide(parse_link_selection, sync_to_thread=False)},
    tags=["Samples"],
)
