"""Tables of devices, their reported state and connectivity, labels and gateways."""

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
    # Each model has its own versions: a model and a version may match many rows each, but none together.
    Index(None, "model", "firmware", "id"),
    Index(None, "model", "hardware", "id"),
    Index(None, "firmware", "hardware", "id"),
    Index(None, "firmware", "id"),
    Index(None, "hardware", "id"),
    Index(None, "gateway", "id"),
    Index(None, "connected", "id"),
    # Indexes for sorting also hold the filter columns, so that rows that do not match need not be loaded.
    Index("ix_device_by_connectivity", "connected", "connected_at", "id", "model", "firmware", "hardware"),
    Index("ix_device_by_name", "name_key", "id", "model", "firmware", "hardware", "connected"),
    Index("ix_device_initial", text("substr(name_key, 1, 1)"), "id"),
    Index("ix_device_initials", text("substr(name_key, 1, 2)"), "id"),
)
"""Devices, with the columns that rarely change, by which lists are filtered and sorted.

`name_key` is the name in the form that searches compare. `connected_at` is the time of the last change of
`connected`.
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
    # Only the few rows with a low battery are in this index: other updates do not touch it.
    Index(
        "ix_device_state_low_battery",
        "battery",
        sqlite_where=text("battery <= 15"),
        postgresql_where=text("battery <= 15"),
    ),
    # Free space in every page, so that an update stays on its page and touches no index.
    postgresql_with={"fillfactor": 70},
)
"""Reported state of devices, with the columns that change with every report. Only the key and low
batteries have an index.

`gateway_at` is the time of the last report through the device's current gateway. `rhythm` is the usual
interval between two heartbeats in milliseconds. `parent` and `rssi` were reported together, at the time
`radio_at` and by the gateway `radio_gateway`.
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
"""History of the connects and disconnects of devices, with the cause.

The rows of a deleted device stay until their retention ends.
"""

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
"""Claimed gateways. Each gateway also has a row in `device`, which says whether the gateway is connected.

`broker_hash` is the hash of the password in the form that an external broker needs. `password` and
`broker_hash` are NULL for a gateway that was claimed automatically. `clock_offset` is the number of
milliseconds by which the gateway's clock is ahead of the clock of the service; NULL if unknown.
"""
