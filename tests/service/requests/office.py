"""A whole service that carries requests, in a thread of its own, and gateways of another make."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from msgspec.structs import replace

from meshfleet.service import clock
from meshfleet.service.accounts import keys
from meshfleet.service.accounts.model import COMMAND_LINE
from meshfleet.service.api import Api
from meshfleet.service.app import answer_requests
from meshfleet.service.gateways import store as gateways
from meshfleet.service.ingest.ingest import Pauses
from meshfleet.service.mqtt.listeners import entrances_of, with_ports
from meshfleet.service.sockets import listening
from meshfleet.service.taking import samples_of, take_reports
from meshfleet.settings import Listen, Settings
from meshfleet.wire.ids import Mac, device_id
from meshfleet.wire.times import write_millis
from tests.broker.stage import Clock
from tests.eventually import eventually
from tests.service.http.running import QUICK_HASHER, Running
from tests.service.requests.third_party import Gateway, nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    import httpx

    from meshfleet.db import Database
    from meshfleet.db.samples import SampleStore
    from meshfleet.wire.rest import Role
    from tests.service.requests.third_party import Asked, Manner, Said

PATIENCE = 30.0
"""Seconds until something must have happened; reached only when it never does."""
IN_VAIN = 2_000
"""Milliseconds to wait for an answer that never comes: enough for a busy machine to send the request."""

_ANY = Listen("127.0.0.1", 0)
_PAUSES = Pauses(look=0.1)
"""It looks ten times as often as usual, so that tests need not wait."""
_LOWEST, _HIGHEST = 0, 4
"""The priorities of what the service asks by itself: of devices, and of gateways."""


class Office(Running):
    """A running service with a broker, and what tests do at both its doors."""

    def __init__(self, url: str, database: Database, samples: SampleStore, port: int) -> None:
        super().__init__(url, database, samples, Clock())
        self.port = port
        """Of the broker."""
        self.passwords: dict[str, str] = {}
        """Of gateways that were claimed."""

    def _key(self, role: Role) -> str:
        """A key of its own: a database may have several services, one after the other."""
        return self.new_key(role, f"{role} {uuid4()}")

    def new_key(self, role: Role, name: str) -> str:
        """An API key."""
        issued = self.database.write_now(
            keys.issue, name, role=role, expires_at=None, by=COMMAND_LINE, now=self.clock()
        )
        return issued.key

    def new_mac(self) -> Mac:
        """An address that nobody else has, in this service or one before it."""
        return Mac(f"c0ffee{uuid4().hex[:6]}")

    # What people do

    def send(
        self,
        device: str,
        operation: str,
        identifier: str | None = None,
        *,
        by: httpx.Client | None = None,
        headers: dict[str, str] | None = None,
        **body: Any,
    ) -> httpx.Response:
        """Send a request to a device, or a gateway."""
        named = {} if identifier is None else {"identifier": identifier}
        return (by or self.operator).post(
            f"/api/v1/devices/{_id(device)}/requests",
            json={"operation": operation, **named, **body},
            headers=headers,
        )

    def history(self, device: str, **query: Any) -> list[dict[str, Any]]:
        """What was asked of a device, the newest first."""
        answer = self.viewer.get(f"/api/v1/devices/{_id(device)}/requests", params=query)
        assert answer.status_code == 200, answer.text
        items: list[dict[str, Any]] = answer.json()["items"]
        return items

    def show(self, request_id: str) -> dict[str, Any]:
        """A request."""
        answer = self.viewer.get(f"/api/v1/requests/{request_id}")
        assert answer.status_code == 200, answer.text
        shown: dict[str, Any] = answer.json()
        return shown

    def metric(self, beginning: str) -> float:
        """A figure, by the line that it is on."""
        lines = self.viewer.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{beginning} "))

    def is_open(self) -> bool:
        """Whether requests are carried by now."""
        return self.send(self.new_mac(), "read", "8000").status_code == 404

    def is_idle(self) -> bool:
        """Whether nothing waits for an answer, or for its turn."""
        return not self.metric("meshfleet_requests_pending") and not self.metric("meshfleet_requests_queued")

    # What gateways do

    @contextmanager
    def gateway(
        self, manner: Manner = nothing, mac: str | None = None, *, version: str = "2.4.0"
    ) -> Iterator[Gateway]:
        """A gateway that is claimed and connected, and knows its version."""
        mac = mac or self.new_mac()
        made = self.connect(mac, manner, version)
        try:
            yield made
        finally:
            made.stop()

    def connect(self, mac: str, manner: Manner, version: str = "2.4.0") -> Gateway:
        """Claim a gateway, and let it connect; who does that stops it."""
        password = self.claim(mac)
        made = Gateway(self.port, mac, manner, password=password, by_itself=_knowing(mac, version))
        made.start()
        return made

    def claim(self, mac: str) -> str:
        """Claim a gateway, if that was not done before; gives its password."""
        if mac not in self.passwords:
            self.passwords[mac] = self.database.write_now(
                gateways.claim, Mac(mac), name=None, by=COMMAND_LINE, now=self.clock()
            )
        return self.passwords[mac]

    def wait_for_version(self, gateway: Gateway, version: str = "2.4.0") -> None:
        """Wait until the service knows what a gateway speaks."""
        self.until(lambda: self.viewer.get(f"/api/v1/gateways/{gateway.mac}").json()["apiVersion"] == version)

    def device_behind(self, gateway: Gateway, device: Mac | None = None) -> Mac:
        """A device that a gateway has just heard."""
        device = device or self.new_mac()
        gateway.report(
            f"mt/gateway/{gateway.mac}/device/{device}/heartbeat",
            time=write_millis(self.clock()),
            seq=1,
            status=0,
            lastCount=1,
        )
        self.until(lambda: self._gateway_of(device) == gateway.mac)
        return device

    def until(self, holds: Callable[[], object]) -> None:
        """Wait until something holds that the service does by itself."""
        eventually(lambda: bool(holds()), "what the service does by itself")

    def _gateway_of(self, device: Mac) -> str | None:
        answer = self.viewer.get("/api/v1/devices", params={"Ids": device_id(device), "Include": "live"})
        items = answer.json()["items"]
        return items[0]["live"]["gateway"] if items else None


def _id(device: str) -> str:
    return device if device.startswith("bmac-") else f"bmac-{device}"


def _knowing(mac: str, version: str) -> Callable[[Asked], list[Said] | None]:
    """Answers what the service asks by itself: which version, and of devices what they are."""

    def answer(asked: Asked) -> list[Said] | None:
        if asked.end == f"{mac}/apiversion" and asked.body.get("priority") == _HIGHEST:
            return [asked.answer(version=version, time=write_millis(clock.now()))]  # its clock is right
        if asked.body.get("priority") == _LOWEST and "/read/" in asked.end:
            return [asked.answer(status=5)]
        return None

    return answer


@contextmanager
def office(database: Database, settings: Settings | None = None) -> Iterator[Office]:
    """Run a service on a database. Its end is an orderly one."""
    with (
        TemporaryDirectory(prefix="meshfleet-office-") as folder,
        listening(_ANY, "http") as listener,
        entrances_of(replace(settings or Settings(mqtt=_ANY), data=Path(folder))) as entrances,
    ):
        http = _ANY._replace(port=listener.getsockname()[1])
        chosen = replace(settings or Settings(mqtt=_ANY), data=Path(folder), http=http)
        chosen = with_ports(chosen, entrances)
        with closing(samples_of(database, chosen)) as samples:
            api = Api(database, chosen, samples, hasher=QUICK_HASHER)
            taking = partial(take_reports, database, samples, chosen, api, entrances, pauses=_PAUSES)
            running = Office(
                f"http://127.0.0.1:{listener.getsockname()[1]}",
                database,
                samples,
                entrances[0].listener.getsockname()[1] if entrances else 0,
            )
            try:
                with _serving(partial(answer_requests, api, chosen, listener), taking):
                    running.until(running.is_open)
                    yield running
            finally:
                running.close()


@contextmanager
def _serving(
    answering: Callable[..., Coroutine[Any, Any, None]], taking: Callable[[], Coroutine[Any, Any, None]]
) -> Iterator[None]:
    started = threading.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(taking())
            tasks.create_task(answering(started=started.set))

    serving = loop.create_task(serve())
    thread = threading.Thread(target=_run, args=(loop, serving), name="office")
    thread.start()
    try:
        assert started.wait(PATIENCE), "the service did not start"
        yield
    finally:
        loop.call_soon_threadsafe(serving.cancel)
        thread.join()
        loop.close()
        with suppress(asyncio.CancelledError):
            serving.result()


def _run(loop: asyncio.AbstractEventLoop, serving: asyncio.Task[None]) -> None:
    asyncio.set_event_loop(loop)
    loop.run_until_complete(asyncio.wait([serving]))
    loop.run_until_complete(loop.shutdown_default_executor())
