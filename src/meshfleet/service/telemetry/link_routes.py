"""REST route of the radio links of a device: `/api/v1/devices/{id}/links`."""

import asyncio

from litestar import Router, get
from litestar.di import NamedDependency as Given
from litestar.di import Provide
from litestar.params import FromPath, SkipValidation

from meshfleet.db import Database
from meshfleet.db.samples.sample import SampleQuery, SampleStore
from meshfleet.protocol.ids import mac_to_int
from meshfleet.rest.telemetry import Links
from meshfleet.service.devices import listing
from meshfleet.service.devices.parameters import parse_path_device
from meshfleet.service.ingest.rollups import Rollups
from meshfleet.service.telemetry.chunked_read import ChunkSizes, read_in_chunks
from meshfleet.service.telemetry.links import LinkAggregator
from meshfleet.service.telemetry.query_params import LINK_KINDS, LinkSelection, parse_link_selection


@get("/{device_id:str}/links")
async def show_links(
    device_id: FromPath[str],
    link_selection: Given[LinkSelection],
    database: Given[Database],
    samples: Given[SkipValidation[SampleStore]],
    rollups: Given[SkipValidation[Rollups]],
    chunk_sizes: Given[SkipValidation[ChunkSizes]],
) -> Links:
    """Show the mesh parents that receive a device, with their latest signal strength, its history and loss.

    The current minute is included. Parents are sorted by the time of their latest minute, newest first, then
    by signal strength; at most 50 parents are returned.
    """
    device = parse_path_device(device_id)
    # Read before the store, so that a minute that is committed in between is not missed.
    open_minutes = link_selection.filter_minutes(
        rollups.list_unwritten_minutes(mac_to_int(device), LINK_KINDS)
    )
    links = await _aggregate_links(
        samples, link_selection.to_query(device), chunk_sizes, LinkAggregator(link_selection.grid)
    )
    links.add(open_minutes)
    if links.is_truncated:
        links = await _aggregate_links(
            samples,
            link_selection.to_query(device),
            chunk_sizes,
            LinkAggregator(link_selection.grid, only=links.parents),
        )
        links.add(open_minutes)
    found = await asyncio.to_thread(links.build_links)
    if not found.items:
        await database.read(listing.load_device, device)  # raises NotFound if the device is unknown
    return found


async def _aggregate_links(
    samples: SampleStore, query: SampleQuery, chunk_sizes: ChunkSizes, links: LinkAggregator
) -> LinkAggregator:
    """Add all minute roll-ups that the query selects to `links`, chunk by chunk. Return `links`."""
    async for _ in read_in_chunks(samples, query, links.add, size=chunk_sizes.link_minutes):
        pass
    return links


router = Router(
    "/api/v1/devices",
    route_handlers=[show_links],
    dependencies={"link_selection": Provide(parse_link_selection, sync_to_thread=False)},
    tags=["Samples"],
)
