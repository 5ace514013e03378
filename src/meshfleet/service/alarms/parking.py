"""Parked devices: those with the label `parked` are in no alarm.

What is known only from one change, such as that a device fell silent, is kept while it is parked: else
nothing would be known of a device that is still silent later. Other faults are found again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.db import bulk

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy import Connection

PARKED_LABEL: Final = "parked"
PARKED_CAUSE: Final = "parked"
"""Cause of a condition that is kept while its device is parked."""

_SELECT_LABEL: Final = "SELECT id FROM label WHERE text = ?"
_SELECT_CARRIERS: Final = "SELECT device FROM device_label WHERE label = :label AND device IN numbers"
_SELECT_CONDITIONS: Final = """
    SELECT alarm_condition.subject
    FROM alarm_condition
    JOIN device_label ON device_label.device = alarm_condition.device AND device_label.label = ?
    WHERE alarm_condition.state <> 'quiet' AND alarm_condition.cause <> 'parked'
"""
_SELECT_KEPT: Final = "SELECT subject FROM alarm_condition WHERE cause = 'parked'"


class ParkedDevices:
    """Devices that are parked, at the time of an evaluation."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        rows = bulk.query_rows(connection, _SELECT_LABEL, (PARKED_LABEL,))
        self._label: int | None = rows[0][0] if rows else None
        """Row id of the label; None if no device can carry it."""

    def find(self, devices: Collection[int]) -> set[int]:
        """Return those of some devices that are parked."""
        if self._label is None or not devices:
            return set()
        rows = bulk.query_in(self._connection, _SELECT_CARRIERS, sorted(devices), label=self._label)
        return {row[0] for row in rows}

    def list_at_fault(self) -> Sequence[int]:
        """Return the subjects of conditions that devices have although they are parked."""
        if self._label is None:
            return ()
        return [row[0] for row in bulk.query_rows(self._connection, _SELECT_CONDITIONS, (self._label,))]

    def list_kept(self) -> Sequence[int]:
        """Return the subjects of conditions that are kept while their devices are parked."""
        return [row[0] for row in bulk.query_rows(self._connection, _SELECT_KEPT, ())]
