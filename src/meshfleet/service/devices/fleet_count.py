"""Numbers of all and of connected devices, kept by the transactions that change them.

Counting a million devices takes a third of a second, too long for what a page asks for every few seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.db import bulk
from meshfleet.db.tables import fleet_count

if TYPE_CHECKING:
    from sqlalchemy import Connection

_SELECT_SUMS: Final = (
    "SELECT coalesce(sum(devices), 0), coalesce(sum(connected), 0), count(*) FROM fleet_count"
)
_DELETE_ALL: Final = "DELETE FROM fleet_count RETURNING devices, connected"
_LOCK: Final = "LOCK TABLE fleet_count IN SHARE ROW EXCLUSIVE MODE"
_COUNT_DEVICES: Final = "SELECT count(*), coalesce(sum(CASE WHEN connected THEN 1 ELSE 0 END), 0) FROM device"
_MAX_ROWS: Final = 10
"""Number of rows from which on they are merged."""


class FleetCount(NamedTuple):
    """Number of devices, gateways included, and how many of them are connected."""

    devices: int
    connected: int


def add_to_count(connection: Connection, *, devices: int = 0, connected: int = 0) -> None:
    """Record in the transaction that changes devices by how much their numbers change."""
    if devices or connected:
        bulk.insert_row(connection, fleet_count, devices, connected)


def load_count(connection: Connection) -> FleetCount:
    """Return how many devices there are, and how many of them are connected."""
    return FleetCount(*map(int, bulk.query_rows(connection, _SELECT_SUMS, ())[0][:2]))


def merge_counts(connection: Connection) -> None:
    """Replace the differences that transactions have recorded by their sum, if there are many."""
    if bulk.query_rows(connection, _SELECT_SUMS, ())[0][2] > _MAX_ROWS:
        # Differences of other transactions that are not committed yet are not seen, and stay.
        rows = bulk.query_rows(connection, _DELETE_ALL, ())
        bulk.insert_row(connection, fleet_count, sum(row[0] for row in rows), sum(row[1] for row in rows))


def count_again(connection: Connection) -> None:
    """Count all devices, as at a start: a version that keeps no count may have changed them meanwhile."""
    if connection.dialect.name != "sqlite":
        # Waits for transactions that have recorded a difference, and delays others until this one ends: so
        # each change of a device is either counted here or recorded afterwards.
        connection.exec_driver_sql(_LOCK)
    bulk.query_rows(connection, _DELETE_ALL, ())
    bulk.insert_row(connection, fleet_count, *bulk.query_rows(connection, _COUNT_DEVICES, ())[0])
