"""Emulated gateways whose devices are to be updated, and every update that they have begun."""

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

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from meshfleet.emulator.simulation.device import SimulatedDevice
    from meshfleet.emulator.updates.download import UpdateSession
    from meshfleet.emulator.updates.nordic_dfu import NordicDfu
    from tests.scenarios.service_process import ServiceProcess
    from tests.servers import ServerAddress as Server

MODEL = "0018"

SPEED = 100.0
_LOOK = 0.02
_GATEWAYS = [Mac("02005e0000a1"), Mac("02005e0000b1")]
_LASTING = MqttOptions(backoff=ExponentialBackoff(initial=0.05, maximum=0.3), retry_first_connect=True)


class EmulatedSite:
    """The gateways, and what really happened to their devices."""

    def __init__(
        self, service: ServiceProcess, *, devices: int = 10, speed: float = SPEED, at: Server | None = None
    ) -> None:
        """So many devices are behind each gateway. `at` is their broker; None: the service itself."""
        self._service = service
        self._at = at
        self.size = devices * len(_GATEWAYS)
        self._accounts = {mac: service.claim(mac) for mac in _GATEWAYS}
        clock = SimulatedClock(0, speed)
        self._pace = RealTimePace(clock)
        self._gateways = [
            GatewayEmulator(EmulatorSettings(mac=mac), _site(mac, number, devices), clock)
            for number, mac in enumerate(_GATEWAYS)
        ]
        self._begun: defaultdict[str, list[UpdateSession | NordicDfu]] = defaultdict(list)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Let them live, and watch them."""
        async with httpx.AsyncClient() as http:
            fleet = EmulatedFleet(self._pace, http=http, options=_LASTING)
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
        """Keep every update that a device has begun: none is over between two looks."""
        while True:
            for gateway in self._gateways:
                updates = gateway._updates  # noqa: SLF001 # the truth is nowhere else
                for update in updates._sessions.values():  # noqa: SLF001 # as above
                    self._see(update.device, update)
                if (nordic := updates._nordic) is not None:  # noqa: SLF001 # as above
                    self._see(nordic.device, nordic)
            await asyncio.sleep(_LOOK)

    def _see(self, device: SimulatedDevice, update: UpdateSession | NordicDfu) -> None:
        seen = self._begun[to_device_id(device.mac)]
        if not seen or seen[-1] is not update:
            seen.append(update)

    def count_started(self, device: str) -> int:
        """How many updates a device has begun."""
        return len(self._begun[device])

    def count_done(self, device: str) -> int:
        """With how many of them it came to the end."""
        return self._count_in(device, UpdateState.DONE)

    def count_failed(self, device: str) -> int:
        """How many of them came to nothing."""
        return self._count_in(device, UpdateState.FAILED)

    def _count_in(self, device: str, state: UpdateState) -> int:
        return sum(each.progress.state is state for each in self._begun[device])

    def versions(self) -> dict[str, str]:
        """What the devices run in truth."""
        return {
            to_device_id(mac): str(device.firmware_version)
            for gateway in self._gateways
            for mac, device in gateway.devices.items()
            if device.product.model == MODEL
        }


def _site(gateway: Mac, number: int, devices: int) -> Site:
    product = PRODUCTS_BY_CODE[MODEL]
    fixtures = tuple(
        SiteDevice(
            mac=Mac(f"c00000000{40 * number + 2 * place:03x}"),
            product=product,
            position=SitePosition(0, 1.0 + place / 10, 1.0),
            mode=product.default_mode,
            battery=90,
        )
        for place in range(devices)
    )
    return Site(gateway=gateway, seed=number + 1, devices=fixtures)
