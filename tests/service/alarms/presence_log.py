"""Fleet whose connections change as a test says: days of a fleet in seconds, without reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import update

from meshfleet.db.tables import device
from meshfleet.protocol.ids import Mac
from meshfleet.service.actor import SERVICE
from meshfleet.service.alarms.rules import DEFAULT_TIMES
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import DeviceObservation
from meshfleet.service.gateways import store as gateway_store
from meshfleet.service.presence import store as presence_store
from meshfleet.service.presence.changes import PresenceCause, PresenceChange
from tests.service.alarms.alarm_harness import StoredAlarms
from tests.service.ingest.messages import mac_to_number

if TYPE_CHECKING:
    from meshfleet.db import Database

START = 1_790_000_000_000


class PresenceLog(StoredAlarms):
    """Gateways and devices in a database, whose connections and disconnections are stored directly."""

    WITH_GATEWAY = PresenceCause.GATEWAY

    def __init__(self, database: Database, now: int = START) -> None:
        super().__init__(database)
        self.now = now
        self.evaluate()

    def add_gateway(self, number: int, devices: int = 0) -> tuple[str, list[str]]:
        """Claim a gateway that is connected, with connected devices behind it. Return their MACs."""
        gateway = f"02005e{number:06x}"
        macs = [f"ca{number:04x}{each:06x}" for each in range(devices)]
        self.database.write_now(
            gateway_store.claim_gateway, Mac(gateway), name=f"Gateway {number}", by=SERVICE, now=self.now
        )
        observations = [
            DeviceObservation(device=Mac(each), gateway=Mac(gateway), at=self.now, heard=True)
            for each in macs
        ]
        self.database.write_now(registry.record_observations, observations)
        self.change(gateway, *macs, connected=True, cause=PresenceCause.CONNECTION, gateway=gateway)
        return gateway, macs

    def move(self, mac: str, gateway: str) -> None:
        """Store that another gateway has received a device last."""
        statement = (
            update(device).where(device.c.id == mac_to_number(mac)).values(gateway=mac_to_number(gateway))
        )
        self.database.write_now(lambda connection: connection.execute(statement))

    def change(self, *macs: str, connected: bool, cause: PresenceCause, gateway: str) -> None:
        """Store that devices connected or disconnected now."""
        changes = [
            PresenceChange(mac_to_number(each), connected, self.now, cause, mac_to_number(gateway))
            for each in macs
        ]
        self.database.write_now(presence_store.update_presence, changes)

    def set_gateway(self, gateway: str, *, connected: bool) -> None:
        """Store that a gateway without devices connected or disconnected now."""
        self.change(gateway, connected=connected, cause=PresenceCause.CONNECTION, gateway=gateway)

    def set_device(self, device: str, gateway: str, *, connected: bool) -> None:
        """Store that a device was heard, or is silent, now."""
        cause = PresenceCause.HEARD if connected else PresenceCause.SILENT
        self.change(device, connected=connected, cause=cause, gateway=gateway)

    def run(self, seconds: int, *, step: int = 30) -> None:
        """Advance the clock, and evaluate the rules after each step. A long step is no outage."""
        self.times = self.times._replace(outage=max(DEFAULT_TIMES.outage, step * 1000))
        end = self.now + seconds * 1000
        while self.now < end:
            self.now = min(self.now + step * 1000, end)
            self.evaluate()
