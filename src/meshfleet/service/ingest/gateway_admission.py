"""Decides whether to accept reports of gateways on an external broker.

The service cannot authenticate these gateways itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection, select

from meshfleet.db import Database, bulk
from meshfleet.db.tables import gateway
from meshfleet.protocol.ids import EVERY_GATEWAY, mac_from_int, mac_to_int, to_device_id
from meshfleet.service.actor import SERVICE
from meshfleet.service.audit import log as audit
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import DeviceObservation

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet


# Self-registered gateways: the external broker has authenticated them, so they count as claimed (rest-79).


def list_claimed_gateways(connection: Connection) -> set[int]:
    """Return all claimed gateways, with their MACs as integers."""
    return set(connection.execute(select(gateway.c.device)).scalars())


def register_gateways(connection: Connection, gateways: AbstractSet[int], now: int) -> None:
    """Claim these gateways without a password. Leave already claimed ones unchanged.

    Ignore the address that means "all gateways".
    """
    rows = bulk.query_in(connection, "SELECT device FROM gateway WHERE device IN numbers", sorted(gateways))
    new_gateways = sorted(gateways - {number for (number,) in rows} - {mac_to_int(EVERY_GATEWAY)})
    macs = [mac_from_int(number) for number in new_gateways]
    registry.record_observations(
        connection, [DeviceObservation(device=mac, at=now, heard=False) for mac in macs]
    )
    bulk.execute_many(
        connection,
        # A user may claim one of them at the same time.
        "INSERT INTO gateway (device, claimed_at) VALUES (?, ?) ON CONFLICT (device) DO NOTHING",
        [(number, now) for number in new_gateways],
    )
    audit.record_changes(
        connection, SERVICE, "gateway.register", [to_device_id(mac) for mac in macs], now=now
    )


class GatewayAdmission:
    """Decides from which gateways reports are accepted."""

    def __init__(self, *, autoclaim: bool) -> None:
        self.autoclaim = autoclaim
        """Whether unclaimed gateways are claimed automatically; else their reports are rejected (rest-79)."""
        self.claimed: set[int] = set()
        self.rejected: set[int] = set()
        """Gateways that were still unclaimed at the last check."""

    async def refresh(self, database: Database) -> None:
        """Load the claimed gateways."""
        self.claimed, self.rejected = await database.read(list_claimed_gateways), set()

    async def recheck(self, unclaimed: set[int], database: Database) -> bool:
        """Reload the claimed gateways if one of `unclaimed` was not checked since the last reload.

        Return whether one of them is claimed now.
        """
        if unclaimed <= self.rejected:
            return False
        checked = self.rejected
        await self.refresh(database)
        self.rejected = (checked | unclaimed) - self.claimed
        return bool(unclaimed & self.claimed)
