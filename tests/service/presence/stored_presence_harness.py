"""Ingest pipeline with presence on a database, and queries of the stored state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, select

from meshfleet.db.tables import connectivity, device, device_state
from meshfleet.protocol.ids import Mac
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import DeviceObservation
from meshfleet.service.presence import store
from meshfleet.service.presence.gateway_clocks import GatewayClocks
from meshfleet.service.presence.tracker import PresenceTracker
from tests.service.ingest.ingest_harness import DAY, NOON, SECOND, IngestHarness
from tests.service.ingest.messages import A, B, D, E, heartbeat, mac_to_number

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from meshfleet.db import Database
    from meshfleet.mqtt.codec.packets import Publish
    from meshfleet.service.presence.store import PresenceSnapshot


class RecordingPresenceSubscriber:
    """Subscriber that records its notifications."""

    def __init__(self) -> None:
        self.devices: list[list[int]] = []
        self.gateways: list[tuple[int, int]] = []
        self.companions: list[list[int]] = []
        """Devices that changed together with each of these gateways."""

    def on_devices_changed(self, devices: Collection[int]) -> None:
        """Record devices that changed one by one."""
        if devices:
            self.devices.append(sorted(devices))

    def on_gateway_changed(self, gateway: int, *, devices: Collection[int]) -> None:
        """Record a gateway that changed with its devices."""
        self.gateways.append((gateway, len(devices)))
        self.companions.append(sorted(devices))


class StoredPresenceHarness:
    """Ingest pipeline to which a presence tracker is subscribed."""

    def __init__(self, database: Database, directory: Path, *, external_broker: bool = False) -> None:
        self.ingest_harness = IngestHarness(database, directory)
        self._external_broker = external_broker
        self.retention: int | None = None
        self.start()

    def start(self) -> None:
        """Create and subscribe a tracker, as the service does when it starts."""
        self.subscriber = RecordingPresenceSubscriber()
        self.tracker = PresenceTracker(
            GatewayClocks(),
            external_broker=self._external_broker,
            retention_ms=self.retention,
            subscriber=self.subscriber,
            now=self.ingest_harness.now,
        )
        self.ingest_harness.ingest.subscribe(self.tracker)

    async def restart(self) -> None:
        """Restart as after a crash."""
        await self.ingest_harness.restart()
        self.start()
        self.tracker.restore(self.ingest_harness.database.read_now(store.load_presence))

    def connect_only(self, *gateways: str) -> None:
        """Set exactly these gateways as connected."""
        self.tracker.set_connected_gateways({mac_to_number(each): 1 for each in gateways})

    async def advance(self, *messages: Publish, seconds: int = 2) -> None:
        """Advance the time, commit messages and flush."""
        self.ingest_harness.now += seconds * 1000
        await self.ingest_harness.commit_flushed(*messages)

    async def idle(self, seconds: int) -> None:
        """Advance the time without messages."""
        for _ in range(0, seconds, 10):
            await self.advance(seconds=10)

    def close(self) -> None:
        """Wait for running work and close."""
        self.ingest_harness.close()

    # Stored state

    def history(self, mac: str = D) -> list[tuple[bool, str, int, str]]:
        """Return the history of a device, oldest first: connected, cause, time and gateway."""
        query = (
            select(connectivity)
            .where(connectivity.c.device == mac_to_number(mac))
            .order_by(connectivity.c.id)
        )
        return [
            (row.connected, row.cause, row.time, f"{row.gateway:012x}")
            for row in self.ingest_harness.select_rows(query)
        ]

    def history_summary(self, mac: str = D) -> list[tuple[bool, str]]:
        """Return the history of a device without times and gateways."""
        return [each[:2] for each in self.history(mac)]

    def connected(self, mac: str = D) -> tuple[bool, int]:
        """Return whether the registry has a device as connected, and since when."""
        row: Any = self.ingest_harness.device(mac)
        return row.connected, row.connected_at

    def stored_interval(self, mac: str = D) -> int | None:
        """Return the stored interval of a device."""
        (row,) = self.ingest_harness.select_rows(
            select(device_state.c.rhythm).where(device_state.c.device == mac_to_number(mac))
        )
        interval: int | None = row.rhythm
        return interval

    def load_snapshot(self) -> PresenceSnapshot:
        """Load the state that a start would find."""
        return self.ingest_harness.database.read_now(store.load_presence)

    def delete_device(self, mac: str = D) -> None:
        """Delete a device from the registry."""
        self.ingest_harness.database.write_now(
            lambda connection: connection.execute(delete(device).where(device.c.id == mac_to_number(mac)))
        )

    def agrees(self, *macs: str) -> bool:
        """Return whether memory, registry and history agree about devices."""
        return all(
            (self.tracker.find_connected(mac_to_number(mac)) is not None)
            == self.connected(mac)[0]
            == bool(self.history(mac) and self.history(mac)[-1][0])
            for mac in macs or (A, B)
        )


async def connect_with_devices(harness: StoredPresenceHarness, *gateways: str) -> None:
    """Connect gateways, and let two devices report through the first one."""
    for each in gateways:
        harness.ingest_harness.database.write_now(
            registry.record_observations, [DeviceObservation(device=Mac(each), at=NOON - DAY, heard=False)]
        )
    harness.connect_only(*gateways)
    await harness.advance()
    await harness.advance(
        heartbeat(NOON + 4 * SECOND, gateway=gateways[0]),
        heartbeat(NOON + 4 * SECOND, device=E, gateway=gateways[0]),
    )
