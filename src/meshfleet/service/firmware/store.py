"""Database functions for firmware records: insert, list, release, withdraw and delete."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from sqlalchemy import delete, insert, select, tuple_, update
from sqlalchemy.exc import IntegrityError

from meshfleet.db.database import is_duplicate_error
from meshfleet.db.tables import firmware, gateway, job
from meshfleet.errors import AlreadyExists, Conflict, InUse, NotFound
from meshfleet.protocol.ids import Mac, ModelNumber, format_model_number, mac_to_int
from meshfleet.protocol.times import format_millis, format_optional_millis
from meshfleet.rest.firmware import Firmware, FirmwareState
from meshfleet.service.audit import log as audit
from meshfleet.service.jobs.commands import cancel_jobs_of_firmware

if TYPE_CHECKING:
    from sqlalchemy import Connection, Row

    from meshfleet.protocol.diagnostics import ImageRequest
    from meshfleet.service.actor import Actor
    from meshfleet.service.firmware.image_store import ImageStore
    from meshfleet.service.firmware.partial_images import ReceivedImage
    from meshfleet.service.firmware.upload_form import NewFirmware


class FirmwarePosition(NamedTuple):
    """Position of a record in the firmware list, which is sorted by creation time and id."""

    created_at: int
    """Creation time of the record as Unix time in milliseconds."""
    id: str


class FirmwareFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filter of the firmware list. A record must match all fields; None matches any value."""

    model: ModelNumber | None = None
    version: str | None = None
    state: FirmwareState | None = None


def insert_firmware(  # noqa: PLR0913 # the last three are keyword-only
    connection: Connection,
    new: NewFirmware,
    image: ReceivedImage,
    overridden: str = "",
    *,
    images: ImageStore,
    by: Actor,
    now: int,
) -> Firmware:
    """Store an image and its firmware record in one transaction (rest-113, rest-114).

    `overridden` is the fault of the image that an admin accepted, for the audit log; "" if none (rest-221).
    Raise `AlreadyExists` if firmware with the same model and version exists.
    """
    row = {
        "id": f"fw-{secrets.token_hex(8)}",
        "model": int(new.model, 16),
        "version": str(new.version),
        "type": int(new.type),
        "bare": new.bare,
        "file_name": new.file_name,
        "size": image.size,
        "sha256": image.sha256,
        "hardware": msgspec.json.encode(new.hardware).decode(),
        "min_version": None if new.min_version is None else str(new.min_version),
        "notes": new.notes,
        "state": "draft",
        "created_by": by.display_name,
        "created_at": now,
        "released_at": None,
    }
    is_duplicate = (firmware.c.model == row["model"]) & (firmware.c.version == row["version"])
    if connection.execute(select(firmware.c.id).where(is_duplicate)).first() is not None:
        raise _build_duplicate_error(new)
    images.add_image(connection, image)
    try:
        connection.execute(insert(firmware).values(row))
    except IntegrityError as exc:
        if not is_duplicate_error(exc):
            raise
        raise _build_duplicate_error(new) from None
    record = load_firmware(connection, str(row["id"]))
    override = {"override": overridden, "sha256": record.sha256} if overridden else {}
    _audit_action(
        connection, "upload", record, by=by, now=now, **({"bare": True} if new.bare else {}), **override
    )
    return record


def list_firmware(
    connection: Connection, firmware_filter: FirmwareFilter, *, before: FirmwarePosition | None, limit: int
) -> list[Firmware]:
    """List firmware records, the newest first. If `before` is not None, list only older records."""
    columns = firmware.c
    query = select(firmware).order_by(columns.created_at.desc(), columns.id.desc()).limit(limit)
    if firmware_filter.model is not None:
        query = query.where(columns.model == int(firmware_filter.model, 16))
    if firmware_filter.version is not None:
        query = query.where(columns.version == firmware_filter.version)
    if firmware_filter.state is not None:
        query = query.where(columns.state == firmware_filter.state)
    if before is not None:
        query = query.where(tuple_(columns.created_at, columns.id) < tuple_(*before))
    return [_build_firmware(row) for row in connection.execute(query)]


def load_firmware(connection: Connection, firmware_id: str, *, for_update: bool = False) -> Firmware:
    """Load a firmware record. Raise `NotFound` if the record does not exist.

    If `for_update` is True, lock the row until the transaction ends.
    """
    query = select(firmware).where(firmware.c.id == firmware_id)
    row = connection.execute(query.with_for_update() if for_update else query).first()
    if row is None:
        raise NotFound("firmware not found")
    return _build_firmware(row)


