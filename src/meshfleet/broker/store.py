"""The tables of the broker."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import delete, insert, select

from meshfleet.broker.changes import RetainedRow, SessionRow
from meshfleet.broker.letters import Letter
from meshfleet.db import bulk
from meshfleet.db.tables import (
    broker_message,
    broker_owner,
    broker_received,
    broker_retained,
    broker_session,
    broker_subscription,
)
from meshfleet.errors import UnusableDatabase
from meshfleet.wire.mqtt.packets import Publish

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.broker.changes import Changes


class Saved(NamedTuple):
    """All that was written down."""

    sessions: dict[int, SessionRow]
    subscriptions: list[tuple[int, str, int]]
    messages: list[tuple[int, int, Letter]]
    """Session, position and letter, in the order in which they came."""
    received: list[tuple[int, int]]
    retained: dict[str, RetainedRow]


def own(connection: Connection) -> bytes:
    """Make the tables ours. Who had them before can write no more: two would mix up their sessions."""
    token = secrets.token_bytes(16)
    connection.execute(delete(broker_owner))
    connection.execute(insert(broker_owner).values(token=token))
    return token


def check_owner(connection: Connection, token: bytes) -> None:
    """See that the tables are still ours, and stay so until the end of the transaction."""
    if connection.execute(select(broker_owner.c.token).with_for_update(read=True)).scalar() != token:
        raise UnusableDatabase("another Meshfleet has taken over: it takes reports into this database")


def load(connection: Connection) -> Saved:
    """Read everything."""
    in_order = select(broker_message).order_by(broker_message.c.session, broker_message.c.position)
    return Saved(
        sessions={row.number: SessionRow(*row[1:]) for row in connection.execute(select(broker_session))},
        subscriptions=[(*row,) for row in connection.execute(select(broker_subscription))],
        messages=[(row[0], row[1], _letter(*row[2:])) for row in connection.execute(in_order)],
        received=[(*row,) for row in connection.execute(select(broker_received))],
        retained={row.topic: RetainedRow(*row[1:]) for row in connection.execute(select(broker_retained))},
    )


def _letter(topic: str, payload: bytes, retain: bool, until: int | None) -> Letter:  # noqa: FBT001 # a column
    return Letter(Publish(topic, payload, 1), retain=retain, until=until)


def write(connection: Connection, changes: Changes) -> None:
    """Make the rows what they are to be."""
    _write_sessions(connection, changes)
    _write_subscriptions(connection, changes)
    _write_messages(connection, changes)
    _write_received(connection, changes)
    _write_retained(connection, changes)


def _write_sessions(connection: Connection, changes: Changes) -> None:
    ended = [(number,) for number, row in changes.sessions.items() if row is None]
    bulk.execute(connection, "DELETE FROM broker_session WHERE number = ?", ended)
    rows = [(number, *row) for number, row in changes.sessions.items() if row is not None]
    bulk.insert(connection, broker_session, rows, otherwise="UPDATE SET left_at = excluded.left_at")


def _write_subscriptions(connection: Connection, changes: Changes) -> None:
    ended = [key for key, qos in changes.subscriptions.items() if qos is None]
    bulk.execute(connection, "DELETE FROM broker_subscription WHERE session = ? AND wanted = ?", ended)
    rows = [(*key, qos) for key, qos in changes.subscriptions.items() if qos is not None]
    bulk.insert(connection, broker_subscription, rows, otherwise="UPDATE SET qos = excluded.qos")


def _write_messages(connection: Connection, changes: Changes) -> None:
    ended = [key for key, row in changes.messages.items() if row is None]
    bulk.execute(connection, "DELETE FROM broker_message WHERE session = ? AND position = ?", ended)
    rows = [(*key, *row) for key, row in changes.messages.items() if row is not None]
    bulk.insert(connection, broker_message, rows)


def _write_received(connection: Connection, changes: Changes) -> None:
    ended = [key for key, is_open in changes.received.items() if not is_open]
    bulk.execute(connection, "DELETE FROM broker_received WHERE session = ? AND packet_id = ?", ended)
    bulk.insert(connection, broker_received, [key for key, is_open in changes.received.items() if is_open])


def _write_retained(connection: Connection, changes: Changes) -> None:
    ended = [(topic,) for topic, row in changes.retained.items() if row is None]
    bulk.execute(connection, "DELETE FROM broker_retained WHERE topic = ?", ended)
    rows = [(topic, *row) for topic, row in changes.retained.items() if row is not None]
    update = "UPDATE SET payload = excluded.payload, qos = excluded.qos, account = excluded.account"
    bulk.insert(connection, broker_retained, rows, otherwise=update)
