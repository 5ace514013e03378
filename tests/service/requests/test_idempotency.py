"""Requests with an Idempotency-Key: sent once, however often they come."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from meshfleet.rest import Role
from tests.row_tables import each_row
from tests.service.requests.scripted_gateway import never_respond
from tests.service.requests.service_with_broker import SHORT_TIMEOUT_MS

if TYPE_CHECKING:
    import httpx

    from meshfleet.protocol.ids import Mac
    from tests.service.requests.scripted_gateway import IncomingRequest, OutgoingMessage, ScriptedGateway
    from tests.service.requests.service_with_broker import ServiceWithBroker

pytestmark = pytest.mark.both_databases


def key_headers(key: str | None = None, **more: str) -> dict[str, str]:
    return {"Idempotency-Key": key or str(uuid4()), **more}


def status_and_code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


@pytest.mark.rule("rest-25")
@each_row(("operation", "body"), [("read", {}), ("write", {"value": "ff", "key": "aa" * 16})])
def test_the_same_key_and_body_get_the_same_answer(
    office: ServiceWithBroker, third: ScriptedGateway, device: Mac, operation: str, body: dict[str, Any]
) -> None:
    third.requests.clear()
    third.responder = lambda asked: [
        asked.build_response(value="2011", errorMessage=f"{len(third.requests)}")
    ]
    headers = key_headers()
    answers = [office.send(device, operation, "8010", headers=headers, **body) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert answers[0].json() == answers[1].json() == answers[2].json()
    assert len(third.requests) == 1
    assert [each["id"] for each in office.history(device)].count(answers[0].json()["id"]) == 1


@pytest.mark.rule("rest-25")
def test_it_is_the_body_that_counts_and_not_how_it_is_written(
    office: ServiceWithBroker, third: ScriptedGateway, device: Mac
) -> None:
    third.requests.clear()
    third.responder = lambda asked: [asked.build_response(value="ff")]
    headers = {**key_headers(), "Content-Type": "application/json"}
    path = f"/api/v1/devices/bmac-{device}/requests"
    for text in (
        '{"operation":"read","identifier":"8010","priority":3}',
        '{ "priority" : 3, "identifier":"\\u0038010", "operation":"read" }',
    ):
        assert office.operator.post(path, content=text, headers=headers).status_code == 200
    assert len(third.requests) == 1


@pytest.mark.rule("rest-26")
def test_the_same_key_with_another_body_or_device_is_refused(
    office: ServiceWithBroker, third: ScriptedGateway, device: Mac
) -> None:
    third.responder = lambda asked: [asked.build_response(value="ff")]
    other = office.device_behind(third)
    headers = key_headers()
    assert office.send(device, "write", "8010", value="ff", headers=headers).status_code == 200
    third.requests.clear()
    for answer in (
        office.send(device, "write", "8010", value="fe", headers=headers),
        office.send(device, "write", "8010", value="ff", timeoutMs=1000, headers=headers),
        office.send(device, "write", "8010", value="ff", key="aa", headers=headers),
        office.send(device, "write", "8010", headers=headers),
        office.send(device, "read", "8010", headers=headers),
        office.send(other, "write", "8010", value="ff", headers=headers),
    ):
        assert status_and_code(answer) == (409, "idempotency-key-reused")
    assert third.requests == []
    assert office.history(other) == []


@pytest.mark.rule("rest-25", "rest-26")
def test_whoever_comes_while_the_first_still_runs_waits_for_its_answer(
    office: ServiceWithBroker, third: ScriptedGateway, device: Mac
) -> None:
    held: list[IncomingRequest] = []

    def hold(asked: IncomingRequest) -> list[OutgoingMessage]:
        held.append(asked)
        return []

    third.responder, headers = hold, key_headers()
    third.requests.clear()
    with ThreadPoolExecutor(8) as people:
        waiting = [
            people.submit(office.send, device, "write", "8010", value="ff", headers=headers) for _ in range(8)
        ]
        office.wait_until(lambda: held)
        other = office.send(device, "write", "8010", value="00", headers=headers)
        assert status_and_code(other) == (409, "idempotency-key-reused")
        assert not any(each.done() for each in waiting)
        third.publish(held[0].build_response(route="r"))
        answers = [each.result() for each in waiting]
    assert [answer.status_code for answer in answers] == [200] * 8
    assert {answer.text for answer in answers} == {answers[0].text}
    assert len(third.requests) == 1


@pytest.mark.rule("rest-25", "rest-100")
def test_what_timed_out_is_not_sent_again(
    office: ServiceWithBroker, third: ScriptedGateway, device: Mac
) -> None:
    third.responder, headers = never_respond, key_headers()
    third.requests.clear()
    answers = [
        office.send(device, "write", "8010", value="ff", timeoutMs=SHORT_TIMEOUT_MS, headers=headers)
        for _ in range(3)
    ]
    assert [status_and_code(answer) for answer in answers] == [(504, "gateway-timeout")] * 3
    assert {answer.json()["detail"] for answer in answers} == {answers[0].json()["detail"]}
    office.wait_until(lambda: third.requests)
    third.responder = lambda asked: [asked.build_response(value="ff")]
    assert office.send(device, "read", "8010").status_code == 200  # whatever came before it has been sent
    assert len(third.requests) == 2


@pytest.mark.rule("rest-25", "rest-103", "rest-105")
def test_what_is_not_waited_for_is_sent_once_too(
    office: ServiceWithBroker, third: ScriptedGateway, device: Mac
) -> None:
    third.responder = lambda asked: [asked.build_response(value="ff")]
    third.requests.clear()
    later = key_headers(Prefer="respond-async")
    accepted = [office.send(device, "write", "8010", headers=later) for _ in range(2)]
    assert [each.status_code for each in accepted] == [202, 202]
    assert accepted[0].json() == accepted[1].json()
    waited = office.send(device, "write", "8010", headers={"Idempotency-Key": later["Idempotency-Key"]})
    assert (waited.status_code, waited.json()["id"]) == (200, accepted[0].json()["id"])
    headers, time = key_headers(), "2026-01-02T03:04:05.678Z"
    acks = [office.send(device, "ack", "8100", headers=headers, time=time, type=0) for _ in range(2)]
    assert [each.status_code for each in acks] == [202, 202]
    assert acks[0].json() == acks[1].json()
    assert office.send(device, "read", "8010").status_code == 200
    assert [each.topic_suffix for each in third.requests] == [
        f"{device}/write/8010",
        f"{device}/ack/8100",
        f"{device}/read/8010",
    ]


@pytest.mark.rule("rest-25")
def test_everybody_has_keys_of_their_own(
    office: ServiceWithBroker, third: ScriptedGateway, device: Mac
) -> None:
    third.responder = lambda asked: [asked.build_response()]
    third.requests.clear()
    headers = key_headers()
    person = office.new_user(Role.OPERATOR)
    people = [office.operator, office.admin, office.client(office.log_in(person))]
    answers = [
        office.send(device, "write", "8010", value=f"0{number}", by=who, headers=headers)
        for number, who in enumerate(people)
    ]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert len(third.requests) == 3
    with office.client(office.log_in(person)) as later:
        again = office.send(device, "write", "8010", value="02", by=later, headers=headers)
    assert again.json() == answers[2].json()
    people[2].close()


@pytest.mark.rule("rest-196")
def test_a_key_whose_request_was_never_sent_is_free_again(office: ServiceWithBroker) -> None:
    headers = key_headers()
    with office.gateway(lambda asked: [asked.build_response()], version="1.2.0") as third:
        behind = office.device_behind(third)
        silent = office.new_device()
        assert status_and_code(office.send(silent, "write", "8010", headers=headers)) == (503, "no-gateway")
        assert status_and_code(office.send("bmac-0123456789ab", "write", "8010", headers=headers)) == (
            404,
            "not-found",
        )
        too_old = office.send(behind, "ack", "8100", time="2026-01-01T00:00:00Z", type=0, headers=headers)
        assert status_and_code(too_old) == (409, "gateway-too-old")
        assert office.send(behind, "write", "8010", value="zz", headers=headers).status_code == 400
    office.wait_until(
        lambda: (
            status_and_code(office.send(behind, "write", "8010", headers=headers)) == (503, "gateway-offline")
        )
    )
    with office.gateway(lambda asked: [asked.build_response()], third.mac) as back:
        office.wait_until(lambda: office.send(behind, "write", "8010", headers=headers).status_code == 200)
        assert office.send(behind, "write", "8010", value="ff", headers=headers).status_code == 409
        assert len(back.requests) == 1


@each_row("key", ["", "a b", "x" * 256, "a\tb", "schlüssel"])
def test_a_malformed_key_is_refused(
    office: ServiceWithBroker, third: ScriptedGateway, device: Mac, key: str
) -> None:
    third.requests.clear()
    headers: Any = [(b"Idempotency-Key", key.encode("latin-1"))]
    answer = office.send(device, "write", "8010", headers=headers)
    assert (answer.status_code, [each["field"] for each in answer.json()["errors"]]) == (
        400,
        ["Idempotency-Key"],
    )
    assert third.requests == []


@each_row("key", ["x", "~" * 255, "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"])
def test_any_text_of_ascii_without_spaces_is_a_key(
    office: ServiceWithBroker, third: ScriptedGateway, device: Mac, key: str
) -> None:
    third.responder = lambda asked: [asked.build_response()]
    answers = [office.send(device, "write", "8010", headers={"Idempotency-Key": key}) for _ in range(2)]
    assert (answers[0].status_code, answers[0].json()) == (200, answers[1].json())
