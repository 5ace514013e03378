"""Gateways that do not answer, answer rubbish, or go away in the middle of a request."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.db.samples import NO_SEQ, Sample, SampleKind
from meshfleet.settings import Listen, Settings
from tests.service.requests.office import IN_VAIN, Office
from tests.service.requests.office import office as running_office
from tests.service.requests.third_party import nothing
from tests.service.telemetry.stock import store
from tests.tables import each_row

if TYPE_CHECKING:
    import httpx

    from meshfleet.db import Database
    from meshfleet.wire.ids import Mac
    from tests.service.requests.third_party import Gateway


def told(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["code"]


def hear_well(office: Office, device: Mac, gateway: str, rssi: int, parent: int) -> None:
    """Let a device have been heard behind a gateway a minute ago."""
    at = (office.clock() // 60_000 - 1) * 60_000
    link = Sample(at, SampleKind.LINK, parent, NO_SEQ, int(gateway, 16), rssi, None, None)
    store(office, f"bmac-{device}", link)


@pytest.mark.rule("rest-100", "rest-197")
@pytest.mark.parametrize("operation", ["read", "write"])
def test_a_gateway_that_does_not_answer_times_out(
    office: Office, third: Gateway, device: Mac, operation: str
) -> None:
    third.manner = nothing
    third.asked.clear()
    answer = office.send(device, operation, "8010", timeoutMs=IN_VAIN)
    assert told(answer) == (504, "gateway-timeout")
    assert third.mac in answer.json()["detail"]
    (newest,) = office.history(device, MaxResults=1)
    assert (newest["state"], newest["response"]) == ("TIMED_OUT", None)
    assert newest["problem"] == {"code": "gateway-timeout", "detail": answer.json()["detail"]}
    office.until(lambda: len(third.asked) == 1)
    assert office.is_idle()


@pytest.mark.rule("request-28")
def test_what_comes_after_the_deadline_changes_nothing(office: Office, third: Gateway, device: Mac) -> None:
    third.manner = nothing
    third.asked.clear()
    office.send(device, "write", "8010", timeoutMs=IN_VAIN)
    office.until(lambda: third.asked)
    late = office.metric('meshfleet_responses_total{fate="late"}')
    third.say(third.asked[0].answer())
    office.until(lambda: office.metric('meshfleet_responses_total{fate="late"}') == late + 1)
    assert office.history(device, MaxResults=1)[0]["state"] == "TIMED_OUT"


@pytest.mark.rule("rest-197")
@each_row(
    "fields",
    [{}, {"value": "abc"}, {"value": 5}, {"value": "ff", "status": "ok"}, {"value": "ff", "time": "soon"}],
)
def test_a_response_that_nobody_can_read_is_told(
    office: Office, third: Gateway, device: Mac, fields: dict[str, Any]
) -> None:
    third.manner = lambda asked: [asked.answer(**fields)]
    answer = office.send(device, "read", "8010")
    assert told(answer) == (502, "malformed-response")
    (newest,) = office.history(device, MaxResults=1)
    assert newest["id"] == third.asked[-1].body["id"]
    assert (newest["state"], newest["problem"]["code"]) == ("FAILED", "malformed-response")
    assert office.is_idle()


@pytest.mark.rule("request-37", "rest-197")
@pytest.mark.parametrize("later", [False, True])
def test_a_change_whose_gateway_goes_is_not_sent_again(office: Office, *, later: bool) -> None:
    headers = {"Idempotency-Key": f"lost-{later}"}
    wish = {"Prefer": "respond-async"} if later else {}
    with office.gateway() as first, ThreadPoolExecutor(1) as person:
        device = office.device_behind(first)
        waiting = person.submit(office.send, device, "write", "8010", value="ff", headers=headers | wish)
        office.until(lambda: first.asked)
        with office.gateway(lambda asked: [asked.answer(value="ff")], first.mac) as back:  # takes its place
            assert waiting.result().status_code == (202 if later else 504)
            answer = office.send(device, "write", "8010", value="ff", headers=headers)
            assert told(answer) == (504, "gateway-lost")
            assert office.send(device, "read", "8010").status_code == 200
            assert not [each for each in back.asked if each.end.endswith("/write/8010")]
    (_, lost) = office.history(device)
    assert (lost["state"], lost["problem"]["code"]) == ("FAILED", "gateway-lost")
    office.until(office.is_idle)


@pytest.mark.rule("request-37")
def test_a_read_whose_gateway_comes_back_is_sent_again_under_another_id(office: Office) -> None:
    with office.gateway() as first, ThreadPoolExecutor(1) as person:
        device = office.device_behind(first)
        waiting = person.submit(office.send, device, "read", "8010")
        office.until(lambda: first.asked)
        before = first.asked[0].body["id"]
        with office.gateway(
            lambda asked: [] if asked.body["id"] == before else [asked.answer(value="2011")], first.mac
        ) as back:
            answer = waiting.result()
            assert (answer.status_code, answer.json()["value"]) == (200, "2011")
            (again,) = [each.body["id"] for each in back.asked if each.body["id"] != before]
            assert again.startswith(before)
    assert answer.json()["id"] == before
    (only,) = office.history(device)
    assert (only["state"], only["id"], only["response"]) == ("DONE", before, answer.json())
    office.until(office.is_idle)


@pytest.mark.rule("request-37", "rest-102")
def test_a_read_whose_gateway_goes_is_sent_through_another_that_hears_the_device(office: Office) -> None:
    with (
        office.gateway(lambda asked: [asked.answer(value="2011")]) as other,
        ThreadPoolExecutor(2) as people,
    ):
        with office.gateway() as first:
            device = office.device_behind(first)
            hear_well(office, device, first.mac, -40, parent=1)
            hear_well(office, device, other.mac, -80, parent=2)
            reading = people.submit(office.send, device, "read", "8010")
            writing = people.submit(office.send, device, "write", "8010", value="ff")
            office.until(lambda: len(first.asked) == 2)
        answer = reading.result()
        assert (answer.status_code, answer.json()["gateway"]) == (200, other.mac)
        assert [(each["gateway"], each["connected"]) for each in answer.json()["choice"]["candidates"]] == [
            (other.mac, True),
            (first.mac, False),
        ]
        assert told(writing.result()) == (504, "gateway-lost")
        assert [each.end for each in other.asked] == [f"{device}/read/8010"]
    record = next(each for each in office.history(device) if each["request"]["operation"] == "read")
    assert record["gateway"] == other.mac


@pytest.mark.rule("request-37")
def test_a_read_whose_gateway_stays_away_is_lost(office: Office) -> None:
    with ThreadPoolExecutor(1) as person:
        with office.gateway() as first:
            device = office.device_behind(first)
            waiting = person.submit(office.send, device, "read", "8010", timeoutMs=60_000)
            office.until(lambda: first.asked)
        assert told(waiting.result()) == (504, "gateway-lost")
    office.until(office.is_idle)


@pytest.mark.rule("request-36", "rest-196", "rest-197")
def test_a_gateway_that_has_enough_to_do_gets_no_more_than_is_set(sqlite_database: Database) -> None:
    settings = Settings(mqtt=Listen("127.0.0.1", 0), requests_at_once=2)
    with running_office(sqlite_database, settings) as office, office.gateway() as third:
        device = office.device_behind(third)
        office.wait_for_version(third)  # else its own question would be one of the two
        with ThreadPoolExecutor(4) as people:
            running = [
                people.submit(office.send, device, "write", f"810{number}", value="ff") for number in range(2)
            ]
            office.until(lambda: len(third.asked) == 2)
            busy = office.send(device, "write", "8102", timeoutMs=200, headers={"Idempotency-Key": "k"})
            assert told(busy) == (504, "gateway-busy")
            (newest,) = office.history(device, MaxResults=1)
            assert (newest["state"], newest["problem"]["code"]) == ("TIMED_OUT", "gateway-busy")
            waiting = people.submit(
                office.send, device, "write", "8102", timeoutMs=200_00, headers={"Idempotency-Key": "k"}
            )
            office.until(lambda: office.metric("meshfleet_requests_queued") == 1)
            assert len(third.asked) == 2
            third.manner = lambda asked: [asked.answer()]
            third.say(*(each.answer() for each in third.asked))
            assert [each.result().status_code for each in (*running, waiting)] == [200] * 3
            assert [each.end[-4:] for each in third.asked][2:] == ["8102"]
        assert office.is_idle()
    sqlite_database.close()
