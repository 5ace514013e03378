"""A pipeline whose devices are watched, and what can be seen of it from outside."""

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
    """An audience that remembers what it was told."""

    def __init__(self) -> None:
        self.devices: list[list[int]] = []
        self.gateways: list[tuple[int, int]] = []
        self.companions: list[list[int]] = []
        """Who came or went with each of these."""

    def devices_changed(self, devices: Collection[int]) -> None:
        """See `Audience`."""
        if devices:
            self.devices.append(sorted(devices))

    def gateway_changed(self, gateway: int, *, devices: Collection[int]) -> None:
        """See `Audience`."""
        self.gateways.append((gateway, len(devices)))
        self.companions.append(sorted(devices))


class StoredPresenceHarness:
    """An `Intake` that presence follows."""

    def __init__(self, database: Database, folder: Path, *, external_broker: bool = False) -> None:
        self.ingest_harness = IngestHarness(database, folder)
        self._by_hearing = external_broker
        self.retention: int | None = None
        self.start()

    def start(self) -> None:
        """Let presence begin, as at a start."""
        self.subscriber = RecordingPresenceSubscriber()
        self.tracker = PresenceTracker(
            GatewayClocks(),
            external_broker=self._by_hearing,
            retention_ms=self.retention,
            now=self.ingest_harness.now,
        )
        self.tracker.subscriber = self.subscriber
        self.ingest_harness.ingest.subscribe(self.tracker)

    async def restart(self) -> None:
        """Go on as after a crash."""
        await self.ingest_harness.restart()
        self.start()
        self.tracker.restore(self.ingest_harness.database.read_now(store.load_presence))

    def connect_only(self, *gateways: str) -> None:
        """Let these gateways be connected, and no others."""
        self.tracker.set_connected_gateways({mac_to_number(each): 1 for each in gateways})

    async def advance(self, *messages: Publish, seconds: int = 2) -> None:
        """Let time pass, and messages come and be written down."""
        self.ingest_harness.now += seconds * 1000
        await self.ingest_harness.commit_flushed(*messages)

    async def idle(self, seconds: int) -> None:
        """Let time pass in which nothing happens."""
        for _ in range(0, seconds, 10):
            await self.advance(seconds=10)

    def close(self) -> None:
        """Let running work end."""
        self.ingest_harness.close()

    # What can be seen

    def history(self, mac: str = D) -> list[tuple[bool, str, int, str]]:
        """When it was connected, the oldest first: whether, why, when, and through whom."""
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
        """The same without when and through whom."""
        return [each[:2] for each in self.history(mac)]

    def connected(self, mac: str = D) -> tuple[bool, int]:
        """Whether the registry says so, and since when."""
        row: Any = self.ingest_harness.device(mac)
        return row.connected, row.connected_at

    def stored_interval(self, mac: str = D) -> int | None:
        """What is remembered of its rhythm."""
        (row,) = self.ingest_harness.select_rows(
            select(device_state.c.rhythm).where(device_state.c.device == mac_to_number(mac))
        )
        rhythm: int | None = row.rhythm
        return rhythm

    def load_snapshot(self) -> PresenceSnapshot:
        """What a start would find."""
        return self.ingest_harness.database.read_now(store.load_presence)

    def delete_device(self, mac: str = D) -> None:
        """Let somebody delete a device."""
        self.ingest_harness.database.write_now(
            lambda connection: connection.execute(delete(device).where(device.c.id == mac_to_number(mac)))
        )

    def agrees(self, *macs: str) -> bool:
        """Whether memory, registry and history say the same of devices."""
        return all(
            (self.tracker.find_connected(mac_to_number(mac)) is not None)
            == self.connected(mac)[0]
            == bool(self.history(mac) and self.history(mac)[-1][0])
            for mac in macs or (A, B)
        )


async def connect_with_devices(watched: StoredPresenceHarness, *gateways: str) -> None:
    """Gateways that are connected, with devices behind the first."""
    for each in gateways:
        watched.ingest_harness.database.write_now(
            registry.record_observations, [DeviceObservation(device=Mac(each), at=NOON - DAY, heard=False)]
        )
    watched.connect_only(*gateways)
    await watched.advance()
    await watched.advance(
        heartbeat(NOON + 4 * SECOND, gateway=gateways[0]),
        heartbeat(NOON + 4 * SECOND, device=E, gateway=gateways[0]),
    )
