"""Runs a service with a demo: emulated gateways in the process of the service, on the embedded broker.

The gateways connect over MQTT like real gateways, and their errors do not stop the service. When it stops,
the gateways disconnect first, while the broker is still running.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import click
import httpx
from msgspec.structs import replace

from meshfleet.cli.demo_data import (
    BUILDINGS,
    build_site,
    fill_registry,
    insert_demo_firmware,
    is_registry_empty,
)
from meshfleet.cli.demo_device_state import DeviceStateStore
from meshfleet.cli.demo_history import fill_registry_with_history
from meshfleet.cli.shutdown import first_error
from meshfleet.emulator import EmulatedFleet, RealTimePace, SimulatedClock
from meshfleet.emulator import EmulatorSettings as Emulated
from meshfleet.errors import FleetError
from meshfleet.mqtt.client import BrokerAddress, MqttOptions
from meshfleet.service import app
from meshfleet.service.sockets import find_free_port
from meshfleet.settings import ListenAddress
from meshfleet.tls import create_pinned_context

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

    from meshfleet.cli.demo_data import Building
    from meshfleet.db import Database
    from meshfleet.emulator import GatewayEmulator
    from meshfleet.protocol.ids import Mac
    from meshfleet.service.app import StartupInfo
    from meshfleet.service.reload import SettingsReloader
    from meshfleet.service.systemd import SystemdNotifier
    from meshfleet.settings import Settings


# --- Ports ---

_PROTOCOL_NAMES: Final = {"http": "HTTP", "mqtt": "MQTT"}


def move_to_free_ports(
    settings: Settings, explicit: Collection[str], announce: Callable[[str], None]
) -> Settings:
    """Replace default ports that are in use by free ports, and call `announce` with a message for each port.

    Ports of settings in `explicit`, which the user gave, are kept; if such a port is in use, the service
    fails later. A typical program in the way is mosquitto on Debian, which listens on port 1883.
    """
    for name, protocol in _PROTOCOL_NAMES.items():
        address = getattr(settings, name)
        if address is None or name in explicit:
            continue
        free = find_free_port(address)
        if free != address:
            announce(
                f"Port {address.port} is in use by another program. "
                f"The demo uses port {free.port} for {protocol}."
            )
            settings = replace(settings, **{name: free})
    return settings


_log = logging.getLogger(__name__)

SPEED_FACTOR: Final = 10.0
"""Speed of the simulation relative to real time. At this speed every device reports within six seconds."""

_CONNECT_SECONDS: Final = 30.0
"""Seconds in which a demo gateway must connect; long, because the service may still be starting."""

_DISCONNECT_SECONDS: Final = 1.0
"""Maximum seconds that the shutdown waits until all demo gateways are disconnected."""

Announcer = Callable[[str], None] | None


async def serve_demo(
    settings: Settings,
    *,
    started: Callable[[StartupInfo], None],
    announce: Announcer,
    reloader: SettingsReloader | None = None,
    notifier: SystemdNotifier | None = None,
) -> None:
    """Run a service and the emulated gateways of the demo until canceled.

    `announce` is called when all gateways are connected. The other arguments are those of `app.serve`.
    """
    setup = DemoSetup(settings.data, static=_is_static(settings))
    service_started: asyncio.Future[StartupInfo] = asyncio.get_running_loop().create_future()

    def on_started(info: StartupInfo) -> None:
        started(info)
        if not service_started.cancelled():  # it is if the program is stopped during startup
            service_started.set_result(info)

    service_task = asyncio.create_task(
        app.serve(
            settings, started=on_started, prepare=setup.fill_database, reloader=reloader, notifier=notifier
        ),
        name="serve",
    )
    gateways_task = asyncio.create_task(
        _run_gateways(settings, setup, service_started, announce), name="demo"
    )
    try:
        await asyncio.wait({service_task})
    finally:
        await _stop_gateways(gateways_task)
        service_task.cancel()
        await service_task


class DemoSetup:
    """Fills the database before the service starts, and keeps the passwords of the demo's gateways."""

    def __init__(self, data: Path, *, static: bool) -> None:
        self._data = data
        self._static = static
        self.passwords: dict[Mac, str] = {}

    def fill_database(self, database: Database) -> None:
        """Insert the demo's devices and firmware; an empty database also gets a simulated history."""
        if not self._static and is_registry_empty(database):
            self.passwords = fill_registry_with_history(database, self._data)
        else:
            self.passwords = fill_registry(database, static=self._static)
        if self.passwords:
            insert_demo_firmware(database, self._data)
        if not self.passwords and not self._static:
            _print_warning(
                "The demo adds nothing: this database has devices already, but no gateways of the demo."
            )


