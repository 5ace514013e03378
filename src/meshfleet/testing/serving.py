"""The service of a running fleet, and its gateways on its broker."""

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

from meshfleet.gateway import Gateway
from meshfleet.link import Address
from meshfleet.service import app, clock
from meshfleet.service.accounts.model import COMMAND_LINE
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import Sighting
from meshfleet.service.gateways import store
from meshfleet.settings import Listen, Settings
from meshfleet.testing.gateway import living
from meshfleet.testing.running import RunningFleet, RunningGateway

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.gateway import Clock, Site
    from meshfleet.gateway import Settings as Emulated
    from meshfleet.service.app import Started
    from meshfleet.wire.ids import Mac

_ADMIN: Final = "admin"
_ANY: Final = Listen("127.0.0.1", 0)


@asynccontextmanager
async def running_service(
    prefix: str, world: Clock, gateways: Sequence[tuple[Emulated, Site]]
) -> AsyncIterator[RunningFleet]:
    """A service, and these gateways connected to it."""
    passwords: dict[Mac, str] = {}

    def claim(database: Database) -> None:
        passwords.update(database.write_now(_claim, [site for _, site in gateways]))

    with TemporaryDirectory(prefix="meshfleet-") as folder, _manners_kept():
        told = Settings(data=Path(folder) / "data", http=_ANY, mqtt=_ANY, topic_prefix=prefix)
        async with _serving(told, claim) as started:
            broker = Address.parse(started.mqtt[0])
            emulated = [
                (
                    Gateway(settings, site, world),
                    replace(broker, user=settings.mac, password=passwords[settings.mac]),
                )
                for settings, site in gateways
            ]
            async with living(world, emulated):
                yield _described(started, prefix, [site for _, site in gateways])


@asynccontextmanager
async def _serving(settings: Settings, prepare: Callable[[Database], None]) -> AsyncIterator[Started]:
    """The service, once it has started."""
    begun: asyncio.Future[Started] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        app.serve(settings, started=begun.set_result, prepare=prepare), name="service"
    )
    try:
        await asyncio.wait((serving, begun), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        yield begun.result()
        if serving.done():
            serving.result()
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def _claim(connection: Connection, sites: Sequence[Site]) -> dict[Mac, str]:
    """Claim all gateways, and let the service know the devices behind them, as if each had been heard."""
    now = clock.now()
    passwords = {
        site.gateway: store.claim(connection, site.gateway, name=None, by=COMMAND_LINE, now=now)
        for site in sites
    }
    registry.observe(
        connection,
        [
            Sighting(device=device.mac, gateway=site.gateway, at=now)
            for site in sites
            for device in site.devices
        ],
    )
    return passwords


def _described(started: Started, prefix: str, sites: Sequence[Site]) -> RunningFleet:
    # Somebody who has set a password for all services has set it for this one too.
    password = started.admin_password or os.environ["MESHFLEET_ADMIN_PASSWORD"]
    return RunningFleet(
        url=started.url,
        user=_ADMIN,
        password=password,
        broker=started.mqtt[0].replace("://", f"://{_ADMIN}:{quote(password, safe='')}@"),
        prefix=prefix,
        gateways=tuple(
            RunningGateway(mac=site.gateway, devices=tuple(each.mac for each in site.devices))
            for site in sites
        ),
    )


@contextmanager
def _manners_kept() -> Iterator[None]:
    """Leave the process as it was: a service sets things for all of it, which it thinks is its own."""
    threshold, interval, frozen = gc.get_threshold(), sys.getswitchinterval(), gc.get_freeze_count()
    try:
        yield
    finally:
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)
        if not frozen:
            gc.unfreeze()
