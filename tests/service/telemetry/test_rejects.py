"""`GET /api/v1/rejects`: rejected messages of gateways."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.db.tables import reject
from tests.row_tables import each_row
from tests.service.telemetry.sample_data import AT, get_all_pages, get_json, list_faults

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from tests.service.http.running_service import RunningService

REJECTS = "/api/v1/rejects"


def store_rejects(
    service: RunningService,
    gateway: str | None,
    *payloads: bytes,
    topic: str = "mt/gateway/x",
    time: int = AT,
) -> None:
    """Store rejects in this order."""
    number = None if gateway is None else int(gateway, 16)

    def insert(connection: Connection) -> None:
        for payload in payloads:
            row = {
                "time": time,
                "gateway": number,
                "topic": topic,
                "reason": "payload: no",
                "payload": payload,
            }
            connection.execute(reject.insert().values(row))

    service.database.write_now(insert)


def list_payloads(items: list[dict[str, Any]]) -> list[str]:
    return [item["payload"] for item in items]


@pytest.mark.rule("rest-95")
def test_a_reject_has_time_gateway_topic_reason_and_payload(service: RunningService) -> None:
    gateway = service.new_mac()
    store_rejects(service, gateway, b'{"time": 5}', topic="mt/gateway/x/device/y/\u00e9")
    (item,) = get_json(service, REJECTS, Gateway=gateway)["items"]
    assert list(item) == ["time", "gateway", "topic", "reason", "payload"]
    assert item == {
        "time": "2023-11-14T22:13:20.000Z",
        "gateway": gateway,
        "topic": "mt/gateway/x/device/y/é",
        "reason": "payload: no",
        "payload": '{"time": 5}',
    }


@pytest.mark.rule("rest-95")
def test_a_topic_that_names_no_gateway_is_listed_without_one(service: RunningService) -> None:
    store_rejects(service, None, b"lost")
    (item,) = (item for item in get_all_pages(service, REJECTS) if item["payload"] == "lost")
    assert item["gateway"] is None


@pytest.mark.rule("rest-186")
@each_row(
    ("payload", "shown"),
    [
        (b"", ""),
        ("é\0\n".encode(), "é\0\n"),
        (b"\xff{\xc3", "\ufffd{\ufffd"),
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
        (b"x" * 1024, "x" * 1024),
    ],
)
def test_any_payload_is_shown_as_text(service: RunningService, payload: bytes, shown: str) -> None:
    gateway = service.new_mac()
    store_rejects(service, gateway, payload)
    assert list_payloads(get_json(service, REJECTS, Gateway=gateway)["items"]) == [shown]


@pytest.mark.rule("rest-95", "rest-76", "rest-186")
def test_the_newest_rejects_come_first_and_can_be_filtered_by_gateway(
    service: RunningService,
) -> None:
    gateway, other = service.new_mac(), service.new_mac()
    store_rejects(service, gateway, b"1", time=AT + 5)
    store_rejects(service, other, b"2")
    store_rejects(service, gateway, b"3", time=AT - 5)
    for text in (gateway, gateway.upper(), f"bmac-{gateway}"):
        assert list_payloads(get_json(service, REJECTS, Gateway=text)["items"]) == ["3", "1"]
    assert list_payloads(get_json(service, REJECTS, MaxResults=3)["items"]) == ["3", "2", "1"]
    assert get_json(service, REJECTS, Gateway=service.new_mac()) == {"items": [], "nextToken": None}


@pytest.mark.rule("rest-95", "rest-16", "rest-20")
def test_the_pages_together_are_the_list_even_if_more_rejects_arrive(service: RunningService) -> None:
    gateway = service.new_mac()
    store_rejects(service, gateway, *(str(number).encode() for number in range(7)))
    page = get_json(service, REJECTS, Gateway=gateway, MaxResults=3)
    seen = list_payloads(page["items"])
    for _ in range(2):
        store_rejects(service, gateway, b"new")
        page = get_json(service, REJECTS, Gateway=gateway, MaxResults=3, NextToken=page["nextToken"])
        seen += list_payloads(page["items"])
    assert page["nextToken"] is None
    assert seen == ["6", "5", "4", "3", "2", "1", "0"]


@pytest.mark.rule("rest-19", "rest-95")
def test_a_page_token_belongs_to_its_gateway(service: RunningService) -> None:
    gateway = service.new_mac()
    store_rejects(service, gateway, b"1", b"2")
    token = get_json(service, REJECTS, Gateway=gateway, MaxResults=1)["nextToken"]
    for query in ({}, {"Gateway": service.new_mac()}):
        response = service.viewer.get(REJECTS, params={**query, "NextToken": token})
        assert (response.status_code, response.json()["code"]) == (400, "invalid-token")
    audit = service.admin.get("/api/v1/audit", params={"NextToken": token})
    assert audit.json()["code"] == "invalid-token"


@pytest.mark.rule("rest-95")
@each_row(
    ("query", "field"),
    [
        ({"Gateway": ""}, "Gateway"),
        ({"Gateway": "x"}, "Gateway"),
        ({"Gateway": "0123456789abc"}, "Gateway"),
        ({"MaxResults": "1001"}, "MaxResults"),
        ({"From": "2023-01-01T00Z"}, "From"),
    ],
)
def test_invalid_parameters_are_refused_by_name(
    service: RunningService, query: dict[str, Any], field: str
) -> None:
    assert list_faults(service.viewer.get(REJECTS, params=query)) == [field]
