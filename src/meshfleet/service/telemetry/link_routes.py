"""`/api/v1/devices/{id}/links`."""

import asyncio
from typing import Final

from litestar import Router, get
from litestar.di import NamedDependency as Given
from litestar.di import Provide
from litestar.params import FromPath, SkipValidation

from meshfleet.db import Database
from meshfleet.db.samples.sample import SampleStore
from meshfleet.service.devices import listing
from meshfleet.service.devices.paths import device_in_path
from meshfleet.service.telemetry.choosing import LinkChoice, choose_links
from meshfleet.service.telemetry.links import Links
from meshfleet.service.telemetry.reading import in_blocks
from meshfleet.wire import rest
from meshfleet.wire.ids import Mac

_MINUTES: Final = 20_000
"""Minutes that are taken in at once; between them others have their turn."""


@get("/{device_id:str}/links")
async def show_links(
    device_id: FromPath[str],
    asked: Given[LinkChoice],
    database: Given[Database],
    samples: Given[SkipValidation[SampleStore]],
) -> rest.Links:
    """Show which parents heard a device, how well at last, and how well over time in buckets of equal length.

    Who heard it in the newest minute comes first, and best within it; there are 50 at most. A minute is
    there some seconds after its end.
    """
    device = device_in_path(device_id)
    links = await _read(samples, asked, device, Links(asked.grid))
    if links.is_crowded:
        links = await _read(samples, asked, device, Links(asked.grid, only=links.parents))
    items = await asyncio.to_thread(links.told)
    if not items:
        await database.read(listing.device, device)  # it may be unknown, and then says so
    return rest.Links(items=items)


async def _read(samples: SampleStore, asked: LinkChoice, device: Mac, links: Links) -> Links:
    async for _ in in_blocks(samples, asked.of(device), links.add, size=_MINUTES):
        pass
    return links


router = Router(
    "/api/v1/devices",
    route_handlers=[show_links],
    dependencies={"asked": Provide(choose_links, sync_to_thread=False)},
    tags=["Samples"],
)
