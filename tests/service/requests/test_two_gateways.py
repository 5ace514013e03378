"""Two gateways hear a device: through which one a whole service asks it, and what it shows of both."""

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
from meshfleet.service.ingest.rollups import MinuteSummary
from tests.databases import fresh_database
from tests.service.jobs.job_environment import JobEnvironment
from tests.service.requests.scripted_gateway import never_respond
from tests.service.requests.service_with_broker import SHORT_TIMEOUT_MS, ServiceWithBroker
from tests.service.requests.service_with_broker import run_service as running_office
from tests.service.telemetry.sample_data import store_samples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.protocol.ids import Mac
    from tests.service.requests.scripted_gateway import IncomingRequest, OutgoingMessage, ScriptedGateway

MINUTE = 60_000


@pytest.fixture(scope="module")
def office(request: pytest.FixtureRequest) -> Iterator[ServiceWithBroker]:
    """A service on SQLite, shared by the tests here."""
    database = fresh_database(request, "sqlite")
    with running_office(database) as running:
        yield running
    database.close()


@pytest.fixture(scope="module")
def gateways(office: ServiceWithBroker) -> Iterator[tuple[ScriptedGateway, ScriptedGateway]]:
    with office.gateway(respond_ok) as a, office.gateway(respond_ok) as b:
        for each in (a, b):
            office.wait_for_version(each)
        yield a, b


def respond_ok(asked: IncomingRequest) -> list[OutgoingMessage]:
    """Answer as a device that is there."""
    return [asked.build_response(value="2011")]


def respond_no_route(asked: IncomingRequest) -> list[OutgoingMessage]:
    return [asked.build_response(status=10, origin=32)]


def respond_no_device(asked: IncomingRequest) -> list[OutgoingMessage]:
    """Answer for a device that does not."""
    return [asked.build_response(status=9, origin=32)]


def report_rssi(
    office: ServiceWithBroker, gateway: ScriptedGateway, device: Mac, rssi: int, parent: str | None = None
) -> None:
    """Let a gateway report how it hears a device at this moment."""
    gateway.report(
        f"mt/gateway/{gateway.mac}/device/{device}/rssi",
        time=format_millis(office.clock()),
        parent=parent or gateway.mac,
        rssi=rssi,
        channel=37,
    )


def report_minutes(
    office: ServiceWithBroker, gateway: ScriptedGateway, device: Mac, rssi: int, *, ago: range
) -> None:
    """Let a gateway have heard a device in these minutes."""
    for each in ago:
        at = office.clock() - each * MINUTE
        kept = MinuteSummary(count=1, min=rssi, max=rssi, last=rssi, last_at=at)
        more = SampleExtras(ext=msgspec.json.encode(kept).decode())
        number = int(gateway.mac, 16)
        link = StoredSample(at - at % MINUTE, SampleKind.LINK, number, NO_SEQ, number, rssi, None, more)
        store_samples(office, f"bmac-{device}", link)


def device_behind_both(office: ServiceWithBroker, a: ScriptedGateway, b: ScriptedGateway) -> Mac:
    """A device that belongs to B, and that A hears better at this moment."""
    device = office.device_behind(b)
    report_rssi(office, b, device, -92)
    report_rssi(office, a, device, -50)
    return device


def live(office: ServiceWithBroker, device: Mac) -> dict[str, Any]:
    shown: dict[str, Any] = office.viewer.get(f"/api/v1/devices/bmac-{device}").json()["live"]
    return shown


@pytest.mark.rule("rest-102")
def test_a_device_is_asked_where_it_is_now_not_where_it_was_heard_best(
    office: ServiceWithBroker, gateways: tuple[ScriptedGateway, ScriptedGateway]
) -> None:
    a, b = gateways
    device = office.device_behind(b)
    report_minutes(office, a, device, -40, ago=range(13, 15))
    report_minutes(office, b, device, -60, ago=range(1, 13))
    answer = office.send(device, "read", "8000").json()
    assert (answer["gateway"], answer["choice"]["reason"]) == (b.mac, "strongest")
    assert [(each["gateway"], each["rssi"]) for each in answer["choice"]["candidates"]] == [
        (b.mac, -60),
        (a.mac, -40),
    ]


@pytest.mark.rule("rest-102")
def test_a_newcomer_is_asked_at_once_through_the_gateway_that_hears_it_best(
    office: ServiceWithBroker, gateways: tuple[ScriptedGateway, ScriptedGateway]
) -> None:
    a, b = gateways
    answer = office.send(device_behind_both(office, a, b), "read", "8000").json()
    assert (answer["gateway"], answer["choice"]["reason"]) == (a.mac, "strongest")
    assert [(each["gateway"], each["rssi"]) for each in answer["choice"]["candidates"]] == [
        (a.mac, -50),
        (b.mac, -92),
    ]


