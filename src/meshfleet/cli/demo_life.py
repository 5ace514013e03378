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

from meshfleet.cli.demo import BUILDINGS, fill, is_empty, site_of
from meshfleet.cli.demo_firmware import fill_catalogue
from meshfleet.cli.demo_memory import Memory
from meshfleet.cli.demo_past import fill_with_past
from meshfleet.errors import FleetError
from meshfleet.gateway import ByClock, Clock, Fleet
from meshfleet.gateway import Settings as Emulated
from meshfleet.link import Address, Options
from meshfleet.link.tls import context
from meshfleet.service import app

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from meshfleet.cli.demo import Building
    from meshfleet.db import Database
    from meshfleet.gateway import Gateway
    from meshfleet.service.app import Started
    from meshfleet.settings import Settings
    from meshfleet.wire.ids import Mac

_log = logging.getLogger(__name__)

SPEED: Final = 10.0
"""Times as fast as in life: every device is heard within six seconds."""

_PATIENCE: Final = 30.0
"""Seconds to let a gateway in: the service is only just starting."""

_GOODBYE: Final = 1.0
"""Seconds for all gateways to take their leave."""

_IPV4: Final = 4

Say = Callable[[str], None] | None


async def serve_demo(settings: Settings, *, started: Callable[[Started], None], say: Say) -> None:
    """Run a service until it is cancelled, and the gateways of the demo beside it, of which `say` is told."""
    prepared = Prepared(settings.data, still=_stands_still(settings))
    begun: asyncio.Future[Started] = asyncio.get_running_loop().create_future()

    def begin(told: Started) -> None:
        started(told)
        if not begun.cancelled():  # somebody stops us before we have started
            begun.set_result(told)

    serving = asyncio.create_task(app.serve(settings, started=begin, prepare=prepared.fill), name="serve")
    living = asyncio.create_task(_live(settings, prepared, begun, say), name="demo")
    try:
        await asyncio.wait({serving})
    finally:
        await _end(living)
        serving.cancel()
        await serving


class Prepared:
    """What the gateways of the demo get from the database before the service begins."""

    def __init__(self, data: Path, *, still: bool) -> None:
        self._data = data
        self._still = still
        self.passwords: dict[Mac, str] = {}

    def fill(self, database: Database) -> None:
        """Put the fleet into the registry, and let its gateways in; who is new there has a past."""
        if not self._still and is_empty(database):
            self.passwords = fill_with_past(database, self._data)
        else:
            self.passwords = fill(database, still=self._still)
        if self.passwords:
            fill_catalogue(database, self._data)
        if not self.passwords and not self._still:
            _warn(
                "The demo adds nothing: this registry has devices already, and none of the demo's gateways."
            )


def _stands_still(settings: Settings) -> bool:
    """Whether there is no broker for the demo; says why."""
    if settings.outside is not None:
        _warn("The demo stands still: its gateways use the embedded broker, and --broker names another one.")
    elif not (settings.mqtt or settings.mqtt_tls or settings.mqtt_ws):
        _warn("The demo stands still: with --mqtt off its gateways have nothing to connect to.")
    else:
        return False
    return True


async def _end(living: asyncio.Task[None]) -> None:
    """Let the gateways take their leave; who is too slow is cut off at the end of the program."""
    living.cancel()
    await asyncio.wait({living}, timeout=_GOODBYE)


async def _live(settings: Settings, prepared: Prepared, begun: asyncio.Future[Started], say: Say) -> None:
    """Run the gateways once the service has started. What goes wrong there is told, and goes no further."""
    told = await begun
    try:
        if prepared.passwords:
            await _run(settings, nearest(told.mqtt), prepared.passwords, say)
    except* FleetError as errors:
        _warn(f"The demo stands still: {_first(errors)}")
    except* Exception:  # noqa: BLE001 # the service is worth more
        _log.exception("the demo has ended, which is a defect of ours")


async def _run(settings: Settings, address: Address, passwords: Mapping[Mac, str], say: Say) -> None:
    tls = None if settings.tls_cert is None else _trusting(settings.tls_cert)
    clock = Clock(0, SPEED)
    memory = Memory(settings.data / "demo")
    async with httpx.AsyncClient(verify=True if tls is None else tls) as http:
        fleet = Fleet(ByClock(clock), http=http, options=Options(tls=tls, patience=_PATIENCE))
        homes = [each for each in BUILDINGS if each.gateway in passwords]
        for each in homes:
            mac = each.gateway
            one = _gateway(each, settings.topic_prefix, clock, memory)
            fleet.add(one, replace(address, user=mac, password=passwords[mac]))
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_tell(fleet, say, sum(each.devices for each in homes)))
                tasks.create_task(memory.keep_up())
                await fleet.run()
        finally:
            memory.keep()


async def _tell(fleet: Fleet, say: Say, devices: int) -> None:
    await fleet.is_complete.wait()
    if say is not None:
        found = f"{len(fleet.uplinks)} emulated gateways with {devices} devices"
        say(f"{found} report, {SPEED:g} times as fast as in life")


def _gateway(building: Building, prefix: str, clock: Clock, memory: Memory) -> Gateway:
    settings = Emulated(
        mac=building.gateway,
        mode=building.mode,
        api_version=building.api_version,
        topic_prefix=prefix,
        clean_session=True,
    )
    return memory.wake(settings, site_of(building), clock)


def nearest(listeners: Iterable[str]) -> Address:
    """The simplest way to the service from its own machine."""
    address = min(map(Address.parse, listeners), key=lambda each: (each.tls, each.path is not None))
    host = ip_address(address.host)
    if not host.is_unspecified:
        return address
    return replace(address, host="127.0.0.1" if host.version == _IPV4 else "::1")


def _trusting(certificate: Path) -> ssl.SSLContext:
    """Trust this certificate alone, whatever name it has: it is our own."""
    made = context(authorities=certificate)
    made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    made.check_hostname = False
    return made


def _first(errors: BaseExceptionGroup[FleetError]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _warn(text: str) -> None:
    click.echo(text, err=True)
