"""The tables, for both databases.

Times are milliseconds since 1970 in UTC. A gateway or device is its MAC read as a number: it sorts like the
MAC, is short in every index, and needs no second table to give it a number. Text that decides an order is
compared by code point, so that both databases give the same order.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    text,
)

metadata = MetaData(
    naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "pk": "pk_%(table_name)s"}
)

# SQLite makes an INTEGER PRIMARY KEY, and no other type, the row's own address.
_Key = BigInteger().with_variant(Integer(), "sqlite")
_Sorted = Text().with_variant(Text(collation="C"), "postgresql")

secret = Table(
    "secret",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)
"""What signs tokens. Every process of one service uses the same."""

account = Table(
    "account",
    metadata,
    Column("username", _Sorted, primary_key=True),
    Column("password", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("last_login_at", BigInteger),
)

session = Table(
    "session",
    metadata,
    Column("id", Text, primary_key=True),
    Column(
        "username", _Sorted, ForeignKey("account.username", ondelete="CASCADE"), nullable=False, index=True
    ),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False, index=True),
)
"""A login and the tokens refreshed from it. Without its row none of them holds."""

api_key = Table(
    "api_key",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", _Sorted, nullable=False, unique=True),
    Column("role", Text, nullable=False),
    Column("hash", LargeBinary, nullable=False, unique=True),
    Column("created_by", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
)

audit = Table(
    "audit",
    metadata,
    Column("id", _Key, primary_key=True, autoincrement=True),
    Column("time", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("address", Text),
    Index(None, "actor", "id"),
    Index(None, "target", "id"),
    sqlite_autoincrement=True,  # a number is never given twice, not even after the newest row is gone
)

device = Table(
    "device",
    metadata,
    Column("id", _Key, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("name_key", _Sorted, nullable=False),
    Column("named", Boolean, nullable=False),
    Column("model", Integer, nullable=False),
    Column("variant", SmallInteger, nullable=False),
    Column("firmware", _Sorted, nullable=False),
    Column("beta", SmallInteger, nullable=False),
    Column("hardware", _Sorted, nullable=False),
    Column("imei", Text),
    Column("gateway", BigInteger),
    Column("connected", Boolean, nullable=False),
    Column("connected_at", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Index(None, "model", "id"),
    # Versions belong to models: two that never meet would each select many, and together none.
    Index(None, "model", "firmware", "id"),
    Index(None, "model", "hardware", "id"),
    Index(None, "firmware", "hardware", "id"),
    Index(None, "firmware", "id"),
    Index(None, "hardware", "id"),
    Index(None, "gateway", "id"),
    Index(None, "connected", "id"),
    # What lists are sorted by, and what they are selected by, so that most rows need not be fetched.
    Index("ix_device_by_connectivity", "connected", "connected_at", "id", "model", "firmware", "hardware"),
    Index("ix_device_by_name", "name_key", "id", "model", "firmware", "hardware", "connected"),
    Index("ix_device_initial", text("substr(name_key, 1, 1)"), "id"),
    Index("ix_device_initials", text("substr(name_key, 1, 2)"), "id"),
)
"""What changes seldom: its columns are what lists select and sort by.

`name_key` is the name as searches compare it. `connected_at` tells since when `connected` is as it is.
"""

device_state = Table(
    "device_state",
    metadata,
    Column(
        "device", _Key, ForeignKey("device.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    ),
    Column("reported_at", BigInteger),
    Column("status", Integer),
    Column("boot_mode", Text),
    Column("parent", BigInteger),
    Column("rssi", SmallInteger),
    Column("battery", SmallInteger),
    # When each of these was true: what comes late moves nothing back.
    Column("status_at", BigInteger),
    Column("radio_at", BigInteger),
    Column("battery_at", BigInteger),
    Column("gateway_at", BigInteger),
    Column("model_at", BigInteger),
    Column("variant_at", BigInteger),
    Column("firmware_at", BigInteger),
    Column("hardware_at", BigInteger),
    Column("rhythm", BigInteger),
    # Room in every page, so that a change stays on its page and touches no index.
    postgresql_with={"fillfactor": 70},
)
"""What changes with every report: no index but the key.