@pytest.mark.rule("rest-102", "rest-193")
@pytest.mark.parametrize("manner", [respond_no_route, respond_no_device, never_respond])
def test_after_a_try_that_failed_the_next_one_goes_through_the_next_best(
    office: ServiceWithBroker, gateways: tuple[ScriptedGateway, ScriptedGateway], manner: Any
) -> None:
    a, b = gateways
    device = device_behind_both(office, a, b)
    b.requests.clear()
    a.responder = manner
    try:
        patience = SHORT_TIMEOUT_MS if manner is never_respond else DEFAULT_TIMEOUT_MS
        first = office.send(device, "write", "8010", value="ff", timeoutMs=patience)
        assert (first.status_code, first.json().get("gateway")) in {(200, a.mac), (504, None)}
        assert not b.requests, "a write is not sent a second time"
        second = office.send(device, "write", "8010", value="ff").json()
    finally:
        a.responder = respond_ok
    assert (second["status"], second["gateway"], second["choice"]["reason"]) == (0, b.mac, "next-best")
    candidates = second["choice"]["candidates"]
    assert [(each["gateway"], each["failedAt"] is None) for each in candidates] == [
        (b.mac, True),
        (a.mac, False),
    ]
    assert office.send(device, "write", "8010", value="ff", gateway=a.mac).json()["status"] == 0
    third = office.send(device, "read", "8000").json()
    assert (third["gateway"], third["choice"]["reason"]) == (a.mac, "strongest"), "it has answered since"


def test_a_late_answer_takes_back_that_the_try_failed(
    office: ServiceWithBroker, gateways: tuple[ScriptedGateway, ScriptedGateway]
) -> None:
    a, b = gateways
    device = device_behind_both(office, a, b)
    a.requests.clear()
    a.responder = never_respond
    try:
        assert office.send(device, "write", "8010", value="ff", timeoutMs=SHORT_TIMEOUT_MS).status_code == 504
    finally:
        a.responder = respond_ok
    office.wait_until(lambda: a.requests)
    late = office.metric('meshfleet_responses_total{fate="late"}')
    a.publish(a.requests[0].build_response())
    office.wait_until(lambda: office.metric('meshfleet_responses_total{fate="late"}') > late)
    assert office.send(device, "read", "8000").json()["gateway"] == a.mac


@pytest.mark.rule("rest-87", "rest-88")
def test_links_show_the_minute_under_way_with_the_minutes_before(
    office: ServiceWithBroker, gateways: tuple[ScriptedGateway, ScriptedGateway]
) -> None:
    a, b = gateways
    device = office.device_behind(a)
    report_minutes(office, a, device, -60, ago=range(2, 4))
    report_rssi(office, b, device, -80)
    report_rssi(office, a, device, -51)
    links = office.viewer.get(f"/api/v1/devices/bmac-{device}/links").json()["items"]
    told = {each["parent"]: (each["rssi"], each["count"], each["min"], each["gateway"]) for each in links}
    assert told == {a.mac: (-51, 3, -60, a.mac), b.mac: (-80, 1, -80, b.mac)}
    assert sum(bucket["count"] for each in links for bucket in each["series"]) == 4


@pytest.mark.rule("rest-38")
def test_gateway_parent_and_signal_of_a_device_are_those_of_one_reading(
    office: ServiceWithBroker, gateways: tuple[ScriptedGateway, ScriptedGateway]
) -> None:
    a, b = gateways
    device = office.device_behind(b)
    assert live(office, device) | {"gateway": b.mac, "parent": None, "rssi": None} == live(office, device)
    report_rssi(office, a, device, -50)
    office.wait_until(lambda: live(office, device)["rssi"] == -50)
    assert (live(office, device)["gateway"], live(office, device)["parent"]) == (a.mac, a.mac)
    before = live(office, device)
    b.report(
        f"mt/gateway/{b.mac}/device/{device}/heartbeat",
        time=format_millis(office.clock()),
        seq=2,
        status=0,
        lastCount=1,
    )
    office.wait_until(lambda: live(office, device)["lastReportAt"] != before["lastReportAt"])
    after = live(office, device)
    assert [after[each] for each in ("gateway", "parent", "rssi")] == [a.mac, a.mac, -50]


@pytest.mark.rule("rest-102")
def test_jobs_make_the_same_choice_and_know_the_same_failures(
    office: ServiceWithBroker, gateways: tuple[ScriptedGateway, ScriptedGateway]
) -> None:
    a, b = gateways
    shop = JobEnvironment(office)
    strong, failed = device_behind_both(office, a, b), device_behind_both(office, a, b)
    for device in (strong, failed):
        facts = DeviceObservation(
            device=device,
            at=office.clock(),
            heard=False,
            model=shop.model,
            firmware=Version.parse("3.4.1"),
            connected=True,  # as presence will find out in a moment
        )
        office.database.write_now(registry.record_observations, [facts])
    a.responder = respond_no_route
    office.send(failed, "read", "8000")
    for each in (a, b):
        each.responder = respond_ok
        each.requests.clear()
    body = {
        "name": "both",
        "firmwareId": shop.firmware(),
        "targets": {"deviceIds": [f"bmac-{each}" for each in (strong, failed)]},
        "method": "download",
    }
    job = office.operator.post("/api/v1/jobs", json=body).json()["id"]

    def started(gateway: ScriptedGateway) -> set[str]:
        ends = (each.topic_suffix.split("/") for each in gateway.requests)
        return {device for device, *rest in ends if rest[-1] == "start-firmware-update"}

    office.wait_until(lambda: len(started(a) | started(b)) == 2)
    office.operator.post(f"/api/v1/jobs/{job}/cancel")
    assert (started(a), started(b)) == ({strong}, {failed})
    executions = office.viewer.get(f"/api/v1/jobs/{job}/executions").json()["items"]
    assert {each["deviceId"]: each["gateway"] for each in executions} == {
        f"bmac-{strong}": a.mac,
        f"bmac-{failed}": b.mac,
    }
