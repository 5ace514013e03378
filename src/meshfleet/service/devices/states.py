"""Database functions for the table `device_state`: fields of devices that change with every report.

Each group of columns has its own time column. A value replaces the stored value only if its time is not
older, so values may arrive and be written in any order (report-50).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from sqlalchemy import Connection, func, select

from meshfleet.db import bulk
from meshfleet.db.tables import active_condition, device_state

if TYPE_CHECKING:
    from collections.abc import Sequence


BEST_PARENT_MS: Final = 90_000
"""Milliseconds for which a parent with a stronger signal is kept after its last report of a device.

Parents report every minute.
"""


class DeviceState(Struct):
    """Row of `device_state`. If a time such as `status_at` is None, `status` has no value yet."""

    device: int
    reported_at: int | None = None
    status: int | None = None
    boot_mode: str | None = None
    parent: int | None = None
    rssi: int | None = None
    battery: int | None = None
    status_at: int | None = None
    radio_at: int | None = None
    battery_at: int | None = None
    gateway_at: int | None = None
    model_at: int | None = None
    variant_at: int | None = None
    firmware_at: int | None = None
    hardware_at: int | None = None
    rhythm: int | None = None
    """Usual milliseconds between heartbeats; None if unknown."""
    radio_gateway: int | None = None
    """Gateway that reported `parent` and `rssi`."""


_PARTS: Final = {
    "reported_at": ("boot_mode",),
    "status_at": ("status",),
    "radio_at": ("parent", "rssi", "radio_gateway"),
    "battery_at": ("battery",),
    "gateway_at": (),
    "model_at": (),
    "variant_at": (),
    "firmware_at": (),
    "hardware_at": (),
}
"""Time columns, each with the value columns that were observed at this time."""


# --- Whole states ---


def _build_not_older_condition(time: str) -> str:
    """Return the SQL condition that a new value is not older than the stored one, by a time column."""
    return (
        f"excluded.{time} IS NOT NULL"
        f" AND (device_state.{time} IS NULL OR excluded.{time} >= device_state.{time})"
    )


_MERGE: Final = "UPDATE SET " + ", ".join(
    f"{column} = CASE WHEN {_build_not_older_condition(time)}"
    f" THEN excluded.{column} ELSE device_state.{column} END"
    for time, parts in _PARTS.items()
    for column in (time, *parts)
)


def merge_states(connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    """Merge rows into `device_state`: replace a group of columns only by values that are not older.

    The devices must exist in the table `device`.
    """
    bulk.insert_rows(connection, device_state, rows, on_conflict=_MERGE)


# --- Parts of many states ---

_STRONGER_PARENT: Final = (
    "device_state.parent = {parent} OR device_state.rssi <= {rssi}"
    f" OR device_state.radio_at < {{radio_at}} - {BEST_PARENT_MS}"
)
"""SQL condition for replacing the parent of a device: same parent, stronger signal, or outdated parent."""


def update_state_part(connection: Connection, time_column: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Update a time column and its value columns in existing rows whose stored time is not newer.

    Each row has the device, the time, and the values of the value columns. This costs a third of writing
    whole rows.
    """
    if rows:
        bulk.update_rows(connection, device_state, _UPDATES[time_column], rows)


def update_heard_states(connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    """Update the states of devices that reported through their usual gateway, in normal boot mode.

    Most reports are of this kind. Each row has the device, and the same time for `reported_at` and
    `gateway_at`.
    """
    if rows:
        bulk.update_rows(connection, device_state, _HEARD, rows)


_LIMIT_HEARTBEATS: Final = f"UPDATE execution SET beat_at = ? WHERE {active_condition()} AND beat_at > ?"  # noqa: S608 # constant column names


def limit_state_times(connection: Connection, now: int) -> None:
    """Replace all future times in device states by `now`, after the clock of this machine was set back.

    Otherwise new observations would count as older, and states would not change until the clock catches up.
    Future heartbeat times of active job executions are replaced, too, as they are compared with the states.
    """
    is_late = " OR ".join(f"{time} > ?" for time in _PARTS)
    set_times = ", ".join(f"{time} = CASE WHEN {time} > ? THEN ? ELSE {time} END" for time in _PARTS)
    values = (now,) * (3 * len(_PARTS))
    bulk.execute_one(connection, f"UPDATE device_state SET {set_times} WHERE {is_late}", values)  # noqa: S608 # constant column names
    bulk.execute_one(connection, _LIMIT_HEARTBEATS, (now, now))


def find_newest_state_time(connection: Connection) -> int | None:
    """Return the latest time in all device states; None if there is no time. Reads the whole table."""
    newest = connection.execute(select(*(func.max(device_state.c[time]) for time in _PARTS))).one()
    return max((time for time in newest if time is not None), default=None)


def _build_update_condition(time: str) -> str:
    """Return the SQL condition for updating a time column and its value columns."""
    newer = f"device_state.{time} <= {{{time}}}"
    if time == "radio_at":
        newer = f"{newer} AND ({_STRONGER_PARENT})"
    return f"device_state.{time} IS NULL OR {newer}"


_UPDATES: Final = {
    time: bulk.BulkUpdate(("device", time, *parts), _build_update_condition(time))
    for time, parts in _PARTS.items()
}
_HEARD: Final = bulk.BulkUpdate(
    ("device", "reported_at", "gateway_at"),
    _build_update_condition("reported_at"),
    null_columns=("boot_mode",),
)
