"""Loads the firmware of a job, and checks that the firmware is released."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import select

from meshfleet.db.tables import firmware
from meshfleet.errors import Fault, InvalidRequest, NotReleased
from meshfleet.service.jobs.compatibility import FirmwareRequirement, build_requirement

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.rest.job_requests import NewJob

_ID: Final = re.compile(r"fw-[0-9a-f]{16}")


class ReleasedFirmware(NamedTuple):
    """Released firmware, with the requirements that a device must meet to be updated."""

    id: str
    size: int
    """Size of the firmware image in bytes."""
    requirement: FirmwareRequirement


def load_released_firmware(connection: Connection, body: NewJob) -> ReleasedFirmware:
    """Load the firmware of a job request (rest-118).

    Raise `InvalidRequest` if the firmware does not exist, and `NotReleased` if it is not (or no longer)
    released.
    """
    query = select(firmware).where(firmware.c.id == body.firmware_id)
    row = connection.execute(query).first() if _ID.fullmatch(body.firmware_id) else None
    if row is None:
        raise InvalidRequest([Fault("firmwareId", "firmware not found")])
    _check_released(row.state)
    requirement = build_requirement(body, row.model, row.version, row.hardware, row.min_version, row.type)
    return ReleasedFirmware(row.id, row.size, requirement)


def lock_released_firmware(connection: Connection, firmware_id: str) -> None:
    """Check that a firmware is released, and lock its row until the transaction ends.

    A withdrawal of the firmware waits for the lock, so it also cancels the job that this transaction creates.
    """
    query = select(firmware.c.state).where(firmware.c.id == firmware_id).with_for_update(read=True)
    _check_released(connection.execute(query).scalar())


def _check_released(state: str | None) -> None:
    """Raise `NotReleased` if the state of a firmware is not `released`; None means that it was removed."""
    if state != "released":
        raise NotReleased(
            "the firmware is not released" if state != "withdrawn" else "the firmware was withdrawn"
        )
