"""A pipeline whose devices are watched, and what can be seen of it from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, select

from meshfleet.db.tables import connectivity, device, device_state
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import Sighting
from meshfleet.service.presence import store
from meshfleet.service.presence.clocks import Clocks
from meshfleet.service.presence.presence import Presence
from meshfleet.wire.ids import Mac
from tests.service.ingest.intake import DAY, NOON, SECOND, Intake
from tests.service.ingest.messages import A, B, D, E, heartbeat, number

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from meshfleet.db import Database
    from meshfleet.service.presence.store import Known
    from meshfleet.wire.mqtt.packets import Publish


class Heard:
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


class Watched:
    """An `Intake` that presence follows."""

    def __init__(self, database: Database, folder: Path, *, by_hearing: bool = False) -> None:
        self.intake = Intake(database, folder)
        self._by_hearing = by_hearing
        self.retention: int | None = None
        self.begin()

    def begin(self) -> None:
        """Let presence begin, as at a start."""
        self.audience = Heard()
        self.presence = Presence(
            Clocks(), by_hearing=self._by_hearing, retention=self.retention, now=self.intake.now
        )
        self.presence.audience = self.audience
        self.intake.ingest.lead(self.presence)

    async def restart(self) -> None:
        """Go on as after a crash."""
        await self.intake.restart()
        self.begin()
        self.presence.restore(self.intake.database.read_now(store.known))

    def arrive(self, *gateways: str) -> None:
        """Let these gateways be connected, and no others."""
        self.presence.arrive({number(each): 1 for each in gateways})

    async def go_on(self, *messages: Publish, seconds: int = 2) -> None:
        """Let time pass, and messages come and be written down."""
        self.intake.now += seconds * 1000
        await self.intake.settle(*messages)

    async def idle(self, seconds: int) -> None:
        """Let time pass in which nothing happens."""
        for _ in range(0, seconds, 10):
            await self.go_on(seconds=10)

    def close(self) -> None:
        """Let running work end."""
        self.intake.close()

    # What can be seen

    def history(self, mac: str = D) -> list[tuple[bool, str, int, str]]:
        """When it was connected, the oldest first: whether, why, when, and through whom."""
        query = select(connectivity).where(connectivity.c.device == number(mac)).order_by(connectivity.c.id)
        return [
            (row.connected, row.cause, row.time, f"{row.gateway:012x}") for row in self.intake.rows(query)
        ]

    def brief(self, mac: str = D) -> list[tuple[bool, str]]:
        """The same without when and through whom."""
        return [each[:2] for each in self.history(mac)]

    def connected(self, mac: str = D) -> tuple[bool, int]:
        """Whether the registry says so, and since when."""
        row: Any = self.intake.device(mac)
        return row.connected, row.connected_at

    def rhythm(self, mac: str = D) -> int | None:
        """What is remembered of its rhythm."""
        (row,) = self.intake.rows(select(device_state.c.rhythm).where(device_state.c.device == number(mac)))
        rhythm: int | None = row.rhythm
        return rhythm

    def known(self) -> Known:
        """What a start would find."""
        return self.intake.database.read_now(store.known)

    def forget(self, mac: str = D) -> None:
        """Let somebody delete a device."""
        self.intake.database.write_now(
            lambda connection: connection.execute(delete(device).where(device.c.id == number(mac)))
        )

    def agrees(self, *macs: str) -> bool:
        """Whether memory, registry and history say the same of devices."""
        return all(
            (self.presence.believes_in(number(mac)) is not None)
            == self.connected(mac)[0]
            == bool(self.history(mac) and self.history(mac)[-1][0])
            for mac in macs or (A, B)
        )


async def settled(watched: Watched, *gateways: str) -> None:
    """Gateways that are connected, with devices behind the first."""
    for each in gateways:
        watched.intake.database.write_now(
            registry.observe, [Sighting(device=Mac(each), at=NOON - DAY, heard=False)]
        )
    watched.arrive(*gateways)
    await watched.go_on()
    await watched.go_on(
        heartbeat(NOON + 4 * SECOND, gateway=gateways[0]),
        heartbeat(NOON + 4 * SECOND, device=E, gateway=gateways[0]),
    )
