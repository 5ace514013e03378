"""Emulated gateways whose devices are to be updated, and every update that they have begun."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx
from msgspec.structs import replace

from meshfleet.gateway import ByClock, Clock, Fleet, Gateway, Settings, Site
from meshfleet.gateway.world.places import Place
from meshfleet.gateway.world.products import BY_CODE
from meshfleet.gateway.world.site import Fixture
from meshfleet.link import Address, Delays, Options
from meshfleet.wire.ids import Mac, device_id
from meshfleet.wire.updates import UpdateState
from tests.cli.outside import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from meshfleet.gateway.updates.download import Update
    from meshfleet.gateway.updates.nordic import NordicDfu
    from meshfleet.gateway.world.device import Device
    from tests.scenarios.serving import Service
    from tests.servers import Address as Server

MODEL = "0018"

SPEED = 100.0
_LOOK = 0.02
_GATEWAYS = [Mac("02005e0000a1"), Mac("02005e0000b1")]
_LASTING = Options(delays=Delays(first=0.05, most=0.3), patient=True)


class Estate:
    """The gateways, and what really happened to their devices."""

    def __init__(
        self, service: Service, *, devices: int = 10, speed: float = SPEED, at: Server | None = None
    ) -> None:
        """So many devices are behind each gateway. `at` is their broker; None: the service itself."""
        self._service = service
        self._at = at
        self.size = devices * len(_GATEWAYS)
        self._accounts = {mac: service.claim(mac) for mac in _GATEWAYS}
        clock = Clock(0, speed)
        self._pace = ByClock(clock)
        self._gateways = [
            Gateway(Settings(mac=mac), _site(mac, number, devices), clock)
            for number, mac in enumerate(_GATEWAYS)
        ]
        self._begun: defaultdict[str, list[Update | NordicDfu]] = defaultdict(list)

    @asynccontextmanager
    async def life(self) -> AsyncIterator[None]:
        """Let them live, and watch them."""
        async with httpx.AsyncClient() as http:
            fleet = Fleet(self._pace, http=http, options=_LASTING)
            host, port = self._at or self._service.mqtt["mqtt"]
            for mac, gateway in zip(_GATEWAYS, self._gateways, strict=True):
                address = Address(host=host, port=port)
                fleet.add(gateway, replace(address, user=mac, password=self._accounts[mac].password))
            tasks = [asyncio.create_task(fleet.run()), asyncio.create_task(self._watch())]
            try:
                async with asyncio.timeout(PATIENCE):
                    await fleet.is_complete.wait()
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
                for update in updates._running.values():  # noqa: SLF001 # as above
                    self._see(update.device, update)
                if (nordic := updates._nordic) is not None:  # noqa: SLF001 # as above
                    self._see(nordic.device, nordic)
            await asyncio.sleep(_LOOK)

    def _see(self, device: Device, update: Update | NordicDfu) -> None:
        seen = self._begun[device_id(device.mac)]
        if not seen or seen[-1] is not update:
            seen.append(update)

    def begun(self, device: str) -> int:
        """How many updates a device has begun."""
        return len(self._begun[device])

    def done(self, device: str) -> int:
        """With how many of them it came to the end."""
        return self._in(device, UpdateState.DONE)

    def failed(self, device: str) -> int:
        """How many of them came to nothing."""
        return self._in(device, UpdateState.FAILED)

    def _in(self, device: str, state: UpdateState) -> int:
        return sum(each.progress.state is state for each in self._begun[device])

    def versions(self) -> dict[str, str]:
        """What the devices run in truth."""
        return {
            device_id(mac): str(device.version)
            for gateway in self._gateways
            for mac, device in gateway.devices.items()
            if device.product.model == MODEL
        }


def _site(gateway: Mac, number: int, devices: int) -> Site:
    product = BY_CODE[MODEL]
    fixtures = tuple(
        Fixture(
            mac=Mac(f"c00000000{40 * number + 2 * place:03x}"),
            product=product,
            place=Place(0, 1.0 + place / 10, 1.0),
            mode=product.usual,
            battery=90,
        )
        for place in range(devices)
    )
    return Site(gateway=gateway, seed=number + 1, devices=fixtures)
