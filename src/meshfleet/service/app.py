"""Runs the service: starts its parts in order, and stops them in reverse order."""

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
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from meshfleet.db import connect_database, upgrade_database
from meshfleet.db.reader_role import update_identifier_names
from meshfleet.errors import Fault
from meshfleet.errors.protocol import MalformedText
from meshfleet.errors.startup import WrongSettings
from meshfleet.rest.inputs import parse_password
from meshfleet.service import clock
from meshfleet.service.accounts import user_store
from meshfleet.service.accounts.passwords import hash_password
from meshfleet.service.actor import SERVICE
from meshfleet.service.api import RestApi, load_openapi_document
from meshfleet.service.backup.creation import back_up_before_migration
from meshfleet.service.backup.restore import check_restore_finished
from meshfleet.service.backup.sqlite_backup import remove_stale_staging
from meshfleet.service.embedded_broker.listeners import apply_bound_ports, open_mqtt_listeners
from meshfleet.service.http.access import remember_peer
from meshfleet.service.http.connection import HttpConnection
from meshfleet.service.http.limits import HTTP_LIMITS, HttpLimits
from meshfleet.service.http.starting import answer_starting
from meshfleet.service.http.websocket_connection import MAX_MESSAGE_BYTES, WebSocketConnection
from meshfleet.service.locks import hold_service_lock, lock_data_folder
from meshfleet.service.metric_table import add_certificate_metrics
from meshfleet.service.readiness import retry_failed_writes
from meshfleet.service.reload import SettingsReloader
from meshfleet.service.runtime import open_service_samples, run_background_tasks
from meshfleet.service.secret_store import INSTANCE_SECRET, load_or_create_secret
from meshfleet.service.server_certificate import load_server_certificate
from meshfleet.service.sockets import open_listener
from meshfleet.service.status_report import StatusReporter
from meshfleet.service.systemd import SystemdNotifier
from meshfleet.service.telemetry.identifiers import list_identifier_names
from meshfleet.settings.secret_files import ADMIN_PASSWORD, read_credential

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from litestar.types import ASGIApp, Receive, Scope, Send

    from meshfleet.db import Database
    from meshfleet.service.embedded_broker.listeners import MqttListener
    from meshfleet.service.server_certificate import ServerCertificate
    from meshfleet.settings import Settings

__all__ = ["StartupInfo", "load_openapi_document", "serve", "serve_api"]

_log = logging.getLogger(__name__)

_ADMIN_USERNAME: Final = "admin"
_ADMIN_PASSWORD_VARIABLE: Final = "MESHFLEET_ADMIN_PASSWORD"  # noqa: S105 # the name of a variable, not a password

_GC_THRESHOLDS: Final = (50_000, 20, 50)
"""Garbage collector thresholds, higher than the default: reports create millions of objects but no reference
cycles, and with the default an eighth of the CPU time was spent on collections."""

_SWITCH_INTERVAL_SECONDS: Final = 0.0005
"""Seconds for which a thread may hold the GIL while another waits for it. Database threads need it after
every row: with the default, ten times as long, they would wait too long for a busy event loop."""

_CERTIFICATE_CHECK_SECONDS: Final = 60.0
"""Seconds between two checks whether the files of the certificate have changed."""

_SHUTDOWN_SECONDS: Final = 10
"""Seconds that running requests have to finish when the service stops."""


class StartupInfo(NamedTuple):
    """Addresses and first password that are shown when a service has started."""

    url: str
    mqtt: tuple[str, ...]
    """MQTT listeners of the embedded broker, or the address of the external broker."""
    admin_password: str | None
    """Random password of the first admin if this start created that user, else None.

    It is shown only once, because it is not stored in plain text.
    """


