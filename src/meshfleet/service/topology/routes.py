"""REST routes of the mesh: the topology of a gateway, and the parents and the path of a device."""

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Final

from litestar import Router, get
from litestar.di import NamedDependency as Given
from litestar.params import FromPath, QueryParameter
from msgspec import Struct

from meshfleet.db import Database
from meshfleet.protocol.ids import mac_from_int, mac_to_int
from meshfleet.protocol.times import format_millis, parse_millis, to_millis
from meshfleet.rest.topology import DevicePath, ParentChange, ParentChangePage, Topology
from meshfleet.service.clock import Now
from meshfleet.service.devices import listing
from meshfleet.service.devices.parameters import parse_path_device, parse_path_gateway
from meshfleet.service.http.pagination import PageTokens
from meshfleet.service.http.query import FromTime, NextToken, QueryReader, ToTime
from meshfleet.service.topology import store, views
from meshfleet.service.topology.reader import TopologyReader

_MIN_TIME: Final = to_millis(datetime.min.replace(tzinfo=UTC))
_TIME_END: Final = to_millis(datetime.max.replace(tzinfo=UTC)) + 1

AtTime = Annotated[
    str | None,
    QueryParameter(
        name="At", description="Time of the topology: ISO 8601, UTC if without offset. Default: now."
    ),
]


@get("/{mac:str}/topology")
async def show_topology(
    mac: FromPath[str], topology_reader: Given[TopologyReader], now: Given[Now], at: AtTime = None
) -> Topology:
    """Show the mesh of a gateway as a tree, now or at a past time within the retention of links.

    Now includes the minute under way; the past is exact to the minute. A time in the future means now.
    """
    gateway = parse_path_gateway(mac)
    reader = QueryReader()
    time = reader.read(parse_millis, at, "At", default=None)
    reader.raise_faults()
    present = now()
    tree = await topology_reader.read_tree(mac_to_int(gateway), time)
    return await asyncio.to_thread(
        views.build_topology, tree, present if time is None else min(time, present)
    )


class ParentListing(Struct, frozen=True, kw_only=True):
    """Query of the parent changes of a device; a page token is valid only for an equal query."""

    device: int
    since: int
    until: int


@get("/{device_id:str}/parents")
async def list_parents(  # injected by name
    device_id: FromPath[str],
    limit: Given[int],
    database: Given[Database],
    pages: Given[PageTokens],
    since: FromTime = None,
    until: ToTime = None,
    next_token: NextToken = None,
) -> ParentChangePage:
    """List the changes of a device's parent in the mesh, newest first."""
    device = parse_path_device(device_id)
    reader = QueryReader()
    query = ParentListing(
        device=mac_to_int(device),
        since=reader.read(parse_millis, since, "From", default=_MIN_TIME),
        until=reader.read(parse_millis, until, "To", default=_TIME_END),
    )
    reader.check_span(query.since, query.until)
    reader.raise_faults()
    entries = await database.read(
        store.list_parent_changes,
        query.device,
        since=query.since,
        until=query.until,
        before=pages.decode_start(query, next_token, start=None),
        limit=limit + 1,
    )
    if not entries:
        await database.read(listing.load_device, device)  # raises not-found if the device does not exist
    page = pages.build_page(query, entries, limit, lambda last: (last.number,))
    items = [_to_rest_change(each.change) for each in page["items"]]
    return ParentChangePage(items=items, next_token=page["next_token"])


@get("/{device_id:str}/path")
async def show_path(
    device_id: FromPath[str],
    database: Given[Database],
    topology_reader: Given[TopologyReader],
    now: Given[Now],
) -> DevicePath:
    """Show the hops from a device to its gateway with their signal, and the parents it could have instead."""
    device = parse_path_device(device_id)
    await database.read(listing.load_device, device)  # raises not-found if the device does not exist
    number = mac_to_int(device)
    gateway = await topology_reader.find_gateway(number)
    if gateway is None:
        return views.build_unknown_path(number, now())
    return views.build_path(await topology_reader.read_tree(gateway), number, now())


def _to_rest_change(change: store.ParentChangeRow) -> ParentChange:
    return ParentChange(
        time=format_millis(change.time),
        parent=mac_from_int(change.parent),
        previous=None if change.previous is None else mac_from_int(change.previous),
        gateway=mac_from_int(change.gateway),
        established=change.established,
    )


gateway_router = Router("/api/v1/gateways", route_handlers=[show_topology], tags=["Topology"])
device_router = Router("/api/v1/devices", route_handlers=[list_parents, show_path], tags=["Topology"])
