"""Tables of sites with their floors and plans, of places of devices, and of zones."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
)

from meshfleet.db.tables.columns import CodePointText, RowId, metadata

site = Table(
    "site",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("revision", BigInteger, nullable=False),
)
"""Sites. The id is a random number; `site-` and its hex digits are the id in the REST interface.

`revision` grows with every change of the site's floors and of the places of devices on it, so that processes
that keep a model of the site in memory notice that it is outdated.
"""

floor = Table(
    "floor",
    metadata,
    Column("site", BigInteger, ForeignKey("site.id", ondelete="CASCADE"), primary_key=True),
    Column("floor", SmallInteger, primary_key=True, autoincrement=False),
    Column("name", Text),
    Column("min_x", Double, nullable=False),
    Column("min_y", Double, nullable=False),
    Column("max_x", Double, nullable=False),
    Column("max_y", Double, nullable=False),
    Column("walkable", Text),
)
"""Floors of sites. Coordinates are in meters, and `y` grows upwards on the plan.

`walkable` is a JSON list of polygons, each a list of corners `[x, y]`; NULL if people can be anywhere.
"""

plan = Table(
    "plan",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("site", BigInteger, nullable=False),
    Column("floor", SmallInteger, nullable=False),
    Column("content_type", Text, nullable=False),
    Column("width", Double, nullable=False),
    Column("height", Double, nullable=False),
    Column("size", Integer, nullable=False),
    Column("sha256", LargeBinary, nullable=False),
    Column("reference", Text, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    ForeignKeyConstraint(["site", "floor"], ["floor.site", "floor.floor"], ondelete="CASCADE"),
    UniqueConstraint("site", "floor"),
    sqlite_autoincrement=True,
)
"""Pictures of floors, at most one for each floor. A new picture is a new row with a new id.

`width` and `height` are in pixels. `reference` is a JSON list of two points with their pixels and meters.
"""

plan_chunk = Table(
    "plan_chunk",
    metadata,
    Column("plan", BigInteger, ForeignKey("plan.id", ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("content", LargeBinary, nullable=False),
)
"""Contents of the pictures in `plan`, in pieces ordered by `position`."""

place = Table(
    "place",
    metadata,
    Column(
        "device", RowId, ForeignKey("device.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    ),
    Column("site", BigInteger, nullable=False),
    Column("floor", SmallInteger, nullable=False),
    Column("x", Double, nullable=False),
    Column("y", Double, nullable=False),
    Column("set_at", BigInteger, nullable=False),
    ForeignKeyConstraint(["site", "floor"], ["floor.site", "floor.floor"], ondelete="CASCADE"),
    Index(None, "site", "device"),
    # For the deletion of a floor, and to count the places on it.
    Index(None, "site", "floor"),
)
"""Places of devices that do not move, as users have entered them, in meters."""

zone = Table(
    "zone",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=False),
    Column("site", BigInteger, nullable=False),
    Column("floor", SmallInteger, nullable=False),
    Column("name", Text, nullable=False),
    Column("name_key", CodePointText, nullable=False),
    Column("polygon", Text, nullable=False),
    ForeignKeyConstraint(["site", "floor"], ["floor.site", "floor.floor"], ondelete="CASCADE"),
    UniqueConstraint("site", "name_key"),
    Index(None, "site", "floor"),
)
"""Named areas on floors. The id is a random number, as that of a site.

`name_key` is the name in the form in which names are compared. `polygon` is a JSON list of corners `[x, y]`.
"""
