"""The life of the demo: emulated gateways in the process of a service, on its own broker.

They are guests. They connect as any gateway does; what happens to them ends no service, and when the service
is told to stop they go first, while there is somebody to say good-bye to.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from ipaddress import ip_address
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
from meshfleet.emulator import EmulatedFleet, RealTimePace, SimulatedClock
from meshfleet.emulator import EmulatorSettings as Emulated
from meshfleet.errors import FleetError
from meshfleet.mqtt.client import BrokerAddress, MqttOptions
from meshfleet.service import app
from meshfleet.service.sockets import find_free_port
from meshfleet.tls import create_tls_context

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

    from meshfleet.cli.demo_data import Building
    from meshfleet.db import Database
    from meshfleet.emulator import GatewayEmulator
    from meshfleet.protocol.ids import Mac
    from meshfleet.service.app import StartupInfo
    from meshfleet.settings import Settings


# Ports of the demo: on a machine where the usual ones are taken it uses the next that are free.

_PROTOCOL_NAMES: Final = {"http": "HTTP", "mqtt": "MQTT"}


def move_to_free_ports(
    settings: Settings, explicit: Collection[str], announce: Callable[[str], None]
) -> Settings:
    """Replace default ports that are in use by the next free ones, and say so.

    `chosen` are the names of the settings that were given: those stay, and a port among them that is in use
    is an error later. A mosquitto that was just installed on Debian listens on 1883.
    """
    for name, spoken in _PROTOCOL_NAMES.items():
        place = getattr(settings, name)
        if place is None or name in explicit:
            continue
        free = find_free_port(place)
        if free != place:
            taken = f"Port {place.port} is in use by another program."
            announce(f"{taken} The demo uses port {free.port} for {spoken}.")
            settings = replace(settings, **{name: free})
    return settings


_log = logging.getLogger(__name__)

SPEED_FACTOR: Final = 10.0
"""Times as fast as in life: every device is heard within six seconds."""

_CONNECT_SECONDS: Final = 30.0
"""Seconds to let a gateway in: the service is only just starting."""

_DISCONNECT_SECONDS: Final = 1.0
"""Seconds for all gateways to take their leave."""

_IPV4: Final = 4

Announcer = Callable[[str], None] | None


async def serve_demo(
    settings: Settings, *, started: Callable[[StartupInfo], None], announce: Announcer
) -> None:
    """Run a service until it is cancelled, and the gateways of the demo beside it, of which `say` is told."""
    prepared = DemoSetup(settings.data, static=_is_static(settings))
    begun: asyncio.Future[StartupInfo] = asyncio.get_running_loop().create_future()

    def begin(told: StartupInfo) -> None:
        started(told)
        if not begun.cancelled():  # somebody stops us before we have started
            begun.set_result(told)

    serving = asyncio.create_task(app.serve(settings, started=begin, prepare=prepared.fill), name="serve")
    living = asyncio.create_task(_run_gateways(settings, prepared, begun, announce), name="demo")
    try:
        await asyncio.wait({serving})
    finally:
        await _stop_gateways(living)
        serving.cancel()
        await serving


class DemoSetup:
    """What the gateways of the demo get from the database before the service begins."""

    def __init__(self, data: Path, *, static: bool) -> None:
        self._data = data
        self._static = static
        self.passwords: dict[Mac, str] = {}

    def fill(self, database: Database) -> None:
        """Put the fleet into the registry, and let its gateways in; who is new there has a past."""
        if not self._static and is_registry_empty(database):
            self.passwords = fill_registry_with_history(database, self._data)
        else:
            self.passwords = fill_registry(database, static=self._static)
        if self.passwords:
            insert_demo_firmware(database, self._data)
        if not self.passwords and not self._static:
            _warn(
                "The demo adds nothing: this registry has devices already, and none of the demo's gateways."
            )


def _is_static(settings: Settings) -> bool:
    """Whether there is no broker for the demo; says why."""
    if settings.external_broker is not None:
        _warn("The demo stands still: its gateways use the embedded broker, and --broker names another one.")
    elif not (settings.mqtt or settings.mqtt_tls or settings.mqtt_ws):
        _warn("The demo stands still: with --mqtt off its gateways have nothing to connect to.")
    else:
        return False
    return True


async def _stop_gateways(living: asyncio.Task[None]) -> None:
    """Let the gateways take their leave; who is too slow is cut off at the end of the program."""
    living.cancel()
    await asyncio.wait({living}, timeout=_DISCONNECT_SECONDS)


async def _run_gateways(
    settings: Settings, setup: DemoSetup, service_started: asyncio.Future[StartupInfo], announce: Announcer
) -> None:
    """Run the gateways once the service has started. What goes wrong there is told, and goes no further."""
    told = await service_started
    try:
        if setup.passwords:
            await _run_fleet(settings, select_local_listener(told.mqtt), setup.passwords, announce)
    except* FleetError as errors:
        _warn(f"The demo stands still: {_first_error(errors)}")
    except* Exception:  # noqa: BLE001 # the service is worth more
        _log.exception("the demo has ended, which is a defect of ours")


async def _run_fleet(
    settings: Settings, address: BrokerAddress, passwords: Mapping[Mac, str], announce: Announcer
) -> None:
    tls = None if settings.tls_cert is None else _build_tls_context(settings.tls_cert)
    clock = SimulatedClock(0, SPEED_FACTOR)
    memory = DeviceStateStore(settings.data / "demo")
    async with httpx.AsyncClient(verify=True if tls is None else tls) as http:
        fleet = EmulatedFleet(
            RealTimePace(clock), http=http, options=MqttOptions(tls=tls, timeout=_CONNECT_SECONDS)
        )
        homes = [each for each in BUILDINGS if each.gateway in passwords]
        for each in homes:
            mac = each.gateway
            one = _restore_gateway(each, settings.topic_prefix, clock, memory)
            fleet.add(one, replace(address, user=mac, password=passwords[mac]))
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_announce_fleet(fleet, announce, sum(each.devices for each in homes)))
                tasks.create_task(memory.run())
                await fleet.run()
        finally:
            memory.save_all()


async def _announce_fleet(fleet: EmulatedFleet, announce: Announcer, devices: int) -> None:
    await fleet.all_connected.wait()
    if announce is not None:
        found = f"{len(fleet.uplinks)} emulated gateways with {devices} devices"
        announce(f"{found} report, {SPEED_FACTOR:g} times as fast as in life")


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
    """The simplest way to the service from its own machine."""
    address = min(map(BrokerAddress.parse, listeners), key=lambda each: (each.tls, each.path is not None))
    host = ip_address(address.host)
    if not host.is_unspecified:
        return address
    return replace(address, host="127.0.0.1" if host.version == _IPV4 else "::1")


def _build_tls_context(certificate: Path) -> ssl.SSLContext:
    """Trust this certificate alone, whatever name it has: it is our own."""
    made = create_tls_context(authorities=certificate)
    made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    made.check_hostname = False
    return made


def _first_error(errors: BaseExceptionGroup[FleetError]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _warn(text: str) -> None:
    click.echo(text, err=True)
