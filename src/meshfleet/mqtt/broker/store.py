"""Reads and writes the broker's database tables: sessions, subscriptions, queued and retained messages."""

from __future__ import annotations

import secrets
from typing import NamedTuple

from sqlalchemy import Connection, delete, insert, select

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

# Rows to write. If a row changes several times before a commit, only its last state is written.


class SessionRow(NamedTuple):
    """Database row of a persistent MQTT session."""

    account: str
    client_id: str
    left_at: int | None
    """Wall clock milliseconds when the client disconnected; None while the client is connected."""


class MessageRow(NamedTuple):
    """Database row of a message that waits in a session for the acknowledgement of the client."""

    topic: str
    payload: bytes
    retain: bool
    until: int | None
    """Wall clock milliseconds when the message expires; None if the message does not expire."""


class RetainedRow(NamedTuple):
    """Database row of a retained message."""

    payload: bytes
    qos: int
    account: str


class PendingChanges:
    """Rows of the broker tables to write, by key. None or False means that the row is to be deleted."""

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
        """Record that a session is to be deleted, and discard changes of its subscriptions and messages."""
        self.sessions[persistent_id] = None
        for rows in (self.subscriptions, self.messages, self.unreleased_ids):
            for key in [key for key in rows if key[0] == persistent_id]:
                del rows[key]  # type: ignore[arg-type] # the dicts have different keys


class StoredSubscription(NamedTuple):
    """Persisted subscription of an MQTT session."""

    persistent_id: int
    topic_filter: str
    qos: int


class StoredMessage(NamedTuple):
    """Persisted message that waits in a session for the acknowledgement of the client."""

    persistent_id: int
    position: int
    message: OutgoingMessage


class UnreleasedId(NamedTuple):
    """Persisted packet identifier of a QoS 2 message that was received, but not released by PUBREL yet."""

    persistent_id: int
    packet_id: int


class StoredState(NamedTuple):
    """Persisted state of the broker, as loaded when the broker starts."""

    sessions: dict[int, SessionRow]
    """Persistent sessions, by `MqttSession.persistent_id`."""
    subscriptions: list[StoredSubscription]
    messages: list[StoredMessage]
    """Queued messages of all sessions, sorted by `persistent_id` and position."""
    unreleased_ids: list[UnreleasedId]
    retained: dict[str, RetainedRow]
    """Retained messages by topic."""


def take_ownership(connection: Connection) -> bytes:
    """Make this process the owner of the broker tables, and return the token of the owner.

    The previous owner can no longer write to the tables: two processes would mix up their sessions.
    """
    token = secrets.token_bytes(16)
    connection.execute(delete(broker_owner))
    connection.execute(insert(broker_owner).values(token=token))
    return token


def check_ownership(connection: Connection, token: bytes) -> None:
    """Raise `UnusableDatabase` if another process owns the broker tables.

    Lock the row of the owner until the transaction ends.
    """
    if connection.execute(select(broker_owner.c.token).with_for_update(read=True)).scalar() != token:
        raise UnusableDatabase("another Meshfleet process has taken over this database; stop one of the two")


def load_stored_state(connection: Connection) -> StoredState:
    """Load the persisted sessions, subscriptions and messages of the broker."""
    in_order = select(broker_message).order_by(broker_message.c.session, broker_message.c.position)
    return StoredState(
        sessions={row.number: SessionRow(*row[1:]) for row in connection.execute(select(broker_session))},
        subscriptions=[StoredSubscription(*row) for row in connection.execute(select(broker_subscription))],
        messages=[
            StoredMessage(row.session, row.position, _build_message(*row[2:]))
            for row in connection.execute(in_order)
        ],
        unreleased_ids=[UnreleasedId(*row) for row in connection.execute(select(broker_received))],
        retained={row.topic: RetainedRow(*row[1:]) for row in connection.execute(select(broker_retained))},
    )


def _build_message(topic: str, payload: bytes, retain: bool, until: int | None) -> OutgoingMessage:  # noqa: FBT001 # value of a column
    return OutgoingMessage(Publish(topic, payload, 1), retain=retain, expires_at=until)


def write_changes(connection: Connection, changes: PendingChanges) -> None:
    """Write pending changes to the broker tables."""
    _write_sessions(connection, changes)
    _write_subscriptions(connection, changes)
    _write_messages(connection, changes)
    _write_unreleased_ids(connection, changes)
    _write_retained(connection, changes)


def _write_sessions(connection: Connection, changes: PendingChanges) -> None:
    deleted = [(number,) for number, row in changes.sessions.items() if row is None]
    bulk.execute_many(connection, "DELETE FROM broker_session WHERE number = ?", deleted)
    rows = [(number, *row) for number, row in changes.sessions.items() if row is not None]
    bulk.insert_rows(connection, broker_session, rows, on_conflict="UPDATE SET left_at = excluded.left_at")


def _write_subscriptions(connection: Connection, changes: PendingChanges) -> None:
    deleted = [key for key, qos in changes.subscriptions.items() if qos is None]
    bulk.execute_many(connection, "DELETE FROM broker_subscription WHERE session = ? AND wanted = ?", deleted)
    rows = [(*key, qos) for key, qos in changes.subscriptions.items() if qos is not None]
    bulk.insert_rows(connection, broker_subscription, rows, on_conflict="UPDATE SET qos = excluded.qos")


def _write_messages(connection: Connection, changes: PendingChanges) -> None:
    deleted = [key for key, row in changes.messages.items() if row is None]
    bulk.execute_many(connection, "DELETE FROM broker_message WHERE session = ? AND position = ?", deleted)
    rows = [(*key, *row) for key, row in changes.messages.items() if row is not None]
    bulk.insert_rows(connection, broker_message, rows)


def _write_unreleased_ids(connection: Connection, changes: PendingChanges) -> None:
    deleted = [key for key, is_open in changes.unreleased_ids.items() if not is_open]
    bulk.execute_many(connection, "DELETE FROM broker_received WHERE session = ? AND packet_id = ?", deleted)
    bulk.insert_rows(
        connection, broker_received, [key for key, is_open in changes.unreleased_ids.items() if is_open]
    )


def _write_retained(connection: Connection, changes: PendingChanges) -> None:
    deleted = [(topic,) for topic, row in changes.retained.items() if row is None]
    bulk.execute_many(connection, "DELETE FROM broker_retained WHERE topic = ?", deleted)
    rows = [(topic, *row) for topic, row in changes.retained.items() if row is not None]
    update = "UPDATE SET payload = excluded.payload, qos = excluded.qos, account = excluded.account"
    bulk.insert_rows(connection, broker_retained, rows, on_conflict=update)