async def serve(  # noqa: PLR0913 # keyword-only, mostly optional
    settings: Settings,
    *,
    started: Callable[[StartupInfo], None],
    prepare: Callable[[Database], None] | None = None,
    reloader: SettingsReloader | None = None,
    notifier: SystemdNotifier | None = None,
    certificate_check_seconds: float = _CERTIFICATE_CHECK_SECONDS,
) -> None:
    """Run a service until canceled.

    `started` is called when the service has started. `prepare` is called before, with the migrated
    database, and may change its contents. Without a `reloader`, the settings cannot be reloaded. Changed
    files of the certificate are loaded within `certificate_check_seconds`.
    """
    gc.set_threshold(*_GC_THRESHOLDS)
    sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
    notifier = notifier or SystemdNotifier({})
    reloader = reloader or SettingsReloader(settings, lambda: settings, notifier)
    certificate = load_server_certificate(settings)
    if certificate is not None:
        reloader.register(
            "tls-cert",
            "tls-key",
            apply=certificate.apply_settings,
            is_possible=lambda changed: changed.tls_cert is not None,
            may_fail=True,
        )
    with (
        open_listener(settings.http, "http") as listener,
        open_mqtt_listeners(settings, None if certificate is None else certificate.context) as mqtt_listeners,
        # After the listeners: it may create the directory, so a wrong address must be reported before.
        lock_data_folder(settings.data),
    ):
        check_restore_finished(settings.data)
        remove_stale_staging(settings.data)
        port = listener.getsockname()[1]
        settings = replace(
            apply_bound_ports(settings, mqtt_listeners), http=settings.http._replace(port=port)
        )
        _warn_unspecified_address(settings, listener)
        database = await asyncio.to_thread(connect_database, settings.database, settings.data)
        try:
            with contextlib.ExitStack() as stack:
                await asyncio.to_thread(stack.enter_context, hold_service_lock(database, settings))
                async with HttpServer(settings, listener, HTTP_LIMITS, certificate) as http:
                    reloader.register("trusted-proxies", apply=http.trust_proxies)
                    async with notifier.extend_start("Starting: the database is checked and migrated."):
                        if settings.backup_before_migration:
                            await _run_stoppable(back_up_before_migration, database, settings, clock.now)
                        await _run_stoppable(upgrade_database, database)
                    await _run(
                        database,
                        settings,
                        http,
                        mqtt_listeners,
                        supervision=_Supervision(reloader, notifier, certificate, certificate_check_seconds),
                        started=started,
                        prepare=prepare,
                    )
        finally:
            await asyncio.to_thread(database.close)


class _Supervision(NamedTuple):
    """Parts that change or watch a running service: reloader of settings, certificate, systemd."""

    reloader: SettingsReloader
    notifier: SystemdNotifier
    certificate: ServerCertificate | None
    certificate_check_seconds: float

    def start_tasks(self, tasks: asyncio.TaskGroup, api: RestApi, database: Database) -> None:
        """Start tasks that reload settings and certificate when needed, and report to systemd."""
        reporter = StatusReporter(
            self.notifier, api.readiness, database, traffic=api.traffic, commit_timer=api.commit_timer
        )
        tasks.create_task(self.reloader.run(), name="reload")
        tasks.create_task(reporter.run(), name="systemd")
        if self.certificate is not None:
            watch = self.certificate.watch_files(self.certificate_check_seconds)
            tasks.create_task(watch, name="certificate")


async def _run_stoppable(work: Callable[..., None], *args: object) -> None:
    """Run a function in a thread. Its last argument is an event that is set if this coroutine is canceled."""
    stop = threading.Event()
    try:
        await asyncio.to_thread(work, *args, stop)
    finally:
        stop.set()


async def _run(  # noqa: PLR0913 # one caller
    database: Database,
    settings: Settings,
    http: HttpServer,
    mqtt_listeners: list[MqttListener],
    *,
    supervision: _Supervision,
    started: Callable[[StartupInfo], None],
    prepare: Callable[[Database], None] | None,
) -> None:
    """Run all parts of the service on a migrated database."""
    async with supervision.notifier.extend_start("Starting: the database is read."):
        password = await asyncio.to_thread(_create_first_admin, database)
        await database.write(update_identifier_names, list_identifier_names())
        await database.write(load_or_create_secret, INSTANCE_SECRET)
        if prepare is not None:
            await asyncio.to_thread(prepare, database)
        samples = await asyncio.to_thread(open_service_samples, database, settings)
    mqtt = tuple(map(str, mqtt_listeners if settings.external_broker is None else [settings.external_broker]))
    report_start = partial(started, StartupInfo(settings.listen_url, mqtt, password))
    try:
        api = await asyncio.to_thread(RestApi, database, settings, samples, reloader=supervision.reloader)
        gc.freeze()  # objects created so far are permanent: collections skip them, also at exit
        if mqtt:
            api.readiness.expect_report_intake()
        async with asyncio.TaskGroup() as tasks:
            if supervision.certificate is not None:
                add_certificate_metrics(api.metrics, supervision.certificate)
            background = run_background_tasks(
                database, samples, settings, api, mqtt_listeners, certificate=supervision.certificate
            )
            tasks.create_task(background, name="background")
            tasks.create_task(api.storage_monitor.run(), name="storage")
            tasks.create_task(retry_failed_writes(database), name="readiness")
            tasks.create_task(http.run(api, started=report_start), name="http")
            supervision.start_tasks(tasks, api, database)
    finally:
        await asyncio.to_thread(samples.close)


