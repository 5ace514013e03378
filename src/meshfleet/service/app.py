"""The service as a program: what starts in which order, and ends in the opposite one."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import secrets
import sys
import threading
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import uvicorn
from msgspec.structs import replace

from meshfleet.db import connect_database, upgrade_database
from meshfleet.errors import Fault, MalformedText, WrongSettings
from meshfleet.service import clock
from meshfleet.service.accounts import people
from meshfleet.service.accounts.model import SERVICE
from meshfleet.service.accounts.passwords import hash_password
from meshfleet.service.api import Api, openapi_document
from meshfleet.service.exclusive import hold_service_lock
from meshfleet.service.folder import held
from meshfleet.service.http.connection import Connection
from meshfleet.service.http.limits import HTTP_LIMITS, HttpLimits
from meshfleet.service.http.starting import answer_starting
from meshfleet.service.live.socket import LARGEST_MESSAGE, Socket
from meshfleet.service.mqtt.listeners import entrances_of, with_ports
from meshfleet.service.sockets import listening
from meshfleet.service.taking import samples_of, take_reports
from meshfleet.wire.rest import parse_password

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from litestar.types import ASGIApp, Receive, Scope, Send

    from meshfleet.db import Database
    from meshfleet.service.mqtt.listeners import Entrance
    from meshfleet.settings import Settings

__all__ = ["Started", "answer_requests", "openapi_document", "serve"]

_log = logging.getLogger(__name__)

_ADMIN: Final = "admin"
_ADMIN_PASSWORD: Final = "MESHFLEET_ADMIN_PASSWORD"  # noqa: S105 # where it is, not what it is

_COLLECTED: Final = (50_000, 20, 50)
"""How rarely Python looks for circles: reports make none, but objects by the million, and looking at them all
took an eighth of the time."""

_TURN: Final = 0.0005
"""Seconds that a thread keeps Python's lock while another one waits for it: threads that write ask for it
after every row, and must not wait ten times as long for a busy event loop."""

_GRACE: Final = 10
"""Seconds for requests that run when the service stops."""


class Started(NamedTuple):
    """What there is to tell when a service has started."""

    url: str
    mqtt: tuple[str, ...]
    """Where MQTT clients come in, or the other broker."""
    admin_password: str | None
    """Of the first user, if it was made just now with a random one; nobody is told again."""


async def serve(
    settings: Settings,
    *,
    started: Callable[[Started], None],
    prepare: Callable[[Database], None] | None = None,
) -> None:
    """Run a service until it is cancelled. `prepare` may change the database before anybody else does."""
    gc.set_threshold(*_COLLECTED)
    sys.setswitchinterval(_TURN)
    with (
        listening(settings.http, "http") as listener,
        entrances_of(settings) as entrances,
        held(settings.data),  # it may make the folder, so what is wrong with an address is told before
    ):
        port = listener.getsockname()[1]
        settings = replace(with_ports(settings, entrances), http=settings.http._replace(port=port))
        _warn(settings, listener)
        database = await asyncio.to_thread(connect_database, settings.database, settings.data)
        try:
            with contextlib.ExitStack() as stack:
                await asyncio.to_thread(stack.enter_context, hold_service_lock(database, settings))
                async with HttpServer(settings, listener, HTTP_LIMITS) as http:
                    await _upgrade(database)
                    await _run(database, settings, http, entrances, started=started, prepare=prepare)
        finally:
            await asyncio.to_thread(database.close)


async def _upgrade(database: Database) -> None:
    """Bring the database up to date. Cancelling this ends the wait for another program that does so."""
    stop = threading.Event()
    try:
        await asyncio.to_thread(upgrade_database, database, stop)
    finally:
        stop.set()


async def _run(  # noqa: PLR0913 # by name
    database: Database,
    settings: Settings,
    http: HttpServer,
    entrances: list[Entrance],
    *,
    started: Callable[[Started], None],
    prepare: Callable[[Database], None] | None,
) -> None:
    """Run all parts of the service on a database that is up to date."""
    password = await asyncio.to_thread(_make_first_user, database)
    if prepare is not None:
        await asyncio.to_thread(prepare, database)
    mqtt = tuple(map(str, entrances if settings.outside is None else [settings.outside]))
    tell = partial(started, Started(settings.own_url, mqtt, password))
    samples = await asyncio.to_thread(samples_of, database, settings)
    try:
        api = await asyncio.to_thread(Api, database, settings, samples)
        gc.freeze()  # what is there by now stays, and is not looked at again: not even on the way out
        if mqtt:
            api.readiness.await_taker()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(take_reports(database, samples, settings, api, entrances), name="mqtt")
            tasks.create_task(http.run(api, started=tell), name="http")
    finally:
        await asyncio.to_thread(samples.close)


def _warn(settings: Settings, listener: socket.socket) -> None:
    """Images are fetched from an address that we tell: one that means all of a machine's leads to none."""
    if settings.public_url is None and ip_address(listener.getsockname()[0]).is_unspecified:
        _log.warning(
            "gateways are told to fetch firmware from %s, which is no address of this machine: "
            "set public-url to how they reach it",
            settings.url,
        )


