"""A service that runs, and clients that talk to it."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import httpx
from argon2 import PasswordHasher
from msgspec.structs import replace

from meshfleet.db.samples import open_sample_store
from meshfleet.protocol.ids import Mac, to_device_id
from meshfleet.rest import Role
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
    from collections.abc import Iterator

    from meshfleet.db import Database
    from meshfleet.db.samples import SampleStore
    from meshfleet.service.firmware.signed_urls import ImageUrlSigner
    from meshfleet.service.jobs.notifications import RunnerWakeup

_PATIENCE = 30.0
"""Seconds until a service must have started; reached only when it is broken."""

_WAITS_IN_CONNECTION = 64 * 1024
"""Bytes that a connection holds for a client that does not read. By itself it would grow to megabytes."""

PASSWORD = "correct-horse-battery"  # noqa: S105 # of nobody


QUICK_HASHER = PasswordHasher(time_cost=1, memory_cost=16, parallelism=1)
"""Takes a thousandth of the usual time."""


class RunningService:
    """A service at `url`, and what tests need around it. Tests share it: each makes names of its own."""

    addresses: ImageUrlSigner
    job_wakeup: RunnerWakeup
    data: Path
    """Its data directory."""

    def __init__(self, url: str, database: Database, samples: SampleStore, clock: Clock) -> None:
        self.url = url
        self.database = database
        self.samples = samples
        self.clock = clock
        self.anonymous = httpx.Client(base_url=url, verify=NO_TRUSTED_AUTHORITIES, timeout=_PATIENCE)
        self._clients = {role: self.client(self._key(role)) for role in Role}
        self._numbers = count(1)

    @property
    def viewer(self) -> httpx.Client:
        """A program that may look."""
        return self._clients[Role.VIEWER]

    @property
    def operator(self) -> httpx.Client:
        """A program that may work."""
        return self._clients[Role.OPERATOR]

    @property
    def admin(self) -> httpx.Client:
        """A program that may do all."""
        return self._clients[Role.ADMIN]

    def client(self, bearer: str) -> httpx.Client:
        """A client that comes with this token or key."""
        headers = {"Authorization": f"Bearer {bearer}"}
        return httpx.Client(
            base_url=self.url, headers=headers, verify=NO_TRUSTED_AUTHORITIES, timeout=_PATIENCE
        )

    def new_name(self, beginning: str = "name") -> str:
        """A name that no other test has."""
        return f"{beginning}-{next(self._numbers)}"

    def new_user(self, role: Role = Role.VIEWER) -> str:
        """Somebody who can log in with PASSWORD."""
        username = self.new_name("user")
        answer = self.admin.post(
            "/api/v1/users", json={"username": username, "password": PASSWORD, "role": role}
        )
        assert answer.status_code == 201, answer.text
        return username

    def log_in(self, username: str, password: str = PASSWORD) -> str:
        """The token of a user who logs in."""
        answer = self.anonymous.post("/api/v1/auth/login", json={"username": username, "password": password})
        assert answer.status_code == 200, answer.text
        token: str = answer.json()["authToken"]
        return token

    def new_mac(self) -> Mac:
        """An address that no other test has."""
        return Mac(f"{0xC0FFEE000000 + next(self._numbers):012x}")

    def new_device(self, **facts: object) -> str:
        """The id of a device that was just heard of."""
        mac = self.new_mac()
        self.observe(DeviceObservation(device=mac, at=self.clock(), **facts))  # type: ignore[arg-type] # by its names
        return to_device_id(mac)

    def observe(self, *sightings: DeviceObservation) -> None:
        """Let the registry know."""
        self.database.write_now(registry.record_observations, sightings)

    def close(self) -> None:
        """Close all clients."""
        for client in (self.anonymous, *self._clients.values()):
            client.close()

    def _key(self, role: Role) -> str:
        issued = self.database.write_now(
            api_key_store.insert_api_key,
            f"key of a {role}",
            role=role,
            expires_at=None,
            by=COMMAND_LINE,
            now=self.clock(),
        )
        return issued.key


@contextmanager
def run_service(  # noqa: PLR0913 # by name
    database: Database,
    settings: Settings | None = None,
    *,
    clock: Clock | None = None,
    limits: HttpLimits = HTTP_LIMITS,
    hashes_slowly: bool = False,
    blocks: ChunkSizes = DEFAULT_CHUNK_SIZES,
) -> Iterator[RunningService]:
    """Run a service on a database, in a thread of its own.

    It hashes passwords with little effort, or slowly with as much as a real one.
    """
    clock = clock or Clock()
    with (
        TemporaryDirectory(prefix="meshfleet-samples-") as folder,
        closing(open_sample_store(database, Path(folder), {}, now=clock())) as samples,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _WAITS_IN_CONNECTION)
        http = ListenAddress("127.0.0.1", listener.getsockname()[1])
        chosen = replace(settings or Settings(), data=Path(folder), http=http)
        hasher = PASSWORD_HASHER if hashes_slowly else QUICK_HASHER
        api = RestApi(
            database,
            chosen,
            samples,
            now=clock,
            steady=clock.steady,
            limits=limits,
            hasher=hasher,
            blocks=blocks,
        )
        with _serving(api, chosen, listener, limits):
            service = RunningService(chosen.listen_url, database, samples, clock)
            service.addresses = api.url_signer
            service.job_wakeup = api.job_wakeup
            service.data = chosen.data
            try:
                yield service
            finally:
                service.close()


@contextmanager
def _serving(api: RestApi, settings: Settings, listener: socket.socket, limits: HttpLimits) -> Iterator[None]:
    started = threading.Event()
    loop = asyncio.new_event_loop()
    serving = loop.create_task(serve_api(api, settings, listener, started=started.set, limits=limits))
    thread = threading.Thread(target=_run, args=(loop, serving), name="service")
    thread.start()
    try:
        assert started.wait(_PATIENCE), "the service did not start"
        yield
    finally:
        loop.call_soon_threadsafe(serving.cancel)
        thread.join()
        loop.close()


def _run(loop: asyncio.AbstractEventLoop, serving: asyncio.Task[None]) -> None:
    asyncio.set_event_loop(loop)
    loop.run_until_complete(asyncio.wait([serving]))
    loop.run_until_complete(loop.shutdown_default_executor())
