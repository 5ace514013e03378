"""Commands of users on alarms: acknowledge them, and write notes on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select, update

from meshfleet.db.tables import alarm
from meshfleet.errors import AlarmCleared
from meshfleet.rest.alarms import AlarmState
from meshfleet.service.alarms import views
from meshfleet.service.alarms.alarms import AlarmEventKind, add_event
from meshfleet.service.audit import log as audit_log

if TYPE_CHECKING:
    from typing import Any

    from sqlalchemy import Connection

    from meshfleet.rest.alarms import Alarm
    from meshfleet.service.actor import Actor


def acknowledge_alarm(connection: Connection, number: int, *, by: Actor, now: int) -> Alarm:
    """Record that someone takes care of an alarm with its present members. Nothing changes the second time.

    Raise `AlarmCleared` if it is over.
    """
    if _lock_alarm(connection, number) == AlarmState.OPEN:
        _change(
            connection,
            number,
            AlarmEventKind.ACKNOWLEDGED,
            by=by,
            now=now,
            state=str(AlarmState.ACKNOWLEDGED),
            acknowledged_by=by.display_name,
            acknowledged_at=now,
            new_members=0,
        )
    return views.load_alarm(connection, number, now=now)


def unacknowledge_alarm(connection: Connection, number: int, *, by: Actor, now: int) -> Alarm:
    """Take an acknowledgment back. Nothing changes without one. Raise `AlarmCleared` if it is over."""
    if _lock_alarm(connection, number) == AlarmState.ACKNOWLEDGED:
        _change(
            connection,
            number,
            AlarmEventKind.UNACKNOWLEDGED,
            by=by,
            now=now,
            state=str(AlarmState.OPEN),
            acknowledged_by=None,
            acknowledged_at=None,
            new_members=0,
        )
    return views.load_alarm(connection, number, now=now)


def add_note(connection: Connection, number: int, text: str, *, by: Actor, now: int) -> Alarm:
    """Write a note on an alarm, also on one that is over."""
    views.load_record(connection, number)
    add_event(connection, number, AlarmEventKind.NOTE, now=now, actor=by.display_name, text=text)
    audit_log.record_change(connection, by, "alarm.note", f"alarm-{number}", now=now)
    return views.load_alarm(connection, number, now=now)


def _lock_alarm(connection: Connection, number: int) -> str:
    """Return the state of an alarm, and lock its row until the transaction ends."""
    views.load_record(connection, number)
    query = select(alarm.c.state).where(alarm.c.id == number).with_for_update()
    state: str = connection.execute(query).scalar_one()
    if state == AlarmState.CLEARED:
        raise AlarmCleared(f"alarm-{number} is over: nothing is left to acknowledge")
    return state


def _change(
    connection: Connection, number: int, kind: AlarmEventKind, *, by: Actor, now: int, **values: Any
) -> None:
    """Change an alarm, and record it as an event and in the audit log."""
    statement = update(alarm).where(alarm.c.id == number).values(version=alarm.c.version + 1, **values)
    connection.execute(statement)
    add_event(connection, number, kind, now=now, actor=by.display_name)
    action = "alarm.acknowledge" if kind is AlarmEventKind.ACKNOWLEDGED else "alarm.unacknowledge"
    audit_log.record_change(connection, by, action, f"alarm-{number}", now=now)
