"""Gateways that register themselves: another broker has let them in, so they are ours (rest-79)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select

from meshfleet.db import bulk
from meshfleet.db.tables import gateway
from meshfleet.service.accounts.model import SERVICE
from meshfleet.service.audit import log as audit
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import Sighting
from meshfleet.wire.ids import EVERY_GATEWAY, device_id, mac_number, number_mac

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from sqlalchemy import Connection


def known(connection: Connection) -> set[int]:
    """The numbers of all claimed gateways."""
    return set(connection.execute(select(gateway.c.device)).scalars())


def register(connection: Connection, gateways: AbstractSet[int], now: int) -> None:
    """Claim these gateways without a password. Those that are claimed stay as they are.

    The address that stands for all gateways is nobody's, and is passed over.
    """
    rows = bulk.pick(connection, "SELECT device FROM gateway WHERE device IN numbers", sorted(gateways))
    new = sorted(gateways - {number for (number,) in rows} - {mac_number(EVERY_GATEWAY)})
    macs = [number_mac(number) for number in new]
    registry.observe(connection, [Sighting(device=mac, at=now, heard=False) for mac in macs])
    bulk.execute(
        connection,
        # Somebody may claim one at this moment.
        "INSERT INTO gateway (device, claimed_at) VALUES (?, ?) ON CONFLICT (device) DO NOTHING",
        [(number, now) for number in new],
    )
    audit.record_all(connection, SERVICE, "gateway.register", [device_id(mac) for mac in macs], now=now)