def _warn_unspecified_address(settings: Settings, listener: socket.socket) -> None:
    """Warn if gateways would be sent a wildcard address (such as 0.0.0.0) for firmware downloads."""
    if settings.public_url is None and ip_address(listener.getsockname()[0]).is_unspecified:
        _log.warning(
            "gateways cannot download firmware from %s, a wildcard address: "
            "set public-url to an address at which they reach this service",
            settings.url,
        )


class _UvicornServer(uvicorn.Server):
    """uvicorn server that signals when it listens and installs no signal handlers."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, then set `is_listening`."""
        await super().startup(sockets)
        self.is_listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers, because the caller's event loop handles signals."""
        yield


class HttpServer:
    """HTTP server. Until `run` is called with the API, it responds to requests with 503 (starting).

    The end of the `async with` block waits for running requests.
    """

    def __init__(
        self,
        settings: Settings,
        listener: socket.socket,
        limits: HttpLimits,
        certificate: ServerCertificate | None,
    ) -> None:
        self._server = _UvicornServer(_build_uvicorn_config(self._handle, limits, certificate))
        self._listener = listener
        self._app: ASGIApp = answer_starting
        self.trust_proxies(settings)
        self._server_task: asyncio.Task[None]

    def trust_proxies(self, settings: Settings) -> None:
        """Trust the client addresses that the proxies in `trusted_proxies` report, for new requests."""
        trusted = [str(each) for each in settings.trusted_proxies]
        self._proxy_headers = ProxyHeadersMiddleware(self._dispatch, trusted)  # type: ignore[arg-type] # Litestar's types of ASGI

    async def __aenter__(self) -> Self:
        self._server_task = asyncio.create_task(self._server.serve([self._listener]), name="http.server")
        up = asyncio.create_task(self._server.is_listening.wait())
        await asyncio.wait({self._server_task, up}, return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.should_exit = True
        await self._server_task

    async def run(self, api: RestApi, *, started: Callable[[], None]) -> None:
        """Serve the API until canceled, then wait for running requests. `started` is called at the start."""
        self._app = api.app
        live_task = asyncio.create_task(api.live.run(), name="live")
        try:
            if not self._server_task.done():
                started()
            await asyncio.wait({self._server_task, live_task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            api.readiness.drain()
            self._server.should_exit = True
            live_task.cancel()
            api.live.close()
            await self._server_task
            api.close()
            await asyncio.gather(live_task, return_exceptions=True)
        if not live_task.cancelled():
            live_task.result()

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI request: apply the headers of trusted proxies, then pass it on."""
        remember_peer(scope)
        await self._proxy_headers(scope, receive, send)  # type: ignore[arg-type] # Litestar's types of ASGI

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an ASGI request to the API, or to `answer_starting` before `run`."""
        await self._app(scope, receive, send)


async def serve_api(
    api: RestApi,
    settings: Settings,
    listener: socket.socket,
    *,
    started: Callable[[], None],
    limits: HttpLimits = HTTP_LIMITS,
) -> None:
    """Serve an API over HTTP until canceled."""
    async with HttpServer(settings, listener, limits, load_server_certificate(settings)) as http:
        await http.run(api, started=started)


def _build_uvicorn_config(
    app: ASGIApp, http_limits: HttpLimits, certificate: ServerCertificate | None
) -> uvicorn.Config:
    class Limited(HttpConnection):
        """Connection class with `http_limits`: uvicorn creates the connections and passes no limits."""

        limits = http_limits

    return uvicorn.Config(
        app,
        interface="asgi3",
        http=Limited,
        ws=WebSocketConnection,
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_per_message_deflate=False,  # frames are encoded once for all subscribers
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # `HttpServer.trust_proxies` does it, so that it can be changed
        limit_concurrency=http_limits.connections,
        timeout_keep_alive=http_limits.keep_alive_seconds,  # type: ignore[arg-type] # uvicorn declares int but accepts fractions
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        ssl_context_factory=None if certificate is None else lambda _config, _default: certificate.context,
    )


def _create_first_admin(database: Database) -> str | None:
    """Create the user `admin` in a database without users (auth-28).

    Return the password if it was generated; None if an environment variable set it, or users exist.
    """
    if not database.read_now(user_store.has_no_users):
        return None
    given = os.environ.get(_ADMIN_PASSWORD_VARIABLE) or read_credential(ADMIN_PASSWORD, os.environ)
    password = secrets.token_urlsafe(15) if given is None else _check_admin_password(given)
    made = database.write_now(
        user_store.insert_first_admin,
        _ADMIN_USERNAME,
        hashed=hash_password(password),
        by=SERVICE,
        now=clock.now(),
    )
    return password if made and given is None else None


def _check_admin_password(password: str) -> str:
    try:
        return parse_password(password)
    except MalformedText as exc:
        raise WrongSettings([Fault(_ADMIN_PASSWORD_VARIABLE, exc.reason)]) from None
