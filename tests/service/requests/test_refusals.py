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
def check_nothing_was_sent(
    service: ServiceWithBroker, gateway: ScriptedGateway, device: Mac
) -> Iterator[None]:
    """Check that refused requests are not sent, not pending, and not in the history."""
    gateway.requests.clear()
    before = service.history(device, MaxResults=1)
    yield
    gateway.responder = lambda request: [request.build_response(value="ff")]
    assert service.send(device, "read", "8010").status_code == 200
    assert [each.topic_suffix for each in gateway.requests] == [f"{device}/read/8010"]
    service.wait_until(service.is_idle)
    assert service.history(device, MaxResults=2)[1:] == before


def status_and_code(response: httpx.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json"
    return response.status_code, response.json()["code"]


def fields(response: httpx.Response) -> list[str]:
    return [each["field"] for each in response.json()["errors"]]


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
        # Parameters that do not belong to the operation
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
        # Timeouts
        ({"operation": "read", "identifier": "8010", "timeoutMs": 99}, "malformed-payload", "timeoutMs"),
        ({"operation": "read", "identifier": "8010", "timeoutMs": 120_001}, "malformed-payload", "timeoutMs"),
        ({"operation": "read", "identifier": "8010", "timeoutMs": 0.5}, "malformed-payload", "timeoutMs"),
        # Body
        ({}, "malformed-payload", "operation"),
        ({"operation": "reboot"}, "malformed-payload", "operation"),
        ([], "malformed-payload", "body"),
    ],
)
def test_an_invalid_request_is_refused_with_the_name_of_the_field(
    service: ServiceWithBroker, device: Mac, body: Any, code: str, field: str
) -> None:
    response = service.operator.post(f"/api/v1/devices/bmac-{device}/requests", json=body)
    assert response.status_code in {400, 413}, response.text
    assert fields(response) == [field], response.text
    if code != "*":
        assert status_and_code(response) == (400, code)


@pytest.mark.rule("rest-98")
@pytest.mark.parametrize("milliseconds", [100, 120_000])
def test_the_shortest_and_the_longest_timeout_are_accepted(
    service: ServiceWithBroker, milliseconds: int
) -> None:
    with service.gateway(lambda request: [request.build_response(value="ff")]) as gateway:
        device = service.device_behind(gateway)
        response = service.send(device, "read", "8010", timeoutMs=milliseconds)
        service.wait_until(service.is_idle)  # the service sends requests to new devices itself
    # On a stalled machine, 100 ms may pass before the gateway gets the request.
    assert response.status_code == 200 or (response.status_code == 504 and milliseconds == 100)
    assert service.history(device)[0]["request"]["timeoutMs"] == milliseconds


def test_unknown_devices_and_gateways_are_not_found(
    service: ServiceWithBroker, gateway: ScriptedGateway, device: Mac
) -> None:
    assert status_and_code(service.send(UNKNOWN, "read", "8010")) == (404, "not-found")
    assert status_and_code(service.send(device, "read", "8010", gateway="0123456789ab")) == (404, "not-found")
    assert status_and_code(service.send(gateway.mac, "read", "8010", gateway=device)) == (404, "not-found")
    for path in ("unknown", "bmac-xyz", device):
        response = service.operator.post(
            f"/api/v1/devices/{path}/requests", json={"operation": "read", "identifier": "8010"}
        )
        assert status_and_code(response)[0] in {400, 404}


@pytest.mark.rule("rest-197")
def test_a_device_without_reports_has_no_gateway(service: ServiceWithBroker) -> None:
    device = service.new_device()
    assert status_and_code(service.send(device, "read", "8010")) == (503, "no-gateway")
    assert service.history(device) == []


@pytest.mark.rule("rest-101", "rest-197")
def test_a_request_to_a_disconnected_gateway_fails_at_once(service: ServiceWithBroker) -> None:
    with service.gateway() as disconnected:
        device = service.device_behind(disconnected)
    service.wait_until(
        lambda: status_and_code(service.send(disconnected.mac, "apiversion")) == (503, "gateway-offline")
    )
    for response in (
        service.send(device, "read", "8010", timeoutMs=120_000),
        service.send(device, "write", "8010", value="ff", timeoutMs=120_000),
        service.send(device, "write", "8010", gateway=disconnected.mac, timeoutMs=120_000),
        service.send(device, "write", "8010", timeoutMs=120_000, headers={"Prefer": "respond-async"}),
        service.send(disconnected.mac, "read", "8010", timeoutMs=120_000),
    ):
        assert status_and_code(response) == (503, "gateway-offline")
        assert disconnected.mac in response.json()["detail"]
    assert disconnected.requests == []
    assert service.history(device) == service.history(disconnected.mac) == []


@pytest.mark.rule("version-12", "rest-106")
@each_row("version", ["1.2.0", "2.1.0", "2.3.9"])
def test_a_request_that_the_gateway_version_does_not_support_is_not_sent(
    service: ServiceWithBroker, version: str
) -> None:
    requests: list[tuple[str, str, dict[str, Any]]] = [
        ("2.0.0", "write-decoded", {"identifier": "x", "value": 1, "ext": {"a": 1}}),
        ("2.1.0", "read", {"identifier": "8010", "extenderId": "C0FFEE0000E1"}),
        ("2.1.0", "write-decoded", {"identifier": "x", "extenderId": "C0FFEE0000E1"}),
        ("2.2.0", "read-decoded", {"identifier": "x", "accessType": "legacy"}),
        ("2.2.0", "write", {"identifier": "8010", "key": "ff"}),
        ("2.2.0", "read", {"identifier": "8010", "publicKey": "ff"}),
        ("2.4.0", "ack", {"identifier": "8100", "time": TIME, "type": 0}),
        ("2.4.0", "ack-decoded", {"identifier": "temperature", "time": TIME, "type": 0}),
    ]
    with service.gateway(
        lambda request: [request.build_response(value="ff")], version=version
    ) as old_gateway:
        service.wait_for_version(old_gateway, version)
        device = service.device_behind(old_gateway)
        supported_count = 0
        for first_version, operation, body in requests:
            response = service.send(device, operation, **body)
            if first_version > version:
                assert status_and_code(response) == (409, "gateway-too-old"), body
                assert first_version in response.json()["detail"]
            else:
                assert response.is_success, response.text
                supported_count += 1
        assert service.send(device, "read", "8010").status_code == 200
        assert len(old_gateway.requests) == supported_count + 1
        assert len(service.history(device)) == supported_count + 1


@pytest.mark.rule("auth-16")
def test_viewers_cannot_send_requests(service: ServiceWithBroker, device: Mac) -> None:
    for operation in ("read", "write"):
        assert status_and_code(service.send(device, operation, "8010", by=service.viewer)) == (
            403,
            "not-allowed",
        )
    assert status_and_code(service.send(device, "read", "8010", by=service.anonymous))[0] == 401
    assert service.anonymous.get(f"/api/v1/devices/bmac-{device}/requests").status_code == 401
    assert service.anonymous.get("/api/v1/requests/x").status_code == 401
    assert service.viewer.get(f"/api/v1/devices/bmac-{device}/requests").status_code == 200
