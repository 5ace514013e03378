"""Loads changes in the device registry that have not been applied to active executions yet.

Such changes are heartbeats during confirmation, devices received in DFU mode, removed devices, and gateways
that disconnected or reconnected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from meshfleet.db import bulk
from meshfleet.service.jobs.execution import queries
from meshfleet.service.jobs.execution.queries import EXECUTIONS_PER_TRANSACTION
from meshfleet.service.jobs.updates import model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection


_SELECT_HEARTBEATS: Final = (
    "SELECT e.device, s.status, s.status_at FROM execution e"  # noqa: S608 # constants only
    " JOIN device_state s ON s.device = e.device"
    f" WHERE {queries.IS_ACTIVE} AND {{among}} AND e.state = 'CONFIRMING' AND s.status IS NOT NULL"
    f" AND s.status_at > coalesce(e.beat_at, -1) LIMIT {EXECUTIONS_PER_TRANSACTION}"
)
_SELECT_IN_DFU: Final = (
    "SELECT e.device, coalesce(s.radio_gateway, d.gateway), s.parent, s.rssi FROM execution e"  # noqa: S608 # constants only
    " JOIN device_state s ON s.device = e.device JOIN device d ON d.id = e.device"
    f" WHERE {queries.IS_ACTIVE} AND {{among}} AND e.state = 'DISPATCHED' AND e.method = 'nordic-dfu'"
    f" AND e.step IN ('mode', 'look') AND e.ask IS NULL AND s.boot_mode = 'dfu'"
    f" ORDER BY e.due LIMIT {EXECUTIONS_PER_TRANSACTION}"
)
_IS_REACHABLE: Final = (
    # Requests to the gateway of an update go to that gateway only. Requests to the device can go through
    # any gateway that receives it: the device's own gateway, or the one through which the update started.
    "(coalesce(h.connected, false) OR (coalesce(g.connected, false)"
    " AND (e.method = 'download' OR e.state = 'CONFIRMING')))"
)
_SELECT_ABSENT: Final = (
    "SELECT e.device, CASE WHEN d.id IS NULL THEN 'gone'"  # noqa: S608 # constants only
    " WHEN e.waiting = 'gateway-offline' THEN 'back'"
    f" ELSE 'away' END FROM execution e{queries.DEVICE_JOINS} LEFT JOIN device h ON h.id = e.gateway"
    f" WHERE {queries.IS_ACTIVE} AND {{among}} AND (d.id IS NULL"
    f" OR (e.waiting = 'gateway-offline' AND {_IS_REACHABLE})"
    " OR (e.state <> 'STAGED' AND coalesce(e.step, '') <> 'check'"  # a version check has a short timeout
    " AND coalesce(e.waiting, '') NOT IN ('canceling', 'gateway-offline')"
    f" AND coalesce(e.outage_left, 1) > 0 AND NOT {_IS_REACHABLE})) LIMIT {EXECUTIONS_PER_TRANSACTION}"
)
"""Selects removed devices, and devices whose gateway disconnected or reconnected, in one query."""
_ALL_ACTIVE: Final = "e.due >= 0"
"""SQL condition that is always true. It makes SQLite use the index of due times instead of a full scan."""
_BY_DEVICE: Final = "e.device IN numbers"
_ABSENCE_EVENTS: Final[Mapping[str, model.UpdateEvent]] = {
    "gone": model.DeviceRemoved(),
    "away": model.GatewayDisconnected(),
    "back": model.GatewayReconnected(),
}


def load_registry_changes(
    connection: Connection, devices: Sequence[int] | None
) -> dict[int, model.UpdateEvent]:
    """Load one event for each device that has an active execution and registry changes, by device.

    If `devices` is None, search all active executions and return a limited number of events.
    """

    def find_rows(text: str) -> Sequence[Sequence[Any]]:
        if devices is None:
            return bulk.query_rows(connection, text.format(among=_ALL_ACTIVE), ())
        return bulk.query_in(connection, text.format(among=_BY_DEVICE), devices)

    absences = {device: _ABSENCE_EVENTS[kind] for device, kind in find_rows(_SELECT_ABSENT)}
    events = absences.copy()
    for device, status, at in find_rows(_SELECT_HEARTBEATS):
        events[device] = model.HeartbeatReceived(status, at)
    for device, gateway, parent, rssi in find_rows(_SELECT_IN_DFU):
        events[device] = model.DfuModeSeen(gateway, parent, rssi)
    # The removal of a device overrides all its other changes.
    return events | {
        device: event for device, event in absences.items() if isinstance(event, model.DeviceRemoved)
    }