class _Server(uvicorn.Server):
    """A server that tells when it listens, and leaves signals to whoever runs us."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and tell."""
        await super().startup(sockets)
        self.is_up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


class HttpServer:
    """Answers HTTP requests: that the service starts, until `run` gets the API.

    Leaving the block lets requests that run come to their end.
    """

    def __init__(self, settings: Settings, listener: socket.socket, limits: HttpLimits) -> None:
        self._server = _Server(_config(settings, self._answer, limits))
        self._listener = listener
        self._app: ASGIApp = answer_starting
        self._serving: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        self._serving = asyncio.create_task(self._server.serve([self._listener]), name="http.server")
        up = asyncio.create_task(self._server.is_up.wait())
        await asyncio.wait({self._serving, up}, return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.should_exit = True
        await self._serving

    async def run(self, api: Api, *, started: Callable[[], None]) -> None:
        """Answer requests with the API until cancelled; those that run then come to their end."""
        self._app = api.app
        telling = asyncio.create_task(api.live.run(), name="live")
        try:
            if not self._serving.done():
                started()
            await asyncio.wait({self._serving, telling}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            api.readiness.drain()
            self._server.should_exit = True
            telling.cancel()
            api.live.end()
            await self._serving
            api.close()
            await asyncio.gather(telling, return_exceptions=True)
        if not telling.cancelled():
            telling.result()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


async def answer_requests(
    api: Api,
    settings: Settings,
    listener: socket.socket,
    *,
    started: Callable[[], None],
    limits: HttpLimits = HTTP_LIMITS,
) -> None:
    """Answer requests with an API that is there already, until cancelled."""
    async with HttpServer(settings, listener, limits) as http:
        await http.run(api, started=started)


def _config(settings: Settings, app: ASGIApp, limits_of_all: HttpLimits) -> uvicorn.Config:
    class Limited(Connection):
        """uvicorn makes connections by their class alone, so that the class has the limits."""

        limits = limits_of_all

    return uvicorn.Config(
        app,
        interface="asgi3",
        http=Limited,
        ws=Socket,
        ws_max_size=LARGEST_MESSAGE,
        ws_per_message_deflate=False,  # frames are made once for all listeners
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=[str(each) for each in settings.trusted_proxies],
        limit_concurrency=limits_of_all.connections,
        timeout_keep_alive=limits_of_all.keep_alive_seconds,  # type: ignore[arg-type] # it waits for fractions too
        timeout_graceful_shutdown=_GRACE,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )


def _make_first_user(database: Database) -> str | None:
    """Make `admin` on an empty database, and tell its password if we chose it (auth-28)."""
    if not database.read_now(people.is_empty):
        return None
    given = os.environ.get(_ADMIN_PASSWORD) or None
    password = secrets.token_urlsafe(15) if given is None else _fit(given)
    made = database.write_now(
        people.create_first, _ADMIN, hashed=hash_password(password), by=SERVICE, now=clock.now()
    )
    return password if made and given is None else None


def _fit(password: str) -> str:
    try:
        return parse_password(password)
    except MalformedText as exc:
        raise WrongSettings([Fault(_ADMIN_PASSWORD, exc.reason)]) from None
