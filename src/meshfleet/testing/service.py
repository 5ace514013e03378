"""Runs a service for tests, and connects emulated gateways to the broker of the service."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from msgspec.structs import replace

from meshfleet.emulator import GatewayEmulator
from meshfleet.mqtt.client import BrokerAddress
from meshfleet.service import app, clock
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import DeviceObservation
from meshfleet.service.gateways import store
from meshfleet.settings import ListenAddress, Settings
from meshfleet.settings.model import HomeAssistantSettings
from meshfleet.testing.gateway import running_gateways
from meshfleet.testing.handles import RunningFleet, RunningGateway

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.emulator import EmulatorSettings as Emulated
    from meshfleet.emulator import SimulatedClock, Site
    from meshfleet.protocol.ids import Mac
    from meshfleet.service.app import StartupInfo

_ADMIN_USER: Final = "admin"
_NO_HOME_ASSISTANT: Final = HomeAssistantSettings()
_ANY_PORT: Final = ListenAddress("127.0.0.1", 0)


@asynccontextmanager
async def running_service(
    prefix: str,
    simulated_clock: SimulatedClock,
    gateways: Sequence[tuple[Emulated, Site]],
    *,
    homeassistant: HomeAssistantSettings = _NO_HOME_ASSISTANT,
) -> AsyncIterator[RunningFleet]:
    """Run a service in a temporary directory, and connect the emulated gateways to the service."""
    passwords: dict[Mac, str] = {}
    sites = [site for _, site in gateways]

    def claim_all(database: Database) -> None:
        passwords.update(database.write_now(_claim_gateways, sites))

    with TemporaryDirectory(prefix="meshfleet-") as directory, _preserve_process_settings():
        service_settings = Settings(
            data=Path(directory) / "data",
            http=_ANY_PORT,
            mqtt=_ANY_PORT,
            topic_prefix=prefix,
            homeassistant=homeassistant,
        )
        async with _run_service(service_settings, claim_all) as started:
            broker = BrokerAddress.parse(started.mqtt[0])
            emulated = [
                (
                    GatewayEmulator(settings, site, simulated_clock),
                    replace(broker, user=settings.mac, password=passwords[settings.mac]),
                )
                for settings, site in gateways
            ]
            async with running_gateways(simulated_clock, emulated):
                yield _build_handle(started, prefix, [emulator for emulator, _ in emulated], sites)


@asynccontextmanager
async def _run_service(
    settings: Settings, prepare_database: Callable[[Database], None]
) -> AsyncIterator[StartupInfo]:
    """Run a service in a task. Yield the addresses and password of the service when it has started."""
    started: asyncio.Future[StartupInfo] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        app.serve(settings, started=started.set_result, prepare=prepare_database), name="service"
    )
    try:
        await asyncio.wait((serving, started), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        yield started.result()
        if serving.done():
            serving.result()
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def _claim_gateways(connection: Connection, sites: Sequence[Site]) -> dict[Mac, str]:
    """Claim all gateways, and register their devices as if each had reported. Return passwords by MAC."""
    now = clock.now()
    passwords = {
        site.gateway: store.claim_gateway(connection, site.gateway, name=None, by=COMMAND_LINE, now=now)
        for site in sites
    }
    registry.record_observations(
        connection,
        [
            DeviceObservation(device=device.mac, gateway=site.gateway, at=now)
            for site in sites
            for device in site.devices
        ],
    )
    return passwords


def _build_handle(
    started: StartupInfo, prefix: str, emulators: Sequence[GatewayEmulator], sites: Sequence[Site]
) -> RunningFleet:
    # If the environment sets the admin password, the service uses it and reports none.
    password = started.admin_password or os.environ["MESHFLEET_ADMIN_PASSWORD"]
    return RunningFleet(
        url=started.url,
        user=_ADMIN_USER,
        password=password,
        broker=started.mqtt[0].replace("://", f"://{_ADMIN_USER}:{quote(password, safe='')}@"),
        prefix=prefix,
        gateways=tuple(
            RunningGateway(
                mac=site.gateway,
                devices=tuple(device.mac for device in site.devices),
                _emulator=emulator,
            )
            for emulator, site in zip(emulators, sites, strict=True)
        ),
    )


@contextmanager
def _preserve_process_settings() -> Iterator[None]:
    """Restore on exit the settings of the process that a service changes (garbage collector, threads)."""
    threshold, interval, frozen = gc.get_threshold(), sys.getswitchinterval(), gc.get_freeze_count()
    try:
        yield
    finally:
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)
        if not frozen:
            gc.unfreeze()
