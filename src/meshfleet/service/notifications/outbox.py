"""Outbox: messages in the database that are to be sent, and what happens if that fails.

Each message is sent at least once, and the messages about one alarm to one channel in their order. Failures
of the connection and of the server count on the channel: while it fails, only one message at a time is tried.
A failure counts on the message if the receiver refuses this message, or if another is delivered between two
failures of this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from sqlalchemy import delete, exists, func, insert, or_, select, update

from meshfleet.db.tables import alarm_event, channel, notification
from meshfleet.db.tables.notifications import IS_UNSENT, IS_WAITING
from meshfleet.rest.channels import DeliveryState
from meshfleet.service.alarms.alarm_records import AlarmEventKind
from meshfleet.service.alarms.alarms import delete_old_events
from meshfleet.service.notifications.channels import to_channel
from meshfleet.service.notifications.delivery import DeliveryResult, Outcome
from meshfleet.service.notifications.messages import EventMessage, HumanMessage, MessageKind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

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
_FAILURE_DELAYS: Final = (_MINUTE_MS, 5 * _MINUTE_MS, 10 * _MINUTE_MS, 30 * _MINUTE_MS)
"""Delays of a message that is not refused, but fails again and again while others are delivered. They are
longer: the receiver may only have been busy."""
_NEVER_COUNTED: Final = frozenset({401, 403, 408, 429})
"""Statuses that say nothing about a message."""
_MAX_AGE_MS: Final = 72 * _HOUR_MS
"""Age at which a message is given up because its channel still fails, or is off."""
_KEPT_MS: Final = 30 * _DAY_MS
"""Time for which messages are kept after they were sent or given up."""
_BATCH: Final = 1000
"""Maximum number of messages that are given up, or deleted, at once."""
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
    retried_at: int | None
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


def find_due(connection: Connection, each: StoredChannel, now: int, *, limit: int) -> list[int]:
    """Return the ids of up to `limit` messages that are due. Return one if the channel fails.

    Of each alarm it is the oldest one. Messages to people are about several alarms and wait for each other.
    """
    columns = notification.c
    waiting = select(columns.id).where(columns.channel == each.id, IS_WAITING)
    is_turn_of_others = takes_another(each)
    if each.is_for_people and not is_turn_of_others:
        oldest = waiting.with_only_columns(func.min(columns.id))
    elif each.is_for_people:
        oldest = waiting
    else:
        oldest = waiting.with_only_columns(func.min(columns.id)).group_by(columns.alarm)
    query = select(columns.id).where(columns.id.in_(oldest.scalar_subquery()), columns.due <= now)
    if is_turn_of_others:
        query = query.order_by(func.coalesce(columns.failed_at, 0))
    query = query.order_by(columns.id).limit(limit if each.failing_since is None else 1)
    return list(connection.scalars(query))


def is_unchanged(connection: Connection, each: StoredChannel, now: int) -> bool:
    """Return whether a channel is on and leads to where it led when it was loaded."""
    row = connection.execute(select(channel).where(channel.c.id == each.id)).first()
    if row is None:
        return False
    current = to_channel(row, now)
    return current.is_enabled and (current.target, current.secrets) == (each.target, each.secrets)


def takes_another(each: StoredChannel) -> bool:
    """Return whether the next attempt of a failing channel takes a message that was not tried before."""
    return each.failing_since is not None and (each.failures + 1) % _OTHER_ALARM_EVERY == 0


def count_waiting(connection: Connection, each: StoredChannel) -> int:
    """Return the number of messages of a channel that wait to be sent."""
    query = select(func.count()).where(notification.c.channel == each.id, IS_WAITING)
    return int(connection.execute(query).scalar_one())


def load_messages(
    connection: Connection, each: StoredChannel, numbers: Collection[int]
) -> list[WaitingMessage]:
    """Load those of some messages that still wait, oldest first."""
    query = select(notification).where(notification.c.id.in_(sorted(numbers)), IS_WAITING)
    return [_to_message(each, row) for row in connection.execute(query.order_by(notification.c.id))]


def load_waiting(
    connection: Connection, each: StoredChannel, now: int, *, limit: int
) -> list[WaitingMessage]:
    """Load up to `limit` messages that are due."""
    return load_messages(connection, each, find_due(connection, each, now, limit=limit))


def _to_message(each: StoredChannel, row: Row[Any]) -> WaitingMessage:
    return WaitingMessage(
        id=row.id,
        channel=row.channel,
        alarm=row.alarm,
        kind=MessageKind(row.kind),
        created_at=row.created_at,
        attempts=row.attempts,
        failed_at=row.failed_at,
        retried_at=row.retried_at,
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
        _finish(connection, [message], DeliveryState.SENT, result.problem, now)
        _record_channel_success(connection, row, result, now)
    elif result.outcome is Outcome.CHANNEL_GONE:
        _update_channel(connection, message.channel, tried_at=now, enabled=False, problem=result.problem)
    elif result.outcome is Outcome.MESSAGE_REFUSED or _works_for_others(row, message, result):
        _count_failure(connection, message, result, now)
        _update_channel(connection, message.channel, tried_at=now, problem=result.problem)
    else:
        _record_channel_failure(connection, row, message, result, now, random)


def _works_for_others(row: Row[Any], message: WaitingMessage, result: DeliveryResult) -> bool:
    """Return whether a failure is due to this message: another was delivered since it failed before."""
    if result.status in _NEVER_COUNTED or message.failed_at is None or row.delivered_at is None:
        return False
    return bool(row.delivered_at > message.failed_at)


def _count_failure(connection: Connection, message: WaitingMessage, result: DeliveryResult, now: int) -> None:
    """Count a failure on the message. Give it up after the last attempt."""
    delays = _MESSAGE_DELAYS if result.outcome is Outcome.MESSAGE_REFUSED else _FAILURE_DELAYS
    if message.attempts >= len(delays):
        _finish(connection, [message], DeliveryState.DEAD, result.problem, now)
        return
    _update_message(
        connection,
        message.id,
        attempts=message.attempts + 1,
        failed_at=now,
        problem=result.problem,
        due=now + max(delays[message.attempts], _get_wanted_delay(result)),
    )


def _get_wanted_delay(result: DeliveryResult) -> int:
    """Return the milliseconds after which a receiver wants to be asked again, at most an hour."""
    return int(min(result.retry_after or 0, _MAX_RETRY_AFTER_SECONDS) * _SECOND_MS)


def _record_channel_failure(  # noqa: PLR0913, PLR0917
    connection: Connection,
    row: Row[Any],
    message: WaitingMessage,
    result: DeliveryResult,
    now: int,
    random: Callable[[], float],
) -> None:
    """Record that a channel fails. Its next attempt is later each time."""
    since = message.created_at if message.retried_at is None else message.retried_at
    if now - since >= _MAX_AGE_MS:
        _finish(connection, [message], DeliveryState.DEAD, result.problem, now)
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
        _record_channel_success(connection, row, result, now)
    elif result.outcome is Outcome.CHANNEL_GONE:
        _update_channel(connection, number, tried_at=now, enabled=False, problem=result.problem)
    else:
        _record_channel_problem(connection, row, result, now, random)


def _record_channel_success(connection: Connection, row: Row[Any], result: DeliveryResult, now: int) -> None:
    """Record that a channel works. A delay that another message of the same moment has caused remains."""
    _update_channel(
        connection,
        row.id,
        tried_at=now,
        delivered_at=now,
        problem=result.problem,
        failing_since=None,
        failures=0,
        retry_at=row.retry_at if _is_delayed(row, now) else None,
    )


def _is_delayed(row: Row[Any], now: int) -> bool:
    """Return whether a channel is not to be tried now: what was sent was sent before that was known."""
    return row.retry_at is not None and row.retry_at > now


def _record_channel_problem(
    connection: Connection, row: Row[Any], result: DeliveryResult, now: int, random: Callable[[], float]
) -> None:
    """Record that a channel fails, and when it is tried again."""
    since = now if row.failing_since is None else row.failing_since
    failures, retry_at = row.failures, row.retry_at
    if not _is_delayed(row, now):  # else messages that failed at the same moment are one failure
        if failures < len(_CHANNEL_DELAYS):
            delay = _CHANNEL_DELAYS[failures]
        else:
            delay = _LONG_FAILURE_DELAY if now - since >= _LONG_FAILURE_MS else _CHANNEL_DELAY
        failures, retry_at = failures + 1, now + int(delay * (1 - _JITTER * random()))
    _update_channel(
        connection,
        row.id,
        tried_at=now,
        problem=result.problem,
        failing_since=since,
        failures=failures,
        retry_at=max(retry_at, now + _get_wanted_delay(result)),
    )


def _finish(
    connection: Connection,
    messages: Sequence[WaitingMessage | Row[Any]],
    state: DeliveryState,
    problem: str | None,
    now: int,
) -> None:
    """Record that messages were sent or given up, also in the history of their alarms."""
    values: dict[str, Any] = {"state": str(state), "finished_at": now, "problem": problem}
    if state is DeliveryState.SENT:
        values["body"] = None
    numbers = [each.id for each in messages]
    statement = update(notification).where(notification.c.id.in_(numbers)).values(**values)
    stored = set(connection.scalars(statement.returning(notification.c.id)))
    kind = AlarmEventKind.NOTIFIED if state is DeliveryState.SENT else AlarmEventKind.NOT_DELIVERED
    names = dict(map(tuple, connection.execute(select(channel.c.id, channel.c.name))))
    rows: list[dict[str, Any]] = [
        {
            "alarm": number,
            "time": now,
            "kind": str(kind),
            "actor": None,
            "detail": _encode({"channel": names[each.channel], "kind": message_kind}).decode(),
        }
        for each in messages
        if each.id in stored  # otherwise it was deleted meanwhile, with its alarm
        for number, message_kind in _load_told_alarms(connection, each).items()
    ]
    if rows:
        connection.execute(insert(alarm_event), rows)
        delete_old_events(connection, {row["alarm"] for row in rows})


def _load_told_alarms(connection: Connection, message: WaitingMessage | Row[Any]) -> dict[int, str]:
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


def remove_old_messages(connection: Connection, now: int) -> bool:
    """Give up messages that are too old, and delete those that were finished long ago.

    Messages of channels that fail or are off are no news any more after three days. Return whether there may
    be more of them: only some are handled per call.
    """
    columns = notification.c
    bad = select(channel.c.id, channel.c.enabled).where(
        or_(~channel.c.enabled, channel.c.failing_since.is_not(None))
    )
    has_more = False
    for number, is_enabled in connection.execute(bad).all():
        query = (
            select(columns.id, columns.channel, columns.alarm, columns.kind)
            .where(columns.channel == number, IS_WAITING if is_enabled else IS_UNSENT)
            .where(func.coalesce(columns.retried_at, columns.created_at) < now - _MAX_AGE_MS)
            .limit(_BATCH)
        )
        rows: list[Row[Any]] = list(connection.execute(query))
        problem = "the channel did not work for three days" if is_enabled else "the channel was off"
        if rows:
            _finish(connection, rows, DeliveryState.DEAD, problem, now)
        has_more = has_more or len(rows) >= _BATCH
    old = select(columns.id).where(columns.finished_at < now - _KEPT_MS).limit(_BATCH)
    deleted = connection.execute(delete(notification).where(columns.id.in_(old.scalar_subquery()))).rowcount
    return has_more or deleted >= _BATCH


def find_channels_with_work(connection: Connection, now: int) -> set[int]:
    """Return the ids of channels that have a message whose time has come."""
    columns = notification.c
    is_due = exists().where(columns.channel == channel.c.id, IS_UNSENT, columns.due <= now)
    return set(connection.scalars(select(channel.c.id).where(is_due)))


def _update_message(connection: Connection, number: int, **values: Any) -> None:
    connection.execute(update(notification).where(notification.c.id == number).values(**values))


def _update_channel(connection: Connection, number: int, **values: Any) -> None:
    connection.execute(update(channel).where(channel.c.id == number).values(**values))
