"""The life of the demo: emulated gateways in the process of a service, on its own broker.

They are guests. They connect as any gateway does; what happens to them ends no service, and when the service
is told to stop they go first, while there is somebody to say good-bye to.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple

import click
import httpx
from msgspec.structs import replace

from meshfleet.cli.demo import BUILDINGS, fill, site_of
from meshfleet.errors import FleetError, UnreadableMemory
from meshfleet.gateway import ByClock, Clock, Fleet, Gateway
from meshfleet.gateway import Settings as GatewaySettings
from meshfleet.link import Address, Options
from meshfleet.link.tls import context
from meshfleet.service import app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from meshfleet.cli.demo import Building
    from meshfleet.db import Database
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

_KEPT_EVERY: Final = 10.0
"""Seconds between writing down what the devices remember: what a killed process may lose."""


async def serve_demo(settings: Settings, tell: Callable[[Started], None], *, quiet: bool) -> None:
    """Run a service until it is cancelled, and the gateways of the demo beside it."""
    prepared = _Prepared(still=_stands_still(settings))
    begun: asyncio.Future[Started] = asyncio.get_running_loop().create_future()

    def started(told: Started) -> None:
        tell(told)
        begun.set_result(told)

    serving = asyncio.create_task(app.serve(settings, started=started, prepare=prepared.fill), name="serve")
    living = asyncio.create_task(_live(settings, prepared, begun, quiet=quiet), name="demo")
    try:
        await asyncio.wait({serving})
    finally:
        await _end(living)
        serving.cancel()
        await serving


class _Prepared:
    """What the gateways of the demo need of the database, before anybody else has it."""

    def __init__(self, *, still: bool) -> None:
        self._still = still
        self.passwords: dict[Mac, str] = {}

    def fill(self, database: Database) -> None:
        """Put the fleet into the registry, and let its gateways in."""
        self.passwords = fill(database, still=self._still)
        if not self.passwords and not self._still:
            _say("The demo shows nothing: this registry has devices already, and no gateway of the demo.")


def _stands_still(settings: Settings) -> bool:
    """Whether there is no broker for the demo; says so."""
    if settings.outside is not None:
        _say("The demo stands still: its gateways connect to the embedded broker, and --broker names another.")
        return True
    if not (settings.mqtt or settings.mqtt_tls or settings.mqtt_ws):
        _say("The demo stands still: with --mqtt off its gateways have nowhere to connect to.")
        return True
    return False


async def _end(living: asyncio.Task[None]) -> None:
    """Let the gateways go; who takes too long is cut off."""
    for _ in range(2):
        living.cancel()
        await asyncio.wait({living}, timeout=_GOODBYE)


async def _live(
    settings: Settings, prepared: _Prepared, begun: asyncio.Future[Started], *, quiet: bool
) -> None:
    """Run the gateways from the start of the service on. An error of theirs is told, and goes no further."""
    told = await begun
    if not prepared.passwords:
        return
    try:
        address = _nearest(told.mqtt)
        tls = _trusting(settings.tls_cert) if address.tls and settings.tls_cert else None
        homes = [_Home.of(each, settings) for each in BUILDINGS if each.gateway in prepared.passwords]
        async with httpx.AsyncClient(verify=True if tls is None else tls) as http:
            options = Options(tls=tls, patience=_PATIENCE)
            fleet = Fleet(ByClock(homes[0].clock), http=http, options=options)
    except* FleetError as errors:
        _say(f"The demo stands still: {_first(errors)}")