def find_requested_firmware(connection: Connection, mac: Mac, request: ImageRequest) -> Firmware | None:
    """Find the released firmware that a gateway requests (firmware-16).

    Return None if there is no such firmware, or if the gateway is not claimed.
    """
    if not _is_gateway_claimed(connection, mac):
        return None
    columns = firmware.c
    query = select(firmware).where(
        columns.model == int(request.model_number, 16),
        columns.version == str(request.version),
        columns.type == int(request.firmware_type),
        columns.state == "released",
    )
    row = connection.execute(query).first()
    return None if row is None else _build_firmware(row)


def load_firmware_for_gateway(connection: Connection, firmware_id: str, mac: Mac) -> Firmware:
    """Load the firmware record whose image a gateway downloads.

    Raise `NotFound` if the firmware is not released or the gateway is not claimed.
    """
    record = load_firmware(connection, firmware_id)
    if record.state != "released" or not _is_gateway_claimed(connection, mac):
        raise NotFound("the image URL is invalid or expired")
    return record


def _is_gateway_claimed(connection: Connection, mac: Mac) -> bool:
    query = select(gateway.c.device).where(gateway.c.device == mac_to_int(mac))
    return connection.execute(query).first() is not None


def release_firmware(connection: Connection, firmware_id: str, *, by: Actor, now: int) -> Firmware:
    """Release firmware. Do nothing if it is already released; raise `Conflict` if withdrawn (rest-111)."""
    record = load_firmware(connection, firmware_id, for_update=True)
    if record.state == "withdrawn":
        raise Conflict("withdrawn firmware cannot be released")
    if record.state == "released":
        return record
    _update_firmware(connection, firmware_id, state="released", released_at=now)
    _audit_action(connection, "release", record, by=by, now=now)
    return load_firmware(connection, firmware_id)


def withdraw_firmware(connection: Connection, firmware_id: str, *, by: Actor, now: int) -> Firmware:
    """Withdraw firmware, and cancel the jobs that use it (rest-111).

    Do nothing if the firmware is already withdrawn.
    """
    record = load_firmware(connection, firmware_id, for_update=True)
    if record.state == "withdrawn":
        return record
    _update_firmware(connection, firmware_id, state="withdrawn")
    _audit_action(connection, "withdraw", record, by=by, now=now)
    cancel_jobs_of_firmware(connection, firmware_id, by=by, now=now)
    return load_firmware(connection, firmware_id)


def delete_firmware(connection: Connection, firmware_id: str, *, by: Actor, now: int) -> bytes:
    """Delete a firmware record. Return the SHA-256 of its image, which the caller removes (rest-112).

    Raise `InUse` if a job uses the firmware.
    """
    record = load_firmware(connection, firmware_id, for_update=True)
    if connection.execute(select(job.c.id).where(job.c.firmware == firmware_id).limit(1)).first():
        raise InUse("a job uses the firmware; withdraw it instead")
    connection.execute(delete(firmware).where(firmware.c.id == firmware_id))
    _audit_action(connection, "delete", record, by=by, now=now)
    return bytes.fromhex(record.sha256)


def _update_firmware(connection: Connection, firmware_id: str, **values: Any) -> None:
    """Set columns of a firmware record."""
    connection.execute(update(firmware).where(firmware.c.id == firmware_id).values(values))


def _audit_action(
    connection: Connection, action: str, record: Firmware, *, by: Actor, now: int, **details: Any
) -> None:
    """Record an action on a firmware record in the audit log."""
    audit.record_change(
        connection,
        by,
        f"firmware.{action}",
        record.id,
        now=now,
        modelNumber=record.model_number,
        version=record.version,
        **details,
    )


def _build_duplicate_error(new: NewFirmware) -> AlreadyExists:
    return AlreadyExists(f"firmware {new.version} for model {new.model} already exists")


def _build_firmware(row: Row[Any]) -> Firmware:
    return Firmware(
        id=row.id,
        model_number=format_model_number(row.model),
        version=row.version,
        type=row.type,
        bare=row.bare,
        file_name=row.file_name,
        size=row.size,
        sha256=row.sha256.hex(),
        hardware_versions=msgspec.json.decode(row.hardware, type=list[str]),
        min_version=row.min_version,
        notes=row.notes,
        state=row.state,
        created_by=row.created_by,
        created_at=format_millis(row.created_at),
        released_at=format_optional_millis(row.released_at),
    )
