"""Outbox: messages in the database that are to be sent, and what happens if that fails.

Each message is sent at least once, and the messages about one alarm to one channel in their order. Failures
of the connection and of the server count on the channel: while it fails, only one message at a time is tried.
A failure counts on the message if the receiver refuses this message, or if others are delivered meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from sqlalchemy import delete, func, insert, select, update

from meshfleet.db.tables import alarm_event, channel, notification
from meshfleet.rest.channels import DeliveryState
from meshfleet.service.alarms.alarms import AlarmEventKind
from meshfleet.service.notifications.delivery import DeliveryResult, Outcome
from meshfleet.service.notifications.messages import EventMessage, HumanMessage, MessageKind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from sqlalchemy import Connection, Row

    from meshfleet.service.notifications.channels import StoredChannel
    from meshfleet.service.notifications.routing import Timing

_SECOND_MS: Final = 1000
_MINUTE_MS: Final = 60 * _SECOND_MS
_HOUR_MS: Final = 60 * _MINUTE_MS
_DAY_MS: Final = 24 * _HOUR_MS

_CHANNEL_DELAYS: Final = (5 * _SECOND_MS, 30 * _SECOND_MS, 2 * _MINUTE_MS)
_CHANNEL_DELAY: Final = 5 * _MINUTE_MS
"""Delay after the first attempts: a receiver that returns gets its first message within five minutes."""
_LONG_FAILURE_MS: Final = _DAY_MS
_LONG_FAILURE_DELAY: Final = 30 * _MINUTE_MS
_MAX_RETRY_AFTER_SECONDS: Final = 3600
_JITTER: Final = 0.2
"""Share by which delays are shortened at random: receivers should not be called by all at the same moment."""
_MESSAGE_DELAYS: Final = (5 * _SECOND_MS, 30 * _SECOND_MS, 2 * _MINUTE_MS, 5 * _MINUTE_MS)
"""Delays of a message that is refused; after one more attempt it is dead."""
_MAX_AGE_MS: Final = 72 * _HOUR_MS
"""Age at which a message is given up because its channel still fails."""
_KEPT_MS: Final = 30 * _DAY_MS
"""Time for which messages are kept after they were sent or given up."""
_MAX_DELETED: Final = 1000
_OTHER_ALARM_EVERY: Final = 3
"""Each third attempt of a failing channel takes another alarm: one bad message must not look like a dead
channel."""


class WaitingMessage(NamedTuple):
    """Message that is due."""

    id: int
    channel: int
    alarm: int | None
    kind: MessageKind
    created_at: int
    attempts: int
    failed_at: int | None
    body: EventMessage | HumanMessage


_encode = msgspec.json.Encoder().encode
_decode_event = msgspec.json.Decoder(EventMessage).decode
_decode_text = msgspec.json.Decoder(HumanMessage).decode


def add_event(connection: Connection, each: StoredChannel, number: int, body: EventMessage, now: int) -> None:
    """Add a message for a program, which is sent at once."""
    _insert(
        connection,
        channel=each.id,
        alarm=number,
        kind=body.type.rpartition(".")[2],
        state=DeliveryState.WAITING,
        created_at=now,
        due=now,
        body=_encode(body).decode(),
    )


def hold_message(  # noqa: PLR0913 # keyword-only after the channel
    connection: Connection, each: StoredChannel, *, alarm: int, kind: MessageKind, timing: Timing, now: int
) -> None:
    """Add a message for people. It is held until others have joined it."""
    _insert(
        connection,
        channel=each.id,
        alarm=alarm,
        kind=str(kind),
        hold=str(timing.hold),
        state=DeliveryState.HELD,
        created_at=now,
        due=timing.due,
    )


def _insert(connection: Connection, *, state: DeliveryState, **values: Any) -> None:
    connection.execute(insert(notification).values(state=str(state), attempts=0, **values))


def load_waiting(
    connection: Connection, each: StoredChannel, now: int, *, limit: int
) -> list[WaitingMessage]:
    """Load up to `limit` messages that are due, the oldest of each alarm. Load one if the channel fails."""
    columns = notification.c
    # Messages about several alarms wait for each other, as those of one alarm do.
    first = (
        select(func.min(columns.id))
        .where(columns.channel == each.id, columns.state == str(DeliveryState.WAITING))
        .group_by(func.coalesce(columns.alarm, 0) if not each.is_for_people else columns.channel)
    )
    query = select(notification).where(columns.id.in_(first.scalar_subquery()), columns.due <= now)
    if each.failing_since is not None:
        limit = 1
        if (each.failures + 1) % _OTHER_ALARM_EVERY == 0:
            query = query.order_by(func.coalesce(columns.failed_at, 0))
    return [_to_message(each, row) for row in connection.execute(query.order_by(columns.id).limit(limit))]


def _to_message(each: StoredChannel, row: Row[Any]) -> WaitingMessage:
    return WaitingMessage(
        id=row.id,
        channel=row.channel,
        alarm=row.alarm,
        kind=MessageKind(row.kind),
        created_at=row.created_at,
        attempts=row.attempts,
        failed_at=row.failed_at,
        body=(_decode_text if each.is_for_people else _decode_event)(row.body),
    )


def record_result(
    connection: Connection,
    message: WaitingMessage,
    result: DeliveryResult,
    now: int,
    random: Callable[[], float],
) -> None:
    """Record how a delivery went, on the message and on its channel."""
    row = connection.execute(select(channel).where(channel.c.id == message.channel).with_for_update()).first()
    if row is None:
        return  # it was deleted meanwhile, with its messages
    if result.outcome is Outcome.DELIVERED:
        _finish(connection, message, DeliveryState.SENT, result.problem, now)
        _record_channel_success(connection, message.channel, result, now)
    elif result.outcome is Outcome.CHANNEL_GONE:
        _update_channel(connection, message.channel, tried_at=now, enabled=False, problem=result.problem)
    elif result.outcome is Outcome.MESSAGE_REFUSED or _works_for_others(row, message):
        _count_failure(connection, message, result, now)
        _update_channel(connection, message.channel, tried_at=now, problem=result.problem)
    else:
        _record_channel_failure(connection, row, message, result, now, random)


def _works_for_others(row: Row[Any], message: WaitingMessage) -> bool:
    """Return whether a channel delivers other messages, so that a failure is due to this message."""
    if message.failed_at is None:
        return False
    is_suspected = message.attempts > 0 and row.failing_since is None
    return is_suspected or (row.delivered_at is not None and row.delivered_at >= message.failed_at)


def _count_failure(connection: Connection, message: WaitingMessage, result: DeliveryResult, now: int) -> None:
    """Count a failure on the message. Give it up after the last attempt."""
    if message.attempts >= len(_MESSAGE_DELAYS):
        _finish(connection, message, DeliveryState.DEAD, result.problem, now)
        return
    _update_message(
        connection,
        message.id,
        attempts=message.attempts + 1,
        failed_at=now,
        problem=result.problem,
        due=now + _MESSAGE_DELAYS[message.attempts],
    )


def _record_channel_failure(  # noqa: PLR0913, PLR0917
    connection: Connection,
    row: Row[Any],
    message: WaitingMessage,
    result: DeliveryResult,
    now: int,
    random: Callable[[], float],
) -> None:
    """Record that a channel fails. Its next attempt is later each time."""
    if now - message.created_at >= _MAX_AGE_MS:
        _finish(connection, message, DeliveryState.DEAD, result.problem, now)
    else:
        _update_message(connection, message.id, failed_at=now, problem=result.problem)
    _record_channel_problem(connection, row, result, now, random)


def record_call(
    connection: Connection, number: int, result: DeliveryResult, now: int, random: Callable[[], float]
) -> None:
    """Record how the call of a watchdog went."""
    row = connection.execute(select(channel).where(channel.c.id == number).with_for_update()).first()
    if row is None:
        return
    if result.outcome is Outcome.DELIVERED:
        _record_channel_success(connection, number, result, now)
    elif result.outcome is Outcome.CHANNEL_GONE:
        _update_channel(connection, number, tried_at=now, enabled=False, problem=result.problem)
    else:
        _record_channel_problem(connection, row, result, now, random)


def _record_channel_success(connection: Connection, number: int, result: DeliveryResult, now: int) -> None:
    _update_channel(
        connection,
        number,
        tried_at=now,
        delivered_at=now,
        problem=result.problem,
        failing_since=None,
        failures=0,
        retry_at=None,
    )


def _record_channel_problem(
    connection: Connection, row: Row[Any], result: DeliveryResult, now: int, random: Callable[[], float]
) -> None:
    """Record that a channel fails, and when it is tried again."""
    since = now if row.failing_since is None else row.failing_since
    if row.failures < len(_CHANNEL_DELAYS):
        delay = _CHANNEL_DELAYS[row.failures]
    else:
        delay = _LONG_FAILURE_DELAY if now - since >= _LONG_FAILURE_MS else _CHANNEL_DELAY
    delay = int(delay * (1 - _JITTER * random()))
    if result.retry_after is not None:
        wanted = min(result.retry_after, _MAX_RETRY_AFTER_SECONDS) * _SECOND_MS
        delay = max(delay, int(wanted))
    _update_channel(
        connection,
        row.id,
        tried_at=now,
        problem=result.problem,
        failing_since=since,
        failures=row.failures + 1,
        retry_at=now + delay,
    )


def _finish(
    connection: Connection, message: WaitingMessage, state: DeliveryState, problem: str | None, now: int
) -> None:
    """Record that a message was sent or given up, also in the history of its alarms."""
    values: dict[str, Any] = {"state": str(state), "finished_at": now, "problem": problem}
    if state is DeliveryState.SENT:
        values["body"] = None
    _update_message(connection, message.id, **values)
    kind = AlarmEventKind.NOTIFIED if state is DeliveryState.SENT else AlarmEventKind.NOT_DELIVERED
    name = connection.execute(select(channel.c.name).where(channel.c.id == message.channel)).scalar()
    rows = [
        {
            "alarm": number,
            "time": now,
            "kind": str(kind),
            "actor": None,
            "detail": _encode({"channel": name, "kind": message_kind}).decode(),
        }
        for number, message_kind in _load_told_alarms(connection, message).items()
    ]
    if rows:
        connection.execute(insert(alarm_event), rows)


def _load_told_alarms(connection: Connection, message: WaitingMessage) -> dict[int, str]:
    """Return the alarms that a message is about, each with the kind of message."""
    if message.alarm is not None:
        return {message.alarm: str(message.kind)}
    columns = notification.c
    query = select(columns.alarm, columns.kind).where(
        columns.carrier == message.id, columns.alarm.is_not(None)
    )
    return dict(map(tuple, connection.execute(query.order_by(columns.id))))


def fold_messages(connection: Connection, numbers: Collection[int], now: int, carrier: int | None) -> None:
    """Mark messages as unnecessary, because the message `carrier` tells the same, or nothing is to tell."""
    connection.execute(
        update(notification)
        .where(notification.c.id.in_(sorted(numbers)))
        .values(state=str(DeliveryState.FOLDED), finished_at=now, carrier=carrier)
    )


def delete_finished(connection: Connection, now: int) -> None:
    """Delete messages that were sent or given up long ago; at most 1,000 per call.

    Messages of channels that are off are given up when they are too old: they would be no news.
    """
    columns = notification.c
    unsent = columns.state.in_([str(DeliveryState.HELD), str(DeliveryState.WAITING)])
    off = select(channel.c.id).where(~channel.c.enabled)
    connection.execute(
        update(notification)
        .where(unsent, columns.created_at < now - _MAX_AGE_MS, columns.channel.in_(off.scalar_subquery()))
        .values(state=str(DeliveryState.DEAD), finished_at=now, problem="the channel was off")
    )
    old = select(columns.id).where(columns.finished_at < now - _KEPT_MS).limit(_MAX_DELETED)
    connection.execute(delete(notification).where(columns.id.in_(old.scalar_subquery())))


def find_channels_with_work(connection: Connection, now: int) -> set[int]:
    """Return the ids of channels that have a message whose time has come."""
    columns = notification.c
    query = (
        select(columns.channel)
        .where(
            columns.state.in_([str(DeliveryState.HELD), str(DeliveryState.WAITING)]),
            columns.due <= now,
        )
        .distinct()
    )
    return set(connection.scalars(query))


def _update_message(connection: Connection, number: int, **values: Any) -> None:
    connection.execute(update(notification).where(notification.c.id == number).values(**values))


def _update_channel(connection: Connection, number: int, **values: Any) -> None:
    connection.execute(update(channel).where(channel.c.id == number).values(**values))
