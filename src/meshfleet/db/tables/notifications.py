"""Tables of notifications: channels, routes, messages to send, and what each channel was told."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    SmallInteger,
    Table,
    Text,
    text,
)

from meshfleet.db.tables.columns import RowId, metadata

IS_WAITING: Final = text("state = 'waiting'")
"""Condition of messages that are not sent yet. SQLite uses a partial index only for its exact condition."""
IS_UNSENT: Final = text("state IN ('held', 'waiting')")
IS_SENT: Final = text("state = 'sent'")

channel = Table(
    "channel",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("name", Text, nullable=False, unique=True),
    Column("kind", Text, nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("target", Text, nullable=False),
    Column("secret", Text),
    Column("old_secret", Text),
    Column("old_secret_until", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    Column("problem", Text),
    Column("failing_since", BigInteger),
    Column("failures", Integer, nullable=False),
    Column("retry_at", BigInteger),
    Column("tried_at", BigInteger),
    Column("delivered_at", BigInteger),
    Column("version", Integer, nullable=False),
    sqlite_autoincrement=True,
)
"""Places to which messages about alarms are sent, such as a webhook or the recipients of e-mails.

`target` is JSON: the URL or the recipients. `old_secret` also signs until `old_secret_until`, so that a
receiver can change its secret without losing a message. `problem` says why the last attempt failed.
While a channel fails, from `failing_since` on, it is tried again at `retry_at`; `failures` counts the
attempts since then.
"""

notification_route = Table(
    "notification_route",
    metadata,
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("body", Text, nullable=False),
)
"""Routes: which alarms are sent to which channels, and when. They are tried in the order of `position`.

`body` is the route in its REST representation.
"""

notification = Table(
    "notification",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("channel", BigInteger, ForeignKey("channel.id", ondelete="CASCADE"), nullable=False),
    Column("alarm", BigInteger, ForeignKey("alarm.id", ondelete="CASCADE")),
    Column("kind", Text, nullable=False),
    Column("hold", Text),
    Column("state", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("due", BigInteger, nullable=False),
    Column("body", Text),
    Column("attempts", Integer, nullable=False),
    Column("failed_at", BigInteger),
    Column("problem", Text),
    Column("finished_at", BigInteger),
    Column("carrier", BigInteger),
    Column("retried_at", BigInteger),
    Index(
        "ix_notification_waiting",
        "channel",
        "alarm",
        "id",
        sqlite_where=IS_WAITING,
        postgresql_where=IS_WAITING,
    ),
    Index("ix_notification_due", "channel", "due", sqlite_where=IS_UNSENT, postgresql_where=IS_UNSENT),
    Index("ix_notification_sent", "channel", "finished_at", sqlite_where=IS_SENT, postgresql_where=IS_SENT),
    Index(None, "channel", "state", "id"),
    Index(None, "alarm", "channel"),
    Index(None, "carrier"),
    Index(None, "finished_at"),
    sqlite_autoincrement=True,
)
"""Messages about alarms, for one channel each.

Messages for people are `held` first, because several become one message: they are then `folded`, and
`carrier` is the message that tells what they would have told. `hold` says what a held message waits for.
`due` is the time of the next step. `alarm` is NULL in a message about several alarms. `attempts` counts the
attempts that failed because of this message, and not because the channel failed. At `retried_at` a message
that had been given up was released again.
"""

channel_alarm = Table(
    "channel_alarm",
    metadata,
    Column("channel", BigInteger, ForeignKey("channel.id", ondelete="CASCADE"), primary_key=True),
    Column("alarm", BigInteger, ForeignKey("alarm.id", ondelete="CASCADE"), primary_key=True, index=True),
    Column("opened_at", BigInteger, nullable=False),
    Column("severity", SmallInteger, nullable=False),
    Column("size", Integer, nullable=False),
    Column("new_members", Integer, nullable=False),
    Column("acknowledged_at", BigInteger),
    Column("route", Text, nullable=False),
    Column("told_at", BigInteger, nullable=False),
    Column("repeats", Integer, nullable=False),
    Column("check_at", BigInteger, index=True),
)
"""Last message of each channel about an alarm that is not over: only a change worth a message is told again.

`route` is the name of the route by which it was told, also if the alarm has lost the label of that route.
At `check_at` the alarm is looked at again although it may not have changed: to repeat the message.
"""
