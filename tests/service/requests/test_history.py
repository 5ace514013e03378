"""The history of requests: what was asked, by whom, and what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from meshfleet.rest import Role
from tests.row_tables import each_row
from tests.service.requests.scripted_gateway import never_respond
from tests.service.requests.service_with_broker import SHORT_TIMEOUT_MS

if TYPE_CHECKING:
    from meshfleet.protocol.ids import Mac
    from tests.service.requests.scripted_gateway import IncomingRequest, OutgoingMessage, ScriptedGateway
    from tests.service.requests.service_with_broker import ServiceWithBroker

LATER = {"Prefer": "respond-async"}


@pytest.mark.rule("rest-103", "rest-104")
def test_a_request_that_is_not_waited_for_is_pending_and_then_done(
    office: ServiceWithBroker, third: ScriptedGateway, device: Mac
) -> None:
    third.responder = never_respond
    third.requests.clear()
    answer = office.send(device, "read", "8010", priority=3, headers=LATER)
    assert answer.status_code == 202, answer.text
    assert answer.headers["Preference-Applied"] == "respond-async"
    (asked_id,) = {answer.json()["id"]}
    assert answer.json() == {"id": asked_id, "state": "PENDING"}
    assert answer.headers["Location"] == f"/api/v1/requests/{asked_id}"
    pending = office.viewer.get(answer.headers["Location"]).json()
    assert (pending["state"], pending["response"], pending["finishedAt"]) == ("PENDING", None, None)
    assert pending == office.history(device)[0]
    office.wait_until(lambda: third.requests)
    third.publish(third.requests[0].build_response(value="2011", responseTime=3, origin=1, route="r"))
    office.wait_until(lambda: office.load_request(asked_id)["state"] == "DONE")
    done = office.load_request(asked_id)
    assert done["finishedAt"] >= done["requestedAt"] == pending["requestedAt"]
    assert done["request"] == {
        "operation": "read",
        "identifier": "8010",
        "priority": 3,
        "timeoutMs": 15_000,
    }
    response = done["response"]
    assert (response["id"], response["status"], response["value"]) == (asked_id, 0, "2011")
    assert (response["responseTime"], response["origin"], response["route"]) == (3, 1, "r")
    assert (response["gateway"], done["gateway"], done["problem"]) == (third.mac, third.mac, None)


@pytest.mark.rule("rest-104")
def test_what_times_out_later_says_so(office: ServiceWithBroker, third: ScriptedGateway, device: Mac) -> None:
    third.responder = never_respond
    request_id = office.send(device, "write", "8010", timeoutMs=SHORT_TIMEOUT_MS, headers=LATER).json()["id"]
    office.wait_until(lambda: office.load_request(request_id)["state"] != "PENDING")
    shown = office.load_request(request_id)
    assert (shown["state"], shown["response"]) == ("TIMED_OUT", None)
    assert shown["problem"]["code"] == "gateway-timeout"
    assert third.mac in shown["problem"]["detail"]


@pytest.mark.rule("rest-103")
@each_row(
    ("prefer", "status"),
    [
        ("respond-async", 202),
        ("Respond-Async", 202),
        ("return=minimal, respond-async; wait=5", 202),
        ("wait=10", 200),
        ("respond-asynchronously", 200),
        ("", 200),
    ],
)
def test_a_preference_is_read_as_it_may_be_written(
    office: ServiceWithBroker, third: ScriptedGateway, device: Mac, prefer: str, status: int
) -> None:
    third.responder = lambda asked: [asked.build_response(value="ff")]
    answer = office.send(device, "read", "8010", headers={"Prefer": prefer})
    assert answer.status_code == status
    assert ("Preference-Applied" in answer.headers) == (status == 202)


@pytest.mark.rule("rest-104")
@each_row("request_id", ["x", "%00", "a%2Fb", "%FF", "0" * 5000, "'; DROP TABLE request"])
def test_a_request_that_nobody_knows_is_not_found(office: ServiceWithBroker, request_id: str) -> None:
    answer = office.viewer.get(f"/api/v1/requests/{request_id}")
    assert (answer.status_code, answer.json()["code"]) == (404, "not-found")


@pytest.mark.both_databases
@pytest.mark.rule("rest-194")
def test_requests_are_listed_newest_first_with_who_asked_what(
    office: ServiceWithBroker, third: ScriptedGateway
) -> None:
    third.responder = lambda asked: [
        asked.build_response(status=3, value="ff", responseTime=7, origin=1, route="r")
    ]
    device, other = office.device_behind(third), office.device_behind(third)
    name = office.new_user(Role.OPERATOR)
    person = office.client(office.log_in(name))
    office.send(device, "write", "8010", value="0a", by=person)
    office.send(other, "read", "8010")
    office.send(device, "read-decoded", "temperature", by=office.admin)
    person.close()
    newest, oldest = office.history(device)
    assert (newest["request"]["operation"], newest["request"]["identifier"]) == (
        "read-decoded",
        "temperature",
    )
    assert newest["by"].startswith("api-key: admin")
    assert (oldest["by"], oldest["device"]) == (name, f"bmac-{device}")
    assert oldest["request"] == {
        "operation": "write",
        "identifier": "8010",
        "value": "0a",
        "timeoutMs": 15_000,
    }
    response = oldest["response"]
    assert (response["status"], response["responseTime"], response["origin"], response["route"]) == (
        3,
        7,
        1,
        "r",
    )
    assert list(oldest) == [
        "id",
        "state",
        "device",
        "gateway",
        "by",
        "requestedAt",
        "finishedAt",
        "request",
        "response",
        "problem",
    ]


@pytest.mark.both_databases
@pytest.mark.rule("rest-194")
def test_a_history_comes_in_pages(office: ServiceWithBroker, third: ScriptedGateway) -> None:
    third.responder = lambda asked: [asked.build_response(value="ff")]
    device, other = office.device_behind(third), office.device_behind(third)
    for number in range(7):
        office.send(device, "read", f"{0x8100 + number:04x}")
    path = f"/api/v1/devices/bmac-{device}/requests"
    found: list[dict[str, Any]] = []
    query: dict[str, Any] = {"MaxResults": 3}
    for expected in (3, 3, 1):
        page = office.viewer.get(path, params=query).json()
        assert len(page["items"]) == expected
        found += page["items"]
        query["NextToken"] = page["nextToken"]
        office.send(device, "read", "8010")  # what comes meanwhile is not on later pages
    assert query["NextToken"] is None
    assert [each["request"]["identifier"] for each in found] == [
        f"{0x8106 - number:04x}" for number in range(7)
    ]
    token = office.viewer.get(path, params={"MaxResults": 1}).json()["nextToken"]
    for wrong_path, wrong in ((f"/api/v1/devices/bmac-{other}/requests", token), (path, token[:-2] + "xx")):
        answer = office.viewer.get(wrong_path, params={"NextToken": wrong})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid-token")


def test_a_device_without_a_history_has_an_empty_one_and_an_unknown_device_none(
    office: ServiceWithBroker,
) -> None:
    device = office.new_device()
    assert office.viewer.get(f"/api/v1/devices/{device}/requests").json() == {
        "items": [],
        "nextToken": None,
    }
    answer = office.viewer.get("/api/v1/devices/bmac-0123456789ab/requests")
    assert (answer.status_code, answer.json()["code"]) == (404, "not-found")


@pytest.mark.both_databases
@pytest.mark.rule("rest-195", "auth-26")
@each_row(
    ("operation", "identifier", "body"),
    [
        ("write", "8010", {"value": "0a"}),
        ("write-decoded", "of-theirs", {"value": 5}),
        ("ack", "8100", {"time": "2026-01-02T03:04:05.678Z", "type": 0}),
    ],
)
def test_a_change_is_in_the_history_and_the_audit_log_before_the_gateway_gets_it(  # noqa: PLR0913, PLR0917 # its cases
    office: ServiceWithBroker,
    third: ScriptedGateway,
    device: Mac,
    operation: str,
    identifier: str,
    body: dict[str, Any],
) -> None:
    seen: list[tuple[dict[str, Any], list[Any]]] = []

    def look(asked: IncomingRequest) -> list[OutgoingMessage]:
        headers = office.admin.headers
        with httpx.Client(base_url=office.url, headers=headers) as there:
            record = there.get(f"/api/v1/requests/{asked.body['id']}").json()
            rows = there.get("/api/v1/audit", params={"Target": f"bmac-{device}"}).json()["items"]
        seen.append((record, [each for each in rows if each["detail"].get("request") == record.get("id")]))
        return [asked.build_response()]

    third.responder = look
    answer = office.send(device, operation, identifier, **body)
    assert answer.is_success, answer.text
    office.wait_until(lambda: seen)
    ((record, (row,)),) = seen
    assert record["request"]["operation"] == operation
    assert record["state"] in ({"PENDING", "DONE"} if operation == "ack" else {"PENDING"})
    assert (row["action"], row["actor"]) == (f"request.{operation}", record["by"])
    assert row["detail"] == {"request": answer.json()["id"], "identifier": identifier}


@pytest.mark.rule("auth-26")
def test_a_read_changes_nothing_and_is_not_in_the_audit_log(
    office: ServiceWithBroker, third: ScriptedGateway
) -> None:
    third.responder = lambda asked: [asked.build_response(value="ff")]
    device = office.device_behind(third)
    office.send(device, "read", "8010")
    office.send(device, "read", "8010", headers={**LATER, "Idempotency-Key": "x"})
    office.wait_until(lambda: [each["state"] for each in office.history(device)] == ["DONE"] * 2)
    rows = office.admin.get("/api/v1/audit", params={"Target": f"bmac-{device}"}).json()["items"]
    assert [row["action"] for row in rows if row["action"].startswith("request")] == []
