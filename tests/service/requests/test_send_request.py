"""Requests over REST: what a gateway receives, and what the client gets back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.times import format_millis
from tests.row_tables import each_row
from tests.service.requests.service_with_broker import SHORT_TIMEOUT_MS

if TYPE_CHECKING:
    from meshfleet.protocol.ids import Mac
    from tests.service.requests.scripted_gateway import IncomingRequest, OutgoingMessage, ScriptedGateway
    from tests.service.requests.service_with_broker import ServiceWithBroker

FULL = {
    "priority": 4,
    "extenderId": "C0FFEE0000E1",
    "accessType": "unprovisioned",
    "publicKey": "aa" * 64,
    "key": "bb" * 16,
}
"""All optional parameters of a read or a write."""

TIME = "2026-01-02T03:04:05.678Z"


def last_request(gateway: ScriptedGateway) -> IncomingRequest:
    return gateway.requests[-1]


# --- Requests ---


@pytest.mark.rule("rest-97", "request-19", "request-26", "request-35")
@each_row(
    ("operation", "identifier", "given"),
    [
        ("apiversion", None, {"priority": 3}),
        ("read", "8010", {}),
        ("read", "8010", FULL),
        ("read", "9999", {}),
        ("write", "80ff", {"value": "01"}),
        ("read-decoded", "battery-level", FULL),
        ("write", "8010", {"value": "00ff", **FULL}),
        ("write-decoded", "friendly-name", {"value": "Door 3", **FULL}),
        ("write-decoded", "some-name-of-theirs", {"value": {"a": [1, None]}, "ext": {"unit": "K"}}),
        ("write-decoded", "tx-power", {"value": 4, "ext": {"unit": "dBm"}}),
    ],
)
def test_a_request_is_sent_as_it_was_given(  # noqa: PLR0913, PLR0917 # fixtures and table columns
    service: ServiceWithBroker,
    gateway: ScriptedGateway,
    device: Mac,
    operation: str,
    identifier: str | None,
    given: dict[str, Any],
) -> None:
    gateway.responder = lambda request: [request.build_response(value="ff", version="2.4.0")]
    target = gateway.mac if operation == "apiversion" else device
    response = service.send(target, operation, identifier, **given)
    assert response.status_code == 200, response.text
    request = last_request(gateway)
    assert request.topic_suffix == "/".join(filter(None, (target, operation, identifier)))
    assert (request.qos, request.retain) == (1, False)
    assert request.body == {"id": request.body["id"], **given}
    ids = [each.body["id"] for each in gateway.requests]
    assert len(set(ids)) == len(ids)


@pytest.mark.rule("rest-97")
def test_default_values_are_not_sent(
    service: ServiceWithBroker, gateway: ScriptedGateway, device: Mac
) -> None:
    gateway.responder = lambda request: [request.build_response(value="ff")]
    assert service.send(device, "read", "8010", priority=2, timeoutMs=15_000).status_code == 200
    assert last_request(gateway).body.keys() == {"id"}


@pytest.mark.rule("rest-97")
@each_row(
    ("operation", "identifier", "given", "sent"),
    [
        ("write", "8010", {}, {}),
        ("write", "8010", {"value": None}, {}),
        ("write", "8010", {"value": ""}, {}),
        ("write", "8010", {"value": "0A"}, {"value": "0a"}),
        ("write-decoded", "friendly-name", {}, {}),
        ("write-decoded", "friendly-name", {"value": None}, {}),
        ("write-decoded", "friendly-name", {"value": ""}, {"value": ""}),
        ("write-decoded", "of-theirs", {"value": False}, {"value": False}),
        ("write-decoded", "of-theirs", {"value": 0}, {"value": 0}),
    ],
)
def test_only_the_forms_of_null_are_written_as_null(  # noqa: PLR0913, PLR0917 # fixtures and table columns
    service: ServiceWithBroker,
    gateway: ScriptedGateway,
    device: Mac,
    operation: str,
    identifier: str,
    given: dict[str, Any],
    sent: dict[str, Any],
) -> None:
    gateway.responder = lambda request: [request.build_response()]
    assert service.send(device, operation, identifier, **given).status_code == 200
    body = dict(last_request(gateway).body)
    del body["id"]
    assert body == sent


@pytest.mark.rule("rest-97", "rest-105")
@each_row(("operation", "identifier"), [("ack", "8100"), ("ack-decoded", "temperature")])
def test_an_ack_is_sent_without_waiting_for_a_response(
    service: ServiceWithBroker, gateway: ScriptedGateway, device: Mac, operation: str, identifier: str
) -> None:
    response = service.send(device, operation, identifier, time=TIME, type=1, priority=3)
    assert response.status_code == 202, response.text
    body = response.json()
    assert (body, response.headers["Location"]) == (
        {"id": body["id"], "state": "SENT"},
        f"/api/v1/requests/{body['id']}",
    )
    service.wait_until(lambda: last_request(gateway).body["id"] == body["id"])
    assert last_request(gateway).topic_suffix == f"{device}/{operation}/{identifier}"
    assert last_request(gateway).body == {"id": body["id"], "time": TIME, "type": 1, "priority": 3}
    record = service.load_request(body["id"])
    assert (record["state"], record["response"], record["problem"]) == ("DONE", None, None)
    assert record["request"] == {
        "operation": operation,
        "identifier": identifier,
        "priority": 3,
        "time": TIME,
        "type": 1,
        "timeoutMs": 15_000,
    }


@pytest.mark.rule("rest-97")
def test_hex_identifiers_and_ids_are_case_insensitive(
    service: ServiceWithBroker, gateway: ScriptedGateway, device: Mac
) -> None:
    gateway.responder = lambda request: [request.build_response(value="ff")]
    response = service.send(device, "read", "EF10", gateway=gateway.mac.upper(), extenderId="c0ffee0000e1")
    assert response.status_code == 200, response.text
    assert last_request(gateway).topic_suffix == f"{device}/read/ef10"
    assert last_request(gateway).body["extenderId"] == "C0FFEE0000E1"
    assert service.history(device)[0]["request"]["identifier"] == "ef10"
    assert service.send(device, "read", "8010", gateway=f"bmac-{gateway.mac}").status_code == 200


# --- Responses ---


@pytest.mark.rule("rest-99")
def test_the_rest_response_has_all_fields_of_the_gateway_response(
    service: ServiceWithBroker, gateway: ScriptedGateway, device: Mac
) -> None:
    fields = {
        "time": format_millis(1_700_000_000_000),
        "status": 0,
        "responseTime": 12.5,
        "origin": 1,
        "route": "a,b",
        "extenderId": "C0FFEE0000E1",
        "extenderRoute": "c",
        "value": {"a": [1, 2.5, None, "ü\u0000"]},
        "ext": {"unit": "K"},
    }
    gateway.responder = lambda request: [request.build_response(**fields)]
    response = service.send(device, "read-decoded", "of-theirs")
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    body = response.json()
    choice = body.pop("choice")
    assert body == {"id": last_request(gateway).body["id"], "gateway": gateway.mac, **fields}
    assert choice["reason"] == "last-heard"
    assert service.history(device)[0]["response"] == response.json()


@pytest.mark.rule("rest-99")
@each_row("status", [4, 5, 6, 7, 9, 10, 11, 77, -1])
@each_row("operation", ["read", "write"])
def test_a_response_is_http_200_whatever_its_status(
    service: ServiceWithBroker, gateway: ScriptedGateway, device: Mac, operation: str, status: int
) -> None:
    gateway.responder = lambda request: [request.build_response(status=status, errorMessage="no")]
    response = service.send(device, operation, "8010")
    assert response.status_code == 200, response.text
    assert (response.json()["status"], response.json()["errorMessage"]) == (status, "no")
    (newest, *_) = service.history(device, MaxResults=1)
    assert (newest["state"], newest["response"]["status"]) == ("DONE", status)


@pytest.mark.rule("rest-97")
def test_the_version_of_a_gateway_is_returned(service: ServiceWithBroker, gateway: ScriptedGateway) -> None:
    gateway.responder = lambda request: [request.build_response(version="2.4.0")]
    body = service.send(gateway.mac, "apiversion", priority=3).json()
    assert (body["status"], body["version"], body["gateway"]) == (0, "2.4.0", gateway.mac)
    assert body["choice"]["reason"] == "itself"


@pytest.mark.rule("request-28", "request-29")
def test_foreign_and_malformed_responses_are_ignored(
    service: ServiceWithBroker, gateway: ScriptedGateway, device: Mac
) -> None:
    def respond_with_foreign_messages_first(request: IncomingRequest) -> list[OutgoingMessage]:
        correct = request.build_response(value="2011")
        return [
            request.build_response(id="other-request", value="ffff"),
            correct._replace(topic=correct.topic.replace("/8010", "/8011")),
            correct._replace(payload=b"{"),
            correct,
            request.build_response(value="ffff"),
        ]

    gateway.responder = respond_with_foreign_messages_first
    foreign = service.metric('meshfleet_responses_total{fate="foreign"}')
    repeated = service.metric('meshfleet_responses_total{fate="repeated"}')
    assert service.send(device, "read", "8010").json()["value"] == "2011"
    service.wait_until(lambda: service.metric('meshfleet_responses_total{fate="repeated"}') == repeated + 1)
    assert service.metric('meshfleet_responses_total{fate="foreign"}') == foreign + 3


def test_requests_are_counted_by_outcome(
    service: ServiceWithBroker, gateway: ScriptedGateway, device: Mac
) -> None:
    gateway.responder = lambda request: [request.build_response(value="ff")]
    metric_line = 'meshfleet_requests_total{{operation="read",outcome="{}"}}'.format
    done, late = service.metric(metric_line("done")), service.metric(metric_line("gateway-timeout"))
    service.send(device, "read", "8010")
    gateway.responder = lambda _: []
    service.send(device, "read", "8010", timeoutMs=SHORT_TIMEOUT_MS)
    assert service.metric(metric_line("done")) == done + 1
    assert service.metric(metric_line("gateway-timeout")) == late + 1
    text = service.viewer.get("/metrics").text
    for name in ("meshfleet_requests_pending", "meshfleet_requests_queued"):
        assert f"\n{name} 0.0\n" in text
