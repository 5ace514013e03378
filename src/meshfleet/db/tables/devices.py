"""Tables of devices, their reported state, labels and gateways."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    text,
)

from meshfleet.db.tables.columns import CodePointText, RowId, metadata

device = Table(
    "device",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("name_key", CodePointText, nullable=False),
    Column("named", Boolean, nullable=False),
    Column("model", Integer, nullable=False),
    Column("variant", SmallInteger, nullable=False),
    Column("firmware", CodePointText, nullable=False),
    Column("beta", SmallInteger, nullable=False),
    Column("hardware", CodePointText, nullable=False),
    Column("imei", Text),
    Column("gateway", BigInteger),
    Column("connected", Boolean, nullable=False),
    Column("connected_at", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Index(None, "model", "id"),
    # Versions belong to models: a model and a version may each match many rows, and none together.
    Index(None, "model", "firmware", "id"),
    Index(None, "model", "hardware", "id"),
    Index(None, "firmware", "hardware", "id"),
    Index(None, "firmware", "id"),
    Index(None, "hardware", "id"),
    Index(None, "gateway", "id"),
    Index(None, "connected", "id"),
    # Sort columns with the filter columns, so that most rows need not be loaded.
    Index("ix_device_by_connectivity", "connected", "connected_at", "id", "model", "firmware", "hardware"),
    Index("ix_device_by_name", "name_key", "id", "model", "firmware", "hardware", "connected"),
    Index("ix_device_initial", text("substr(name_key, 1, 1)"), "id"),
    Index("ix_device_initials", text("substr(name_key, 1, 2)"), "id"),
)
"""Rarely changed columns of devices, by which lists are filtered and sorted.

`name_key` is the name as searches compare it. `connected_at` is the time of the last change of `connected`.
"""

device_state = Table(
    "device_state",
    metadata,
    Column(
        "device", RowId, ForeignKey("device.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    ),
    Column("reported_at", BigInteger),
    Column("status", Integer),
    Column("boot_mode", Text),
    Column("parent", BigInteger),
    Column("rssi", SmallInteger),
    Column("battery", SmallInteger),
    # Time of each reported value: a late report does not overwrite a newer value.
    Column("status_at", BigInteger),
    Column("radio_at", BigInteger),
    Column("battery_at", BigInteger),
    Column("gateway_at", BigInteger),
    Column("model_at", BigInteger),
    Column("variant_at", BigInteger),
    Column("firmware_at", BigInteger),
    Column("hardware_at", BigInteger),
    Column("rhythm", BigInteger),
    Column("radio_gateway", BigInteger),
    # Free space in every page, so that an update stays on its page and touches no index.
    postgresql_with={"fillfactor": 70},
)
"""Columns of devices that change with every report; no index but the key.

`gateway_at` is the time of the last report through the device's current gateway, `rhythm` the usual interval
between two heartbeats in milliseconds. `parent`, `rssi` and `radio_gateway`, which reported both, belong to
one reading at `radio_at`.
"""

connectivity = Table(
    "connectivity",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("device", BigInteger, nullable=False),
    Column("time", BigInteger, nullable=False, index=True),
    Column("connected", Boolean, nullable=False),
    Column("cause", Text, nullable=False),
    Column("gateway", BigInteger),
    Index(None, "device", "id"),
    sqlite_autoincrement=True,
)
"""Connects and disconnects of devices with their cause. Rows outlive a deleted device until they expire."""

label = Table(
    "label",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("text", CodePointText, nullable=False, unique=True),
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
    Column("device", RowId, ForeignKey("device.id"), primary_key=True, autoincrement=False),
    Column("password", LargeBinary),
    Column("claimed_at", BigInteger, nullable=False),
    Column("api_version", Text),
    Column("mode", Text),
    Column("broker_hash", Text),
    Column("clock_offset", BigInteger),
)
"""Claimed gateways. Each is also a device, whose `connected` applies to it.

`broker_hash` is the password hash for an external broker; both are NULL for a gateway that registered itself.
`clock_offset` is how many milliseconds the gateway's clock is ahead of the service's; NULL: unknown.
"""
