"""News of alarms: what happened since a user looked last, the same on each of the user's devices."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sqlalchemy import select

from meshfleet.db import bulk
from meshfleet.db.tables import alarm, alarm_seen
from meshfleet.errors import Conflict
from meshfleet.protocol.times import format_millis
from meshfleet.rest.alarms import AlarmNews, AlarmState, UnreadAlarms
from meshfleet.service.alarms.alarm_records import AlarmEventKind, to_records
from meshfleet.service.alarms.rules import Rule, Severity
from meshfleet.service.alarms.views import build_alarms

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.rest.alarms import Alarm
    from meshfleet.service.actor import Actor
    from meshfleet.service.alarms.alarm_records import AlarmRecord

_MAX_UNREAD: Final = 1_000
"""Maximum number of events that are counted for a user who has not looked for long."""

# With the condition of the partial index.
_IS_NEWS: Final = "kind IN ('opened', 'reopened', 'severity', 'cleared')"
_SELECT_USER: Final = (
    "SELECT account.created_at, coalesce(alarm_seen.event, 0) FROM account"
    " LEFT JOIN alarm_seen ON alarm_seen.username = account.username WHERE account.username = ?"
)
_SELECT_UNREAD: Final = (
    "SELECT news.id, news.time, news.kind, alarm.id, alarm.severity, alarm.state FROM"  # noqa: S608 # constants only
    f" (SELECT id, time, kind, alarm FROM alarm_event WHERE {_IS_NEWS} AND id > ? ORDER BY id DESC LIMIT ?)"
    " AS news JOIN alarm ON alarm.id = news.alarm"
    " WHERE news.time >= ? AND (alarm.silenced_until IS NULL OR alarm.silenced_until <= ?)"
)
_SELECT_NEWS: Final = (
    "SELECT id, time, kind, alarm FROM alarm_event"  # noqa: S608 # constants only
    f" WHERE {_IS_NEWS} AND id < ? ORDER BY id DESC LIMIT ?"
)
_RESTORED_RULES: Final = frozenset({Rule.GATEWAYS_LOST, Rule.GATEWAY_OFFLINE, Rule.DEVICE_OFFLINE})
"""Rules whose sentences can be written again after the end. Others are shown as they are now."""
_SELECT_NEWEST: Final = "SELECT coalesce(max(id), 0) FROM alarm_event"
_NO_LIMIT: Final = 2**63 - 1


def count_unread(connection: Connection, actor: Actor, now: int) -> UnreadAlarms | None:
    """Count the alarms with news that a user has not seen. Return None for what is not a user.

    What happened before the account was created is no news, and neither are alarms that are silenced.
    """
    user = bulk.query_rows(connection, _SELECT_USER, (actor.name,)) if actor.kind == "user" else ()
    if not user:
        return None
    created_at, seen = user[0]
    rows = bulk.query_rows(connection, _SELECT_UNREAD, (seen, _MAX_UNREAD, created_at, now))
    return UnreadAlarms(
        count=len({number for _, _, _, number, _, _ in rows}),
        critical=any(
            severity == Severity.CRITICAL and state != AlarmState.CLEARED for *_, severity, state in rows
        ),
        up_to=max((row[0] for row in rows), default=seen),
    )


def mark_seen(connection: Connection, actor: Actor, up_to: int, now: int) -> UnreadAlarms:
    """Record that a user has seen the events up to a number. Return what the user has not seen.

    A smaller number than before changes nothing: the user has seen more on another device. Raise
    `Conflict` for what is not a user.
    """
    before = count_unread(connection, actor, now)
    if before is None:
        raise Conflict("only users have seen alarms: an API key has no such mark")
    # Events that do not exist yet cannot have been seen.
    newest = int(bulk.query_rows(connection, _SELECT_NEWEST, ())[0][0])
    row = (actor.name, min(up_to, newest))
    larger = "max" if connection.dialect.name == "sqlite" else "greatest"
    change = f"UPDATE SET event = {larger}(alarm_seen.event, excluded.event)"
    bulk.upsert_rows(connection, alarm_seen, [row], on_conflict=change)
    return count_unread(connection, actor, now) or before


def list_news(connection: Connection, *, before: int | None, limit: int, now: int) -> list[AlarmNews]:
    """List up to `limit` events of all alarms that people want to know of, the newest first."""
    end = _NO_LIMIT if before is None else before
    rows = bulk.query_rows(connection, _SELECT_NEWS, (end, limit))
    query = select(alarm).where(alarm.c.id.in_({row[3] for row in rows}))
    records = {each.id: each for each in to_records(connection.execute(query))}
    known = [row for row in rows if row[3] in records]
    as_then = [_restore_record(records[number], kind) for _, _, kind, number in known]
    bodies = build_alarms(connection, as_then, now)
    return [_build_news(row[0], row[1], row[2], body) for row, body in zip(known, bodies, strict=True)]


def _restore_record(record: AlarmRecord, kind: str) -> AlarmRecord:
    """Return the row of an alarm as it was when an event happened, as far as its sentence needs it."""
    is_same = kind == AlarmEventKind.CLEARED or record.state != AlarmState.CLEARED
    if is_same or record.rule not in _RESTORED_RULES:
        return record
    # Which device it was is not kept after the end: it is counted, not named.
    members = 0 if record.rule == Rule.DEVICE_OFFLINE else record.most_members
    return replace(
        record,
        state=str(AlarmState.OPEN),
        cleared_at=None,
        end_reason=None,
        members=members,
        affected=record.most_affected,
    )


def _build_news(number: int, time: int, kind: str, body: Alarm) -> AlarmNews:
    return AlarmNews(
        number=number,
        time=format_millis(time),
        kind=kind,
        alarm=body.id,
        severity=body.severity,
        sentence=body.sentence,
    )
