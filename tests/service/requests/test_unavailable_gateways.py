"""Gateways that do not answer, answer rubbish, or go away in the middle of a request."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.db.samples import NO_SEQ, SampleKind, StoredSample
from meshfleet.settings import ListenAddress, Settings
from tests.row_tables import each_row
from tests.service.requests.scripted_gateway import never_respond
from tests.service.requests.service_with_broker import SHORT_TIMEOUT_MS, ServiceWithBroker
from tests.service.requests.service_with_broker import run_service as running_office
from tests.service.telemetry.sample_data import store_samples

if TYPE_CHECKING:
    import httpx

    from meshfleet.db import Database
    from meshfleet.protocol.ids import Mac
    from tests.service.requests.scripted_gateway import ScriptedGateway


def status_and_code(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["code"]


def report_link(office: ServiceWithBroker, device: Mac, gateway: str, rssi: int, parent: int) -> None:
    """Let a device have been heard behind a gateway a minute ago."""
    at = (office.clock() // 60_000 - 1) * 60_000
    link = StoredSample(at, SampleKind.LINK, parent, NO_SEQ, int(gateway, 16), rssi, None, None)
    store_samples(office, f"bmac-{device}", link)


@pytest.mark.rule("rest-100", "rest-197")
@pytest.mark.parametrize("operation", ["read", "write"])
def test_a_gateway_that_does_not_answer_times_out(
    office: ServiceWithBroker, third: ScriptedGateway, device: Mac, operation: str
) -> None:
    third.responder = never_respond
    third.requests.clear()
    answer = office.send(device, operation, "8010", timeoutMs=SHORT_TIMEOUT_MS)
    assert status_and_code(answer) == (504, "gateway-timeout")
    assert third.mac in answer.json()["detail"]
    (newest,) = office.history(device, MaxResults=1)
    assert (newest["state"], newest["response"]) == ("TIMED_OUT", None)
    assert newest["problem"] == {"code": "gateway-timeout", "detail": answer.json()["detail"]}
    office.wait_until(lambda: len(third.requests) == 1)
    assert office.is_idle()


@pytest.mark.rule("request-28")
def test_what_comes_after_the_deadline_changes_nothing(
    office: ServiceWithBroker, third: ScriptedGateway, device: Mac
) -> None:
    third.responder = never_respond
    third.requests.clear()
    office.send(device, "write", "8010", timeoutMs=SHORT_TIMEOUT_MS)
    office.wait_until(lambda: third.requests)
    late = office.metric('meshfleet_responses_total{fate="late"}')
    third.publish(third.requests[0].build_response())
    office.wait_until(lambda: office.metric('meshfleet_responses_total{fate="late"}') == late + 1)
    assert office.history(device, MaxResults=1)[0]["state"] == "TIMED_OUT"


@pytest.mark.rule("rest-197")
@each_row(
    "fields",
    [{}, {"value": "abc"}, {"value": 5}, {"value": "ff", "status": "ok"}, {"value": "ff", "time": "soon"}],
)
def test_a_response_that_nobody_can_read_is_told(
    office: ServiceWithBroker, third: ScriptedGateway, device: Mac, fields: dict[str, Any]
) -> None:
    third.responder = lambda asked: [asked.build_response(**fields)]
    answer = office.send(device, "read", "8010")
    assert status_and_code(answer) == (502, "malformed-response")
    (newest,) = office.history(device, MaxResults=1)
    assert newest["id"] == third.requests[-1].body["id"]
    assert (newest["state"], newest["problem"]["code"]) == ("FAILED", "malformed-response")
    assert office.is_idle()


@pytest.mark.rule("request-37", "rest-197")
@pytest.mark.parametrize("later", [False, True])
def test_a_change_whose_gateway_goes_is_not_sent_again(office: ServiceWithBroker, *, later: bool) -> None:
    headers = {"Idempotency-Key": f"lost-{later}"}
    wish = {"Prefer": "respond-async"} if later else {}
    with office.gateway() as first, ThreadPoolExecutor(1) as person:
        device = office.device_behind(first)
        waiting = person.submit(office.send, device, "write", "8010", value="ff", headers=headers | wish)
        office.wait_until(lambda: first.requests)
        with office.gateway(
            lambda asked: [asked.build_response(value="ff")], first.mac
        ) as back:  # takes its place
            assert waiting.result().status_code == (202 if later else 504)
            answer = office.send(device, "write", "8010", value="ff", headers=headers)
            assert status_and_code(answer) == (504, "gateway-lost")
            assert office.send(device, "read", "8010").status_code == 200
            assert not [each for each in back.requests if each.topic_suffix.endswith("/write/8010")]
    (_, lost) = office.history(device)
    assert (lost["state"], lost["problem"]["code"]) == ("FAILED", "gateway-lost")
    office.wait_until(office.is_idle)


@pytest.mark.rule("request-37")
def test_a_read_whose_gateway_comes_back_is_sent_again_under_another_id(office: ServiceWithBroker) -> None:
    with office.gateway() as first, ThreadPoolExecutor(1) as person:
        device = office.device_behind(first)
        waiting = person.submit(office.send, device, "read", "8010")
        office.wait_until(lambda: first.requests)
        before = first.requests[0].body["id"]
        with office.gateway(
            lambda asked: [] if asked.body["id"] == before else [asked.build_response(value="2011")],
            first.mac,
        ) as back:
            answer = waiting.result()
            assert (answer.status_code, answer.json()["value"]) == (200, "2011")
            (again,) = [each.body["id"] for each in back.requests if each.body["id"] != before]
            assert again.startswith(before)
    assert answer.json()["id"] == before
    (only,) = office.history(device)
    assert (only["state"], only["id"], only["response"]) == ("DONE", before, answer.json())
    office.wait_until(office.is_idle)


@pytest.mark.rule("request-37", "rest-102")
def test_a_read_whose_gateway_goes_is_sent_through_another_that_hears_the_device(
    office: ServiceWithBroker,
) -> None:
    with (
        office.gateway(lambda asked: [asked.build_response(value="2011")]) as other,
        ThreadPoolExecutor(2) as people,
    ):
        with office.gateway() as first:
            device = office.device_behind(first)
            report_link(office, device, first.mac, -40, parent=1)
            report_link(office, device, other.mac, -80, parent=2)
            reading = people.submit(office.send, device, "read", "8010")
            writing = people.submit(office.send, device, "write", "8010", value="ff")
            office.wait_until(lambda: len(first.requests) == 2)
        answer = reading.result()
        assert (answer.status_code, answer.json()["gateway"]) == (200, other.mac)
        assert [(each["gateway"], each["connected"]) for each in answer.json()["choice"]["candidates"]] == [
            (other.mac, True),
            (first.mac, False),
        ]
        assert status_and_code(writing.result()) == (504, "gateway-lost")
        assert [each.topic_suffix for each in other.requests] == [f"{device}/read/8010"]
    record = next(each for each in office.history(device) if each["request"]["operation"] == "read")
    assert record["gateway"] == other.mac


@pytest.mark.rule("request-37")
def test_a_read_whose_gateway_stays_away_is_lost(office: ServiceWithBroker) -> None:
    with ThreadPoolExecutor(1) as person:
        with office.gateway() as first:
            device = office.device_behind(first)
            waiting = person.submit(office.send, device, "read", "8010", timeoutMs=60_000)
            office.wait_until(lambda: first.requests)
        assert status_and_code(waiting.result()) == (504, "gateway-lost")
    office.wait_until(office.is_idle)


@pytest.mark.rule("request-36", "rest-196", "rest-197")
def test_a_gateway_that_has_enough_to_do_gets_no_more_than_is_set(sqlite_database: Database) -> None:
    settings = Settings(mqtt=ListenAddress("127.0.0.1", 0), requests_at_once=2)
    with running_office(sqlite_database, settings) as office, office.gateway() as third:
        device = office.device_behind(third)
        office.wait_for_version(third)  # else its own question would be one of the two
        with ThreadPoolExecutor(4) as people:
            running = [
                people.submit(office.send, device, "write", f"810{number}", value="ff") for number in range(2)
            ]
            office.wait_until(lambda: len(third.requests) == 2)
            busy = office.send(device, "write", "8102", timeoutMs=200, headers={"Idempotency-Key": "k"})
            assert status_and_code(busy) == (504, "gateway-busy")
            (newest,) = office.history(device, MaxResults=1)
            assert (newest["state"], newest["problem"]["code"]) == ("TIMED_OUT", "gateway-busy")
            waiting = people.submit(
                office.send, device, "write", "8102", timeoutMs=200_00, headers={"Idempotency-Key": "k"}
            )
            office.wait_until(lambda: office.metric("meshfleet_requests_queued") == 1)
            assert len(third.requests) == 2
            third.responder = lambda asked: [asked.build_response()]
            third.publish(*(each.build_response() for each in third.requests))
            assert [each.result().status_code for each in (*running, waiting)] == [200] * 3
            assert [each.topic_suffix[-4:] for each in third.requests][2:] == ["8102"]
        assert office.is_idle()
    sqlite_database.close()
