"""A device in range of two gateways: which one a whole service selects, and what it shows of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from meshfleet.db.samples import NO_SEQ, SampleExtras, SampleKind, StoredSample
from meshfleet.protocol.ids import Version
from meshfleet.protocol.times import format_millis
from meshfleet.rest.requests import DEFAULT_TIMEOUT_MS
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import DeviceObservation
from meshfleet.service.ingest.minute_rollup import MinuteSummary
from tests.databases import fresh_database
from tests.service.jobs.job_environment import JobEnvironment
from tests.service.requests.scripted_gateway import never_respond
from tests.service.requests.service_with_broker import SHORT_TIMEOUT_MS, ServiceWithBroker, run_service
from tests.service.telemetry.sample_data import store_samples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.protocol.ids import Mac
    from tests.service.requests.scripted_gateway import IncomingRequest, OutgoingMessage, ScriptedGateway

MINUTE = 60_000


@pytest.fixture(scope="module")
def service(request: pytest.FixtureRequest) -> Iterator[ServiceWithBroker]:
    """Run a service on SQLite, shared by the tests of this module."""
    with run_service(fresh_database(request, "sqlite")) as service:
        yield service


@pytest.fixture(scope="module")
def gateways(service: ServiceWithBroker) -> Iterator[tuple[ScriptedGateway, ScriptedGateway]]:
    with service.gateway(respond_ok) as a, service.gateway(respond_ok) as b:
        for each in (a, b):
            service.wait_for_version(each)
        yield a, b


def respond_ok(request: IncomingRequest) -> list[OutgoingMessage]:
    """Respond as a reachable device."""
    return [request.build_response(value="2011")]


def respond_no_route(request: IncomingRequest) -> list[OutgoingMessage]:
    return [request.build_response(status=10, origin=32)]


def respond_no_device(request: IncomingRequest) -> list[OutgoingMessage]:
    """Respond as a gateway whose device does not respond."""
    return [request.build_response(status=9, origin=32)]


def report_rssi(
    service: ServiceWithBroker, gateway: ScriptedGateway, device: Mac, rssi: int, parent: str | None = None
) -> None:
    """Report the current RSSI of a device at a gateway."""
    gateway.report(
        f"mt/gateway/{gateway.mac}/device/{device}/rssi",
        time=format_millis(service.clock()),
        parent=parent or gateway.mac,
        rssi=rssi,
        channel=37,
    )


def report_minutes(
    service: ServiceWithBroker, gateway: ScriptedGateway, device: Mac, rssi: int, *, ago: range
) -> None:
    """Store minutes in which a gateway saw a device."""
    for each in ago:
        at = service.clock() - each * MINUTE
        summary = MinuteSummary(count=1, min=rssi, max=rssi, last=rssi, last_at=at)
        extras = SampleExtras(ext=msgspec.json.encode(summary).decode())
        number = int(gateway.mac, 16)
        link = StoredSample(at - at % MINUTE, SampleKind.LINK, number, NO_SEQ, number, rssi, None, extras)
        store_samples(service, f"bmac-{device}", link)


def device_behind_both(service: ServiceWithBroker, a: ScriptedGateway, b: ScriptedGateway) -> Mac:
    """Return a device that belongs to B, and whose signal is better at A at this moment."""
    device = service.device_behind(b)
    report_rssi(service, b, device, -92)
    report_rssi(service, a, device, -50)
    return device


def load_live(service: ServiceWithBroker, device: Mac) -> dict[str, Any]:
    live_state: dict[str, Any] = service.viewer.get(f"/api/v1/devices/bmac-{device}").json()["live"]
    return live_state


@pytest.mark.rule("rest-102")
def test_recent_observations_outweigh_older_stronger_ones(
    service: ServiceWithBroker, gateways: tuple[ScriptedGateway, ScriptedGateway]
) -> None:
    a, b = gateways
    device = service.device_behind(b)
    report_minutes(service, a, device, -40, ago=range(13, 15))
    report_minutes(service, b, device, -60, ago=range(1, 13))
    response = service.send(device, "read", "8000").json()
    assert (response["gateway"], response["choice"]["reason"]) == (b.mac, "strongest")
    assert [(each["gateway"], each["rssi"]) for each in response["choice"]["candidates"]] == [
        (b.mac, -60),
        (a.mac, -40),
    ]


@pytest.mark.rule("rest-102")
def test_a_new_device_is_reached_at_once_through_the_best_gateway(
    service: ServiceWithBroker, gateways: tuple[ScriptedGateway, ScriptedGateway]
) -> None:
    a, b = gateways
    response = service.send(device_behind_both(service, a, b), "read", "8000").json()
    assert (response["gateway"], response["choice"]["reason"]) == (a.mac, "strongest")
    assert [(each["gateway"], each["rssi"]) for each in response["choice"]["candidates"]] == [
        (a.mac, -50),
        (b.mac, -92),
    ]


@pytest.mark.rule("rest-102", "rest-193")
@pytest.mark.parametrize("responder", [respond_no_route, respond_no_device, never_respond])
def test_after_a_failed_attempt_the_next_request_uses_the_next_best_gateway(
    service: ServiceWithBroker, gateways: tuple[ScriptedGateway, ScriptedGateway], responder: Any
) -> None:
    a, b = gateways
    device = device_behind_both(service, a, b)
    b.requests.clear()
    a.responder = responder
    try:
        timeout_ms = SHORT_TIMEOUT_MS if responder is never_respond else DEFAULT_TIMEOUT_MS
        first = service.send(device, "write", "8010", value="ff", timeoutMs=timeout_ms)
        assert (first.status_code, first.json().get("gateway")) in {(200, a.mac), (504, None)}
        assert not b.requests, "a write is not sent a second time"
        second = service.send(device, "write", "8010", value="ff").json()
    finally:
        a.responder = respond_ok
    assert (second["status"], second["gateway"], second["choice"]["reason"]) == (0, b.mac, "next-best")
    candidates = second["choice"]["candidates"]
    assert [(each["gateway"], each["failedAt"] is None) for each in candidates] == [
        (b.mac, True),
        (a.mac, False),
    ]
    assert service.send(device, "write", "8010", value="ff", gateway=a.mac).json()["status"] == 0
    third_response = service.send(device, "read", "8000").json()
    assert (third_response["gateway"], third_response["choice"]["reason"]) == (a.mac, "strongest"), (
        "it has responded since"
    )


def test_a_late_response_clears_the_failed_attempt(
    service: ServiceWithBroker, gateways: tuple[ScriptedGateway, ScriptedGateway]
) -> None:
    a, b = gateways
    device = device_behind_both(service, a, b)
    a.requests.clear()
    a.responder = never_respond
    try:
        assert (
            service.send(device, "write", "8010", value="ff", timeoutMs=SHORT_TIMEOUT_MS).status_code == 504
        )
    finally:
        a.responder = respond_ok
    service.wait_until(lambda: a.requests)
    late_count = service.metric('meshfleet_responses_total{fate="late"}')
    a.publish(a.requests[0].build_response())
    service.wait_until(lambda: service.metric('meshfleet_responses_total{fate="late"}') > late_count)
    assert service.send(device, "read", "8000").json()["gateway"] == a.mac


@pytest.mark.rule("rest-87", "rest-88")
def test_links_include_the_open_minute(
    service: ServiceWithBroker, gateways: tuple[ScriptedGateway, ScriptedGateway]
) -> None:
    a, b = gateways
    device = service.device_behind(a)
    report_minutes(service, a, device, -60, ago=range(2, 4))
    report_rssi(service, b, device, -80)
    report_rssi(service, a, device, -51)
    links = service.viewer.get(f"/api/v1/devices/bmac-{device}/links").json()["items"]
    rows = {each["parent"]: (each["rssi"], each["count"], each["min"], each["gateway"]) for each in links}
    assert rows == {a.mac: (-51, 3, -60, a.mac), b.mac: (-80, 1, -80, b.mac)}
    assert sum(bucket["count"] for each in links for bucket in each["series"]) == 4


@pytest.mark.rule("rest-38")
def test_gateway_parent_and_rssi_of_a_device_come_from_one_reading(
    service: ServiceWithBroker, gateways: tuple[ScriptedGateway, ScriptedGateway]
) -> None:
    a, b = gateways
    device = service.device_behind(b)
    assert load_live(service, device) | {"gateway": b.mac, "parent": None, "rssi": None} == load_live(
        service, device
    )
    report_rssi(service, a, device, -50)
    service.wait_until(lambda: load_live(service, device)["rssi"] == -50)
    assert (load_live(service, device)["gateway"], load_live(service, device)["parent"]) == (a.mac, a.mac)
    before = load_live(service, device)
    b.report(
        f"mt/gateway/{b.mac}/device/{device}/heartbeat",
        time=format_millis(service.clock()),
        seq=2,
        status=0,
        lastCount=1,
    )
    service.wait_until(lambda: load_live(service, device)["lastReportAt"] != before["lastReportAt"])
    after = load_live(service, device)
    assert [after[each] for each in ("gateway", "parent", "rssi")] == [a.mac, a.mac, -50]


@pytest.mark.rule("rest-102")
def test_jobs_use_the_same_selection_and_failures(
    service: ServiceWithBroker, gateways: tuple[ScriptedGateway, ScriptedGateway]
) -> None:
    a, b = gateways
    environment = JobEnvironment(service)
    strong, failed = device_behind_both(service, a, b), device_behind_both(service, a, b)
    for device in (strong, failed):
        observation = DeviceObservation(
            device=device,
            at=service.clock(),
            heard=False,
            model=environment.model,
            firmware=Version.parse("3.4.1"),
            connected=True,  # presence detects it in a moment
        )
        service.database.write_now(registry.record_observations, [observation])
    a.responder = respond_no_route
    service.send(failed, "read", "8000")
    for each in (a, b):
        each.responder = respond_ok
        each.requests.clear()
    body = {
        "name": "both",
        "firmwareId": environment.firmware(),
        "targets": {"deviceIds": [f"bmac-{each}" for each in (strong, failed)]},
        "method": "download",
    }
    job = service.operator.post("/api/v1/jobs", json=body).json()["id"]

    def started_devices(gateway: ScriptedGateway) -> set[str]:
        topic_parts = (each.topic_suffix.split("/") for each in gateway.requests)
        return {device for device, *rest in topic_parts if rest[-1] == "start-firmware-update"}

    service.wait_until(lambda: len(started_devices(a) | started_devices(b)) == 2)
    service.operator.post(f"/api/v1/jobs/{job}/cancel")
    assert (started_devices(a), started_devices(b)) == ({strong}, {failed})
    executions = service.viewer.get(f"/api/v1/jobs/{job}/executions").json()["items"]
    assert {each["deviceId"]: each["gateway"] for each in executions} == {
        f"bmac-{strong}": a.mac,
        f"bmac-{failed}": b.mac,
    }
