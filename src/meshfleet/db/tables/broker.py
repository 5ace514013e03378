"""Tables of the embedded MQTT broker."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
)

from meshfleet.db.tables.columns import RowId, metadata

broker_owner = Table("broker_owner", metadata, Column("token", LargeBinary, primary_key=True))
"""One row with the token of the process whose broker may write to the broker tables."""

broker_session = Table(
    "broker_session",
    metadata,
    Column("number", RowId, primary_key=True, autoincrement=False),
    Column("account", Text, nullable=False),
    Column("client_id", Text, nullable=False),
    Column("left_at", BigInteger),
)
"""Persistent sessions of MQTT clients. `left_at` is when the client disconnected; NULL while connected."""

broker_subscription = Table(
    "broker_subscription",
    metadata,
    Column("session", BigInteger, ForeignKey("broker_session.number", ondelete="CASCADE"), primary_key=True),
    Column("wanted", Text, primary_key=True),
    Column("qos", SmallInteger, nullable=False),
    sqlite_with_rowid=False,
)

broker_message = Table(
    "broker_message",
    metadata,
    Column("session", BigInteger, ForeignKey("broker_session.number", ondelete="CASCADE"), primary_key=True),
    Column("position", BigInteger, primary_key=True),
    Column("topic", Text, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Column("retain", Boolean, nullable=False),
    Column("until", BigInteger),
)
"""Messages queued for MQTT clients, ordered by `position`, from which the packet identifier is computed.

`until` is the time at which a message expires; NULL if the message does not expire.
"""

broker_received = Table(
    "broker_received",
    metadata,
    Column("session", BigInteger, ForeignKey("broker_session.number", ondelete="CASCADE"), primary_key=True),
    Column("packet_id", Integer, primary_key=True),
    sqlite_with_rowid=False,
)
"""Packet identifiers of QoS 2 messages that were received, but not released by PUBREL yet.

Another PUBLISH with such a packet identifier is a duplicate.
"""

broker_retained = Table(
    "broker_retained",
    metadata,
    Column("topic", Text, primary_key=True),
    Column("payload", LargeBinary, nullable=False),
    Column("qos", SmallInteger, nullable=False),
    Column("account", Text, nullable=False),
)
