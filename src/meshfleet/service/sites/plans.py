"""Stores the pictures of floors in the database, in pieces, so that backups contain them (rest-251)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from sqlalchemy import delete, insert, select

from meshfleet.db.tables import floor, plan, plan_chunk, site
from meshfleet.errors import ImageDamaged, NotFound, UnknownSite
from meshfleet.protocol.times import format_millis
from meshfleet.rest.sites import Plan, ReferencePoint, format_site_id
from meshfleet.service.audit import log as audit
from meshfleet.service.sites.plan_reference import build_transform

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from sqlalchemy import ColumnElement, Connection, Row

    from meshfleet.db import Database
    from meshfleet.service.actor import Actor
    from meshfleet.service.sites.geometry import FloorKey
    from meshfleet.service.sites.plan_upload import ReceivedPlan

CHUNK_SIZE: Final = 256 * 1024
"""Bytes of a picture that a row of the table `plan_chunk` holds."""

_REFERENCE: Final = msgspec.json.Decoder(tuple[ReferencePoint, ...])


class StoredPlan(msgspec.Struct, frozen=True):
    """Picture of a floor in the database, without its content."""

    id: int
    content_type: str
    size: int
    sha256: bytes


def store_plan(connection: Connection, key: FloorKey, new: ReceivedPlan, *, by: Actor, now: int) -> Plan:
    """Store the picture of a floor, and replace the present one.

    Raise `UnknownSite`, or `NotFound` if the site has no such floor.
    """
    _lock_floor(connection, key)
    connection.execute(delete(plan).where(_is_of_floor(key)))
    row = {
        **key._asdict(),
        "content_type": new.picture.content_type,
        "width": new.picture.width,
        "height": new.picture.height,
        "size": len(new.content),
        "sha256": new.sha256,
        "reference": msgspec.json.encode(new.reference).decode(),
        "updated_at": now,
    }
    plan_id = connection.execute(insert(plan).values(row).returning(plan.c.id)).scalar_one()
    with memoryview(new.content) as content:
        for position, start in enumerate(range(0, len(content), CHUNK_SIZE)):
            piece = bytes(content[start : start + CHUNK_SIZE])
            chunk = {"plan": plan_id, "position": position, "content": piece}
            connection.execute(insert(plan_chunk).values(chunk))
    _audit_change(connection, "upload", key, by=by, now=now, size=len(new.content), sha256=new.sha256.hex())
    return build_plan(connection.execute(select(plan).where(plan.c.id == plan_id)).one())


def load_plan(connection: Connection, key: FloorKey) -> StoredPlan:
    """Load the facts about the picture of a floor. Raise `UnknownSite`, or `NotFound` if there is none."""
    columns = plan.c
    query = select(columns.id, columns.content_type, columns.size, columns.sha256)
    row = connection.execute(query.where(_is_of_floor(key))).first()
    if row is not None:
        return StoredPlan(*row)
    raise _explain_missing_plan(connection, key)


async def stream_plan(database: Database, found: StoredPlan) -> AsyncGenerator[bytes]:
    """Yield the content of a picture. Raise `ImageDamaged` if it was replaced or deleted meanwhile."""
    for position in range(-(-found.size // CHUNK_SIZE)):
        content = await database.read(_load_chunk, found.id, position)
        if not content:
            raise ImageDamaged("the plan was replaced or deleted while it was being sent")
        yield content


def delete_plan(connection: Connection, key: FloorKey, *, by: Actor, now: int) -> None:
    """Delete the picture of a floor. Raise `UnknownSite`, or `NotFound` if there is none."""
    _lock_floor(connection, key)
    if not connection.execute(delete(plan).where(_is_of_floor(key))).rowcount:
        raise NotFound("the floor has no plan")
    _audit_change(connection, "delete", key, by=by, now=now)


def build_plan(row: Row[Any]) -> Plan:
    """Build the body of a plan from a row of the table `plan`."""
    reference = _REFERENCE.decode(row.reference)
    return Plan(
        content_type=row.content_type,
        width=row.width,
        height=row.height,
        size=row.size,
        reference=reference,
        transform=build_transform(reference),
        updated_at=format_millis(row.updated_at),
    )


def _is_floor(key: FloorKey) -> ColumnElement[bool]:
    return (floor.c.site == key.site) & (floor.c.floor == key.floor)


def _is_of_floor(key: FloorKey) -> ColumnElement[bool]:
    return (plan.c.site == key.site) & (plan.c.floor == key.floor)


def _lock_floor(connection: Connection, key: FloorKey) -> None:
    """Lock a floor until the transaction ends: one change of its picture happens after the other."""
    query = select(floor.c.floor).where(_is_floor(key)).with_for_update()
    if connection.execute(query).first() is None:
        raise _explain_missing_plan(connection, key)


def _explain_missing_plan(connection: Connection, key: FloorKey) -> NotFound:
    """Return the error that says whether the site, its floor, or only the plan of the floor is missing."""
    if connection.execute(select(site.c.id).where(site.c.id == key.site)).first() is None:
        return UnknownSite("site not found")
    if connection.execute(select(floor.c.floor).where(_is_floor(key))).first() is None:
        return NotFound(f"the site has no floor {key.floor}")
    return NotFound("the floor has no plan")


def _load_chunk(connection: Connection, plan_id: int, position: int) -> bytes:
    is_chunk = (plan_chunk.c.plan == plan_id) & (plan_chunk.c.position == position)
    content: Any = connection.execute(select(plan_chunk.c.content).where(is_chunk)).scalar()
    return bytes(content or b"")


def _audit_change(
    connection: Connection, action: str, key: FloorKey, *, by: Actor, now: int, **detail: Any
) -> None:
    audit.record_change(
        connection, by, f"plan.{action}", format_site_id(key.site), now=now, floor=key.floor, **detail
    )
