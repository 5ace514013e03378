"""Fleets that run while a test looks on, and somebody at the broker who hears everything."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from meshfleet.emulator import (
    EmulatedFleet,
    EmulatorSettings,
    Faults,
    GatewayEmulator,
    RealTimePace,
    SimulatedClock,
    generate_site,
)
from meshfleet.emulator.runtime.simulation_pace import read_wall_clock_ms
from meshfleet.mqtt.client import ExponentialBackoff, MqttClient, MqttOptions
from meshfleet.protocol.ids import Mac
from tests.eventually import eventually_async
from tests.mqtt.client.proxy import unique_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

    from meshfleet.emulator import Site
    from meshfleet.emulator.runtime.simulation_pace import SimulationPace
    from meshfleet.mqtt.client import BrokerAddress, Publish

QUICK = MqttOptions(backoff=ExponentialBackoff(initial=0.02, maximum=0.1))


def fresh_mac() -> Mac:
    """A gateway that no broker has heard of."""
    return Mac(f"d0cf5e{uuid4().hex[:6]}")


class FleetBuilder:
    """Makes a fleet for a test."""

    def __init__(self, http: httpx.AsyncClient, *, speed: float = 1.0, options: MqttOptions = QUICK) -> None:
        self.clock = SimulatedClock(0, speed)
        self.fleet = EmulatedFleet(RealTimePace(self.clock), http=http, options=options)

    def use_pace(self, pace: SimulationPace, http: httpx.AsyncClient, options: MqttOptions = QUICK) -> None:
        """Follow another pace."""
        self.fleet = EmulatedFleet(pace, http=http, options=options)

    def add(
        self,
        address: BrokerAddress,
        mac: Mac | None = None,
        *,
        site: Site | None = None,
        faults: Faults = Faults(),  # noqa: B008 # frozen
        **settings: Any,
    ) -> Mac:
        mac = mac or fresh_mac()
        made = EmulatorSettings(mac=mac, faults=faults, **settings)
        gateway = GatewayEmulator(made, site or generate_site(mac, devices=3, seed=1), self.clock)
        self.fleet.add(gateway, address)
        return mac

    def set_speed(self, speed: float) -> None:
        """Let time pass at another speed from now on."""
        now = read_wall_clock_ms()
        self.clock.rebase(self.clock.simulated_time(now), now, speed)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[EmulatedFleet]:
        """Run it, and let it shut down in order at the end. What goes wrong in it is raised."""
        running = asyncio.create_task(self.fleet.run())
        complete = asyncio.create_task(self.fleet.all_connected.wait())
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

    def __init__(self, link: MqttClient) -> None:
        self.link = link
        self.messages: list[Publish] = []

    async def listen(self) -> None:
        async for batch in self.link:
            self.messages += batch.messages
            batch.acknowledge()

    def messages_from(self, mac: Mac, part: str = "/device/") -> list[Publish]:
        """What came from a gateway."""
        return [each for each in list(self.messages) if mac in each.topic.split("/") and part in each.topic]

    async def request(self, gateway: Mac, what: str, **content: Any) -> dict[str, Any]:
        """Send a request, and wait for its response."""
        request_id = unique_name("r")
        body = json.dumps({"id": request_id, **content}).encode()
        await self.link.publish(f"mt/gateway/{gateway}/request/{what}", body)
        found: list[dict[str, Any]] = []

        def came() -> bool:
            answers = (json.loads(each.payload) for each in self.messages_from(gateway, "/response/"))
            found.extend(each for each in answers if each.get("id") == request_id)
            return bool(found)

        await eventually_async(came)
        return found[0]


@asynccontextmanager
async def run_listener(address: BrokerAddress, *filters: str) -> AsyncIterator[Listener]:
    async with MqttClient(address, unique_name("listener"), clean=False, options=QUICK) as link:
        await link.subscribe(*(filters or ("mt/#",)))
        listener = Listener(link)
        task = asyncio.create_task(listener.listen())
        try:
            yield listener
        finally:
            task.cancel()
            await asyncio.wait((task,))
