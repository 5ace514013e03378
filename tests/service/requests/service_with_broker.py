"""Whole service with an embedded broker in a thread of its own, and scripted gateways."""

from __future__ import annotations

import asyncio
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from msgspec.structs import replace

from meshfleet.protocol.ids import Mac, to_device_id
from meshfleet.protocol.times import format_millis
from meshfleet.service import clock
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.api import RestApi
from meshfleet.service.app import serve_api
from meshfleet.service.embedded_broker.listeners import apply_bound_ports, open_mqtt_listeners
from meshfleet.service.gateways import store as gateways
from meshfleet.service.ingest.pipeline import IngestTimings
from meshfleet.service.reload import SettingsReloader
from meshfleet.service.runtime import open_service_samples, run_background_tasks
from meshfleet.service.sockets import open_listener
from meshfleet.service.systemd import SystemdNotifier
from meshfleet.settings import ListenAddress, Settings
from tests.eventually import eventually
from tests.mqtt.broker.running_broker import Clock
from tests.service.http.running_service import QUICK_HASHER, RunningService, run_in_thread
from tests.service.requests.scripted_gateway import ScriptedGateway, never_respond

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx

    from meshfleet.db import Database
    from meshfleet.db.samples import SampleStore
    from meshfleet.rest.accounts import Role
    from tests.service.requests.scripted_gateway import IncomingRequest, OutgoingMessage, Responder

PATIENCE = 30.0
"""Seconds until something must have happened; reached only on failure."""
SHORT_TIMEOUT_MS = 2_000
"""Milliseconds to wait for a response that never arrives: enough for a busy machine to send the request."""

_FREE_PORT = ListenAddress("127.0.0.1", 0)
_FAST_TIMINGS = IngestTimings(poll_seconds=0.1)
"""Timings with ten times as many polls as usual, so that tests wait less."""
_LOWEST, _HIGHEST = 0, 4
"""Priorities of the service's own requests to devices, and to gateways."""


