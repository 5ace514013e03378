"""Requests over REST: what reaches a gateway, and how its response comes back."""

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
"""All that a read or a write takes besides what it is about."""

TIME = "2026-01-02T03:04:05.678Z"


def last_request(third: ScriptedGateway) -> IncomingRequest:
    return third.requests[-1]


# --- What is sent ---


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
def test_a_request_is_sent_as_it_was_given(  # noqa: PLR0913, PLR0917 # its cases
    office: ServiceWithBroker,
    third: ScriptedGateway,
    device: Mac,
    operation: str,
    identifier: str | None,
    given: dict[str, Any],
) -> None:
    third.responder = lambda asked: [asked.build_response(value="ff", version="2.4.0")]
    target = third.mac if operation == "apiversion" else device
    answer = office.send(target, operation, identifier, **given)
    assert answer.status_code == 200, answer.text
    asked = last_request(third)
    assert asked.topic_suffix == "/".join(filter(None, (target, operation, identifier)))
    assert (asked.qos, asked.retain) == (1, False)
    assert asked.body == {"id": asked.body["id"], **given}
    ids = [each.body["id"] for each in third.requests]
    assert len(set(ids)) == len(ids)


@pytest.mark.rule("rest-97")
def test_what_is_at_its_default_is_the_same_as_not_given(
    office: ServiceWithBroker, third: ScriptedGateway, device: Mac
) -> None:
    third.responder = lambda asked: [asked.build_response(value="ff")]
    assert office.send(device, "read", "8010", priority=2, timeoutMs=15_000).status_code == 200
    assert last_request(third).body.keys() == {"id"}


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
def test_null_is_written_in_all_its_spellings_and_nothing_else_is_null(  # noqa: PLR0913, PLR0917 # its cases
    office: ServiceWithBroker,
    third: ScriptedGateway,
    device: Mac,
    operation: str,
    identifier: str,
    given: dict[str, Any],
    sent: dict[str, Any],
) -> None:
    third.responder = lambda asked: [asked.build_response()]
    assert office.send(device, operation, identifier, **given).status_code == 200
    body = dict(last_request(third).body)
    del body["id"]
    assert body == sent


@pytest.mark.rule("rest-97", "rest-105")
@each_row(("operation", "identifier"), [("ack", "8100"), ("ack-decoded", "temperature")])
def test_an_ack_is_sent_and_not_waited_for(
    office: ServiceWithBroker, third: ScriptedGateway, device: Mac, operation: str, identifier: str
) -> None:
    answer = office.send(device, operation, identifier, time=TIME, type=1, priority=3)
    assert answer.status_code == 202, answer.text
    body = answer.json()
    assert (body, answer.headers["Location"]) == (
        {"id": body["id"], "state": "SENT"},
        f"/api/v1/requests/{body['id']}",
    )
    office.wait_until(lambda: last_request(third).body["id"] == body["id"])
    assert last_request(third).topic_suffix == f"{device}/{operation}/{identifier}"
    assert last_request(third).body == {"id": body["id"], "time": TIME, "type": 1, "priority": 3}
    shown = office.load_request(body["id"])
    assert (shown["state"], shown["response"], shown["problem"]) == ("DONE", None, None)
    assert shown["request"] == {
        "operation": operation,
        "identifier": identifier,
        "priority": 3,
        "time": TIME,
        "type": 1,
        "timeoutMs": 15_000,
    }


@pytest.mark.rule("rest-97")
def test_a_hex_identifier_and_ids_are_taken_in_either_case(
    office: ServiceWithBroker, third: ScriptedGateway, device: Mac
) -> None:
    third.responder = lambda asked: [asked.build_response(value="ff")]
    answer = office.send(device, "read", "EF10", gateway=third.mac.upper(), extenderId="c0ffee0000e1")
    assert answer.status_code == 200, answer.text
    assert last_request(third).topic_suffix == f"{device}/read/ef10"
    assert last_request(third).body["extenderId"] == "C0FFEE0000E1"
    assert office.history(device)[0]["request"]["identifier"] == "ef10"
    assert office.send(device, "read", "8010", gateway=f"bmac-{third.mac}").status_code == 200