def _is_static(settings: Settings) -> bool:
    """Return whether the demo's gateways cannot run. If so, print a warning with the reason."""
    if settings.external_broker is not None:
        _print_warning(
            "The demo's gateways do not run: they need the embedded broker, and --broker names another one."
        )
    elif not (settings.mqtt or settings.mqtt_tls or settings.mqtt_ws):
        _print_warning("The demo's gateways do not run: with --mqtt off they have nothing to connect to.")
    else:
        return False
    return True


async def _stop_gateways(gateways_task: asyncio.Task[None]) -> None:
    """Disconnect the demo's gateways. Wait for them for at most `_DISCONNECT_SECONDS`."""
    gateways_task.cancel()
    await asyncio.wait({gateways_task}, timeout=_DISCONNECT_SECONDS)


async def _run_gateways(
    settings: Settings, setup: DemoSetup, service_started: asyncio.Future[StartupInfo], announce: Announcer
) -> None:
    """Wait until the service has started, then run the demo's gateways. Errors are not raised, but logged."""
    info = await service_started
    try:
        if setup.passwords:
            await _run_fleet(settings, select_local_listener(info.mqtt), setup.passwords, announce)
    except* FleetError as errors:
        _print_warning(f"The demo's gateways have stopped: {first_error(errors)}")
    except* Exception:  # noqa: BLE001 # the service must go on
        _log.exception("the demo's gateways have stopped because of an internal error")


async def _run_fleet(
    settings: Settings, address: BrokerAddress, passwords: Mapping[Mac, str], announce: Announcer
) -> None:
    tls = None if settings.tls_cert is None else create_pinned_context(settings.tls_cert)
    clock = SimulatedClock(0, SPEED_FACTOR)
    device_states = DeviceStateStore(settings.data / "demo")
    async with httpx.AsyncClient(verify=True if tls is None else tls) as http:
        fleet = EmulatedFleet(
            RealTimePace(clock), http=http, options=MqttOptions(tls=tls, timeout=_CONNECT_SECONDS)
        )
        buildings = [each for each in BUILDINGS if each.gateway in passwords]
        for each in buildings:
            mac = each.gateway
            gateway = _restore_gateway(each, settings.topic_prefix, clock, device_states)
            fleet.add(gateway, replace(address, user=mac, password=passwords[mac]))
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_announce_fleet(fleet, announce, sum(each.devices for each in buildings)))
                tasks.create_task(device_states.save_periodically())
                await fleet.run()
        finally:
            device_states.save_all()


async def _announce_fleet(fleet: EmulatedFleet, announce: Announcer, devices: int) -> None:
    await fleet.all_connected.wait()
    if announce is not None:
        announce(
            f"{len(fleet.uplinks)} emulated gateways with {devices} devices are reporting, "
            f"at {SPEED_FACTOR:g} times real speed"
        )


def _restore_gateway(
    building: Building, prefix: str, clock: SimulatedClock, device_states: DeviceStateStore
) -> GatewayEmulator:
    settings = Emulated(
        mac=building.gateway,
        mode=building.mode,
        api_version=building.api_version,
        topic_prefix=prefix,
        clean_session=True,
    )
    return device_states.restore_gateway(settings, build_site(building), clock)


def select_local_listener(listeners: Iterable[str]) -> BrokerAddress:
    """Return an MQTT listener's address for clients on this machine, preferably without TLS and WebSocket."""
    address = min(map(BrokerAddress.parse, listeners), key=lambda each: (each.tls, each.path is not None))
    return replace(address, host=ListenAddress(address.host, address.port).local.host)


def _print_warning(text: str) -> None:
    click.echo(text, err=True)
