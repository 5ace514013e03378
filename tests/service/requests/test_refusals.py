"""Requests that are refused before anything is sent, each with its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from meshfleet.protocol.ids import Mac
    from tests.service.requests.scripted_gateway import ScriptedGateway
    from tests.service.requests.service_with_broker import ServiceWithBroker

TIME = "2026-01-02T03:04:05.678Z"
UNKNOWN = "bmac-0123456789ab"
DEEP: Any = [[[]]]
for _ in range(200):
    DEEP = [DEEP]


@pytest.fixture(autouse=True)
def nothing_is_left(office: ServiceWithBroker, third: ScriptedGateway, device: Mac) -> Iterator[None]:
    """Whatever is refused here has not reached the gateway, waits nowhere, and is in no history."""
    third.requests.clear()
    before = office.history(device, MaxResults=1)
    yield
    third.responder = lambda asked: [asked.build_response(value="ff")]
    assert office.send(device, "read", "8010").status_code == 200
    assert [each.topic_suffix for each in third.requests] == [f"{device}/read/8010"]
    assert office.is_idle()
    assert office.history(device, MaxResults=2)[1:] == before


def status_and_code(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["code"]


def fields(answer: httpx.Response) -> list[str]:
    return [each["field"] for each in answer.json()["errors"]]


@pytest.mark.rule("rest-97", "rest-198")
@each_row(
    ("body", "code", "field"),
    [
        # Identifiers
        ({"operation": "read"}, "invalid-request", "identifier"),
        ({"operation": "write-decoded", "value": 1}, "invalid-request", "identifier"),
        ({"operation": "apiversion", "identifier": "8000"}, "invalid-request", "identifier"),
        ({"operation": "read", "identifier": ""}, "malformed-identifier", "identifier"),
        ({"operation": "read", "identifier": "800"}, "malformed-identifier", "identifier"),
        ({"operation": "read", "identifier": "8000000000"}, "malformed-identifier", "identifier"),
        ({"operation": "read", "identifier": "temperature"}, "malformed-identifier", "identifier"),
        ({"operation": "read", "identifier": "8000/#"}, "malformed-identifier", "identifier"),
        ({"operation": "read-decoded", "identifier": "8000"}, "malformed-identifier", "identifier"),
        ({"operation": "read-decoded", "identifier": "a/b"}, "malformed-identifier", "identifier"),
        ({"operation": "read-decoded", "identifier": "+"}, "malformed-identifier", "identifier"),
        ({"operation": "read-decoded", "identifier": "a\0"}, "malformed-identifier", "identifier"),
        ({"operation": "read", "identifier": None}, "malformed-payload", "identifier"),
        # Values
        ({"operation": "write", "identifier": "8010", "value": "abc"}, "malformed-hex", "value"),
        ({"operation": "write", "identifier": "8010", "value": "zz"}, "malformed-hex", "value"),
        ({"operation": "write", "identifier": "8010", "value": 5}, "malformed-payload", "value"),
        (
            {"operation": "write-decoded", "identifier": "device-mode", "value": "loud"},
            "unencodable-value",
            "value",
        ),
        (
            {"operation": "write-decoded", "identifier": "device-mode", "value": [1]},
            "unencodable-value",
            "value",
        ),
        ({"operation": "write-decoded", "identifier": "x", "value": "x" * 70_000}, "*", "value"),
        ({"operation": "write-decoded", "identifier": "x", "value": DEEP}, "malformed-payload", "value"),
        ({"operation": "write-decoded", "identifier": "x", "ext": 5}, "malformed-payload", "ext"),
        # Parameters
        ({"operation": "read", "identifier": "8010", "priority": 5}, "malformed-payload", "priority"),
        ({"operation": "read", "identifier": "8010", "priority": -1}, "malformed-payload", "priority"),
        ({"operation": "read", "identifier": "8010", "priority": "high"}, "malformed-payload", "priority"),
        (
            {"operation": "read", "identifier": "8010", "accessType": "magic"},
            "malformed-payload",
            "accessType",
        ),
        ({"operation": "read", "identifier": "8010", "extenderId": "x"}, "malformed-mac", "extenderId"),
        ({"operation": "read", "identifier": "8010", "key": "abc"}, "malformed-hex", "key"),
        ({"operation": "read", "identifier": "8010", "publicKey": "zz"}, "malformed-hex", "publicKey"),
        ({"operation": "read", "identifier": "8010", "gateway": "x"}, "malformed-mac", "gateway"),
        # What does not belong to an operation would be overlooked
        ({"operation": "read", "identifier": "8010", "value": "ff"}, "invalid-request", "value"),
        ({"operation": "read", "identifier": "8010", "value": None}, "invalid-request", "value"),
        ({"operation": "read-decoded", "identifier": "x", "ext": {}}, "invalid-request", "ext"),
        ({"operation": "write", "identifier": "8010", "ext": {}}, "invalid-request", "ext"),
        ({"operation": "write", "identifier": "8010", "time": TIME}, "invalid-request", "time"),
        ({"operation": "apiversion", "key": "ff"}, "invalid-request", "key"),
        ({"operation": "ack", "identifier": "8100", "time": TIME, "type": 0, "key": "ff"}, "*", "key"),
        ({"operation": "read", "identifier": "8010", "colour": "red"}, "malformed-payload", "colour"),
        # Acks
        ({"operation": "ack", "identifier": "8100", "type": 0}, "malformed-payload", "time"),
        ({"operation": "ack", "identifier": "8100", "time": TIME}, "malformed-payload", "type"),
        ({"operation": "ack", "identifier": "8100", "time": TIME, "type": 3}, "malformed-payload", "type"),
        ({"operation": "ack", "identifier": "8100", "time": "now", "type": 0}, "malformed-time", "time"),
        # How long
        ({"operation": "read", "identifier": "8010", "timeoutMs": 99}, "malformed-payload", "timeoutMs"),
        ({"operation": "read", "identifier": "8010", "timeoutMs": 120_001}, "malformed-payload", "timeoutMs"),
        ({"operation": "read", "identifier": "8010", "timeoutMs": 0.5}, "malformed-payload", "timeoutMs"),
        # Anything
        ({}, "malformed-payload", "operation"),
        ({"operation": "reboot"}, "malformed-payload", "operation"),
        ([], "malformed-payload", "body"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_its_field(
    office: ServiceWithBroker, device: Mac, body: Any, code: str, field: str
) -> None:
    answer = office.operator.post(f"/api/v1/devices/bmac-{device}/requests", json=body)
    assert answer.status_code in {400, 413}, answer.text
    assert fields(answer) == [field], answer.text
    if code != "*":
        assert status_and_code(answer) == (400, code)


@pytest.mark.rule("rest-98")
@pytest.mark.parametrize("milliseconds", [100, 120_000])
def test_the_shortest_and_the_longest_time_are_taken(office: ServiceWithBroker, milliseconds: int) -> None:
    with office.gateway(lambda asked: [asked.build_response(value="ff")]) as gateway:
        behind = office.device_behind(gateway)
        answer = office.send(behind, "read", "8010", timeoutMs=milliseconds)
        office.wait_until(office.is_idle)  # the service asks newcomers too
    # On a machine that stalls, a tenth of a second may be over before the gateway gets to it.
    assert answer.status_code == 200 or (answer.status_code == 504 and milliseconds == 100)
    assert office.history(behind)[0]["request"]["timeoutMs"] == milliseconds


def test_unknown_devices_and_gateways_are_told(
    office: ServiceWithBroker, third: ScriptedGateway, device: Mac
) -> None:
    assert status_and_code(office.send(UNKNOWN, "read", "8010")) == (404, "not-found")
    assert status_and_code(office.send(device, "read", "8010", gateway="0123456789ab")) == (404, "not-found")
    assert status_and_code(office.send(third.mac, "read", "8010", gateway=device)) == (404, "not-found")
    for path in ("nobody", "bmac-xyz", device):
        answer = office.operator.post(
            f"/api/v1/devices/{path}/requests", json={"operation": "read", "identifier": "8010"}
        )
        assert status_and_code(answer)[0] in {400, 404}


@pytest.mark.rule("rest-197")
def test_a_device_that_nobody_ever_heard_has_no_gateway(office: ServiceWithBroker) -> None:
    silent = office.new_device()
    assert status_and_code(office.send(silent, "read", "8010")) == (503, "no-gateway")
    assert office.history(silent) == []


@pytest.mark.rule("rest-101", "rest-197")
def test_a_gateway_that_is_away_is_told_of_at_once(office: ServiceWithBroker) -> None:
    with office.gateway() as gone:
        behind = office.device_behind(gone)
    office.wait_until(
        lambda: status_and_code(office.send(gone.mac, "apiversion")) == (503, "gateway-offline")
    )
    for answer in (
        office.send(behind, "read", "8010", timeoutMs=120_000),
        office.send(behind, "write", "8010", value="ff", timeoutMs=120_000),
        office.send(behind, "write", "8010", gateway=gone.mac, timeoutMs=120_000),
        office.send(behind, "write", "8010", timeoutMs=120_000, headers={"Prefer": "respond-async"}),
        office.send(gone.mac, "read", "8010", timeoutMs=120_000),
    ):
        assert status_and_code(answer) == (503, "gateway-offline")
        assert gone.mac in answer.json()["detail"]
    assert gone.requests == []
    assert office.history(behind) == office.history(gone.mac) == []


@pytest.mark.rule("version-12", "rest-106")
@each_row("version", ["1.2.0", "2.1.0", "2.3.9"])
def test_what_a_gateway_is_too_old_for_is_not_sent(office: ServiceWithBroker, version: str) -> None:
    wanted: list[tuple[str, str, dict[str, Any]]] = [
        ("2.0.0", "write-decoded", {"identifier": "x", "value": 1, "ext": {"a": 1}}),
        ("2.1.0", "read", {"identifier": "8010", "extenderId": "C0FFEE0000E1"}),
        ("2.1.0", "write-decoded", {"identifier": "x", "extenderId": "C0FFEE0000E1"}),
        ("2.2.0", "read-decoded", {"identifier": "x", "accessType": "legacy"}),
        ("2.2.0", "write", {"identifier": "8010", "key": "ff"}),
        ("2.2.0", "read", {"identifier": "8010", "publicKey": "ff"}),
        ("2.4.0", "ack", {"identifier": "8100", "time": TIME, "type": 0}),
        ("2.4.0", "ack-decoded", {"identifier": "temperature", "time": TIME, "type": 0}),
    ]
    with office.gateway(lambda asked: [asked.build_response(value="ff")], version=version) as old:
        office.wait_for_version(old, version)
        behind = office.device_behind(old)
        understood = 0
        for since, operation, body in wanted:
            answer = office.send(behind, operation, **body)
            if since > version:
                assert status_and_code(answer) == (409, "gateway-too-old"), body
                assert since in answer.json()["detail"]
            else:
                assert answer.is_success, answer.text
                understood += 1
        assert office.send(behind, "read", "8010").status_code == 200
        assert len(old.requests) == understood + 1
        assert len(office.history(behind)) == understood + 1


@pytest.mark.rule("auth-16")
def test_who_may_only_look_cannot_send(office: ServiceWithBroker, device: Mac) -> None:
    for operation in ("read", "write"):
        assert status_and_code(office.send(device, operation, "8010", by=office.viewer)) == (
            403,
            "not-allowed",
        )
    assert status_and_code(office.send(device, "read", "8010", by=office.anonymous))[0] == 401
    assert office.anonymous.get(f"/api/v1/devices/bmac-{device}/requests").status_code == 401
    assert office.anonymous.get("/api/v1/requests/x").status_code == 401
    assert office.viewer.get(f"/api/v1/devices/bmac-{device}/requests").status_code == 200
