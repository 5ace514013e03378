"""The tables of the broker."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import delete, insert, select

from meshfleet.db import bulk
from meshfleet.db.tables import (
    broker_message,
    broker_owner,
    broker_received,
    broker_retained,
    broker_session,
    broker_subscription,
)
from meshfleet.errors.startup import UnusableDatabase
from meshfleet.mqtt.broker.outgoing_message import OutgoingMessage
from meshfleet.mqtt.codec.packets import Publish

if TYPE_CHECKING:
    from sqlalchemy import Connection


# What is to be written down: for each row how it is to be in the end, or that it is to be gone.


class SessionRow(NamedTuple):
    """A session that outlives its connections."""

    account: str
    client_id: str
    left_at: int | None


class MessageRow(NamedTuple):
    """A message that waits for an acknowledgement."""

    topic: str
    payload: bytes
    retain: bool
    until: int | None


class RetainedRow(NamedTuple):
    """A retained message."""

    payload: bytes
    qos: int
    account: str


class PendingChanges:
    """Rows by their keys; None where a row is to be gone."""

    __slots__ = ("messages", "retained", "sessions", "subscriptions", "unreleased_ids")

    def __init__(self) -> None:
        self.sessions: dict[int, SessionRow | None] = {}
        self.subscriptions: dict[tuple[int, str], int | None] = {}
        self.messages: dict[tuple[int, int], MessageRow | None] = {}
        self.unreleased_ids: dict[tuple[int, int], bool] = {}
        self.retained: dict[str, RetainedRow | None] = {}

    def __bool__(self) -> bool:
        return bool(
            self.messages or self.sessions or self.subscriptions or self.unreleased_ids or self.retained
        )

    def delete_session(self, persistent_id: int) -> None:
        """A session is to be gone, with all that belongs to it."""
        self.sessions[persistent_id] = None
        for rows in (self.subscriptions, self.messages, self.unreleased_ids):
            for key in [key for key in rows if key[0] == persistent_id]:
                del rows[key]  # type: ignore[arg-type] # each by its own keys


class StoredState(NamedTuple):
    """All that was written down."""

    sessions: dict[int, SessionRow]
    subscriptions: list[tuple[int, str, int]]
    messages: list[tuple[int, int, OutgoingMessage]]
    """Session, position and letter, in the order in which they came."""
    unreleased_ids: list[tuple[int, int]]
    retained: dict[str, RetainedRow]


def take_ownership(connection: Connection) -> bytes:
    """Make the tables ours. Who had them before can write no more: two would mix up their sessions."""
    token = secrets.token_bytes(16)
    connection.execute(delete(broker_owner))
    connection.execute(insert(broker_owner).values(token=token))
    return token


def check_ownership(connection: Connection, token: bytes) -> None:
    """See that the tables are still ours, and stay so until the end of the transaction."""
    if connection.execute(select(broker_owner.c.token).with_for_update(read=True)).scalar() != token:
        raise UnusableDatabase("another Meshfleet has taken over: it takes reports into this database")


def load_stored_state(connection: Connection) -> StoredState:
    """Read everything."""
    in_order = select(broker_message).order_by(broker_message.c.session, broker_message.c.position)
    return StoredState(
        sessions={row.number: SessionRow(*row[1:]) for row in connection.execute(select(broker_session))},
        subscriptions=[(*row,) for row in connection.execute(select(broker_subscription))],
        messages=[(row[0], row[1], _build_message(*row[2:])) for row in connection.execute(in_order)],
        unreleased_ids=[(*row,) for row in connection.execute(select(broker_received))],
        retained={row.topic: RetainedRow(*row[1:]) for row in connection.execute(select(broker_retained))},
    )


def _build_message(topic: str, payload: bytes, retain: bool, until: int | None) -> OutgoingMessage:  # noqa: FBT001 # a column
    return OutgoingMessage(Publish(topic, payload, 1), retain=retain, expires_at=until)


def write_changes(connection: Connection, changes: PendingChanges) -> None:
    """Make the rows what they are to be."""
    _write_sessions(connection, changes)
    _write_subscriptions(connection, changes)
    _write_messages(connection, changes)
    _write_received(connection, changes)
    _write_retained(connection, changes)


def _write_sessions(connection: Connection, changes: PendingChanges) -> None:
    ended = [(number,) for number, row in changes.sessions.items() if row is None]
    bulk.execute_many(connection, "DELETE FROM broker_session WHERE number = ?", ended)
    rows = [(number, *row) for number, row in changes.sessions.items() if row is not None]
    bulk.insert_rows(connection, broker_session, rows, on_conflict="UPDATE SET left_at = excluded.left_at")


def _write_subscriptions(connection: Connection, changes: PendingChanges) -> None:
    ended = [key for key, qos in changes.subscriptions.items() if qos is None]
    bulk.execute_many(connection, "DELETE FROM broker_subscription WHERE session = ? AND wanted = ?", ended)
    rows = [(*key, qos) for key, qos in changes.subscriptions.items() if qos is not None]
    bulk.insert_rows(connection, broker_subscription, rows, on_conflict="UPDATE SET qos = excluded.qos")


def _write_messages(connection: Connection, changes: PendingChanges) -> None:
    ended = [key for key, row in changes.messages.items() if row is None]
    bulk.execute_many(connection, "DELETE FROM broker_message WHERE session = ? AND position = ?", ended)
    rows = [(*key, *row) for key, row in changes.messages.items() if row is not None]
    bulk.insert_rows(connection, broker_message, rows)


def _write_received(connection: Connection, changes: PendingChanges) -> None:
    ended = [key for key, is_open in changes.unreleased_ids.items() if not is_open]
    bulk.execute_many(connection, "DELETE FROM broker_received WHERE session = ? AND packet_id = ?", ended)
    bulk.insert_rows(
        connection, broker_received, [key for key, is_open in changes.unreleased_ids.items() if is_open]
    )


def _write_retained(connection: Connection, changes: PendingChanges) -> None:
    ended = [(topic,) for topic, row in changes.retained.items() if row is None]
    bulk.execute_many(connection, "DELETE FROM broker_retained WHERE topic = ?", ended)
    rows = [(topic, *row) for topic, row in changes.retained.items() if row is not None]
    update = "UPDATE SET payload = excluded.payload, qos = excluded.qos, account = excluded.account"
    bulk.insert_rows(connection, broker_retained, rows, on_conflict=update)
