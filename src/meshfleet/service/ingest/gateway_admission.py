"""Gateways on another broker, which lets them in without asking us."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select

from meshfleet.db import bulk
from meshfleet.db.tables import gateway
from meshfleet.protocol.ids import EVERY_GATEWAY, mac_from_int, mac_to_int, to_device_id
from meshfleet.service.actor import SERVICE
from meshfleet.service.audit import log as audit
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import DeviceObservation

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from sqlalchemy import Connection

    from meshfleet.db import Database


# Gateways that register themselves: another broker has let them in, so they are ours (rest-79).


def list_claimed_gateways(connection: Connection) -> set[int]:
    """The numbers of all claimed gateways."""
    return set(connection.execute(select(gateway.c.device)).scalars())


def register_gateways(connection: Connection, gateways: AbstractSet[int], now: int) -> None:
    """Claim these gateways without a password. Those that are claimed stay as they are.

    The address that stands for all gateways is nobody's, and is passed over.
    """
    rows = bulk.query_in(connection, "SELECT device FROM gateway WHERE device IN numbers", sorted(gateways))
    new = sorted(gateways - {number for (number,) in rows} - {mac_to_int(EVERY_GATEWAY)})
    macs = [mac_from_int(number) for number in new]
    registry.record_observations(
        connection, [DeviceObservation(device=mac, at=now, heard=False) for mac in macs]
    )
    bulk.execute_many(
        connection,
        # Somebody may claim one at this moment.
        "INSERT INTO gateway (device, claimed_at) VALUES (?, ?) ON CONFLICT (device) DO NOTHING",
        [(number, now) for number in new],
    )
    audit.record_changes(
        connection, SERVICE, "gateway.register", [to_device_id(mac) for mac in macs], now=now
    )


class GatewayAdmission:
    """Whose reports are taken."""

    def __init__(self, *, autoclaim: bool) -> None:
        self.autoclaim = autoclaim
        """Whether those that nobody claimed are registered; else their reports are rejected (rest-79)."""
        self.claimed: set[int] = set()
        self.rejected: set[int] = set()
        """Who was not known at the last look either."""

    async def refresh(self, database: Database) -> None:
        """See who is claimed now."""
        self.claimed, self.rejected = await database.read(list_claimed_gateways), set()

    async def recheck(self, unclaimed: set[int], database: Database) -> bool:
        """Whether one of these, whom nobody has looked for since, was claimed a moment ago."""
        if unclaimed <= self.rejected:
            return False
        before = self.rejected
        await self.refresh(database)
        self.rejected = (before | unclaimed) - self.claimed
        return bool(unclaimed & self.claimed)
