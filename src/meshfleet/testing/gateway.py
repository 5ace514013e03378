"""Runs an emulated gateway for tests, on an MQTT broker of its own or on an existing broker."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import httpx

from meshfleet.emulator import (
    EmulatedFleet,
    EmulatorSettings,
    Faults,
    GatewayEmulator,
    RealTimePace,
    ReportMode,
    SimulatedClock,
    generate_site,
)
from meshfleet.mqtt.client import BrokerAddress, MqttOptions
from meshfleet.protocol.ids import Mac, Version, parse_mac
from meshfleet.testing.background import BackgroundContext
from meshfleet.testing.broker import running_broker
from meshfleet.testing.handles import TruePlaces

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from meshfleet.emulator import Site

DEFAULT_GATEWAY_MAC: Final = Mac("02005e000001")
"""Default MAC of the emulated gateway: a locally administered address."""


class EmulatedGateway(TruePlaces, frozen=True, kw_only=True):
    """Emulated gateway that is connected to an MQTT broker."""

    broker: str
    """URL of the MQTT broker on which tests publish requests and subscribe to reports."""
    prefix: str
    """Prefix of all MQTT topics; empty for no prefix."""
    mac: Mac
    devices: tuple[Mac, ...]

    def __repr__(self) -> str:
        return f"EmulatedGateway({self.mac!r}, …)"  # the URL of the broker may contain a password

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("mac", self.mac), ("devices", self.devices)]


def emulated_gateway(  # noqa: PLR0913 # keyword-only, all optional
    *,
    devices: int = 3,
    mode: str = "raw",
    api_version: str = "2.4.0",
    speed: float = 1.0,
    mac: str = DEFAULT_GATEWAY_MAC,
    seed: int = 1,
    prefix: str = "",
    faults: Mapping[str, float] | None = None,
    broker: str | None = None,
    site: Site | None = None,
) -> BackgroundContext[EmulatedGateway]:
    """Run an emulated gateway with devices during a `with` or `async with` block.

    The gateway connects to the MQTT broker with the URL `broker`; if None, to a new broker, which accepts
    every client. Devices report every minute of simulated time; `speed` is the number of simulated
    seconds per real second. `faults` maps names of faults to values, such as `{"silent": 1}`, as the option
    `--fault` of `meshfleet gateway` does. `site` is a site of your own, such as one of
    `generate_position_site`, with its own gateway; then `devices`, `mac` and `seed` have no effect.
    """
    settings = EmulatorSettings(
        mac=parse_mac(mac.lower()) if site is None else site.gateway,
        mode=ReportMode(mode),
        api_version=Version.parse(api_version),
        topic_prefix=prefix,
        clean_session=True,
        faults=Faults.parse(*(f"{name}={value}" for name, value in (faults or {}).items())),
    )
    if site is None:
        site = generate_site(settings.mac, devices=devices, seed=seed)
    address = None if broker is None else BrokerAddress.parse(broker)
    return BackgroundContext(
        "emulated gateway",
        partial(_run_emulated_gateway, settings, site, SimulatedClock(0, speed), broker, address),
    )


@asynccontextmanager
async def _run_emulated_gateway(
    settings: EmulatorSettings,
    site: Site,
    clock: SimulatedClock,
    url: str | None,
    address: BrokerAddress | None,
) -> AsyncIterator[EmulatedGateway]:
    async with AsyncExitStack() as stack:
        if url is None or address is None:
            port = await stack.enter_async_context(running_broker(settings.topic_prefix))
            url = f"mqtt://127.0.0.1:{port}"
            address = BrokerAddress(host="127.0.0.1", port=port, user=settings.mac, password="")
        emulator = GatewayEmulator(settings, site, clock)
        await stack.enter_async_context(running_gateways(clock, [(emulator, address)]))
        yield EmulatedGateway(
            broker=url,
            prefix=settings.topic_prefix,
            mac=settings.mac,
            devices=tuple(device.mac for device in site.devices),
            _emulator=emulator,
        )


@asynccontextmanager
async def running_gateways(
    clock: SimulatedClock, gateways: list[tuple[GatewayEmulator, BrokerAddress]]
) -> AsyncIterator[None]:
    """Connect emulated gateways, each to its MQTT broker, and run them until the context ends."""
    # Nothing is downloaded over TLS here, and loading the CA certificates of the system takes a while.
    async with httpx.AsyncClient(verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), trust_env=False) as http:
        fleet = EmulatedFleet(RealTimePace(clock), http=http, options=MqttOptions())
        for gateway, address in gateways:
            fleet.add(gateway, address)
        fleet_task = asyncio.create_task(fleet.run(), name="emulated gateways")
        connected = asyncio.create_task(fleet.all_connected.wait(), name="all connected")
        try:
            await asyncio.wait((fleet_task, connected), return_when=asyncio.FIRST_COMPLETED)
            if fleet_task.done():
                fleet_task.result()
            yield
            if fleet_task.done():
                fleet_task.result()
        finally:
            fleet_task.cancel()
            connected.cancel()
            await asyncio.gather(fleet_task, connected, return_exceptions=True)
