"""What changes with every report: the table `device_state`.

Each part of a state has its own time. What is newer counts, in whatever order it comes, and whoever else
writes at the same moment (report-50).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from sqlalchemy import func, select

from meshfleet.db import bulk
from meshfleet.db.tables import active_condition, device_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

BEST_PARENT_MS: Final = 90_000
"""Milliseconds that the parent that hears a device best is remembered; they report every minute."""


class DeviceState(Struct):
    """A row of `device_state`; a time that is None says that the rest of its part is not known."""

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
    radio_gateway: int | None = None


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
"""The times, and what each is the time of."""


# --- Whole states ---


def _newer(time: str) -> str:
    return (
        f"excluded.{time} IS NOT NULL"
        f" AND (device_state.{time} IS NULL OR excluded.{time} >= device_state.{time})"
    )


_MERGE: Final = "UPDATE SET " + ", ".join(
    f"{column} = CASE WHEN {_newer(time)} THEN excluded.{column} ELSE device_state.{column} END"
    for time, parts in _PARTS.items()
    for column in (time, *parts)
)


def merge_states(connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    """Take over what is newer in whole states, given as rows. Their devices must be there."""
    bulk.insert_rows(connection, device_state, rows, on_conflict=_MERGE)


# --- Parts of many states ---

_STRONGER_PARENT: Final = (
    "device_state.parent = {parent} OR device_state.rssi <= {rssi}"
    f" OR device_state.radio_at < {{radio_at}} - {BEST_PARENT_MS}"
)
"""Several parents hear a device: the one that hears it best counts, for as long as it does."""


def update_state_part(connection: Connection, time: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Take over what is newer in a part of states, which is called by its time and must be there.

    Each row has the device, the time, and what it is the time of. A part that is written by itself costs a
    third of a whole state.
    """
    if rows:
        bulk.update_rows(connection, device_state, _UPDATES[time], rows)


def update_heard_states(connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    """The same for what most reports tell: devices are in no special mode, and their own gateways hear them.

    Each row has the device and, twice, the time.
    """
    if rows:
        bulk.update_rows(connection, device_state, _HEARD, rows)


_LIMIT_HEARTBEATS: Final = f"UPDATE execution SET beat_at = ? WHERE {active_condition()} AND beat_at > ?"  # noqa: S608 # our names


def limit_state_times(connection: Connection, now: int) -> None:
    """Let no state be later than now, after the clock of this machine was set back.

    What comes afterwards would count as older, and states would not change until the clock gets there. The
    heartbeats that executions under way have counted are known by the times of states: those are limited too.
    """
    late = " OR ".join(f"{time} > ?" for time in _PARTS)
    set_times = ", ".join(f"{time} = CASE WHEN {time} > ? THEN ? ELSE {time} END" for time in _PARTS)
    values = (now,) * (3 * len(_PARTS))
    bulk.execute_one(connection, f"UPDATE device_state SET {set_times} WHERE {late}", values)  # noqa: S608 # our names
    bulk.execute_one(connection, _LIMIT_HEARTBEATS, (now, now))


def find_newest_state_time(connection: Connection) -> int | None:
    """Find the latest time of all states. This reads all of them."""
    newest = connection.execute(select(*(func.max(device_state.c[time]) for time in _PARTS))).one()
    return max((time for time in newest if time is not None), default=None)


def _condition(time: str) -> str:
    newer = f"device_state.{time} <= {{{time}}}"
    if time == "radio_at":
        newer = f"{newer} AND ({_STRONGER_PARENT})"
    return f"device_state.{time} IS NULL OR {newer}"


_UPDATES: Final = {
    time: bulk.BulkUpdate(("device", time, *parts), _condition(time)) for time, parts in _PARTS.items()
}
_HEARD: Final = bulk.BulkUpdate(
    ("device", "reported_at", "gateway_at"), _condition("reported_at"), null_columns=("boot_mode",)
)
