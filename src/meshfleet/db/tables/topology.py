"""Table of the parent changes of devices in the mesh."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Index, Table

from meshfleet.db.tables.columns import RowId, metadata

parent_change = Table(
    "parent_change",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("device", BigInteger, nullable=False),
    Column("time", BigInteger, nullable=False, index=True),
    Column("parent", BigInteger, nullable=False),
    Column("previous", BigInteger),
    Column("gateway", BigInteger, nullable=False),
    Column("established", Boolean, nullable=False),
    Index(None, "device", "id"),
    Index(None, "gateway", "device"),
    sqlite_autoincrement=True,
)
"""Changes of the parents of devices, kept as long as links.

`previous` is NULL if the parent before was not known. `established` is false for a device without a mesh
link, whose parent is the node that hears it best. The rows of a deleted device stay until their retention
ends.
"""
