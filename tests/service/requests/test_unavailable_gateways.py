"""Gateways that do not respond, respond malformed, or disconnect during a request."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.db.samples import NO_SEQ, SampleKind, StoredSample
from meshfleet.settings import ListenAddress, Settings
from tests.row_tables import each_row
from tests.service.requests.scripted_gateway import ScriptedGateway, never_respond
from tests.service.requests.service_with_broker import (
    SHORT_TIMEOUT_MS,
    ServiceWithBroker,
    answer_service_requests,
    run_service,
)
from tests.service.telemetry.sample_data import store_samples

if TYPE_CHECKING:
    import httpx

    from meshfleet.db import Database
    from meshfleet.protocol.ids import Mac


def status_and_code(response: httpx.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json"
    return response.status_code, response.json()["code"]


def report_link(service: ServiceWithBroker, device: Mac, gateway_mac: str, rssi: int, parent: int) -> None:
    """Store that a gateway saw a device a minute ago."""
    at = (service.clock() // 60_000 - 1) * 60_000
    link = StoredSample(at, SampleKind.LINK, parent, NO_SEQ, int(gateway_mac, 16), rssi, None, None)
    store_samples(service, f"bmac-{device}", link)


@pytest.mark.rule("rest-100", "rest-197")
@pytest.mark.parametrize("operation", ["read", "write"])
def test_a_request_to_a_silent_gateway_times_out(
    service: ServiceWithBroker, gateway: ScriptedGateway, device: Mac, operation: str
) -> None:
    gateway.responder = never_respond
    gateway.requests.clear()
    response = service.send(device, operation, "8010", timeoutMs=SHORT_TIMEOUT_MS)
    assert status_and_code(response) == (504, "gateway-timeout")
    assert gateway.mac in response.json()["detail"]
    (newest,) = service.history(device, MaxResults=1)
    assert (newest["state"], newest["response"]) == ("TIMED_OUT", None)
    assert newest["problem"] == {"code": "gateway-timeout", "detail": response.json()["detail"]}
    service.wait_until(lambda: len(gateway.requests) == 1)
    service.wait_until(service.is_idle)


@pytest.mark.rule("request-28")
def test_a_response_after_the_deadline_changes_nothing(
    service: ServiceWithBroker, gateway: ScriptedGateway, device: Mac
) -> None:
    gateway.responder = never_respond
    gateway.requests.clear()
    service.send(device, "write", "8010", timeoutMs=SHORT_TIMEOUT_MS)
    service.wait_until(lambda: gateway.requests)
    late_count = service.metric('meshfleet_responses_total{fate="late"}')
    gateway.publish(gateway.requests[0].build_response())
    service.wait_until(lambda: service.metric('meshfleet_responses_total{fate="late"}') == late_count + 1)
    assert service.history(device, MaxResults=1)[0]["state"] == "TIMED_OUT"


@pytest.mark.rule("rest-197")
@each_row(
    "fields",
    [{}, {"value": "abc"}, {"value": 5}, {"value": "ff", "status": "ok"}, {"value": "ff", "time": "soon"}],
)
def test_a_malformed_response_is_reported(
    service: ServiceWithBroker, gateway: ScriptedGateway, device: Mac, fields: dict[str, Any]
) -> None:
    gateway.responder = lambda request: [request.build_response(**fields)]
    response = service.send(device, "read", "8010")
    assert status_and_code(response) == (502, "malformed-response")
    (newest,) = service.history(device, MaxResults=1)
    assert newest["id"] == gateway.requests[-1].body["id"]
    assert (newest["state"], newest["problem"]["code"]) == ("FAILED", "malformed-response")
    service.wait_until(service.is_idle)


@pytest.mark.rule("request-37", "rest-197")
@pytest.mark.parametrize("is_async", [False, True])
def test_a_write_whose_gateway_disconnects_is_not_sent_again(
    service: ServiceWithBroker, *, is_async: bool
) -> None:
    headers = {"Idempotency-Key": f"lost-{is_async}"}
    preference = {"Prefer": "respond-async"} if is_async else {}
    with service.gateway() as first, ThreadPoolExecutor(1) as executor:
        device = service.device_behind(first)
        pending = executor.submit(
            service.send, device, "write", "8010", value="ff", headers=headers | preference
        )
        service.wait_until(lambda: first.requests)
        # The new connection replaces the first one.
        with service.gateway(lambda request: [request.build_response(value="ff")], first.mac) as reconnected:
            assert pending.result().status_code == (202 if is_async else 504)
            response = service.send(device, "write", "8010", value="ff", headers=headers)
            assert status_and_code(response) == (504, "gateway-lost")
            assert service.send(device, "read", "8010").status_code == 200
            assert not [each for each in reconnected.requests if each.topic_suffix.endswith("/write/8010")]
    (_, lost) = service.history(device)
    assert (lost["state"], lost["problem"]["code"]) == ("FAILED", "gateway-lost")
    service.wait_until(service.is_idle)


@pytest.mark.rule("request-37")
def test_a_read_whose_gateway_reconnects_is_sent_again_with_another_id(service: ServiceWithBroker) -> None:
    with service.gateway() as first, ThreadPoolExecutor(1) as executor:
        device = service.device_behind(first)
        pending = executor.submit(service.send, device, "read", "8010", timeoutMs=60_000)
        service.wait_until(lambda: first.requests)
        first_id = first.requests[0].body["id"]
        with service.gateway(
            lambda request: [] if request.body["id"] == first_id else [request.build_response(value="2011")],
            first.mac,
        ) as reconnected:
            response = pending.result()
            assert (response.status_code, response.json().get("value")) == (200, "2011"), response.text
            (second_id,) = [each.body["id"] for each in reconnected.requests if each.body["id"] != first_id]
            assert second_id.startswith(first_id)
    assert response.json()["id"] == first_id
    (only,) = service.history(device)
    assert (only["state"], only["id"], only["response"]) == ("DONE", first_id, response.json())
    service.wait_until(service.is_idle)


@pytest.mark.rule("rest-197")
def test_a_request_waits_until_its_gateway_has_subscribed(service: ServiceWithBroker) -> None:
    mac = service.new_mac()
    gateway = ScriptedGateway(
        service.port,
        mac,
        lambda request: [request.build_response(value="2011")],
        password=service.claim(mac),
        auto_responder=answer_service_requests(mac, "2.4.0"),
    )
    gateway.connect()
    try:
        device = service.device_behind(gateway)
        response = service.send(device, "read", "8010", timeoutMs=SHORT_TIMEOUT_MS)
        assert status_and_code(response) == (503, "gateway-offline")
        assert "has not subscribed" in response.json()["detail"]
        with ThreadPoolExecutor(1) as executor:
            pending = executor.submit(service.send, device, "read", "8010", timeoutMs=60_000)
            service.wait_until(lambda: not service.is_idle())
            gateway.subscribe()
            response = pending.result()
        assert (response.status_code, response.json()["value"]) == (200, "2011")
    finally:
        gateway.stop()


@pytest.mark.rule("request-37", "rest-102")
def test_a_read_whose_gateway_disconnects_is_sent_through_another_gateway(
    service: ServiceWithBroker,
) -> None:
    with (
        service.gateway(lambda request: [request.build_response(value="2011")]) as other,
        ThreadPoolExecutor(2) as executor,
    ):
        with service.gateway() as first:
            device = service.device_behind(first)
            report_link(service, device, first.mac, -40, parent=1)
            report_link(service, device, other.mac, -80, parent=2)
            reading = executor.submit(service.send, device, "read", "8010")
            writing = executor.submit(service.send, device, "write", "8010", value="ff")
            service.wait_until(lambda: len(first.requests) == 2)
        response = reading.result()
        assert (response.status_code, response.json()["gateway"]) == (200, other.mac)
        assert [(each["gateway"], each["connected"]) for each in response.json()["choice"]["candidates"]] == [
            (other.mac, True),
            (first.mac, False),
        ]
        assert status_and_code(writing.result()) == (504, "gateway-lost")
        assert [each.topic_suffix for each in other.requests] == [f"{device}/read/8010"]
    record = next(each for each in service.history(device) if each["request"]["operation"] == "read")
    assert record["gateway"] == other.mac


@pytest.mark.rule("request-37")
def test_a_read_whose_gateway_stays_disconnected_fails_as_lost(service: ServiceWithBroker) -> None:
    with ThreadPoolExecutor(1) as executor:
        with service.gateway() as first:
            device = service.device_behind(first)
            pending = executor.submit(service.send, device, "read", "8010", timeoutMs=60_000)
            service.wait_until(lambda: first.requests)
        assert status_and_code(pending.result()) == (504, "gateway-lost")
    service.wait_until(service.is_idle)


@pytest.mark.rule("request-36", "rest-196", "rest-197")
def test_a_gateway_gets_at_most_the_configured_number_of_requests(sqlite_database: Database) -> None:
    settings = Settings(mqtt=ListenAddress("127.0.0.1", 0), requests_at_once=2)
    with run_service(sqlite_database, settings) as service, service.gateway() as gateway:
        device = service.device_behind(gateway)
        service.wait_for_version(gateway)  # else the version request would be one of the two
        with ThreadPoolExecutor(4) as executor:
            running = [
                executor.submit(service.send, device, "write", f"810{number}", value="ff")
                for number in range(2)
            ]
            service.wait_until(lambda: len(gateway.requests) == 2)
            busy = service.send(device, "write", "8102", timeoutMs=200, headers={"Idempotency-Key": "k"})
            assert status_and_code(busy) == (504, "gateway-busy")
            (newest,) = service.history(device, MaxResults=1)
            assert (newest["state"], newest["problem"]["code"]) == ("TIMED_OUT", "gateway-busy")
            pending = executor.submit(
                service.send, device, "write", "8102", timeoutMs=200_00, headers={"Idempotency-Key": "k"}
            )
            service.wait_until(lambda: service.metric("meshfleet_requests_queued") == 1)
            assert len(gateway.requests) == 2
            gateway.responder = lambda request: [request.build_response()]
            gateway.publish(*(each.build_response() for each in gateway.requests))
            assert [each.result().status_code for each in (*running, pending)] == [200] * 3
            assert [each.topic_suffix[-4:] for each in gateway.requests][2:] == ["8102"]
        service.wait_until(service.is_idle)
