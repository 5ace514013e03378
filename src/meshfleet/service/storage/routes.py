"""REST route of the size of the data (rest-222)."""

from litestar import Router, get
from litestar.di import NamedDependency as Given

from meshfleet.protocol.times import format_millis
from meshfleet.rest.operations import Storage, StoragePart, StoragePartSize
from meshfleet.service.storage.monitor import StorageMonitor


@get()
async def get_storage(storage_monitor: Given[StorageMonitor]) -> Storage:
    """Get the size of the data on disk, its growth, and the time at which the disk will be full."""
    status = await storage_monitor.measure()
    full_at = status.forecast.full_at
    return Storage(
        parts=[
            StoragePartSize(
                part=part, bytes=status.measurement.sizes[part], growth_per_day=status.forecast.growth[part]
            )
            for part in StoragePart
        ],
        free_bytes=status.measurement.free,
        full_at=None if full_at is None else format_millis(full_at),
        measured_since=format_millis(status.forecast.since),
    )


router = Router("/api/v1/storage", route_handlers=[get_storage], tags=["Operations"])