class ServiceWithBroker(RunningService):
    """Running service with a broker, and helpers for REST and MQTT."""

    def __init__(self, url: str, database: Database, samples: SampleStore, port: int) -> None:
        super().__init__(url, database, samples, Clock())
        self.port = port
        """Port of the broker."""
        self.passwords: dict[str, str] = {}
        """Passwords of claimed gateways by MAC."""

    def _key(self, role: Role) -> str:
        """Create an API key with a unique name: a database may be used by several services in turn."""
        return self.new_key(role, f"{role} {uuid4()}")

    def new_mac(self) -> Mac:
        """Return a new unique address."""
        return Mac(f"c0ffee{uuid4().hex[:6]}")

    # REST

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
        """Send a request to a device or a gateway."""
        optional_fields = {} if identifier is None else {"identifier": identifier}
        return (by or self.operator).post(
            f"/api/v1/devices/{_id(device)}/requests",
            json={"operation": operation, **optional_fields, **body},
            headers=headers,
        )

    def history(self, device: str, **query: Any) -> list[dict[str, Any]]:
        """Return the requests to a device, newest first."""
        response = self.viewer.get(f"/api/v1/devices/{_id(device)}/requests", params=query)
        assert response.status_code == 200, response.text
        items: list[dict[str, Any]] = response.json()["items"]
        return items

    def load_request(self, request_id: str) -> dict[str, Any]:
        """Return a request."""
        response = self.viewer.get(f"/api/v1/requests/{request_id}")
        assert response.status_code == 200, response.text
        record: dict[str, Any] = response.json()
        return record

    def metric(self, prefix: str) -> float:
        """Return the value of the metric whose line starts with this text."""
        lines = self.viewer.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{prefix} "))

    def accepts_requests(self) -> bool:
        """Return whether the service executes requests by now."""
        return self.send(self.new_mac(), "read", "8000").status_code == 404

    def is_idle(self) -> bool:
        """Return whether no request is queued or waits for a response."""
        return not self.metric("meshfleet_requests_pending") and not self.metric("meshfleet_requests_queued")

    # Gateways

    @contextmanager
    def gateway(
        self, responder: Responder = never_respond, mac: str | None = None, *, version: str = "2.4.0"
    ) -> Iterator[ScriptedGateway]:
        """Claim and connect a gateway that reports its version, while the block runs."""
        mac = mac or self.new_mac()
        gateway = self.connect(mac, responder, version)
        try:
            yield gateway
        finally:
            gateway.stop()

    def connect(self, mac: str, responder: Responder, version: str = "2.4.0") -> ScriptedGateway:
        """Claim a gateway and connect it. The caller must stop it."""
        password = self.claim(mac)
        gateway = ScriptedGateway(
            self.port,
            mac,
            responder,
            password=password,
            auto_responder=answer_service_requests(mac, version),
        )
        gateway.start()
        return gateway

    def claim(self, mac: str) -> str:
        """Claim a gateway unless that was done before, and return its password."""
        if mac not in self.passwords:
            self.passwords[mac] = self.database.write_now(
                gateways.claim_gateway, Mac(mac), name=None, by=COMMAND_LINE, now=self.clock()
            )
        return self.passwords[mac]

    def wait_for_version(self, gateway: ScriptedGateway, version: str = "2.4.0") -> None:
        """Wait until the service knows the version of a gateway."""
        self.wait_until(
            lambda: self.viewer.get(f"/api/v1/gateways/{gateway.mac}").json()["apiVersion"] == version
        )

    def device_behind(self, gateway: ScriptedGateway, device: Mac | None = None) -> Mac:
        """Report a heartbeat of a device through a gateway, wait until it is stored, return the device."""
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

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition is true."""
        eventually(lambda: bool(condition()), "the condition of the test is true")

    def _gateway_of(self, device: Mac) -> str | None:
        response = self.viewer.get("/api/v1/devices", params={"Ids": to_device_id(device), "Include": "live"})
        items = response.json()["items"]
        return items[0]["live"]["gateway"] if items else None


def _id(device: str) -> str:
    return device if device.startswith("bmac-") else f"bmac-{device}"


def answer_service_requests(
    mac: str, version: str
) -> Callable[[IncomingRequest], list[OutgoingMessage] | None]:
    """Return a responder for the service's own requests: API version of gateways, metadata of devices."""

    def respond(request: IncomingRequest) -> list[OutgoingMessage] | None:
        if request.topic_suffix == f"{mac}/apiversion" and request.body.get("priority") == _HIGHEST:
            # The clock of the gateway is right.
            return [request.build_response(version=version, time=format_millis(clock.now()))]
        if request.body.get("priority") == _LOWEST and "/read/" in request.topic_suffix:
            return [request.build_response(status=5)]
        return None

    return respond


@contextmanager
def run_service(
    database: Database, settings: Settings | None = None, *, reloaded: Settings | None = None
) -> Iterator[ServiceWithBroker]:
    """Run a service on a database, and shut it down in order at the end.

    `reloaded` are the settings that it gets when it reloads them.
    """
    with (
        TemporaryDirectory(prefix="meshfleet-requests-") as directory,
        open_listener(_FREE_PORT, "http") as listener,
        open_mqtt_listeners(
            replace(settings or Settings(mqtt=_FREE_PORT), data=Path(directory))
        ) as mqtt_listeners,
    ):
        http = _FREE_PORT._replace(port=listener.getsockname()[1])
        effective_settings = replace(settings or Settings(mqtt=_FREE_PORT), data=Path(directory), http=http)
        effective_settings = apply_bound_ports(effective_settings, mqtt_listeners)
        with closing(open_service_samples(database, effective_settings)) as samples:
            initial = settings or Settings(mqtt=_FREE_PORT)
            reloader = SettingsReloader(initial, lambda: reloaded or initial, SystemdNotifier({}))
            api = RestApi(database, effective_settings, samples, reloader=reloader, hasher=QUICK_HASHER)

            async def serve(started: Callable[[], None]) -> None:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(
                        run_background_tasks(
                            database, samples, effective_settings, api, mqtt_listeners, timings=_FAST_TIMINGS
                        )
                    )
                    tasks.create_task(serve_api(api, effective_settings, listener, started=started))

            service = ServiceWithBroker(
                f"http://127.0.0.1:{listener.getsockname()[1]}",
                database,
                samples,
                mqtt_listeners[0].bound_socket.getsockname()[1] if mqtt_listeners else 0,
            )
            try:
                with run_in_thread(serve):
                    service.wait_until(service.accepts_requests)
                    yield service
            finally:
                service.close()
