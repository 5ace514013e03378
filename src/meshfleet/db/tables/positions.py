"""Tables of positions: survey points, readings of anchors, calibrations of sites, and visits to zones."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, ForeignKey, Index, LargeBinary, SmallInteger, Table, Text

from meshfleet.db.tables.columns import RowId, metadata

survey_point = Table(
    "survey_point",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=False),
    Column("site", BigInteger, ForeignKey("site.id", ondelete="CASCADE"), nullable=False),
    Column("device", BigInteger, nullable=False),
    Column("floor", SmallInteger, nullable=False),
    Column("x", Double, nullable=False),
    Column("y", Double, nullable=False),
    Column("since", BigInteger, nullable=False),
    Column("until", BigInteger, nullable=False),
    Column("levels", LargeBinary, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("created_by", Text, nullable=False),
    Index(None, "site", "created_at", "id"),
)
"""Places at which a device was read on purpose. The id is a random number, as that of a site.

`levels` is the mean RSSI and the number of readings of each anchor, as MessagePack.
"""

calibration = Table(
    "calibration",
    metadata,
    Column("site", BigInteger, ForeignKey("site.id", ondelete="CASCADE"), primary_key=True),
    Column("made_at", BigInteger, nullable=False),
    Column("fingerprints", LargeBinary, nullable=False),
)
"""Minutes of devices with which a site was calibrated last, as MessagePack.

They are kept because a calibration with the few readings after a restart would be worse.
"""

zone_visit = Table(
    "zone_visit",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("zone", BigInteger, ForeignKey("zone.id", ondelete="CASCADE"), nullable=False),
    Column("device", BigInteger, ForeignKey("device.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("entered_at", BigInteger, nullable=False),
    Column("left_at", BigInteger, index=True),
    Index(None, "zone", "entered_at", "id"),
    sqlite_autoincrement=True,
)
"""Stays of devices in zones. `left_at` is NULL while the device is inside."""

anchor_reading = Table(
    "anchor_reading",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("arrived_at", BigInteger, nullable=False),
    Column("readings", LargeBinary, nullable=False),
    sqlite_autoincrement=True,  # never reused, so that they have the order of arrival
)
"""Single readings of anchors of the last hour, for the time after a restart.

A row has those of a flush: a list in MessagePack of the batches as ingest has encoded them.
"""
