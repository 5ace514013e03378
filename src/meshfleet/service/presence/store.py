"""Presence in the database: `connected` of devices, and the history of its changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import select

from meshfleet.db import bulk
from meshfleet.db.tables import device, device_state, gateway

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from sqlalchemy import Connection

    from meshfleet.service.presence.changes import PresenceChange

_SELECT_CONNECTED: Final = "SELECT id, connected FROM device WHERE id IN numbers"
_UPDATE_CONNECTED: Final = bulk.BulkUpdate(("id", "connected", "connected_at"), "true")
_UPDATE_INTERVAL: Final = bulk.BulkUpdate(("device", "rhythm"), "true")
_INSERT_HISTORY: Final = (
    "INSERT INTO connectivity (device, time, connected, cause, gateway) VALUES (?, ?, ?, ?, ?)"
)
_DELETE_HISTORY: Final = (
    "DELETE FROM connectivity WHERE id IN"
    " (SELECT id FROM connectivity WHERE time < ? ORDER BY time LIMIT 1000)"
)


class PresenceSnapshot(NamedTuple):
    """What was there when a service before this one ended."""

    gateways: set[int]
    devices: Sequence[tuple[int, int | None, int | None]]
    """Those that were connected, each with its gateway and its rhythm."""


class PresenceWriteResult(NamedTuple):
    """What became of changes."""

    written: Sequence[PresenceChange] = ()
    """Those that were news."""
    unknown_devices: Collection[int] = ()
    """Devices that nobody knows."""


def load_presence(connection: Connection) -> PresenceSnapshot:
    """What was there before."""
    query = (
        select(device.c.id, device.c.gateway, device_state.c.rhythm)
        .outerjoin(device_state, device_state.c.device == device.c.id)
        .where(device.c.connected)
    )
    gateways = set(connection.execute(select(gateway.c.device)).scalars())
    return PresenceSnapshot(gateways, [tuple(row) for row in connection.execute(query)])


def update_presence(connection: Connection, changes: Sequence[PresenceChange]) -> PresenceWriteResult:
    """Write changes of known devices, and into their history what was news."""
    if not changes:
        return PresenceWriteResult()
    wanted = {change.device for change in changes}
    before = {
        number: bool(here) for number, here in bulk.query_in(connection, _SELECT_CONNECTED, sorted(wanted))
    }
    unknown = wanted - before.keys()
    news = []
    for each in changes:
        if before.get(each.device) == (not each.connected):
            before[each.device] = each.connected
            news.append(each)
    if news:
        last = {each.device: (each.device, each.connected, each.at) for each in news}
        bulk.update_rows(connection, device, _UPDATE_CONNECTED, list(last.values()))
    bulk.execute_many(
        connection,
        _INSERT_HISTORY,
        [(each.device, each.at, each.connected, str(each.cause), each.gateway) for each in news],
    )
    return PresenceWriteResult(news, unknown)


def update_intervals(connection: Connection, intervals: Sequence[tuple[int, int]]) -> None:
    """Remember rhythms of devices for the next start."""
    if intervals:
        bulk.update_rows(connection, device_state, _UPDATE_INTERVAL, intervals)


def delete_history(connection: Connection, before: int) -> None:
    """Forget some of what happened before a time: this is done every other second."""
    bulk.execute_many(connection, _DELETE_HISTORY, [(before,)])


def find_dfu_owners(connection: Connection, addresses: Iterable[int]) -> dict[int, int]:
    """Whose addresses these are: a device in DFU mode may have the one behind its own (report-46)."""
    wanted = sorted({number for address in addresses for number in (address - 1, address)})
    if not wanted:
        return {}
    present = {number for number, _ in bulk.query_in(connection, _SELECT_CONNECTED, wanted)}
    return {
        address: address if address in present else address - 1
        for address in addresses
        if address in present or address - 1 in present
    }
