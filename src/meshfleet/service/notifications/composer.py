"""Composition of messages for people: one message tells what several held messages would have told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from sqlalchemy import func, insert, select, update

from meshfleet.db.tables import notification
from meshfleet.db.tables.notifications import IS_SENT, IS_UNSENT, IS_WAITING
from meshfleet.rest.alarms import AlarmSeverity, AlarmState
from meshfleet.rest.channels import DeliveryState
from meshfleet.service.alarms import views
from meshfleet.service.notifications import outbox
from meshfleet.service.notifications.messages import MAX_ENTRIES, HumanMessage, MessageEntry, MessageKind
from meshfleet.service.notifications.routing import Hold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection, Row

    from meshfleet.rest.alarms import Alarm
    from meshfleet.service.notifications.channels import StoredChannel

_HOUR_MS: Final = 3_600_000
_MAX_PER_HOUR: Final = 20
_MAX_CRITICAL_PER_HOUR: Final = 60
"""Maximum number of messages per hour to people: without a critical alarm, and with one. What is above it is
told in the next message."""
_MAX_ROWS: Final = 10_000
_SEVERITY_ORDER: Final = (AlarmSeverity.CRITICAL, AlarmSeverity.WARNING, AlarmSeverity.INFO)


def compose_message(
    connection: Connection, channel: StoredChannel, now: int, *, beside_waiting: bool = False
) -> None:
    """Make one message of the held messages of a channel whose time has come, if there are any.

    While a message waits to be sent, no other is made, except with `beside_waiting`: one about other alarms.
    """
    columns = notification.c
    rows = _load_due(connection, channel, now)
    if beside_waiting:
        waiting = _load_waiting_alarms(connection, channel)
        rows = [row for row in rows if row.alarm not in waiting]
    if not rows or (not beside_waiting and _has_waiting(connection, channel)):
        return
    alarms = {each.id: each for each in views.load_alarms(connection, {row.alarm for row in rows}, now=now)}
    has_critical = any(
        each.severity is AlarmSeverity.CRITICAL and each.state is AlarmState.OPEN for each in alarms.values()
    )
    later = _find_allowed_time(
        connection, channel, now, _MAX_CRITICAL_PER_HOUR if has_critical else _MAX_PER_HOUR
    )
    if later > now:
        numbers = [row.id for row in rows]
        connection.execute(update(notification).where(columns.id.in_(numbers)).values(due=later))
        return
    message = _build_message(rows, alarms)
    if message is None:
        outbox.fold_messages(connection, [row.id for row in rows], now, carrier=None)
        return
    values = {
        "channel": channel.id,
        "alarm": rows[0].alarm if len(alarms) == 1 else None,
        "kind": str(message.kind),
        "state": str(DeliveryState.WAITING),
        "created_at": now,
        "due": now,
        "attempts": 0,
        "body": msgspec.json.encode(message).decode(),
    }
    carrier = connection.execute(insert(notification).values(**values).returning(columns.id)).scalar_one()
    outbox.fold_messages(connection, [row.id for row in rows], now, carrier=carrier)


def is_message_due(connection: Connection, channel: StoredChannel, now: int) -> bool:
    """Return whether `compose_message` would do anything: most looks at a channel find nothing to write."""
    columns = notification.c
    held = select(columns.id).where(columns.channel == channel.id, IS_UNSENT, columns.due <= now)
    is_held = connection.execute(held.where(columns.state == str(DeliveryState.HELD)).limit(1)).first()
    return is_held is not None and not _has_waiting(connection, channel)


def _load_due(connection: Connection, channel: StoredChannel, now: int) -> list[Row[Any]]:
    """Load the held messages whose time has come. The time of one of a group is that of all."""
    columns = notification.c
    query = (
        select(columns.id, columns.alarm, columns.kind, columns.hold, columns.due)
        .where(columns.channel == channel.id, IS_UNSENT)
        .where(columns.state == str(DeliveryState.HELD))
        .order_by(columns.due, columns.id)
        .limit(_MAX_ROWS)
    )
    rows: list[Row[Any]] = list(connection.execute(query))
    is_group_due = any(row.due <= now and row.hold == Hold.GROUP for row in rows)
    due = [row for row in rows if row.due <= now or (is_group_due and row.hold == Hold.GROUP)]
    return sorted(due, key=lambda row: row.id)


def _has_waiting(connection: Connection, channel: StoredChannel) -> bool:
    """Return whether a message of a channel is not sent yet: what is held meanwhile becomes one message."""
    columns = notification.c
    query = select(columns.id).where(columns.channel == channel.id, IS_WAITING)
    return connection.execute(query.limit(1)).first() is not None


def _load_waiting_alarms(connection: Connection, channel: StoredChannel) -> set[int]:
    """Load the alarms that messages are about which are not sent yet: a second one would tell them twice."""
    columns = notification.c
    query = select(columns.id, columns.alarm).where(columns.channel == channel.id, IS_WAITING)
    waiting = connection.execute(query).all()
    carried = select(columns.alarm).where(columns.carrier.in_([row.id for row in waiting]))
    return {row.alarm for row in waiting} | set(connection.scalars(carried))


def _find_allowed_time(connection: Connection, channel: StoredChannel, now: int, most: int) -> int:
    """Return the time from which a message may be sent, if at most some number are sent in an hour."""
    columns = notification.c
    query = (
        select(func.min(columns.finished_at), func.count())
        .where(columns.channel == channel.id, IS_SENT)
        .where(columns.finished_at > now - _HOUR_MS)
    )
    first, count = connection.execute(query).one()
    return now if count < most else int(first) + _HOUR_MS


def _build_message(rows: Sequence[Row[Any]], alarms: dict[str, Alarm]) -> HumanMessage | None:
    """Build the message of held ones, from what their alarms are now. Return None if nothing is to tell."""
    kinds: dict[str, list[MessageKind]] = {}
    for row in rows:
        kinds.setdefault(f"alarm-{row.alarm}", []).append(MessageKind(row.kind))
    entries, passed = [], 0
    for identity, body in alarms.items():
        kind = _choose_kind(body, kinds[identity])
        if kind is None:
            passed += 1
        else:
            entries.append(build_entry(body, kind))
    if not entries and not passed:
        return None
    entries.sort(
        key=lambda each: (
            each.kind is MessageKind.CLEARED,
            _SEVERITY_ORDER.index(AlarmSeverity(each.severity)),
            each.since,
        )
    )
    single = len(entries) == 1 and not passed
    return HumanMessage(
        entries=entries[:MAX_ENTRIES],
        more=max(0, len(entries) - MAX_ENTRIES),
        passed=passed,
        kind=entries[0].kind if single else MessageKind.SUMMARY,
    )


def _choose_kind(body: Alarm, kinds: Sequence[MessageKind]) -> MessageKind | None:
    """Return what is told of an alarm; None if it was opened and cleared while its messages were held."""
    is_new = MessageKind.OPENED in kinds
    if body.state is AlarmState.CLEARED:
        return None if is_new and MessageKind.CLEARED not in kinds else MessageKind.CLEARED
    if is_new:
        return MessageKind.OPENED
    # It was told before: one that was cleared and is open again needs no word about its end.
    return next((each for each in reversed(kinds) if each is not MessageKind.CLEARED), MessageKind.STILL_OPEN)


def build_entry(body: Alarm, kind: MessageKind) -> MessageEntry:
    """Build the part of a message for people that is about one alarm."""
    return MessageEntry(
        kind=kind,
        alarm=body.id,
        severity=str(body.severity),
        sentence=body.sentence,
        action="" if kind is MessageKind.CLEARED else body.action.text,
        since=body.since,
    )
