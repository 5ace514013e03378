"""Two gateways hear a device: through which one a whole service asks it, and what it shows of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from meshfleet.db.samples import NO_SEQ, More, Sample, SampleKind
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import Sighting
from meshfleet.service.ingest.rollups import Shown
from meshfleet.wire.ids import Version
from meshfleet.wire.rest.requests import DEFAULT_TIMEOUT
from meshfleet.wire.times import write_millis
from tests.databases import fresh_database
from tests.service.jobs.shop import Shop
from tests.service.requests.office import IN_VAIN, Office
from tests.service.requests.office import office as running_office
from tests.service.requests.third_party import nothing
from tests.service.telemetry.stock import store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.wire.ids import Mac
    from tests.service.requests.third_party import Asked, Gateway, Said

MINUTE = 60_000


@pytest.fixture(scope="module")
def office(request: pytest.FixtureRequest) -> Iterator[Office]:
    """A service on SQLite, shared by the tests here."""
    database = fresh_database(request, "sqlite")
    with running_office(database) as running:
        yield running
    database.close()


@pytest.fixture(scope="module")
def gateways(office: Office) -> Iterator[tuple[Gateway, Gateway]]:
    with office.gateway(well) as a, office.gateway(well) as b:
        for each in (a, b):
            office.wait_for_version(each)
        yield a, b


def well(asked: Asked) -> list[Said]:
    """Answer as a device that is there."""
    return [asked.answer(value="2011")]


def no_route(asked: Asked) -> list[Said]:
    return [asked.answer(status=10, origin=32)]


def no_device(asked: Asked) -> list[Said]:
    """Answer for a device that does not."""
    return [asked.answer(status=9, origin=32)]


def rssi(office: Office, gateway: Gateway, device: Mac, rssi: int, parent: str | None = None) -> None:
    """Let a gateway report how it hears a device at this moment."""
    gateway.report(
        f"mt/gateway/{gateway.mac}/device/{device}/rssi",
        time=write_millis(office.clock()),
        parent=parent or gateway.mac,
        rssi=rssi,
        channel=37,
    )


def heard(office: Office, gateway: Gateway, device: Mac, rssi: int, *, ago: range) -> None:
    """Let a gateway have heard a device in these minutes."""
    for each in ago:
        at = office.clock() - each * MINUTE
        kept = Shown(count=1, min=rssi, max=rssi, last=rssi, last_at=at)
        more = More(ext=msgspec.json.encode(kept).decode())
        number = int(gateway.mac, 16)
        link = Sample(at - at % MINUTE, SampleKind.LINK, number, NO_SEQ, number, rssi, None, more)
        store(office, f"bmac-{device}", link)


def known(office: Office, a: Gateway, b: Gateway) -> Mac:
    """A device that belongs to B, and that A hears better at this moment."""
    device = office.device_behind(b)
    rssi(office, b, device, -92)
    rssi(office, a, device, -50)
    return device


def live(office: Office, device: Mac) -> dict[str, Any]:
    shown: dict[str, Any] = office.viewer.get(f"/api/v1/devices/bmac-{device}").json()["live"]
    return shown


@pytest.mark.rule("rest-102")
def test_a_device_is_asked_where_it_is_now_not_where_it_was_heard_best(
    office: Office, gateways: tuple[Gateway, Gateway]
) -> None:
    a, b = gateways
    device = office.device_behind(b)
    heard(office, a, device, -40, ago=range(13, 15))
    heard(office, b, device, -60, ago=range(1, 13))
    answer = office.send(device, "read", "8000").json()
    assert (answer["gateway"], answer["choice"]["reason"]) == (b.mac, "strongest")
    assert [(each["gateway"], each["rssi"]) for each in answer["choice"]["candidates"]] == [
        (b.mac, -60),
        (a.mac, -40),
    ]


@pytest.mark.rule("rest-102")
def test_a_newcomer_is_asked_at_once_through_the_gateway_that_hears_it_best(
    office: Office, gateways: tuple[Gateway, Gateway]
) -> None:
    a, b = gateways
    answer = office.send(known(office, a, b), "read", "8000").json()
    assert (answer["gateway"], answer["choice"]["reason"]) == (a.mac, "strongest")
    assert [(each["gateway"], each["rssi"]) for each in answer["choice"]["candidates"]] == [
        (a.mac, -50),
        (b.mac, -92),
    ]


@pytest.mark.rule("rest-102", "rest-193")
@pytest.mark.parametrize("manner", [no_route, no_device, nothing])
def test_after_a_try_that_failed_the_next_one_goes_through_the_next_best(
    office: Office, gateways: tuple[Gateway, Gateway], manner: Any
) -> None:
    a, b = gateways
    device = known(office, a, b)
    b.asked.clear()
    a.manner = manner
    try:
        patience = IN_VAIN if manner is nothing else DEFAULT_TIMEOUT
        first = office.send(device, "write", "8010", value="ff", timeoutMs=patience)
        assert (first.status_code, first.json().get("gateway")) in {(200, a.mac), (504, None)}
        assert not b.asked, "a write is not sent a second time"
        second = office.send(device, "write", "8010", value="ff").json()
    finally:
        a.manner = well
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
    office: Office, gateways: tuple[Gateway, Gateway]
) -> None:
    a, b = gateways
    device = known(office, a, b)
    a.asked.clear()
    a.manner = nothing
    try:
        assert office.send(device, "write", "8010", value="ff", timeoutMs=IN_VAIN).status_code == 504
    finally:
        a.manner = well
    office.until(lambda: a.asked)
    late = office.metric('meshfleet_responses_total{fate="late"}')
    a.say(a.asked[0].answer())
    office.until(lambda: office.metric('meshfleet_responses_total{fate="late"}') > late)
    assert office.send(device, "read", "8000").json()["gateway"] == a.mac


@pytest.mark.rule("rest-87", "rest-88")
def test_links_show_the_minute_under_way_with_the_minutes_before(
    office: Office, gateways: tuple[Gateway, Gateway]
) -> None:
    a, b = gateways
    device = office.device_behind(a)
    heard(office, a, device, -60, ago=range(2, 4))
    rssi(office, b, device, -80)
    rssi(office, a, device, -51)
    links = office.viewer.get(f"/api/v1/devices/bmac-{device}/links").json()["items"]
    told = {each["parent"]: (each["rssi"], each["count"], each["min"], each["gateway"]) for each in links}
    assert told == {a.mac: (-51, 3, -60, a.mac), b.mac: (-80, 1, -80, b.mac)}
    assert sum(bucket["count"] for each in links for bucket in each["series"]) == 4


@pytest.mark.rule("rest-38")
def test_gateway_parent_and_signal_of_a_device_are_those_of_one_reading(
    office: Office, gateways: tuple[Gateway, Gateway]
) -> None:
    a, b = gateways
    device = office.device_behind(b)
    assert live(office, device) | {"gateway": b.mac, "parent": None, "rssi": None} == live(office, device)
    rssi(office, a, device, -50)
    office.until(lambda: live(office, device)["rssi"] == -50)
    assert (live(office, device)["gateway"], live(office, device)["parent"]) == (a.mac, a.mac)
    before = live(office, device)
    b.report(
        f"mt/gateway/{b.mac}/device/{device}/heartbeat",
        time=write_millis(office.clock()),
        seq=2,
        status=0,
        lastCount=1,
    )
    office.until(lambda: live(office, device)["lastReportAt"] != before["lastReportAt"])
    after = live(office, device)
    assert [after[each] for each in ("gateway", "parent", "rssi")] == [a.mac, a.mac, -50]


@pytest.mark.rule("rest-102")
def test_jobs_make_the_same_choice_and_know_the_same_failures(
    office: Office, gateways: tuple[Gateway, Gateway]
) -> None:
    a, b = gateways
    shop = Shop(office)
    strong, failed = known(office, a, b), known(office, a, b)
    for device in (strong, failed):
        facts = Sighting(
            device=device,
            at=office.clock(),
            heard=False,
            model=shop.model,
            firmware=Version.parse("3.4.1"),
            connected=True,  # as presence will find out in a moment
        )
        office.database.write_now(registry.observe, [facts])
    a.manner = no_route
    office.send(failed, "read", "8000")
    for each in (a, b):
        each.manner = well
        each.asked.clear()
    body = {
        "name": "both",
        "firmwareId": shop.firmware(),
        "targets": {"deviceIds": [f"bmac-{each}" for each in (strong, failed)]},
        "method": "download",
    }
    job = office.operator.post("/api/v1/jobs", json=body).json()["id"]

    def started(gateway: Gateway) -> set[str]:
        ends = (each.end.split("/") for each in gateway.asked)
        return {device for device, *rest in ends if rest[-1] == "start-firmware-update"}

    office.until(lambda: len(started(a) | started(b)) == 2)
    office.operator.post(f"/api/v1/jobs/{job}/cancel")
    assert (started(a), started(b)) == ({strong}, {failed})
    executions = office.viewer.get(f"/api/v1/jobs/{job}/executions").json()["items"]
    assert {each["deviceId"]: each["gateway"] for each in executions} == {
        f"bmac-{strong}": a.mac,
        f"bmac-{failed}": b.mac,
    }
