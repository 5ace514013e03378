"""REST route of the connection history of a device: `/api/v1/devices/{id}/connectivity`."""

from typing import NamedTuple

from litestar import Router, get
from litestar.di import NamedDependency as Given
from litestar.params import FromPath
from msgspec import Struct
from sqlalchemy import Connection, select

from meshfleet.db import Database
from meshfleet.db.tables import connectivity
from meshfleet.protocol.ids import mac_from_int, mac_to_int
from meshfleet.protocol.times import format_millis
from meshfleet.rest.devices import ConnectivityChange, ConnectivityPage
from meshfleet.service.devices import listing
from meshfleet.service.devices.parameters import parse_path_device
from meshfleet.service.http.pagination import PageTokens
from meshfleet.service.http.query import NextToken

# History of a device's connection state, newest change first.


class ConnectivityListing(Struct, frozen=True, kw_only=True):
    """Query of the connection history of a device; a page token is valid only for an equal query."""

    device: int


class ConnectivityEntry(NamedTuple):
    """Change of a device's connection state, with its row id in the table `connectivity`."""

    number: int
    body: ConnectivityChange


def list_connectivity_changes(
    connection: Connection, device: int, *, before: int | None, limit: int
) -> list[ConnectivityEntry]:
    """List up to `limit` connection changes of a device, newest first.

    If `before` is not None, list only changes with a lower row id.
    """
    columns = connectivity.c
    query = select(connectivity).where(columns.device == device).order_by(columns.id.desc()).limit(limit)
    if before is not None:
        query = query.where(columns.id < before)
    return [
        ConnectivityEntry(
            row.id,
            ConnectivityChange(
                time=format_millis(row.time),
                connected=row.connected,
                cause=row.cause,
                gateway=mac_from_int(row.gateway) if row.gateway else None,
            ),
        )
        for row in connection.execute(query)
    ]


@get("/{device_id:str}/connectivity")
async def list_connectivity(
    device_id: FromPath[str],
    limit: Given[int],
    database: Given[Database],
    pages: Given[PageTokens],
    next_token: NextToken = None,
) -> ConnectivityPage:
    """List the connections and disconnections of a device with their causes, newest first."""
    device = parse_path_device(device_id)
    query = ConnectivityListing(device=mac_to_int(device))
    before = pages.decode_start(query, next_token, start=None)
    entries = await database.read(list_connectivity_changes, query.device, before=before, limit=limit + 1)
    if not entries:
        await database.read(listing.load_device, device)  # raises not-found if the device does not exist
    page = pages.build_page(query, entries, limit, lambda last: (last.number,))
    return ConnectivityPage(items=[each.body for each in page["items"]], next_token=page["next_token"])


router = Router("/api/v1/devices", route_handlers=[list_connectivity], tags=["Devices"])
