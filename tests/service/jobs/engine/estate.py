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
    from tests.scenarios.serving import Service

MODEL = "0018"
DEVICES = 10
"""Behind each gateway."""

_SPEED = 100.0
_LOOK = 0.02
_GATEWAYS = [Mac("02005e0000a1"), Mac("02005e0000b1")]
_LASTING = Options(delays=Delays(first=0.05, most=0.3), patient=True)


class Estate:
    """The gateways, and what really happened to their devices."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._accounts = {mac: service.claim(mac) for mac in _GATEWAYS}
        clock = Clock(0, _SPEED)
        self._pace = ByClock(clock)
        self._gateways = [
            Gateway(Settings(mac=mac), _site(mac, number), clock) for number, mac in enumerate(_GATEWAYS)
        ]
        self._begun: defaultdict[str, list[Update]] = defaultdict(list)

    @asynccontextmanager
    async def life(self) -> AsyncIterator[None]:
        """Let them live, and watch them."""
        async with httpx.AsyncClient() as http:
            fleet = Fleet(self._pace, http=http, options=_LASTING)
            place = self._service.mqtt["mqtt"]
            for mac, gateway in zip(_GATEWAYS, self._gateways, strict=True):
                address = Address(host=place.host, port=place.port)
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
                for mac, update in gateway._updates._running.items():  # noqa: SLF001 # the truth is nowhere else
                    seen = self._begun[device_id(mac)]
                    if not seen or seen[-1] is not update:
                        seen.append(update)
            await asyncio.sleep(_LOOK)

    def begun(self, device: str) -> int:
        """How many updates a device has begun."""
        return len(self._begun[device])

    def done(self, device: str) -> int:
        """With how many of them it came to the end."""
        return sum(each.progress.state is UpdateState.DONE for each in self._begun[device])

    def versions(self) -> dict[str, str]:
        """What the devices run in truth."""
        return {
            device_id(mac): str(device.version)
            for gateway in self._gateways
            for mac, device in gateway._core.devices.items()  # noqa: SLF001 # as above
            if device.product.model == MODEL
        }


def _site(gateway: Mac, number: int) -> Site:
    product = BY_CODE[MODEL]
    fixtures = tuple(
        Fixture(
            mac=Mac(f"c00000000{40 * number + 2 * place:03x}"),
            product=product,
            place=Place(0, 1.0 + place / 10, 1.0),
            mode=product.usual,
            battery=90,
        )
        for place in range(DEVICES)
    )
    return Site(gateway=gateway, seed=number + 1, devices=fixtures)
