"""The history of requests over REST."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from meshfleet.rest.accounts import Role
from tests.row_tables import each_row
from tests.servers import NO_TRUSTED_AUTHORITIES
from tests.service.requests.scripted_gateway import never_respond
from tests.service.requests.service_with_broker import SHORT_TIMEOUT_MS

if TYPE_CHECKING:
    from meshfleet.protocol.ids import Mac
    from tests.service.requests.scripted_gateway import IncomingRequest, OutgoingMessage, ScriptedGateway
    from tests.service.requests.service_with_broker import ServiceWithBroker

RESPOND_ASYNC = {"Prefer": "respond-async"}


@pytest.mark.rule("rest-103", "rest-104")
def test_an_asynchronous_request_is_pending_and_then_done(
    service: ServiceWithBroker, gateway: ScriptedGateway, device: Mac
) -> None:
    gateway.responder = never_respond
    gateway.requests.clear()
    accepted = service.send(device, "read", "8010", priority=3, headers=RESPOND_ASYNC)
    assert accepted.status_code == 202, accepted.text
    assert accepted.headers["Preference-Applied"] == "respond-async"
    (request_id,) = {accepted.json()["id"]}
    assert accepted.json() == {"id": request_id, "state": "PENDING"}
    assert accepted.headers["Location"] == f"/api/v1/requests/{request_id}"
    pending = service.viewer.get(accepted.headers["Location"]).json()
    assert (pending["state"], pending["response"], pending["finishedAt"]) == ("PENDING", None, None)
    assert pending == service.history(device)[0]
    service.wait_until(lambda: gateway.requests)
    gateway.publish(gateway.requests[0].build_response(value="2011", responseTime=3, origin=1, route="r"))
    service.wait_until(lambda: service.load_request(request_id)["state"] == "DONE")
    done = service.load_request(request_id)
    assert done["finishedAt"] >= done["requestedAt"] == pending["requestedAt"]
    assert done["request"] == {
        "operation": "read",
        "identifier": "8010",
        "priority": 3,
        "timeoutMs": 15_000,
    }
    response = done["response"]
    assert (response["id"], response["status"], response["value"]) == (request_id, 0, "2011")
    assert (response["responseTime"], response["origin"], response["route"]) == (3, 1, "r")
    assert (response["gateway"], done["gateway"], done["problem"]) == (gateway.mac, gateway.mac, None)


@pytest.mark.rule("rest-104")
def test_an_asynchronous_request_that_times_out_is_recorded(
    service: ServiceWithBroker, gateway: ScriptedGateway, device: Mac
) -> None:
    gateway.responder = never_respond
    request_id = service.send(
        device, "write", "8010", timeoutMs=SHORT_TIMEOUT_MS, headers=RESPOND_ASYNC
    ).json()["id"]
    service.wait_until(lambda: service.load_request(request_id)["state"] != "PENDING")
    record = service.load_request(request_id)
    assert (record["state"], record["response"]) == ("TIMED_OUT", None)
    assert record["problem"]["code"] == "gateway-timeout"
    assert gateway.mac in record["problem"]["detail"]


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
def test_the_prefer_header_is_parsed_in_all_its_forms(
    service: ServiceWithBroker, gateway: ScriptedGateway, device: Mac, prefer: str, status: int
) -> None:
    gateway.responder = lambda request: [request.build_response(value="ff")]
    response = service.send(device, "read", "8010", headers={"Prefer": prefer})
    assert response.status_code == status
    assert ("Preference-Applied" in response.headers) == (status == 202)


@pytest.mark.rule("rest-104")
@each_row("request_id", ["x", "%00", "a%2Fb", "%FF", "0" * 5000, "'; DROP TABLE request"])
def test_an_unknown_request_is_not_found(service: ServiceWithBroker, request_id: str) -> None:
    response = service.viewer.get(f"/api/v1/requests/{request_id}")
    assert (response.status_code, response.json()["code"]) == (404, "not-found")


@pytest.mark.both_databases
@pytest.mark.rule("rest-194")
def test_requests_are_listed_newest_first_with_their_actors(
    service: ServiceWithBroker, gateway: ScriptedGateway
) -> None:
    gateway.responder = lambda request: [
        request.build_response(status=3, value="ff", responseTime=7, origin=1, route="r")
    ]
    device, other = service.device_behind(gateway), service.device_behind(gateway)
    user = service.new_user(Role.OPERATOR)
    client = service.client(service.log_in(user))
    service.send(device, "write", "8010", value="0a", by=client)
    service.send(other, "read", "8010")
    service.send(device, "read-decoded", "temperature", by=service.admin)
    client.close()
    newest, oldest = service.history(device)
    assert (newest["request"]["operation"], newest["request"]["identifier"]) == (
        "read-decoded",
        "temperature",
    )
    assert newest["by"].startswith("api-key: admin")
    assert (oldest["by"], oldest["device"]) == (user, f"bmac-{device}")
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
def test_a_history_is_paginated(service: ServiceWithBroker, gateway: ScriptedGateway) -> None:
    gateway.responder = lambda request: [request.build_response(value="ff")]
    device, other = service.device_behind(gateway), service.device_behind(gateway)
    for number in range(7):
        service.send(device, "read", f"{0x8100 + number:04x}")
    path = f"/api/v1/devices/bmac-{device}/requests"
    items: list[dict[str, Any]] = []
    query: dict[str, Any] = {"MaxResults": 3}
    for expected in (3, 3, 1):
        page = service.viewer.get(path, params=query).json()
        assert len(page["items"]) == expected
        items += page["items"]
        query["NextToken"] = page["nextToken"]
        service.send(device, "read", "8010")  # newer requests are not on later pages
    assert query["NextToken"] is None
    assert [each["request"]["identifier"] for each in items] == [
        f"{0x8106 - number:04x}" for number in range(7)
    ]
    token = service.viewer.get(path, params={"MaxResults": 1}).json()["nextToken"]
    for invalid_path, invalid_token in (
        (f"/api/v1/devices/bmac-{other}/requests", token),
        (path, token[:-2] + "xx"),
    ):
        response = service.viewer.get(invalid_path, params={"NextToken": invalid_token})
        assert (response.status_code, response.json()["code"]) == (400, "invalid-token")


def test_a_device_without_requests_has_an_empty_history_and_an_unknown_device_none(
    service: ServiceWithBroker,
) -> None:
    device = service.new_device()
    assert service.viewer.get(f"/api/v1/devices/{device}/requests").json() == {
        "items": [],
        "nextToken": None,
    }
    response = service.viewer.get("/api/v1/devices/bmac-0123456789ab/requests")
    assert (response.status_code, response.json()["code"]) == (404, "not-found")


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
def test_a_change_is_in_the_history_and_the_audit_log_before_the_gateway_gets_it(  # noqa: PLR0913, PLR0917 # fixtures and table columns
    service: ServiceWithBroker,
    gateway: ScriptedGateway,
    device: Mac,
    operation: str,
    identifier: str,
    body: dict[str, Any],
) -> None:
    observed: list[tuple[dict[str, Any], list[Any]]] = []

    def inspect_history(request: IncomingRequest) -> list[OutgoingMessage]:
        headers = service.admin.headers
        with httpx.Client(base_url=service.url, headers=headers, verify=NO_TRUSTED_AUTHORITIES) as client:
            record = client.get(f"/api/v1/requests/{request.body['id']}").json()
            rows = client.get("/api/v1/audit", params={"Target": f"bmac-{device}"}).json()["items"]
        observed.append(
            (record, [each for each in rows if each["detail"].get("request") == record.get("id")])
        )
        return [request.build_response()]

    gateway.responder = inspect_history
    response = service.send(device, operation, identifier, **body)
    assert response.is_success, response.text
    service.wait_until(lambda: observed)
    ((record, (row,)),) = observed
    assert record["request"]["operation"] == operation
    assert record["state"] in ({"PENDING", "DONE"} if operation == "ack" else {"PENDING"})
    assert (row["action"], row["actor"]) == (f"request.{operation}", record["by"])
    assert row["detail"] == {"request": response.json()["id"], "identifier": identifier}


@pytest.mark.rule("auth-26")
def test_a_read_changes_nothing_and_is_not_in_the_audit_log(
    service: ServiceWithBroker, gateway: ScriptedGateway
) -> None:
    gateway.responder = lambda request: [request.build_response(value="ff")]
    device = service.device_behind(gateway)
    service.send(device, "read", "8010")
    service.send(device, "read", "8010", headers={**RESPOND_ASYNC, "Idempotency-Key": "x"})
    service.wait_until(lambda: [each["state"] for each in service.history(device)] == ["DONE"] * 2)
    rows = service.admin.get("/api/v1/audit", params={"Target": f"bmac-{device}"}).json()["items"]
    assert [row["action"] for row in rows if row["action"].startswith("request")] == []
