"""Clock that was set back: times of messages are moved, because else nothing would be due for that long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import func, or_, select, update

from meshfleet.db.tables import alarm, channel, channel_alarm, notification, silence
from meshfleet.db.tables.notifications import IS_UNSENT
from meshfleet.service.alarms.rules import Severity
from meshfleet.service.notifications import views
from meshfleet.service.notifications.messages import MessageKind
from meshfleet.service.notifications.routing import Hold, compute_timing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Connection, Row

    from meshfleet.rest.channels import AlarmRoute

_HOUR_MS: Final = 3_600_000


def load_latest_time(connection: Connection) -> int:
    """Return the latest time at which a message was sent or tried; 0 if there is none."""
    queries = (
        select(func.max(channel.c.tried_at)),
        select(func.max(channel.c.delivered_at)),
        select(func.max(notification.c.finished_at)),
    )
    return max(connection.execute(query).scalar() or 0 for query in queries)


def shift_times(connection: Connection, by: int, now: int) -> None:
    """Move all times that others are compared with, after the clock was set back by `-by` milliseconds.

    The end of quiet hours and the hour of a digest are times of day: messages wait for the next one.
    """
    columns, channels, told = notification.c, channel.c, channel_alarm.c
    connection.execute(
        update(notification)
        .where(IS_UNSENT, or_(columns.hold.is_(None), columns.hold == str(Hold.GROUP)))
        .values(due=columns.due + by)
    )
    connection.execute(
        update(notification)
        .where(IS_UNSENT, columns.failed_at.is_not(None))
        .values(failed_at=columns.failed_at + by)
    )
    connection.execute(
        update(notification)
        .where(columns.finished_at > now - _HOUR_MS)
        .values(finished_at=columns.finished_at + by)
    )
    names = ("retry_at", "delivered_at", "tried_at", "failing_since")
    connection.execute(update(channel).values({name: channels[name] + by for name in names}))
    connection.execute(update(silence).values(check_at=now))  # one that had begun begins again
    connection.execute(update(channel_alarm).values(told_at=told.told_at + by, check_at=told.check_at + by))
    _reschedule_held(connection, now)


def _reschedule_held(connection: Connection, now: int) -> None:
    """Let messages that wait for a time of day wait for the next one."""
    columns, told = notification.c, channel_alarm.c
    route = select(told.route).where(told.channel == columns.channel, told.alarm == columns.alarm)
    severity = select(alarm.c.severity).where(alarm.c.id == columns.alarm)
    query = select(
        notification,
        route.scalar_subquery().label("route"),
        severity.scalar_subquery().label("severity"),
    ).where(IS_UNSENT, columns.hold.in_([str(Hold.QUIET), str(Hold.DIGEST)]), columns.due > now)
    routes = views.load_routes(connection).items
    for row in connection.execute(query).all():
        found = _find_holding_route(routes, row)
        if found is None or row.severity is None:
            continue
        is_end = row.kind == MessageKind.CLEARED
        timing = compute_timing(found, Severity(row.severity), now, last_sent=None, is_end=is_end)
        if timing is not None and timing.due < row.due:
            values = {"due": timing.due, "hold": str(timing.hold)}
            connection.execute(update(notification).where(columns.id == row.id).values(**values))


def _find_holding_route(routes: Iterable[AlarmRoute], row: Row[Any]) -> AlarmRoute | None:
    """Return the route by which a message is held, or one of its channel that holds messages as long."""
    name = f"channel-{row.channel}"
    own = [each for each in routes if name in each.channels]
    is_digest = row.hold == Hold.DIGEST
    similar = [each for each in own if (each.digest if is_digest else each.hours) is not None]
    # Routes may have the same name.
    named = [each for each in (*similar, *own) if each.name == row.route]
    return next(iter((*named, *similar)), None)
