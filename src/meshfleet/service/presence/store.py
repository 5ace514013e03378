"""SQL of presence: the connection states of devices, and the history of their changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import Connection, select

from meshfleet.db import bulk
from meshfleet.db.tables import device, device_state, gateway
from meshfleet.service.devices.fleet_count import add_to_count

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

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


class ConnectedDevice(NamedTuple):
    """Device that counted as connected when the previous process stopped."""

    device: int
    gateway: int | None
    interval: int | None
    """Usual milliseconds between two heartbeats; None if unknown."""


class PresenceSnapshot(NamedTuple):
    """Presence at the start: all gateways, and the devices connected when the service last stopped."""

    gateways: set[int]
    """All claimed gateways, connected or not."""
    devices: Sequence[ConnectedDevice]


class PresenceWriteResult(NamedTuple):
    """Result of storing presence changes."""

    written: Sequence[PresenceChange] = ()
    """Changes that were stored; changes that equal the stored state are skipped."""
    unknown_devices: Collection[int] = ()
    """Devices that are not in the database, so that their changes were not stored."""


def load_presence(connection: Connection) -> PresenceSnapshot:
    """Load all claimed gateways, and the devices that are stored as connected."""
    query = (
        select(device.c.id, device.c.gateway, device_state.c.rhythm)
        .outerjoin(device_state, device_state.c.device == device.c.id)
        .where(device.c.connected)
    )
    gateways = set(connection.execute(select(gateway.c.device)).scalars())
    return PresenceSnapshot(gateways, [ConnectedDevice(*row) for row in connection.execute(query)])


def update_presence(connection: Connection, changes: Sequence[PresenceChange]) -> PresenceWriteResult:
    """Store the presence changes that differ from the stored state, and add them to the history.

    Skip devices that are not in the database, and return these devices in the result.
    """
    if not changes:
        return PresenceWriteResult()
    devices = {change.device for change in changes}
    connected_before = {
        number: bool(is_connected)
        for number, is_connected in bulk.query_in(connection, _SELECT_CONNECTED, sorted(devices))
    }
    unknown = devices - connected_before.keys()
    changed = []
    for each in changes:
        if connected_before.get(each.device) == (not each.connected):
            connected_before[each.device] = each.connected
            changed.append(each)
    if changed:
        latest = {each.device: (each.device, each.connected, each.at) for each in changed}
        bulk.update_rows(connection, device, _UPDATE_CONNECTED, list(latest.values()))
        add_to_count(connection, connected=sum(1 if each.connected else -1 for each in changed))
    bulk.execute_many(
        connection,
        _INSERT_HISTORY,
        [(each.device, each.at, each.connected, str(each.cause), each.gateway) for each in changed],
    )
    return PresenceWriteResult(changed, unknown)


def update_heartbeat_intervals(connection: Connection, intervals: Sequence[tuple[int, int]]) -> None:
    """Store the usual intervals between heartbeats, given as pairs of device and milliseconds."""
    if intervals:
        bulk.update_rows(connection, device_state, _UPDATE_INTERVAL, intervals)


def delete_connection_history(connection: Connection, before: int) -> None:
    """Delete connection changes older than `before`, a Unix time in milliseconds; at most 1000 per call."""
    bulk.execute_many(connection, _DELETE_HISTORY, [(before,)])


def find_dfu_owners(connection: Connection, addresses: Iterable[int]) -> dict[int, int]:
    """Find the devices that use addresses in DFU mode. Return the device by address, if it is known.

    In DFU mode a device may use its own address + 1 (report-46).
    """
    candidates = sorted({number for address in addresses for number in (address - 1, address)})
    if not candidates:
        return {}
    present = {number for number, _ in bulk.query_in(connection, _SELECT_CONNECTED, candidates)}
    return {
        address: address if address in present else address - 1
        for address in addresses
        if address in present or address - 1 in present
    }
