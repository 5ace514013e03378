"""Tables of the whole fleet: the number of devices, and how many of them were online in each hour."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Table

from meshfleet.db.tables.columns import RowId, metadata

fleet_count = Table(
    "fleet_count",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("devices", BigInteger, nullable=False),
    Column("connected", BigInteger, nullable=False),
    sqlite_autoincrement=True,
)
"""Rows whose sums are the numbers of all and of connected devices: counting a large fleet takes too long.

A transaction that changes a number inserts a row with the difference, so that no two transactions wait for
each other. The evaluation of alarms merges the rows.
"""

availability = Table(
    "availability",
    metadata,
    Column("hour", BigInteger, primary_key=True, autoincrement=False),
    Column("known_ms", BigInteger, nullable=False),
    Column("device_ms", BigInteger, nullable=False),
    Column("online_ms", BigInteger, nullable=False),
    Column("ended_at", BigInteger, nullable=False),
    Column("devices_end", BigInteger, nullable=False),
    Column("online_end", BigInteger, nullable=False),
)
"""How much of the fleet was online in each hour, of which `hour` is the first millisecond.

`known_ms` is how long the connections were known: not while the service was away. `device_ms` and
`online_ms` are the sums of this time over all and over the connected devices. `devices_end` and `online_end`
are the numbers of devices at `ended_at`, the last look in this hour.
"""
