"""Requests with an Idempotency-Key: sent once, however often they come."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from meshfleet.wire.rest import Role
from tests.service.requests.office import IN_VAIN
from tests.service.requests.third_party import nothing
from tests.tables import each_row

if TYPE_CHECKING:
    import httpx

    from meshfleet.wire.ids import Mac
    from tests.service.requests.office import Office
    from tests.service.requests.third_party import Asked, Gateway, Said

pytestmark = pytest.mark.both_databases


def keyed(key: str | None = None, **more: str) -> dict[str, str]:
    return {"Idempotency-Key": key or str(uuid4()), **more}


def told(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


@pytest.mark.rule("rest-25")
@each_row(("operation", "body"), [("read", {}), ("write", {"value": "ff", "key": "aa" * 16})])
def test_the_same_key_and_body_get_the_same_answer(
    office: Office, third: Gateway, device: Mac, operation: str, body: dict[str, Any]
) -> None:
    third.asked.clear()
    third.manner = lambda asked: [asked.answer(value="2011", errorMessage=f"{len(third.asked)}")]
    headers = keyed()
    answers = [office.send(device, operation, "8010", headers=headers, **body) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert answers[0].json() == answers[1].json() == answers[2].json()
    assert len(third.asked) == 1
    assert [each["id"] for each in office.history(device)].count(answers[0].json()["id"]) == 1


@pytest.mark.rule("rest-25")
def test_it_is_the_body_that_counts_and_not_how_it_is_written(
    office: Office, third: Gateway, device: Mac
) -> None:
    third.asked.clear()
    third.manner = lambda asked: [asked.answer(value="ff")]
    headers = {**keyed(), "Content-Type": "application/json"}
    path = f"/api/v1/devices/bmac-{device}/requests"
    for text in (
        '{"operation":"read","identifier":"8010","priority":3}',
        '{ "priority" : 3, "identifier":"\\u0038010", "operation":"read" }',
    ):
        assert office.operator.post(path, content=text, headers=headers).status_code == 200
    assert len(third.asked) == 1


@pytest.mark.rule("rest-26")
def test_the_same_key_with_another_body_or_device_is_refused(
    office: Office, third: Gateway, device: Mac
) -> None:
    third.manner = lambda asked: [asked.answer(value="ff")]
    other = office.device_behind(third)
    headers = keyed()
    assert office.send(device, "write", "8010", value="ff", headers=headers).status_code == 200
    third.asked.clear()
    for answer in (
        office.send(device, "write", "8010", value="fe", headers=headers),
        office.send(device, "write", "8010", value="ff", timeoutMs=1000, headers=headers),
        office.send(device, "write", "8010", value="ff", key="aa", headers=headers),
        office.send(device, "write", "8010", headers=headers),
        office.send(device, "read", "8010", headers=headers),
        office.send(other, "write", "8010", value="ff", headers=headers),
    ):
        assert told(answer) == (409, "idempotency-key-reused")
    assert third.asked == []
    assert office.history(other) == []


@pytest.mark.rule("rest-25", "rest-26")
def test_whoever_comes_while_the_first_still_runs_waits_for_its_answer(
    office: Office, third: Gateway, device: Mac
) -> None:
    held: list[Asked] = []

    def hold(asked: Asked) -> list[Said]:
        held.append(asked)
        return []

    third.manner, headers = hold, keyed()
    third.asked.clear()
    with ThreadPoolExecutor(8) as people:
        waiting = [
            people.submit(office.send, device, "write", "8010", value="ff", headers=headers) for _ in range(8)
        ]
        office.until(lambda: held)
        other = office.send(device, "write", "8010", value="00", headers=headers)
        assert told(other) == (409, "idempotency-key-reused")
        assert not any(each.done() for each in waiting)
        third.say(held[0].answer(route="r"))
        answers = [each.result() for each in waiting]
    assert [answer.status_code for answer in answers] == [200] * 8
    assert {answer.text for answer in answers} == {answers[0].text}
    assert len(third.asked) == 1


@pytest.mark.rule("rest-25", "rest-100")
def test_what_timed_out_is_not_sent_again(office: Office, third: Gateway, device: Mac) -> None:
    third.manner, headers = nothing, keyed()
    third.asked.clear()
    answers = [
        office.send(device, "write", "8010", value="ff", timeoutMs=IN_VAIN, headers=headers) for _ in range(3)
    ]
    assert [told(answer) for answer in answers] == [(504, "gateway-timeout")] * 3
    assert {answer.json()["detail"] for answer in answers} == {answers[0].json()["detail"]}
    office.until(lambda: third.asked)
    third.manner = lambda asked: [asked.answer(value="ff")]
    assert office.send(device, "read", "8010").status_code == 200  # whatever came before it has been sent
    assert len(third.asked) == 2


@pytest.mark.rule("rest-25", "rest-103", "rest-105")
def test_what_is_not_waited_for_is_sent_once_too(office: Office, third: Gateway, device: Mac) -> None:
    third.manner = lambda asked: [asked.answer(value="ff")]
    third.asked.clear()
    later = keyed(Prefer="respond-async")
    accepted = [office.send(device, "write", "8010", headers=later) for _ in range(2)]
    assert [each.status_code for each in accepted] == [202, 202]
    assert accepted[0].json() == accepted[1].json()
    waited = office.send(device, "write", "8010", headers={"Idempotency-Key": later["Idempotency-Key"]})
    assert (waited.status_code, waited.json()["id"]) == (200, accepted[0].json()["id"])
    headers, time = keyed(), "2026-01-02T03:04:05.678Z"
    acks = [office.send(device, "ack", "8100", headers=headers, time=time, type=0) for _ in range(2)]
    assert [each.status_code for each in acks] == [202, 202]
    assert acks[0].json() == acks[1].json()
    assert office.send(device, "read", "8010").status_code == 200
    assert [each.end for each in third.asked] == [
        f"{device}/write/8010",
        f"{device}/ack/8100",
        f"{device}/read/8010",
    ]


@pytest.mark.rule("rest-25")
def test_everybody_has_keys_of_their_own(office: Office, third: Gateway, device: Mac) -> None:
    third.manner = lambda asked: [asked.answer()]
    third.asked.clear()
    headers = keyed()
    person = office.new_user(Role.OPERATOR)
    people = [office.operator, office.admin, office.client(office.log_in(person))]
    answers = [
        office.send(device, "write", "8010", value=f"0{number}", by=who, headers=headers)
        for number, who in enumerate(people)
    ]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert len(third.asked) == 3
    with office.client(office.log_in(person)) as later:
        again = office.send(device, "write", "8010", value="02", by=later, headers=headers)
    assert again.json() == answers[2].json()
    people[2].close()


@pytest.mark.rule("rest-196")
def test_a_key_whose_request_was_never_sent_is_free_again(office: Office) -> None:
    headers = keyed()
    with office.gateway(lambda asked: [asked.answer()], version="1.2.0") as third:
        behind = office.device_behind(third)
        silent = office.new_device()
        assert told(office.send(silent, "write", "8010", headers=headers)) == (503, "no-gateway")
        assert told(office.send("bmac-0123456789ab", "write", "8010", headers=headers)) == (404, "not-found")
        too_old = office.send(behind, "ack", "8100", time="2026-01-01T00:00:00Z", type=0, headers=headers)
        assert told(too_old) == (409, "gateway-too-old")
        assert office.send(behind, "write", "8010", value="zz", headers=headers).status_code == 400
    office.until(
        lambda: told(office.send(behind, "write", "8010", headers=headers)) == (503, "gateway-offline")
    )
    with office.gateway(lambda asked: [asked.answer()], third.mac) as back:
        office.until(lambda: office.send(behind, "write", "8010", headers=headers).status_code == 200)
        assert office.send(behind, "write", "8010", value="ff", headers=headers).status_code == 409
        assert len(back.asked) == 1


@each_row("key", ["", "a b", "x" * 256, "a\tb", "schlüssel"])
def test_a_malformed_key_is_refused(office: Office, third: Gateway, device: Mac, key: str) -> None:
    third.asked.clear()
    headers: Any = [(b"Idempotency-Key", key.encode("latin-1"))]
    answer = office.send(device, "write", "8010", headers=headers)
    assert (answer.status_code, [each["field"] for each in answer.json()["errors"]]) == (
        400,
        ["Idempotency-Key"],
    )
    assert third.asked == []


@each_row("key", ["x", "~" * 255, "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"])
def test_any_text_of_ascii_without_spaces_is_a_key(
    office: Office, third: Gateway, device: Mac, key: str
) -> None:
    third.manner = lambda asked: [asked.answer()]
    answers = [office.send(device, "write", "8010", headers={"Idempotency-Key": key}) for _ in range(2)]
    assert (answers[0].status_code, answers[0].json()) == (200, answers[1].json())