# --- What comes back ---


@pytest.mark.rule("rest-99")
def test_the_answer_has_all_that_the_response_had_and_through_which_gateway(
    office: ServiceWithBroker, third: ScriptedGateway, device: Mac
) -> None:
    said = {
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
    third.responder = lambda asked: [asked.build_response(**said)]
    answer = office.send(device, "read-decoded", "of-theirs")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    body = answer.json()
    choice = body.pop("choice")
    assert body == {"id": last_request(third).body["id"], "gateway": third.mac, **said}
    assert choice["reason"] == "last-heard"
    assert office.history(device)[0]["response"] == answer.json()


@pytest.mark.rule("rest-99")
@each_row("status", [4, 5, 6, 7, 9, 10, 11, 77, -1])
@each_row("operation", ["read", "write"])
def test_a_response_is_http_200_whatever_its_status(
    office: ServiceWithBroker, third: ScriptedGateway, device: Mac, operation: str, status: int
) -> None:
    third.responder = lambda asked: [asked.build_response(status=status, errorMessage="no")]
    answer = office.send(device, operation, "8010")
    assert answer.status_code == 200, answer.text
    assert (answer.json()["status"], answer.json()["errorMessage"]) == (status, "no")
    (newest, *_) = office.history(device, MaxResults=1)
    assert (newest["state"], newest["response"]["status"]) == ("DONE", status)


@pytest.mark.rule("rest-97")
def test_the_version_of_a_gateway_is_told(office: ServiceWithBroker, third: ScriptedGateway) -> None:
    third.responder = lambda asked: [asked.build_response(version="2.4.0")]
    body = office.send(third.mac, "apiversion", priority=3).json()
    assert (body["status"], body["version"], body["gateway"]) == (0, "2.4.0", third.mac)
    assert body["choice"]["reason"] == "itself"


@pytest.mark.rule("request-28", "request-29")
def test_responses_to_others_and_rubbish_close_nothing(
    office: ServiceWithBroker, third: ScriptedGateway, device: Mac
) -> None:
    def others_first(asked: IncomingRequest) -> list[OutgoingMessage]:
        right = asked.build_response(value="2011")
        return [
            asked.build_response(id="somebody-else", value="ffff"),
            right._replace(topic=right.topic.replace("/8010", "/8011")),
            right._replace(payload=b"{"),
            right,
            asked.build_response(value="ffff"),
        ]

    third.responder = others_first
    foreign = office.metric('meshfleet_responses_total{fate="foreign"}')
    repeated = office.metric('meshfleet_responses_total{fate="repeated"}')
    assert office.send(device, "read", "8010").json()["value"] == "2011"
    office.wait_until(lambda: office.metric('meshfleet_responses_total{fate="repeated"}') == repeated + 1)
    assert office.metric('meshfleet_responses_total{fate="foreign"}') == foreign + 3


def test_requests_are_counted_by_what_became_of_them(
    office: ServiceWithBroker, third: ScriptedGateway, device: Mac
) -> None:
    third.responder = lambda asked: [asked.build_response(value="ff")]
    line = 'meshfleet_requests_total{{operation="read",outcome="{}"}}'.format
    done, late = office.metric(line("done")), office.metric(line("gateway-timeout"))
    office.send(device, "read", "8010")
    third.responder = lambda _: []
    office.send(device, "read", "8010", timeoutMs=SHORT_TIMEOUT_MS)
    assert office.metric(line("done")) == done + 1
    assert office.metric(line("gateway-timeout")) == late + 1
    text = office.viewer.get("/metrics").text
    for name in ("meshfleet_requests_pending", "meshfleet_requests_queued"):
        assert f"\n{name} 0.0\n" in text
