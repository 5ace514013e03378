"""Emulated gateways with devices, and a record of every update that the devices started."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx
from msgspec.structs import replace

from meshfleet.emulator import (
    EmulatedFleet,
    EmulatorSettings,
    GatewayEmulator,
    RealTimePace,
    SimulatedClock,
    Site,
)
from meshfleet.emulator.simulation.products import PRODUCTS_BY_CODE
from meshfleet.emulator.simulation.site import SiteDevice, SitePosition
from meshfleet.mqtt.client import BrokerAddress, ExponentialBackoff, MqttOptions
from meshfleet.protocol.codes import UpdateState
from meshfleet.protocol.ids import Mac, to_device_id
from tests.cli.programs import TEST_TIMEOUT
from tests.servers import NO_TRUSTED_AUTHORITIES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from meshfleet.emulator.simulation.device import SimulatedDevice
    from meshfleet.emulator.updates.download import UpdateSession
    from meshfleet.emulator.updates.nordic_dfu import NordicDfu
    from tests.scenarios.service_process import ServiceProcess
    from tests.servers import ServerAddress as Server

MODEL = "0018"

SPEED = 100.0
_WATCH_INTERVAL_S = 0.02
_GATEWAYS = [Mac("02005e0000a1"), Mac("02005e0000b1")]
_MQTT_OPTIONS = MqttOptions(backoff=ExponentialBackoff(initial=0.05, maximum=0.3), retry_first_connect=True)


class EmulatedSite:
    """Emulated gateways, with the actual updates of their devices."""

    def __init__(
        self, service: ServiceProcess, *, devices: int = 10, speed: float = SPEED, at: Server | None = None
    ) -> None:
        """Create gateways with `devices` each. `at` is their broker; None means that of the service."""
        self._service = service
        self._at = at
        self.size = devices * len(_GATEWAYS)
        self._accounts = {mac: service.claim(mac) for mac in _GATEWAYS}
        clock = SimulatedClock(0, speed)
        self._pace = RealTimePace(clock)
        self._gateways = [
            GatewayEmulator(EmulatorSettings(mac=mac), _build_site(mac, number, devices), clock)
            for number, mac in enumerate(_GATEWAYS)
        ]
        self._started: defaultdict[str, list[UpdateSession | NordicDfu]] = defaultdict(list)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the gateways and record the updates of their devices."""
        async with httpx.AsyncClient(verify=NO_TRUSTED_AUTHORITIES) as http:
            fleet = EmulatedFleet(self._pace, http=http, options=_MQTT_OPTIONS)
            host, port = self._at or self._service.mqtt["mqtt"]
            for mac, gateway in zip(_GATEWAYS, self._gateways, strict=True):
                address = BrokerAddress(host=host, port=port)
                fleet.add(gateway, replace(address, user=mac, password=self._accounts[mac].password))
            tasks = [asyncio.create_task(fleet.run()), asyncio.create_task(self._watch())]
            try:
                async with asyncio.timeout(TEST_TIMEOUT):
                    await fleet.all_connected.wait()
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)

    async def _watch(self) -> None:
        """Record every started update. The interval is short enough that none ends unseen."""
        while True:
            for gateway in self._gateways:
                updates = gateway._updates  # noqa: SLF001 # only there is the actual state
                for update in updates._sessions.values():  # noqa: SLF001 # only there is the actual state
                    self._record_update(update.device, update)
                if (nordic := updates._nordic) is not None:  # noqa: SLF001 # only there is the actual state
                    self._record_update(nordic.device, nordic)
            await asyncio.sleep(_WATCH_INTERVAL_S)

    def _record_update(self, device: SimulatedDevice, update: UpdateSession | NordicDfu) -> None:
        updates_seen = self._started[to_device_id(device.mac)]
        if not updates_seen or updates_seen[-1] is not update:
            updates_seen.append(update)

    def count_started(self, device: str) -> int:
        """Return how many updates a device has started."""
        return len(self._started[device])

    def count_done(self, device: str) -> int:
        """Return how many updates of a device are done."""
        return self._count_in(device, UpdateState.DONE)

    def count_failed(self, device: str) -> int:
        """Return how many updates of a device failed."""
        return self._count_in(device, UpdateState.FAILED)

    def _count_in(self, device: str, state: UpdateState) -> int:
        return sum(each.progress.state is state for each in self._started[device])

    def versions(self) -> dict[str, str]:
        """Return the versions that the devices actually run."""
        return {
            to_device_id(mac): str(device.firmware_version)
            for gateway in self._gateways
            for mac, device in gateway.devices.items()
            if device.product.model == MODEL
        }


def _build_site(gateway: Mac, number: int, devices: int) -> Site:
    product = PRODUCTS_BY_CODE[MODEL]
    site_devices = tuple(
        SiteDevice(
            mac=Mac(f"c00000000{40 * number + 2 * index:03x}"),
            product=product,
            position=SitePosition(0, 1.0 + index / 10, 1.0),
            mode=product.default_mode,
            battery=90,
        )
        for index in range(devices)
    )
    return Site(gateway=gateway, seed=number + 1, devices=site_devices)
