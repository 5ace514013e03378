"""What changes with every report: the table `device_state`.

Each part of a state has its own time. What is newer counts, in whatever order it comes, and whoever else
writes at the same moment (report-50).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from meshfleet.db import bulk
from meshfleet.db.tables import device_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

BEST_FOR: Final = 90_000
"""Milliseconds that the parent that hears a device best is remembered; they report every minute."""


class State(Struct):
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


_PARTS: Final = {
    "reported_at": ("boot_mode",),
    "status_at": ("status",),
    "radio_at": ("parent", "rssi"),
    "battery_at": ("battery",),
    "gateway_at": (),
    "model_at": (),
    "variant_at": (),
    "firmware_at": (),
    "hardware_at": (),
}
"""The times, and what each is the time of."""


def _newer(time: str) -> str:
    return (
        f"excluded.{time} IS NOT NULL"
        f" AND (device_state.{time} IS NULL OR excluded.{time} >= device_state.{time})"
    )


_LOUDER: Final = (
    " AND (device_state.radio_at IS NULL OR excluded.parent = device_state.parent"
    f" OR excluded.rssi >= device_state.rssi OR device_state.radio_at < excluded.radio_at - {BEST_FOR})"
)


def _update(radio: str) -> str:
    """What is newer; `radio` is one more condition for how the device is heard."""
    conditions = {time: _newer(time) for time in _PARTS}
    conditions["radio_at"] += radio
    return "UPDATE SET " + ", ".join(
        f"{column} = CASE WHEN {conditions[time]} THEN excluded.{column} ELSE device_state.{column} END"
        for time, parts in _PARTS.items()
        for column in (time, *parts)
    )


_MERGE: Final = {False: _update(""), True: _update(_LOUDER)}


def merge(connection: Connection, rows: Sequence[tuple[Any, ...]], *, loudest: bool = False) -> None:
    """Take over what is newer in states, given as rows. Their devices must be there.

    Several parents hear a device: with `loudest` the one that hears it best counts, for as long as it does.
    """
    bulk.insert(connection, device_state, rows, otherwise=_MERGE[loudest])
