"""Usual absences of devices: a device that goes home every evening is not missed after ten minutes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.db import bulk
from meshfleet.service.alarms.rules import USUAL_ABSENCE_FACTOR, USUAL_ABSENCE_MS, USUAL_ABSENCE_ROWS

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.service.alarms.rules import AlarmTimes

_SELECT_CHANGES: Final = (
    "SELECT time, connected, cause FROM connectivity WHERE device = ? ORDER BY id DESC LIMIT ?"
)


def find_last_loss(connection: Connection, device: int) -> int | None:
    """Return the time at which a device was disconnected last; None if it never was."""
    return next(
        (
            time
            for time, is_connected, _ in bulk.query_rows(connection, _SELECT_CHANGES, (device, 2))
            if not is_connected
        ),
        None,
    )


def compute_patience(connection: Connection, device: int, now: int, times: AlarmTimes) -> int:
    """Return the milliseconds for which a device must be away before its alarm opens."""
    rows = bulk.query_rows(connection, _SELECT_CHANGES, (device, USUAL_ABSENCE_ROWS))
    absences = []
    returned_at: int | None = None
    for time, connected, cause in rows:  # the newest first
        if connected:
            returned_at = time
            continue
        if returned_at is not None and cause == "silent" and time > now - USUAL_ABSENCE_MS:
            absences.append(returned_at - time)
        returned_at = None
    usual = sorted(absences, reverse=True)[1] if len(absences) > 1 else 0
    patience = int(USUAL_ABSENCE_FACTOR * usual)
    return min(max(patience, times.device_offline), times.device_offline_max)