`gateway_at` tells when it was last heard through the gateway that it belongs to, `rhythm` how many
milliseconds usually pass between two of its heartbeats.
"""

connectivity = Table(
    "connectivity",
    metadata,
    Column("id", _Key, primary_key=True, autoincrement=True),
    Column("device", BigInteger, nullable=False),
    Column("time", BigInteger, nullable=False, index=True),
    Column("connected", Boolean, nullable=False),
    Column("cause", Text, nullable=False),
    Column("gateway", BigInteger),
    Index(None, "device", "id"),
    sqlite_autoincrement=True,
)
"""When devices were connected, and why no longer. A device may be forgotten; this stays until it is old."""

label = Table(
    "label",
    metadata,
    Column("id", _Key, primary_key=True, autoincrement=True),
    Column("text", _Sorted, nullable=False, unique=True),
    Column("created_at", BigInteger, nullable=False),
    sqlite_autoincrement=True,
)

device_label = Table(
    "device_label",
    metadata,
    Column("label", BigInteger, ForeignKey("label.id", ondelete="CASCADE"), primary_key=True),
    Column("device", BigInteger, ForeignKey("device.id", ondelete="CASCADE"), primary_key=True),
    Index(None, "device", "label"),
    sqlite_with_rowid=False,
)

gateway = Table(
    "gateway",
    metadata,
    Column("device", _Key, ForeignKey("device.id"), primary_key=True, autoincrement=False),
    Column("password", LargeBinary),
    Column("claimed_at", BigInteger, nullable=False),
    Column("api_version", Text),
    Column("mode", Text),
    Column("broker_hash", Text),
)
"""Claimed gateways. Each is a device too, and connected when that is.

`broker_hash` is the password as another broker checks it; who registered by itself has none of both.
"""

broker_owner = Table("broker_owner", metadata, Column("token", LargeBinary, primary_key=True))
"""The one process whose broker writes to the following tables."""

broker_session = Table(
    "broker_session",
    metadata,
    Column("number", _Key, primary_key=True, autoincrement=False),
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
    Column("packet_id", Integer, primary_key=True),
    Column("place", BigInteger, nullable=False),
    Column("topic", Text, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Column("retain", Boolean, nullable=False),
    Column("until", BigInteger),
)
"""What sessions are owed, in the order of `place`; after `until` nobody wants it any more."""

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

reading_journal = Table(
    "reading_journal",
    metadata,
    Column("id", _Key, primary_key=True, autoincrement=True),
    Column("readings", LargeBinary, nullable=False),
    sqlite_autoincrement=True,  # what is written meanwhile must never have a number that is to be forgotten
)
"""Heartbeats and readings of the radio, until they are in states and roll-ups."""

foreign_name = Table(
    "foreign_name",
    metadata,
    Column("number", _Key, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
)
"""Names of identifiers that the catalogue does not know, by the number that stands for each in samples."""

series = Table(
    "series",
    metadata,
    Column("device", BigInteger, primary_key=True),
    Column("kind", SmallInteger, primary_key=True),
    Column("identifier", BigInteger, primary_key=True),
    Column("time", BigInteger, nullable=False),
    Column("seq", SmallInteger, nullable=False),
    Column("unfilled", SmallInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""Series whose samples are acknowledged: the newest sample of each, and how many holes in turn never filled.

Written every other second, so it may lag behind the samples, which decide.
"""

hole = Table(
    "hole",
    metadata,
    Column("device", BigInteger, primary_key=True),
    Column("kind", SmallInteger, primary_key=True),
    Column("identifier", BigInteger, primary_key=True),
    Column("since", BigInteger, primary_key=True),
    Column("until", BigInteger, nullable=False),
    Column("found_at", BigInteger, nullable=False),
    Column("lost_at", BigInteger),
    sqlite_with_rowid=False,
)
"""Where samples of a series are missing: between the times of two that are there, in the order of `seq`.

`lost_at` tells since when nobody expects them any more.
"""

_OPEN = text("finished_at IS NULL")

request = Table(
    "request",
    metadata,
    Column("id", Text, primary_key=True),
    Column("device", BigInteger, nullable=False),
    Column("gateway", BigInteger),
    Column("actor", Text, nullable=False),
    Column("requested_at", BigInteger, nullable=False, index=True),
    Column("finished_at", BigInteger),
    Column("state", Text, nullable=False),
    Column("asked", Text, nullable=False),
    Column("answer", Text),
    Column("problem", Text),
    Column("key", Text, unique=True),
    Column("digest", Text),
    Index(None, "device", "requested_at", "id"),
    Index("ix_request_open", "id", sqlite_where=_OPEN, postgresql_where=_OPEN),
)
"""Requests that somebody sent to devices, and what became of them. Never with a key of a mesh (request-31).

`asked`, `answer` and `problem` are JSON as it is shown. `key` is the idempotency key with whose it is, and
`digest` the request that came with it, both as hashes.
"""

reject = Table(
    "reject",
    metadata,
    Column("id", _Key, primary_key=True, autoincrement=True),
    Column("time", BigInteger, nullable=False),
    Column("gateway", BigInteger),
    Column("topic", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Index(None, "gateway", "id"),
    sqlite_autoincrement=True,
)
"""The newest reports that could not be taken."""
