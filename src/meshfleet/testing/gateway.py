"""An emulated gateway, on a broker of its own or on another one."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import httpx
from msgspec import Struct

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

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from meshfleet.emulator import Site

DEFAULT_GATEWAY_MAC: Final = Mac("02005e000001")
"""Of the gateway, unless it has another one. Addresses that nobody owns begin so."""


class EmulatedGateway(Struct, frozen=True, kw_only=True):
    """A gateway that is connected."""

    broker: str
    """The URL of its broker, for whoever wants to ask it or to hear its reports."""
    prefix: str
    mac: Mac
    devices: tuple[Mac, ...]

    def __repr__(self) -> str:
        return f"EmulatedGateway({self.mac!r}, …)"  # its broker may want a password

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("mac", self.mac), ("devices", self.devices)]


def emulated_gateway(  # noqa: PLR0913 # by name, each may be left out
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
) -> BackgroundContext[EmulatedGateway]:
    """A gateway with devices, for as long as a `with` or `async with` lasts.

    It is on a broker of its own, in memory, which lets everybody in; or on that of the URL `broker`. Devices
    report once in a minute of their own; `speed` makes it shorter. Faults are those of `meshfleet gateway`,
    such as `{"silent": 1}`.
    """
    settings = EmulatorSettings(
        mac=parse_mac(mac.lower()),
        mode=ReportMode(mode),
        api_version=Version.parse(api_version),
        topic_prefix=prefix,
        clean_session=True,
        faults=Faults.parse(*(f"{name}={value}" for name, value in (faults or {}).items())),
    )
    site = generate_site(settings.mac, devices=devices, seed=seed)
    place = None if broker is None else BrokerAddress.parse(broker)
    return BackgroundContext(
        "emulated gateway",
        partial(_run_emulated_gateway, settings, site, SimulatedClock(0, speed), broker, place),
    )


@asynccontextmanager
async def _run_emulated_gateway(
    settings: EmulatorSettings,
    site: Site,
    clock: SimulatedClock,
    url: str | None,
    place: BrokerAddress | None,
) -> AsyncIterator[EmulatedGateway]:
    async with AsyncExitStack() as stack:
        if url is None or place is None:
            port = await stack.enter_async_context(running_broker(settings.topic_prefix))
            url = f"mqtt://127.0.0.1:{port}"
            place = BrokerAddress(host="127.0.0.1", port=port, user=settings.mac, password="")
        await stack.enter_async_context(
            running_gateways(clock, [(GatewayEmulator(settings, site, clock), place)])
        )
        yield EmulatedGateway(
            broker=url,
            prefix=settings.topic_prefix,
            mac=settings.mac,
            devices=tuple(each.mac for each in site.devices),
        )


@asynccontextmanager
async def running_gateways(
    clock: SimulatedClock, gateways: list[tuple[GatewayEmulator, BrokerAddress]]
) -> AsyncIterator[None]:
    """Gateways that are connected, each to its broker."""
    # Nothing is fetched over TLS here: to read all authorities of the system would take a while.
    async with httpx.AsyncClient(verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), trust_env=False) as http:
        fleet = EmulatedFleet(RealTimePace(clock), http=http, options=MqttOptions())
        for gateway, place in gateways:
            fleet.add(gateway, place)
        running = asyncio.create_task(fleet.run(), name="emulated gateways")
        complete = asyncio.create_task(fleet.all_connected.wait(), name="all connected")
        try:
            await asyncio.wait((running, complete), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
            yield
            if running.done():
                running.result()
        finally:
            running.cancel()
            complete.cancel()
            await asyncio.gather(running, complete, return_exceptions=True)
