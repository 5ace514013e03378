"""Decides whether to accept reports of gateways that are connected to an external MQTT broker.

That broker authenticates the gateways; the service only checks whether they are claimed.
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
    """Return the MACs of all claimed gateways as integers."""
    return set(connection.execute(select(gateway.c.device)).scalars())


def register_gateways(connection: Connection, gateways: AbstractSet[int], now: int) -> None:
    """Claim gateways without a password, and record this in the audit log.

    Skip gateways that are already claimed, and the address that means "all gateways".
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
    """Decides whether to accept the reports of a gateway: if it is claimed, or is claimed automatically."""

    def __init__(self, *, autoclaim: bool) -> None:
        self.autoclaim = autoclaim
        """Whether to claim unclaimed gateways automatically, instead of rejecting their reports (rest-79)."""
        self.claimed: set[int] = set()
        """Claimed gateways, as loaded from the database."""
        self.rejected: set[int] = set()
        """Gateways that were not claimed when the claimed gateways were last loaded."""

    async def reload_claimed_gateways(self, database: Database) -> None:
        """Reload the set of claimed gateways from the database."""
        self.claimed, self.rejected = await database.read(list_claimed_gateways), set()

    async def recheck_unclaimed_gateways(self, unclaimed: set[int], database: Database) -> bool:
        """Load the claimed gateways again if one in `unclaimed` was not checked since the last load.

        Return whether a gateway in `unclaimed` has been claimed meanwhile.
        """
        if unclaimed <= self.rejected:
            return False
        checked = self.rejected
        await self.reload_claimed_gateways(database)
        self.rejected = (checked | unclaimed) - self.claimed
        return bool(unclaimed & self.claimed)
