"""Fleets that run while a test looks on, and somebody at the broker who hears everything."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from meshfleet.gateway import ByClock, Clock, Faults, Fleet, Gateway, Settings, generate
from meshfleet.gateway.online.pace import wall_millis
from meshfleet.link import Delays, Link, Options
from meshfleet.wire.ids import Mac
from tests.eventually import eventually_async
from tests.link.proxy import fresh

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

    from meshfleet.gateway import Site
    from meshfleet.gateway.online.pace import Pace
    from meshfleet.link import Address, Publish

QUICK = Options(delays=Delays(first=0.02, most=0.1))


def fresh_mac() -> Mac:
    """A gateway that no broker has heard of."""
    return Mac(f"d0cf5e{uuid4().hex[:6]}")


class Crew:
    """Makes a fleet for a test."""

    def __init__(self, http: httpx.AsyncClient, *, speed: float = 1.0, options: Options = QUICK) -> None:
        self.clock = Clock(0, speed)
        self.fleet = Fleet(ByClock(self.clock), http=http, options=options)

    def paced(self, pace: Pace, http: httpx.AsyncClient, options: Options = QUICK) -> None:
        """Follow another pace."""
        self.fleet = Fleet(pace, http=http, options=options)

    def add(
        self,
        address: Address,
        mac: Mac | None = None,
        *,
        site: Site | None = None,
        faults: Faults = Faults(),  # noqa: B008 # frozen
        **settings: Any,
    ) -> Mac:
        mac = mac or fresh_mac()
        made = Settings(mac=mac, faults=faults, **settings)
        gateway = Gateway(made, site or generate(mac, devices=3, seed=1), self.clock)
        self.fleet.add(gateway, address)
        return mac

    def hurry(self, speed: float) -> None:
        """Let time pass at another speed from now on."""
        now = wall_millis()
        self.clock.bend(self.clock.moment(now), now, speed)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Fleet]:
        """Run it, and let it shut down in order at the end. What goes wrong in it is raised."""
        running = asyncio.create_task(self.fleet.run())
        complete = asyncio.create_task(self.fleet.is_complete.wait())
        try:
            await asyncio.wait((running, complete), return_when=asyncio.FIRST_COMPLETED, timeout=30)
            if running.done():
                running.result()
            yield self.fleet
            if running.done():
                running.result()
        finally:
            running.cancel()
            complete.cancel()
            await asyncio.gather(running, complete, return_exceptions=True)


class Listener:
    """Hears what gateways say, and asks them."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.heard: list[Publish] = []

    async def listen(self) -> None:
        async for batch in self.link:
            self.heard += batch.messages
            batch.acknowledge()

    def of(self, mac: Mac, part: str = "/device/") -> list[Publish]:
        """What came from a gateway."""
        return [each for each in list(self.heard) if mac in each.topic.split("/") and part in each.topic]

    async def ask(self, gateway: Mac, what: str, **content: Any) -> dict[str, Any]:
        """Send a request, and wait for its response."""
        request_id = fresh("r")
        body = json.dumps({"id": request_id, **content}).encode()
        await self.link.publish(f"mt/gateway/{gateway}/request/{what}", body)
        found: list[dict[str, Any]] = []

        def came() -> bool:
            answers = (json.loads(each.payload) for each in self.of(gateway, "/response/"))
            found.extend(each for each in answers if each.get("id") == request_id)
            return bool(found)

        await eventually_async(came)
        return found[0]


@asynccontextmanager
async def listening(address: Address, *filters: str) -> AsyncIterator[Listener]:
    async with Link(address, fresh("listener"), clean=False, options=QUICK) as link:
        await link.subscribe(*(filters or ("mt/#",)))
        listener = Listener(link)
        task = asyncio.create_task(listener.listen())
        try:
            yield listener
        finally:
            task.cancel()
            await asyncio.wait((task,))
