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

from meshfleet.protocol.ids import Mac, to_device_id
from meshfleet.protocol.times import format_millis
from meshfleet.service import clock
from meshfleet.service.accounts import api_key_store
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.api import RestApi
from meshfleet.service.app import serve_api
from meshfleet.service.embedded_broker.listeners import apply_bound_ports, open_mqtt_listeners
from meshfleet.service.gateways import store as gateways
from meshfleet.service.ingest.pipeline import IngestTimings
from meshfleet.service.runtime import open_service_samples, run_report_pipeline
from meshfleet.service.sockets import open_listener
from meshfleet.settings import ListenAddress, Settings
from tests.eventually import eventually
from tests.mqtt.broker.running_broker import Clock
from tests.service.http.running_service import QUICK_HASHER, RunningService
from tests.service.requests.scripted_gateway import ScriptedGateway, never_respond

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    import httpx

    from meshfleet.db import Database
    from meshfleet.db.samples import SampleStore
    from meshfleet.rest import Role
    from tests.service.requests.scripted_gateway import IncomingRequest, OutgoingMessage, Responder

PATIENCE = 30.0
"""Seconds until something must have happened; reached only when it never does."""
SHORT_TIMEOUT_MS = 2_000
"""Milliseconds to wait for an answer that never comes: enough for a busy machine to send the request."""

_ANY = ListenAddress("127.0.0.1", 0)
_PAUSES = IngestTimings(poll_seconds=0.1)
"""It looks ten times as often as usual, so that tests need not wait."""
_LOWEST, _HIGHEST = 0, 4
"""The priorities of what the service asks by itself: of devices, and of gateways."""


class ServiceWithBroker(RunningService):
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
            api_key_store.insert_api_key, name, role=role, expires_at=None, by=COMMAND_LINE, now=self.clock()
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

    def load_request(self, request_id: str) -> dict[str, Any]:
        """A request."""
        answer = self.viewer.get(f"/api/v1/requests/{request_id}")
        assert answer.status_code == 200, answer.text
        shown: dict[str, Any] = answer.json()
        return shown

    def metric(self, beginning: str) -> float:
        """A figure, by the line that it is on."""
        lines = self.viewer.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{beginning} "))

    def accepts_requests(self) -> bool:
        """Whether requests are carried by now."""
        return self.send(self.new_mac(), "read", "8000").status_code == 404

    def is_idle(self) -> bool:
        """Whether nothing waits for an answer, or for its turn."""
        return not self.metric("meshfleet_requests_pending") and not self.metric("meshfleet_requests_queued")

    # What gateways do

    @contextmanager
    def gateway(
        self, responder: Responder = never_respond, mac: str | None = None, *, version: str = "2.4.0"
    ) -> Iterator[ScriptedGateway]:
        """A gateway that is claimed and connected, and knows its version."""
        mac = mac or self.new_mac()
        made = self.connect(mac, responder, version)
        try:
            yield made
        finally:
            made.stop()

    def connect(self, mac: str, responder: Responder, version: str = "2.4.0") -> ScriptedGateway:
        """Claim a gateway, and let it connect; who does that stops it."""
        password = self.claim(mac)
        made = ScriptedGateway(
            self.port,
            mac,
            responder,
            password=password,
            auto_responder=_answer_service_requests(mac, version),
        )
        made.start()
        return made

    def claim(self, mac: str) -> str:
        """Claim a gateway, if that was not done before; gives its password."""
        if mac not in self.passwords:
            self.passwords[mac] = self.database.write_now(
                gateways.claim_gateway, Mac(mac), name=None, by=COMMAND_LINE, now=self.clock()
            )
        return self.passwords[mac]

    def wait_for_version(self, gateway: ScriptedGateway, version: str = "2.4.0") -> None:
        """Wait until the service knows what a gateway speaks."""
        self.wait_until(
            lambda: self.viewer.get(f"/api/v1/gateways/{gateway.mac}").json()["apiVersion"] == version
        )

    def device_behind(self, gateway: ScriptedGateway, device: Mac | None = None) -> Mac:
        """A device that a gateway has just heard."""
        device = device or self.new_mac()
        gateway.report(
            f"mt/gateway/{gateway.mac}/device/{device}/heartbeat",
            time=format_millis(self.clock()),
            seq=1,
            status=0,
            lastCount=1,
        )
        self.wait_until(lambda: self._gateway_of(device) == gateway.mac)
        return device

    def wait_until(self, holds: Callable[[], object]) -> None:
        """Wait until something holds that the service does by itself."""
        eventually(lambda: bool(holds()), "what the service does by itself")

    def _gateway_of(self, device: Mac) -> str | None:
        answer = self.viewer.get("/api/v1/devices", params={"Ids": to_device_id(device), "Include": "live"})
        items = answer.json()["items"]
        return items[0]["live"]["gateway"] if items else None


def _id(device: str) -> str:
    return device if device.startswith("bmac-") else f"bmac-{device}"


def _answer_service_requests(
    mac: str, version: str
) -> Callable[[IncomingRequest], list[OutgoingMessage] | None]:
    """Answers what the service asks by itself: which version, and of devices what they are."""

    def answer(asked: IncomingRequest) -> list[OutgoingMessage] | None:
        if asked.topic_suffix == f"{mac}/apiversion" and asked.body.get("priority") == _HIGHEST:
            return [
                asked.build_response(version=version, time=format_millis(clock.now()))
            ]  # its clock is right
        if asked.body.get("priority") == _LOWEST and "/read/" in asked.topic_suffix:
            return [asked.build_response(status=5)]
        return None

    return answer


@contextmanager
def run_service(database: Database, settings: Settings | None = None) -> Iterator[ServiceWithBroker]:
    """Run a service on a database. Its end is an orderly one."""
    with (
        TemporaryDirectory(prefix="meshfleet-office-") as folder,
        open_listener(_ANY, "http") as listener,
        open_mqtt_listeners(replace(settings or Settings(mqtt=_ANY), data=Path(folder))) as entrances,
    ):
        http = _ANY._replace(port=listener.getsockname()[1])
        chosen = replace(settings or Settings(mqtt=_ANY), data=Path(folder), http=http)
        chosen = apply_bound_ports(chosen, entrances)
        with closing(open_service_samples(database, chosen)) as samples:
            api = RestApi(database, chosen, samples, hasher=QUICK_HASHER)
            taking = partial(run_report_pipeline, database, samples, chosen, api, entrances, pauses=_PAUSES)
            running = ServiceWithBroker(
                f"http://127.0.0.1:{listener.getsockname()[1]}",
                database,
                samples,
                entrances[0].bound_socket.getsockname()[1] if entrances else 0,
            )
            try:
                with _run_in_thread(partial(serve_api, api, chosen, listener), taking):
                    running.wait_until(running.accepts_requests)
                    yield running
            finally:
                running.close()


@contextmanager
def _run_in_thread(
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
