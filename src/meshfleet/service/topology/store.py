"""SQL of the topology: parent changes, and the devices of a gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import select

from meshfleet.db import bulk
from meshfleet.db.tables import device, gateway, parent_change
from meshfleet.errors import NotFound
from meshfleet.protocol.ids import mac_from_int
from meshfleet.service.presence.last_seen import DEFAULT_INTERVAL_MS

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy import Connection

_INSERT: Final = (
    "INSERT INTO parent_change (device, time, parent, previous, gateway, established)"
    " VALUES (?, ?, ?, ?, ?, ?)"
)
_DELETE_OLD: Final = (
    "DELETE FROM parent_change WHERE id IN"
    " (SELECT id FROM parent_change WHERE time < ? ORDER BY time LIMIT 1000)"
)
_SELECT_NEWEST: Final = (
    "SELECT device, parent, gateway, established FROM parent_change"
    " WHERE id IN (SELECT max(id) FROM parent_change GROUP BY device)"
)
_SELECT_DEVICES: Final = (
    "SELECT id FROM device WHERE gateway = ?"
    " UNION SELECT device FROM parent_change WHERE gateway = ? AND time <= ?"
)
_SELECT_INTERVALS: Final = "SELECT device, rhythm FROM device_state WHERE rhythm > 0 AND device IN numbers"


class ParentChangeRow(NamedTuple):
    """Change of the parent of a device. Its time is a Unix time in milliseconds."""

    device: int
    time: int
    parent: int
    previous: int | None
    gateway: int
    established: bool


class KnownParent(NamedTuple):
    """Parent of a device, and whether an established link leads to it."""

    parent: int
    gateway: int
    established: bool


class ParentChangeEntry(NamedTuple):
    """Stored parent change with its row id."""

    number: int
    change: ParentChangeRow


def insert_parent_changes(connection: Connection, changes: Sequence[ParentChangeRow]) -> None:
    """Store changes of parents."""
    bulk.execute_many(connection, _INSERT, changes)


def delete_parent_changes(connection: Connection, before: int) -> None:
    """Delete parent changes older than `before`, a Unix time in milliseconds; at most 1000 per call."""
    bulk.execute_many(connection, _DELETE_OLD, [(before,)])


def load_known_parents(connection: Connection) -> dict[int, KnownParent]:
    """Load the parent of each device from its newest change."""
    rows = connection.exec_driver_sql(_SELECT_NEWEST)
    return {row[0]: KnownParent(row[1], row[2], bool(row[3])) for row in rows}


def list_parent_changes(  # noqa: PLR0913 # keyword-only
    connection: Connection, number: int, *, since: int, until: int, before: int | None, limit: int
) -> list[ParentChangeEntry]:
    """List up to `limit` parent changes of a device in a time range, the newest first.

    If `before` is not None, list only changes with a lower row id.
    """
    columns = parent_change.c
    query = (
        select(parent_change)
        .where(columns.device == number, columns.time >= since, columns.time < until)
        .order_by(columns.id.desc())
        .limit(limit)
    )
    if before is not None:
        query = query.where(columns.id < before)
    return [
        ParentChangeEntry(
            row.id,
            ParentChangeRow(
                row.device, row.time, row.parent, row.previous, row.gateway, bool(row.established)
            ),
        )
        for row in connection.execute(query)
    ]


def check_gateway(connection: Connection, number: int) -> None:
    """Raise `NotFound` if a gateway is not claimed."""
    if connection.execute(select(gateway.c.device).where(gateway.c.device == number)).first() is None:
        raise NotFound(f"gateway {mac_from_int(number)} is not claimed")


def load_device_gateway(connection: Connection, number: int) -> int | None:
    """Return the gateway of a device as it is stored; None if it is unknown."""
    found: int | None = connection.execute(select(device.c.gateway).where(device.c.id == number)).scalar()
    return found


def list_devices(connection: Connection, number: int, at: int) -> list[int]:
    """List the devices that belong to a gateway, or belonged to it at a time or before."""
    return [row[0] for row in bulk.query_rows(connection, _SELECT_DEVICES, (number, number, at))]


def load_intervals(connection: Connection, devices: Collection[int]) -> dict[int, int]:
    """Load the usual milliseconds between two heartbeats of devices; the default is for unknown ones."""
    known: dict[int, int] = dict(map(tuple, bulk.query_in(connection, _SELECT_INTERVALS, sorted(devices))))
    return {each: known.get(each, DEFAULT_INTERVAL_MS) for each in devices}
