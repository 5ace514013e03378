"""One device, which must be known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.errors import NotFound
from meshfleet.service.devices import listing
from meshfleet.wire.ids import device_id

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.wire.ids import Mac
    from meshfleet.wire.rest import Device, DeviceDetail


def device(connection: Connection, mac: Mac) -> Device:
    """A device as it is listed."""
    found = listing.device(connection, mac)
    if found is None:
        raise unknown(mac)
    return found


def detail(connection: Connection, mac: Mac) -> DeviceDetail:
    """All that is told of a device (rest-39)."""
    found = listing.detail(connection, mac)
    if found is None:
        raise unknown(mac)
    return found


def unknown(mac: Mac) -> NotFound:
    """There is no such device."""
    return NotFound(f"there is no device {device_id(mac)}")
