"""Checks that read all data: all pages of the database, segments, firmware images and plans."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from sqlalchemy import select

from meshfleet.db.samples.segments import SegmentMissing, count_samples, segment_path
from meshfleet.db.tables import firmware, image_chunk, plan, plan_chunk, site
from meshfleet.errors import DatabaseUnavailable, SamplesDamaged
from meshfleet.rest.sites import format_site_id
from meshfleet.service.doctor.finding import RESTORE_COMMAND, Finding, Level

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from sqlalchemy import Connection

_CHECK_COMMAND: Final = "meshfleet restore --check FILE"
_PIECE_BYTES: Final = 1 << 20


def check_integrity(connection: Connection) -> Iterator[Finding]:
    """Check the structure of an SQLite database. PostgreSQL checks its pages itself."""
    found = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
    if found == ["ok"]:
        yield Finding(Level.OK, "integrity", "the database is intact")
    else:
        first = str(found[0]).splitlines()[-1]
        text = f"the database is damaged: {first}; restore the newest backup"
        yield Finding(Level.FAIL, "integrity", text, RESTORE_COMMAND)


def check_segments(connection: Connection, data: Path) -> Iterator[Finding]:
    """Decode every sample in the files of a service with SQLite."""
    counts = []
    segments = _list_segments(connection)
    for segment in segments:
        path = segment_path(data / "samples", segment)
        try:
            counts.append(count_samples(path))
        except SegmentMissing:
            if segment in _list_segments(connection):
                yield Finding(Level.FAIL, "samples", f"samples/{path.name} is missing", _CHECK_COMMAND)
            else:  # a running service has merged it into another one
                counts.append(0)
        except (SamplesDamaged, DatabaseUnavailable) as exc:
            yield Finding(Level.FAIL, "samples", str(exc), _CHECK_COMMAND)
    if len(counts) == len(segments):
        yield Finding(Level.OK, "samples", f"{sum(counts)} samples read from {len(counts)} files")


def _list_segments(connection: Connection) -> list[int]:
    return list(connection.exec_driver_sql("SELECT id FROM sample_segment ORDER BY id").scalars())


def check_images(connection: Connection, data: Path) -> Iterator[Finding]:
    """Compare the SHA-256 of every firmware image with its record."""
    intact = 0
    records = connection.execute(select(firmware.c.sha256, firmware.c.model, firmware.c.version)).all()
    for sha256, model, version in records:
        digest = hashlib.sha256()
        problem = "its SHA-256 differs"
        try:
            for piece in _read_image(connection, data, sha256):
                digest.update(piece)
        except OSError as exc:
            problem = f"it cannot be read: {exc.strerror}"
        if digest.digest() == sha256:
            intact += 1
        else:
            text = f"the image of model {model:04x}, version {version} is damaged: {problem}"
            yield Finding(Level.FAIL, "images", text, "meshfleet firmware list")
    if intact == len(records):
        yield Finding(Level.OK, "images", f"{intact} firmware images read")


def _read_image(connection: Connection, data: Path, sha256: bytes) -> Iterable[bytes]:
    if connection.dialect.name == "sqlite":
        with (data / "images" / sha256.hex()).open("rb") as file:
            yield from iter(lambda: file.read(_PIECE_BYTES), b"")
        return
    query = select(image_chunk.c.content).where(image_chunk.c.sha256 == sha256).order_by(image_chunk.c.place)
    for content in connection.execute(query).scalars():
        yield bytes(content)


def check_plans(connection: Connection) -> Iterator[Finding]:
    """Compare the SHA-256 of the picture of every floor with its record."""
    intact = 0
    columns = (plan.c.id, plan.c.site, plan.c.floor, plan.c.sha256, site.c.name)
    query = select(*columns).join(site, site.c.id == plan.c.site).order_by(site.c.created_at, plan.c.floor)
    records = connection.execute(query).all()
    for record in records:
        digest = hashlib.sha256()
        for piece in _read_plan(connection, record.id):
            digest.update(piece)
        if digest.digest() == record.sha256:
            intact += 1
        elif _has_plan(connection, record.id):
            site_id = format_site_id(record.site)
            text = (
                f"the plan of floor {record.floor} of {record.name} ({site_id}) is damaged:"
                " its SHA-256 differs; upload it again"
            )
            yield Finding(Level.FAIL, "plans", text, f"meshfleet sites show {site_id}")
        else:  # a running service has replaced or deleted it
            intact += 1
    if intact == len(records):
        yield Finding(Level.OK, "plans", f"{intact} plans of floors read")


def _read_plan(connection: Connection, plan_id: int) -> Iterator[bytes]:
    query = select(plan_chunk.c.content).where(plan_chunk.c.plan == plan_id).order_by(plan_chunk.c.position)
    for content in connection.execute(query).scalars():
        yield bytes(content)


def _has_plan(connection: Connection, plan_id: int) -> bool:
    return connection.execute(select(plan.c.id).where(plan.c.id == plan_id)).first() is not None
