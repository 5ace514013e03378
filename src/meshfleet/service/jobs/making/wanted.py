"""The firmware that a job is to bring to devices."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from sqlalchemy import select

from meshfleet.db.tables import firmware
from meshfleet.errors import Fault, InvalidRequest, NotReleased
from meshfleet.service.jobs.fitness import Need
from meshfleet.wire.ids import Version

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.wire.rest import NewJob

_ID: Final = re.compile(r"fw-[0-9a-f]{16}")


class Wanted(NamedTuple):
    """Released firmware, and what it and the order ask of a device."""

    id: str
    size: int
    need: Need


def find(connection: Connection, order: NewJob) -> Wanted:
    """The firmware of an order: it must be there, and released (rest-118)."""
    known = _ID.fullmatch(order.firmware_id)
    row = (
        connection.execute(select(firmware).where(firmware.c.id == order.firmware_id)).first()
        if known
        else None
    )
    if row is None:
        raise InvalidRequest([Fault("firmwareId", "there is no such firmware")])
    _check(row.state)
    need = Need(
        model=row.model,
        version=Version.parse(row.version),
        hardware=frozenset(msgspec.json.decode(row.hardware, type=list[str])),
        min_version=None if row.min_version is None else Version.parse(row.min_version),
        allow_downgrade=order.allow_downgrade,
        method=order.method,
    )
    return Wanted(row.id, row.size, need)


def hold(connection: Connection, firmware_id: str) -> None:
    """See to it that it is released, and stays so until we are done: who withdraws it stops our job, too."""
    query = select(firmware.c.state).where(firmware.c.id == firmware_id).with_for_update(read=True)
    _check(connection.execute(query).scalar())


def _check(state: str | None) -> None:
    if state != "released":
        raise NotReleased(
            "the firmware is not released" if state != "withdrawn" else "the firmware was withdrawn"
        )
