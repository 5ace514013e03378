"""Progress of the evaluation, and the changes of connections since the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meshfleet.db import bulk
from meshfleet.db.tables import alarm_progress
from meshfleet.service.alarms.rules import DAY_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

_ROW: Final = 1
_MAX_CHANGES: Final = 5_000
"""Maximum number of changes that one evaluation reads."""
_RECENT_LOSS_MS: Final = 7 * DAY_MS
"""Age of losses that the first evaluation looks at: what was removed long ago needs no attention."""

_SELECT_PROGRESS: Final = "SELECT position, evaluated_at, quiet_until FROM alarm_progress WHERE id = ?"
_SELECT_NEWEST: Final = "SELECT coalesce(max(id), 0) FROM connectivity"
_SELECT_CHANGES: Final = """
    SELECT change.id, change.device, change.time, change.connected, change.cause, device.gateway,
        gateway.device IS NOT NULL
    FROM connectivity AS change
    JOIN device ON device.id = change.device
    LEFT JOIN gateway ON gateway.device = change.device
    WHERE change.id > ? AND change.id <= ? AND (change.cause <> 'gateway' OR change.connected)
    ORDER BY change.id LIMIT ?
"""
_SELECT_LOST: Final = """
    SELECT 0, device.id, device.connected_at, device.connected, 'unknown', device.gateway,
        gateway.device IS NOT NULL
    FROM device
    LEFT JOIN gateway ON gateway.device = device.id
    LEFT JOIN device AS upstream ON upstream.id = device.gateway
    WHERE NOT device.connected AND device.connected_at > ?
        AND (gateway.device IS NOT NULL OR upstream.connected)
        AND EXISTS (SELECT 1 FROM connectivity WHERE connectivity.device = device.id)
    ORDER BY device.connected_at
"""


class Progress(NamedTuple):
    """How far the history of connections was read. Times are Unix times in milliseconds."""

    position: int
    """Highest row id that was read."""
    evaluated_at: int
    quiet_until: int
    """Until then no alarm opens or is cleared."""


class ConnectionChange(NamedTuple):
    """Connection or disconnection of a device or gateway, without consequences of those of its gateway."""

    device: int
    time: int
    connected: bool
    cause: str
    gateway: int | None
    """Gateway that the device has now."""
    is_gateway: bool


class ChangeBatch(NamedTuple):
    """Changes since the last evaluation, and the row id up to which they were read."""

    changes: list[ConnectionChange]
    position: int


def load_progress(connection: Connection) -> Progress | None:
    """Return the progress of the last evaluation; None before the first one."""
    rows = bulk.query_rows(connection, _SELECT_PROGRESS, (_ROW,))
    return Progress(*rows[0]) if rows else None


def save_progress(connection: Connection, progress: Progress) -> None:
    """Store the progress in the transaction of the evaluation."""
    update = ", ".join(f"{name} = excluded.{name}" for name in Progress._fields)
    bulk.upsert_rows(connection, alarm_progress, [(_ROW, *progress)], on_conflict=f"UPDATE SET {update}")


def load_newest_position(connection: Connection) -> int:
    """Return the highest row id of the history of connections."""
    return int(connection.exec_driver_sql(_SELECT_NEWEST).scalar_one())


def load_changes(connection: Connection, position: int) -> ChangeBatch:
    """Load the changes after a row id. Devices that were lost with their gateway are left out."""
    newest = load_newest_position(connection)
    rows = bulk.query_rows(connection, _SELECT_CHANGES, (position, newest, _MAX_CHANGES))
    end = rows[-1][0] if len(rows) == _MAX_CHANGES else max(newest, position)
    return ChangeBatch([_to_change(row) for row in rows], end)


def load_present_faults(connection: Connection, now: int) -> ChangeBatch:
    """Load what is disconnected now, for the first evaluation of a database."""
    rows = bulk.query_rows(connection, _SELECT_LOST, (now - _RECENT_LOSS_MS,))
    return ChangeBatch([_to_change(row) for row in rows], load_newest_position(connection))


def _to_change(row: Sequence[Any]) -> ConnectionChange:
    _, device, time, connected, cause, gateway, is_gateway = row
    return ConnectionChange(device, time, bool(connected), cause, gateway, bool(is_gateway))
