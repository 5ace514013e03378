"""Fleets that run during a test, and a client that records their messages."""

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

QUICK_RECONNECT = MqttOptions(backoff=ExponentialBackoff(initial=0.02, maximum=0.1))


def fresh_mac() -> Mac:
    """Return a MAC that no broker has seen yet."""
    return Mac(f"d0cf5e{uuid4().hex[:6]}")


class FleetBuilder:
    """Builder of a fleet for a test."""

    def __init__(
        self, http: httpx.AsyncClient, *, speed: float = 1.0, options: MqttOptions = QUICK_RECONNECT
    ) -> None:
        self.clock = SimulatedClock(0, speed)
        self.fleet = EmulatedFleet(RealTimePace(self.clock), http=http, options=options)

    def use_pace(
        self, pace: SimulationPace, http: httpx.AsyncClient, options: MqttOptions = QUICK_RECONNECT
    ) -> None:
        """Replace the pace; call it before gateways are added."""
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
        emulator_settings = EmulatorSettings(mac=mac, faults=faults, **settings)
        gateway = GatewayEmulator(
            emulator_settings, site or generate_site(mac, devices=3, seed=1), self.clock
        )
        self.fleet.add(gateway, address)
        return mac

    def set_speed(self, speed: float) -> None:
        """Change the speed of the simulation from now on."""
        now = read_wall_clock_ms()
        self.clock.rebase(self.clock.simulated_time(now), now, speed)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[EmulatedFleet]:
        """Run the fleet and shut it down at the end. Errors of the fleet are raised."""
        fleet_task = asyncio.create_task(self.fleet.run())
        connected_task = asyncio.create_task(self.fleet.all_connected.wait())
        try:
            await asyncio.wait((fleet_task, connected_task), return_when=asyncio.FIRST_COMPLETED, timeout=30)
            if fleet_task.done():
                fleet_task.result()
            yield self.fleet
            if fleet_task.done():
                fleet_task.result()
        finally:
            fleet_task.cancel()
            connected_task.cancel()
            await asyncio.gather(fleet_task, connected_task, return_exceptions=True)


class Listener:
    """Client that records the messages of gateways and sends requests to them."""

    def __init__(self, link: MqttClient) -> None:
        self.link = link
        self.messages: list[Publish] = []

    async def listen(self) -> None:
        async for batch in self.link:
            self.messages += batch.messages
            batch.acknowledge()

    def messages_from(self, mac: Mac, part: str = "/device/") -> list[Publish]:
        """Return the messages received from a gateway whose topic contains `part`."""
        return [
            message
            for message in list(self.messages)
            if mac in message.topic.split("/") and part in message.topic
        ]

    async def request(self, gateway: Mac, path: str, **content: Any) -> dict[str, Any]:
        """Send a request and wait for its response."""
        request_id = unique_name("r")
        body = json.dumps({"id": request_id, **content}).encode()
        await self.link.publish(f"mt/gateway/{gateway}/request/{path}", body)
        matches: list[dict[str, Any]] = []

        def has_response() -> bool:
            bodies = (json.loads(message.payload) for message in self.messages_from(gateway, "/response/"))
            matches.extend(body for body in bodies if body.get("id") == request_id)
            return bool(matches)

        await eventually_async(has_response)
        return matches[0]


@asynccontextmanager
async def run_listener(address: BrokerAddress, *filters: str) -> AsyncIterator[Listener]:
    async with MqttClient(address, unique_name("listener"), clean=False, options=QUICK_RECONNECT) as link:
        await link.subscribe(*(filters or ("mt/#",)))
        listener = Listener(link)
        task = asyncio.create_task(listener.listen())
        try:
            yield listener
        finally:
            task.cancel()
            await asyncio.wait((task,))
