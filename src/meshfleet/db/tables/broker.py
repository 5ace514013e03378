"""What the embedded broker remembers."""

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
"""The one process whose broker writes to the following tables."""

broker_session = Table(
    "broker_session",
    metadata,
    Column("number", RowId, primary_key=True, autoincrement=False),
    Column("account", Text, nullable=False),
    Column("client_id", Text, nullable=False),
    Column("left_at", BigInteger),
)
"""Sessions of MQTT clients that outlive their connections. `left_at` is null while the client is there."""

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
"""Messages that wait for clients, in the order of `position`, from which the packet id follows.

After `until` a message is no longer wanted.
"""

broker_received = Table(
    "broker_received",
    metadata,
    Column("session", BigInteger, ForeignKey("broker_session.number", ondelete="CASCADE"), primary_key=True),
    Column("packet_id", Integer, primary_key=True),
    sqlite_with_rowid=False,
)
"""Messages at QoS 2 that came and were not released: if one comes again, it is the same."""

broker_retained = Table(
    "broker_retained",
    metadata,
    Column("topic", Text, primary_key=True),
    Column("payload", LargeBinary, nullable=False),
    Column("qos", SmallInteger, nullable=False),
    Column("account", Text, nullable=False),
)
