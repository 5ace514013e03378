"""Commands of users on alarms: acknowledge and silence them, and write notes on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select, update

from meshfleet.db.tables import alarm
from meshfleet.errors import AlarmCleared, Conflict, NotFound
from meshfleet.protocol.times import format_millis
from meshfleet.rest.alarms import AlarmAcknowledgment, AlarmState
from meshfleet.service.alarms import views
from meshfleet.service.alarms.alarm_records import AlarmEventKind
from meshfleet.service.alarms.alarms import add_event
from meshfleet.service.audit import log as audit_log

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Literal

    from sqlalchemy import Connection

    from meshfleet.rest.alarms import Alarm
    from meshfleet.service.actor import Actor


def acknowledge_alarm(connection: Connection, number: int, *, by: Actor, now: int) -> Alarm:
    """Record that someone takes care of an alarm with its present members. Nothing changes the second time.

    Raise `AlarmCleared` if it is over.
    """
    _acknowledge(connection, number, by=by, now=now)
    return views.load_alarm(connection, number, now=now)


def acknowledge_alarms(
    connection: Connection, ids: Sequence[str], *, by: Actor, now: int
) -> list[AlarmAcknowledgment]:
    """Acknowledge several alarms. Return what was done to each, in the same order."""
    done: dict[str, Literal["not-found", "alarm-cleared"] | None] = {}
    # In the order of their rows, so that no two such requests wait for each other.
    for number, text in sorted((views.parse_alarm_id(each) or 0, each) for each in set(ids)):
        try:
            _acknowledge(connection, number, by=by, now=now)
            done[text] = None
        except NotFound:
            done[text] = "not-found"
        except AlarmCleared:
            done[text] = "alarm-cleared"
    return [AlarmAcknowledgment(id=each, acknowledged=done[each] is None, code=done[each]) for each in ids]


def _acknowledge(connection: Connection, number: int, *, by: Actor, now: int) -> None:
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


def silence_alarm(  # noqa: PLR0913 # keyword-only after the number
    connection: Connection, number: int, *, until: int, note: str | None, by: Actor, now: int
) -> Alarm:
    """Send no messages about an alarm until a time. An earlier silence is replaced.

    Raise `AlarmCleared` if it is over.
    """
    _lock_alarm(connection, number)
    _update(connection, number, silenced_until=until, silenced_by=by.display_name, silence=None)
    detail = {"until": format_millis(until)}
    add_event(connection, number, AlarmEventKind.SILENCED, now=now, actor=by.display_name, **detail)
    audit_log.record_change(connection, by, "alarm.silence", f"alarm-{number}", now=now, **detail)
    if note is not None:
        add_event(connection, number, AlarmEventKind.NOTE, now=now, actor=by.display_name, text=note)
    return views.load_alarm(connection, number, now=now)


def unsilence_alarm(connection: Connection, number: int, *, by: Actor, now: int) -> Alarm:
    """Send messages about an alarm again. Nothing changes without a silence. Raise `AlarmCleared`.

    Raise `Conflict` if a maintenance window silences it: that is not only for this alarm.
    """
    _lock_alarm(connection, number)
    record = views.load_record(connection, number)
    if record.silence is not None:
        raise Conflict(f"silence-{record.silence} silences alarm-{number}: change or delete that silence")
    if record.silenced_until is not None:
        _update(connection, number, silenced_until=None, silenced_by=None)
        add_event(connection, number, AlarmEventKind.UNSILENCED, now=now, actor=by.display_name)
        audit_log.record_change(connection, by, "alarm.unsilence", f"alarm-{number}", now=now)
    return views.load_alarm(connection, number, now=now)


def _lock_alarm(connection: Connection, number: int) -> str:
    """Return the state of an alarm, and lock its row until the transaction ends."""
    views.load_record(connection, number)
    query = select(alarm.c.state).where(alarm.c.id == number).with_for_update()
    state: str = connection.execute(query).scalar_one()
    if state == AlarmState.CLEARED:
        raise AlarmCleared(f"alarm-{number} is over: nothing is left to acknowledge or silence")
    return state


def _change(
    connection: Connection, number: int, kind: AlarmEventKind, *, by: Actor, now: int, **values: Any
) -> None:
    """Change an alarm, and record it as an event and in the audit log."""
    _update(connection, number, **values)
    add_event(connection, number, kind, now=now, actor=by.display_name)
    action = "alarm.acknowledge" if kind is AlarmEventKind.ACKNOWLEDGED else "alarm.unacknowledge"
    audit_log.record_change(connection, by, action, f"alarm-{number}", now=now)


def _update(connection: Connection, number: int, **values: Any) -> None:
    statement = update(alarm).where(alarm.c.id == number)
    connection.execute(statement.values(version=alarm.c.version + 1, **values))
