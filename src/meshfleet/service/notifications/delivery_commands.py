"""Retries of messages that were given up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import select, update

from meshfleet.db import bulk
from meshfleet.db.tables import channel, notification
from meshfleet.errors import Conflict
from meshfleet.rest.channels import DeliveryState, RetriedDeliveries
from meshfleet.service.audit import log as audit_log
from meshfleet.service.notifications import outbox, views
from meshfleet.service.notifications.channel_commands import lock_channel
from meshfleet.service.notifications.messages import MessageKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection, Row

    from meshfleet.rest.channels import Delivery
    from meshfleet.service.actor import Actor

_SELECT_CARRIED: Final = (
    "SELECT carrier, alarm, kind FROM notification WHERE carrier IN numbers AND alarm > 0"
)
_SELECT_TOLD: Final = """
    SELECT told.alarm, max(sent.id)
    FROM notification AS told
    JOIN notification AS sent ON sent.id = coalesce(told.carrier, told.id) AND sent.state = 'sent'
    WHERE told.alarm IN numbers AND told.channel = :channel
    GROUP BY told.alarm
"""
_SELECT_OVER: Final = "SELECT id FROM alarm WHERE id IN numbers AND state = 'cleared'"
_RETRY: Final = """
    UPDATE notification
    SET state = CASE WHEN body IS NULL THEN 'held' ELSE 'waiting' END,
        due = :now, attempts = 0, retried_at = :now,
        failed_at = NULL, finished_at = NULL, problem = NULL
    WHERE id IN numbers
"""
_MAX_FOLDED: Final = 10_000


def retry_delivery(connection: Connection, number: int, message: int, *, by: Actor, now: int) -> Delivery:
    """Try a message again that was given up. Raise `Conflict` if it was not.

    It is folded instead if it is not necessary any more.
    """
    row = lock_channel(connection, number)
    before = views.load_delivery(connection, number, message)
    if before.state is not DeliveryState.DEAD:
        raise Conflict(f"{before.id} is {before.state}: only messages that were given up are tried again")
    _retry(connection, row, message, by=by, now=now)
    return views.load_delivery(connection, number, message)


def retry_dead_deliveries(connection: Connection, number: int, *, by: Actor, now: int) -> RetriedDeliveries:
    """Try the messages of a channel again that were given up, and a failing channel at once.

    Those that are not necessary any more are folded.
    """
    row = lock_channel(connection, number)
    return RetriedDeliveries(retried=_retry(connection, row, by=by, now=now))


def _retry(connection: Connection, row: Row[Any], message: int | None = None, *, by: Actor, now: int) -> int:
    """Let a dead message of a channel wait again, or all of them. Return how many wait."""
    columns = notification.c
    query = select(columns.id, columns.alarm, columns.kind).where(
        columns.channel == row.id, columns.state == str(DeliveryState.DEAD)
    )
    dead: list[Row[Any]] = list(connection.execute(query.order_by(columns.id)))
    needless = _find_needless(connection, row.id, dead)
    chosen = [each.id for each in dead if message is None or each.id == message]
    folded = [each for each in chosen if each in needless]
    for start in range(0, len(folded), _MAX_FOLDED):
        outbox.fold_messages(connection, folded[start : start + _MAX_FOLDED], now, carrier=None)
    retried = [each for each in chosen if each not in needless]
    bulk.execute_in(connection, _RETRY, retried, now=now)
    if row.retry_at is not None:
        connection.execute(update(channel).where(channel.c.id == row.id).values(retry_at=now))
    identity = views.format_channel_id(row.id)
    detail = {"name": row.name, "messages": len(retried)}
    audit_log.record_change(connection, by, "channel.retry", identity, now=now, **detail)
    return len(retried)


def _find_needless(connection: Connection, number: int, dead: Sequence[Row[Any]]) -> set[int]:
    """Return those dead messages of a channel that would only confuse its receivers.

    That is so if each alarm of a message was told of later, or is over and was never told.
    """
    about: dict[int, set[int]] = {each.id: {each.alarm} for each in dead if each.alarm is not None}
    opened = {each.alarm for each in dead if each.kind == MessageKind.OPENED}
    summaries = [each.id for each in dead if each.alarm is None]
    for carrier, alarm, kind in bulk.query_in(connection, _SELECT_CARRIED, summaries):
        about.setdefault(carrier, set()).add(alarm)
        if kind == MessageKind.OPENED:
            opened.add(alarm)
    alarms = sorted(set().union(*about.values()))
    told: dict[int, int] = dict(map(tuple, bulk.query_in(connection, _SELECT_TOLD, alarms, channel=number)))
    over = {each for (each,) in bulk.query_in(connection, _SELECT_OVER, alarms)}
    unknown = (over & opened) - told.keys()
    return {
        message
        for message, alarms_told in about.items()
        if all(told.get(each, 0) > message or each in unknown for each in alarms_told)
    }
