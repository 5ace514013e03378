"""What people change about devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select

from meshfleet.db.tables import device, gateway
from meshfleet.errors import StillClaimed
from meshfleet.service.audit import log as audit
from meshfleet.service.devices import listing, registry
from meshfleet.service.devices.listing import unknown
from meshfleet.wire.ids import device_id, mac_number

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.service.accounts.model import Actor
    from meshfleet.wire.ids import Mac
    from meshfleet.wire.rest import Device


def rename(connection: Connection, mac: Mac, name: str, *, by: Actor, now: int) -> Device:
    """Give a device the name that somebody chose (rest-43)."""
    query = select(device.c.name, device.c.named).where(device.c.id == mac_number(mac))
    before = connection.execute(query.with_for_update()).first()
    if before is None:
        raise unknown(mac)
    if tuple(before) != (name, True):
        registry.rename(connection, [(mac, name)])
        audit.record(connection, by, "device.rename", device_id(mac), now=now, before=before.name, after=name)
    return listing.device(connection, mac)


def forget(connection: Connection, mac: Mac, *, by: Actor, now: int) -> None:
    """Remove a device; its history stays, and it comes back when it is heard (rest-40, rest-41)."""
    if connection.execute(select(gateway.c.device).where(gateway.c.device == mac_number(mac))).first():
        raise StillClaimed(f"gateway {mac} is claimed; release it first")
    name = connection.execute(select(device.c.name).where(device.c.id == mac_number(mac))).scalar()
    if not registry.forget(connection, mac):
        raise unknown(mac)
    audit.record(connection, by, "device.forget", device_id(mac), now=now, name=name)
