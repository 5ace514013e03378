"""A running service and its HTTP clients, for tests."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import httpx
from argon2 import PasswordHasher
from msgspec.structs import replace

from meshfleet.db.samples import open_sample_store
from meshfleet.protocol.ids import Mac, to_device_id
from meshfleet.rest.accounts import Role
from meshfleet.service.accounts import api_key_store
from meshfleet.service.accounts.passwords import PASSWORD_HASHER
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.api import RestApi
from meshfleet.service.app import serve_api
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import DeviceObservation
from meshfleet.service.http.limits import HTTP_LIMITS, HttpLimits
from meshfleet.service.telemetry.chunked_read import DEFAULT_CHUNK_SIZES, ChunkSizes
from meshfleet.settings import ListenAddress, Settings
from tests.mqtt.broker.running_broker import Clock
from tests.servers import NO_TRUSTED_AUTHORITIES

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from meshfleet.db import Database
    from meshfleet.db.samples import SampleStore
    from meshfleet.service.firmware.signed_urls import ImageUrlSigner
    from meshfleet.service.jobs.notifications import RunnerWakeup
    from meshfleet.service.notifications.routes import ChannelTesterFacade

_TIMEOUT_SECONDS = 30.0
"""Seconds until a service must have started or answered; reached only if it is broken."""

_SEND_BUFFER_BYTES = 64 * 1024
"""Send buffer for a client that does not read. By default it would grow to megabytes."""

PASSWORD = "correct-horse-battery"  # noqa: S105 # a password of the tests


QUICK_HASHER = PasswordHasher(time_cost=1, memory_cost=16, parallelism=1)
"""Hasher that takes a thousandth of the production time."""


class RunningService:
    """Running service with its clients and database. Tests share it, so each one uses new names."""

    addresses: ImageUrlSigner
    job_wakeup: RunnerWakeup
    channel_tester: ChannelTesterFacade
    data: Path
    """Data directory."""

    def __init__(self, url: str, database: Database, samples: SampleStore, clock: Clock) -> None:
        self.url = url
        self.database = database
        self.samples = samples
        self.clock = clock
        self.anonymous = httpx.Client(base_url=url, verify=NO_TRUSTED_AUTHORITIES, timeout=_TIMEOUT_SECONDS)
        self._clients = {role: self.client(self._key(role)) for role in Role}
        self._numbers = count(1)

    @property
    def viewer(self) -> httpx.Client:
        """Client with the role viewer."""
        return self._clients[Role.VIEWER]

    @property
    def operator(self) -> httpx.Client:
        """Client with the role operator."""
        return self._clients[Role.OPERATOR]

    @property
    def admin(self) -> httpx.Client:
        """Client with the role admin."""
        return self._clients[Role.ADMIN]

    def client(self, bearer: str) -> httpx.Client:
        """Return a client that sends this access token or API key."""
        headers = {"Authorization": f"Bearer {bearer}"}
        return httpx.Client(
            base_url=self.url, headers=headers, verify=NO_TRUSTED_AUTHORITIES, timeout=_TIMEOUT_SECONDS
        )

    def new_name(self, beginning: str = "name") -> str:
        """Return a name that no other test uses."""
        return f"{beginning}-{next(self._numbers)}"

    def new_user(self, role: Role = Role.VIEWER) -> str:
        """Create a user with the password PASSWORD and return the name."""
        username = self.new_name("user")
        response = self.admin.post(
            "/api/v1/users", json={"username": username, "password": PASSWORD, "role": role}
        )
        assert response.status_code == 201, response.text
        return username

    def log_in(self, username: str, password: str = PASSWORD) -> str:
        """Log in and return the access token."""
        response = self.anonymous.post(
            "/api/v1/auth/login", json={"username": username, "password": password}
        )
        assert response.status_code == 200, response.text
        token: str = response.json()["authToken"]
        return token

    def new_mac(self) -> Mac:
        """Return a MAC that no other test uses."""
        return Mac(f"{0xC0FFEE000000 + next(self._numbers):012x}")

    def new_device(self, **facts: object) -> str:
        """Add a device to the registry and return its id."""
        mac = self.new_mac()
        self.observe(DeviceObservation(device=mac, at=self.clock(), **facts))  # type: ignore[arg-type] # fields by name
        return to_device_id(mac)

    def observe(self, *sightings: DeviceObservation) -> None:
        """Record observations in the registry."""
        self.database.write_now(registry.record_observations, sightings)

    def close(self) -> None:
        """Close all clients."""
        for client in (self.anonymous, *self._clients.values()):
            client.close()

    def new_key(self, role: Role, name: str) -> str:
        """Create and return an API key."""
        issued = self.database.write_now(
            api_key_store.insert_api_key, name, role=role, expires_at=None, by=COMMAND_LINE, now=self.clock()
        )
        return issued.key

    def _key(self, role: Role) -> str:
        return self.new_key(role, f"key of a {role}")


@contextmanager
def run_service(  # noqa: PLR0913 # keyword-only settings
    database: Database,
    settings: Settings | None = None,
    *,
    clock: Clock | None = None,
    limits: HttpLimits = HTTP_LIMITS,
    hashes_slowly: bool = False,
    chunk_sizes: ChunkSizes = DEFAULT_CHUNK_SIZES,
) -> Iterator[RunningService]:
    """Run a service on a database, in a thread of its own.

    Password hashing is cheap, or at production cost with `hashes_slowly`.
    """
    clock = clock or Clock()
    with (
        TemporaryDirectory(prefix="meshfleet-samples-") as folder,
        closing(open_sample_store(database, Path(folder), {}, now=clock())) as samples,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        http = ListenAddress("127.0.0.1", listener.getsockname()[1])
        settings_used = replace(settings or Settings(), data=Path(folder), http=http)
        hasher = PASSWORD_HASHER if hashes_slowly else QUICK_HASHER
        api = RestApi(
            database,
            settings_used,
            samples,
            now=clock,
            monotonic=clock.monotonic,
            limits=limits,
            hasher=hasher,
            chunk_sizes=chunk_sizes,
        )
        with run_in_thread(
            lambda started: serve_api(api, settings_used, listener, started=started, limits=limits)
        ):
            service = RunningService(settings_used.listen_url, database, samples, clock)
            service.addresses = api.url_signer
            service.job_wakeup = api.job_wakeup
            service.channel_tester = api.channel_tester
            service.data = settings_used.data
            try:
                yield service
            finally:
                service.close()


@contextmanager
def run_in_thread(
    serve: Callable[[Callable[[], None]], Coroutine[Any, Any, None]],
) -> Iterator[asyncio.AbstractEventLoop]:
    """Run a service in a thread of its own until the block ends, and raise its error if it failed.

    `serve` gets a function to call when the service has started. Yield the event loop of the thread.
    """
    started = threading.Event()
    loop = asyncio.new_event_loop()
    task = loop.create_task(serve(started.set))
    thread = threading.Thread(target=_run, args=(loop, task), name="service")
    thread.start()
    try:
        assert started.wait(_TIMEOUT_SECONDS), "the service did not start"
        yield loop
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()
        with suppress(asyncio.CancelledError):
            task.result()


def _run(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    asyncio.set_event_loop(loop)
    loop.run_until_complete(asyncio.wait([task]))
    loop.run_until_complete(loop.shutdown_default_executor())
