"""Requests with an Idempotency-Key are sent once, however often they are submitted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from meshfleet.rest.accounts import Role
from tests.row_tables import each_row
from tests.service.requests.scripted_gateway import never_respond
from tests.service.requests.service_with_broker import SHORT_TIMEOUT_MS

if TYPE_CHECKING:
    import httpx

    from meshfleet.protocol.ids import Mac
    from tests.service.requests.scripted_gateway import IncomingRequest, OutgoingMessage, ScriptedGateway
    from tests.service.requests.service_with_broker import ServiceWithBroker

pytestmark = pytest.mark.both_databases


def key_headers(key: str | None = None, **others: str) -> dict[str, str]:
    return {"Idempotency-Key": key or str(uuid4()), **others}


def status_and_code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["code"]


@pytest.mark.rule("rest-25")
@each_row(("operation", "body"), [("read", {}), ("write", {"value": "ff", "key": "aa" * 16})])
def test_the_same_key_and_body_get_the_same_response(
    service: ServiceWithBroker, gateway: ScriptedGateway, device: Mac, operation: str, body: dict[str, Any]
) -> None:
    gateway.requests.clear()
    gateway.responder = lambda request: [
        request.build_response(value="2011", errorMessage=f"{len(gateway.requests)}")
    ]
    headers = key_headers()
    responses = [service.send(device, operation, "8010", headers=headers, **body) for _ in range(3)]
    assert [response.status_code for response in responses] == [200] * 3
    assert responses[0].json() == responses[1].json() == responses[2].json()
    assert len(gateway.requests) == 1
    assert [each["id"] for each in service.history(device)].count(responses[0].json()["id"]) == 1


@pytest.mark.rule("rest-25")
def test_the_formatting_of_the_body_does_not_matter(
    service: ServiceWithBroker, gateway: ScriptedGateway, device: Mac
) -> None:
    gateway.requests.clear()
    gateway.responder = lambda request: [request.build_response(value="ff")]
    headers = {**key_headers(), "Content-Type": "application/json"}
    path = f"/api/v1/devices/bmac-{device}/requests"
    for text in (
        '{"operation":"read","identifier":"8010","priority":3}',
        '{ "priority" : 3, "identifier":"\\u0038010", "operation":"read" }',
    ):
        assert service.operator.post(path, content=text, headers=headers).status_code == 200
    assert len(gateway.requests) == 1


@pytest.mark.rule("rest-26")
def test_the_same_key_with_another_body_or_device_is_refused(
    service: ServiceWithBroker, gateway: ScriptedGateway, device: Mac
) -> None:
    gateway.responder = lambda request: [request.build_response(value="ff")]
    other = service.device_behind(gateway)
    headers = key_headers()
    assert service.send(device, "write", "8010", value="ff", headers=headers).status_code == 200
    gateway.requests.clear()
    for response in (
        service.send(device, "write", "8010", value="fe", headers=headers),
        service.send(device, "write", "8010", value="ff", timeoutMs=1000, headers=headers),
        service.send(device, "write", "8010", value="ff", key="aa", headers=headers),
        service.send(device, "write", "8010", headers=headers),
        service.send(device, "read", "8010", headers=headers),
        service.send(other, "write", "8010", value="ff", headers=headers),
    ):
        assert status_and_code(response) == (409, "idempotency-key-reused")
    assert gateway.requests == []
    assert service.history(other) == []


@pytest.mark.rule("rest-25", "rest-26")
def test_concurrent_requests_with_one_key_wait_for_the_first_response(
    service: ServiceWithBroker, gateway: ScriptedGateway, device: Mac
) -> None:
    held: list[IncomingRequest] = []

    def hold(request: IncomingRequest) -> list[OutgoingMessage]:
        held.append(request)
        return []

    gateway.responder, headers = hold, key_headers()
    gateway.requests.clear()
    with ThreadPoolExecutor(8) as executor:
        pending = [
            executor.submit(service.send, device, "write", "8010", value="ff", headers=headers)
            for _ in range(8)
        ]
        service.wait_until(lambda: held)
        other = service.send(device, "write", "8010", value="00", headers=headers)
        assert status_and_code(other) == (409, "idempotency-key-reused")
        assert not any(each.done() for each in pending)
        gateway.publish(held[0].build_response(route="r"))
        responses = [each.result() for each in pending]
    assert [response.status_code for response in responses] == [200] * 8
    assert {response.text for response in responses} == {responses[0].text}
    assert len(gateway.requests) == 1


@pytest.mark.rule("rest-25", "rest-100")
def test_a_request_that_timed_out_is_not_sent_again(
    service: ServiceWithBroker, gateway: ScriptedGateway, device: Mac
) -> None:
    gateway.responder, headers = never_respond, key_headers()
    gateway.requests.clear()
    responses = [
        service.send(device, "write", "8010", value="ff", timeoutMs=SHORT_TIMEOUT_MS, headers=headers)
        for _ in range(3)
    ]
    assert [status_and_code(response) for response in responses] == [(504, "gateway-timeout")] * 3
    assert {response.json()["detail"] for response in responses} == {responses[0].json()["detail"]}
    service.wait_until(lambda: gateway.requests)
    gateway.responder = lambda request: [request.build_response(value="ff")]
    assert service.send(device, "read", "8010").status_code == 200  # earlier requests have been sent by now
    assert len(gateway.requests) == 2


@pytest.mark.rule("rest-25", "rest-103", "rest-105")
def test_asynchronous_requests_and_acks_are_sent_once(
    service: ServiceWithBroker, gateway: ScriptedGateway, device: Mac
) -> None:
    gateway.responder = lambda request: [request.build_response(value="ff")]
    gateway.requests.clear()
    async_headers = key_headers(Prefer="respond-async")
    accepted = [service.send(device, "write", "8010", headers=async_headers) for _ in range(2)]
    assert [each.status_code for each in accepted] == [202, 202]
    assert accepted[0].json() == accepted[1].json()
    awaited = service.send(
        device, "write", "8010", headers={"Idempotency-Key": async_headers["Idempotency-Key"]}
    )
    assert (awaited.status_code, awaited.json()["id"]) == (200, accepted[0].json()["id"])
    headers, time = key_headers(), "2026-01-02T03:04:05.678Z"
    acks = [service.send(device, "ack", "8100", headers=headers, time=time, type=0) for _ in range(2)]
    assert [each.status_code for each in acks] == [202, 202]
    assert acks[0].json() == acks[1].json()
    assert service.send(device, "read", "8010").status_code == 200
    assert [each.topic_suffix for each in gateway.requests] == [
        f"{device}/write/8010",
        f"{device}/ack/8100",
        f"{device}/read/8010",
    ]


@pytest.mark.rule("rest-25")
def test_each_account_has_its_own_keys(
    service: ServiceWithBroker, gateway: ScriptedGateway, device: Mac
) -> None:
    gateway.responder = lambda request: [request.build_response()]
    gateway.requests.clear()
    headers = key_headers()
    user = service.new_user(Role.OPERATOR)
    clients = [service.operator, service.admin, service.client(service.log_in(user))]
    responses = [
        service.send(device, "write", "8010", value=f"0{number}", by=client, headers=headers)
        for number, client in enumerate(clients)
    ]
    assert [response.status_code for response in responses] == [200] * 3
    assert len(gateway.requests) == 3
    with service.client(service.log_in(user)) as second_session:
        again = service.send(device, "write", "8010", value="02", by=second_session, headers=headers)
    assert again.json() == responses[2].json()
    clients[2].close()


@pytest.mark.rule("rest-196")
def test_a_key_whose_request_was_never_sent_is_free_again(service: ServiceWithBroker) -> None:
    headers = key_headers()
    with service.gateway(lambda request: [request.build_response()], version="1.2.0") as gateway:
        device = service.device_behind(gateway)
        unheard_device = service.new_device()
        assert status_and_code(service.send(unheard_device, "write", "8010", headers=headers)) == (
            503,
            "no-gateway",
        )
        assert status_and_code(service.send("bmac-0123456789ab", "write", "8010", headers=headers)) == (
            404,
            "not-found",
        )
        too_old = service.send(device, "ack", "8100", time="2026-01-01T00:00:00Z", type=0, headers=headers)
        assert status_and_code(too_old) == (409, "gateway-too-old")
        assert service.send(device, "write", "8010", value="zz", headers=headers).status_code == 400
    service.wait_until(
        lambda: (
            status_and_code(service.send(device, "write", "8010", headers=headers))
            == (503, "gateway-offline")
        )
    )
    with service.gateway(lambda request: [request.build_response()], gateway.mac) as reconnected:
        service.wait_until(lambda: service.send(device, "write", "8010", headers=headers).status_code == 200)
        assert service.send(device, "write", "8010", value="ff", headers=headers).status_code == 409
        assert len(reconnected.requests) == 1


@each_row("key", ["", "a b", "x" * 256, "a\tb", "schlüssel"])
def test_a_malformed_key_is_refused(
    service: ServiceWithBroker, gateway: ScriptedGateway, device: Mac, key: str
) -> None:
    gateway.requests.clear()
    headers: Any = [(b"Idempotency-Key", key.encode("latin-1"))]
    response = service.send(device, "write", "8010", headers=headers)
    assert (response.status_code, [each["field"] for each in response.json()["errors"]]) == (
        400,
        ["Idempotency-Key"],
    )
    assert gateway.requests == []


@each_row("key", ["x", "~" * 255, "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"])
def test_any_printable_ascii_text_without_spaces_is_a_key(
    service: ServiceWithBroker, gateway: ScriptedGateway, device: Mac, key: str
) -> None:
    gateway.responder = lambda request: [request.build_response()]
    responses = [service.send(device, "write", "8010", headers={"Idempotency-Key": key}) for _ in range(2)]
    assert (responses[0].status_code, responses[0].json()) == (200, responses[1].json())
