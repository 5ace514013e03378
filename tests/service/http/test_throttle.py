"""Guessing passwords gets slow, tells nothing, and harms nobody but who guesses."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from tests.service.http.proxied_logins import LOGIN, behind_a_proxy, try_login
from tests.service.http.running_service import PASSWORD

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import httpx

    from tests.service.http.running_service import RunningService

WRONG = PASSWORD + "x"
_addresses = count(1)


@pytest.fixture(scope="module")
def service(request: pytest.FixtureRequest, database_kind: str) -> Iterator[RunningService]:
    yield from behind_a_proxy(request, database_kind)


@pytest.fixture
def address() -> str:
    """Where no other test is."""
    return f"198.51.{next(_addresses)}.1"


def told(answer: httpx.Response) -> tuple[int, str, str | None]:
    return answer.status_code, answer.json()["code"], answer.headers.get("Retry-After")


def everything(answer: httpx.Response) -> dict[str, Any]:
    """All that an answer shows, but for the time of day."""
    headers = {name: value for name, value in answer.headers.items() if name != "date"}
    return {"status": answer.status_code, "body": answer.content, **headers}


REFUSED = (401, "wrong-credentials", None)


def wait(seconds: int) -> tuple[int, str, str]:
    return 429, "too-many-attempts", str(seconds)


@pytest.mark.rule("auth-13")
@pytest.mark.parametrize("seconds", [-86_400, 86_400], ids=["back", "ahead"])
def test_delays_do_not_follow_the_clock_on_the_wall(
    service: RunningService, address: str, seconds: int
) -> None:
    """A right password is accepted after the delay, and not before, though the clock is set by a day."""
    username = service.new_user()
    for _ in range(6):
        try_login(service, username, WRONG, at=address)
    service.clock.set(seconds=seconds)
    try:
        assert told(try_login(service, username, PASSWORD, at=address)) == wait(1)
        service.clock.move(seconds=1)
        assert try_login(service, username, PASSWORD, at=address).status_code == 200
    finally:
        service.clock.set(seconds=-seconds)


@pytest.mark.rule("auth-13")
def test_an_address_where_name_after_name_failed_does_not_wait_for_a_clock_that_was_set_back(
    service: RunningService, address: str
) -> None:
    """After the delay users whose names failed too log in side by side, and another name may fail."""
    users = [service.new_user() for _ in range(3)]
    strangers = [service.new_name("nobody") for _ in range(4)]
    seen = [told(try_login(service, each, WRONG, at=address)) for each in (*users, *strangers[:3])]
    assert seen == [REFUSED] * 5 + [wait(1)]
    service.clock.set(seconds=-86_400)
    try:
        service.clock.move(seconds=2)
        with ThreadPoolExecutor(len(users)) as threads:
            tries = [threads.submit(try_login, service, each, at=address) for each in users]
            assert [each.result().status_code for each in tries] == [200] * len(users)
        assert told(try_login(service, strangers[3], WRONG, at=address)) == REFUSED
    finally:
        service.clock.set(seconds=86_400)


@pytest.mark.rule("auth-13", "rest-14")
def test_after_five_failures_delays_grow_and_are_told(service: RunningService, address: str) -> None:
    username = service.new_user()
    seen = [told(try_login(service, username, WRONG, at=address)) for _ in range(5)]
    for seconds in (1, 2, 4):
        seen.append(told(try_login(service, username, WRONG, at=address)))
        service.clock.move(seconds=seconds)
        seen.append(told(try_login(service, username, WRONG, at=address)))
    assert seen == [REFUSED] * 5 + [wait(1), REFUSED, wait(2), REFUSED, wait(4), REFUSED]


@pytest.mark.rule("auth-13", "rest-9", "rest-12", "rest-14")
def test_the_refusal_is_a_problem_like_any_other(service: RunningService, address: str) -> None:
    for _ in range(5):
        try_login(service, "nobody", WRONG, at=address)
    answer = try_login(service, "nobody", WRONG, at=address)
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json() == {
        "type": "about:blank",
        "title": "Too Many Requests",
        "status": 429,
        "detail": "too many attempts; try again in 1 s",
        "instance": LOGIN,
        "code": "too-many-attempts",
        "errors": [],
    }


@pytest.mark.rule("auth-13")
def test_while_one_must_wait_even_the_right_password_is_refused(
    service: RunningService, address: str
) -> None:
    username = service.new_user()
    for _ in range(5):
        try_login(service, username, WRONG, at=address)
    assert told(try_login(service, username, at=address)) == wait(1)
    service.clock.move(seconds=1)
    assert try_login(service, username, at=address).status_code == 200
    assert [told(try_login(service, username, WRONG, at=address)) for _ in range(5)] == [REFUSED] * 5


@pytest.mark.rule("auth-15", "rest-169")
def test_the_owner_gets_in_from_another_address(service: RunningService, address: str) -> None:
    username = service.new_user()
    for _ in range(5):
        try_login(service, username, WRONG, at=address)
    assert try_login(service, username, at=address).status_code == 429
    assert try_login(service, username, at=f"{address}9").status_code == 200
    assert try_login(service, username, at=address).status_code == 429


@pytest.mark.rule("rest-169")
def test_an_address_that_the_client_made_up_does_not_count(service: RunningService, address: str) -> None:
    seen = [
        told(try_login(service, "nobody", WRONG, at=f"203.0.113.{number}, {address}")) for number in range(6)
    ]
    assert seen == [REFUSED] * 5 + [wait(1)]


@pytest.mark.rule("auth-13")
def test_names_in_another_case_are_the_same_name(service: RunningService, address: str) -> None:
    username = service.new_user()
    spelt = [username, username.upper(), username.title(), username.replace("s", "S"), "U" + username[1:]]
    assert [told(try_login(service, name, WRONG, at=address)) for name in spelt] == [REFUSED] * 5
    assert told(try_login(service, username.replace("r", "R"), WRONG, at=address)) == wait(1)


@pytest.mark.rule("auth-14")
def test_name_after_name_at_one_address_is_refused_for_longer_and_longer(
    service: RunningService, address: str
) -> None:
    seen = [told(try_login(service, f"nobody-{number}", WRONG, at=address)) for number in range(8)]
    assert seen == [REFUSED] * 5 + [wait(1), wait(2), wait(4)]


@pytest.mark.rule("auth-15")
def test_who_knows_the_password_gets_in_where_many_names_failed(
    service: RunningService, address: str
) -> None:
    username = service.new_user()
    for number in range(7):
        try_login(service, f"nobody-{number}", WRONG, at=address)
    assert try_login(service, username, at=address).status_code == 200


_SEQUENCES: list[Sequence[str | float]] = [
    ["?", "?", "?", "?", "?", 1, "?", "?"],
    ["a", "b", "c", "d", "e", "f", "?", "?", 8, "?", "?"],
    ["?", "me", "?", "?", "me", "?", "?", "me", "?"],
    ["a", "b", "c", "d", "?", 3601, "?", "me", "?"],
]
"""`?` is the name in question, numbers are pauses, `me` logs in rightly, others are nobody's names."""


@pytest.mark.rule("auth-3", "auth-14")
@pytest.mark.parametrize("steps", _SEQUENCES)
def test_no_sequence_tells_a_known_name_from_an_unknown_one(
    service: RunningService, address: str, steps: Sequence[str | float]
) -> None:
    me, places = service.new_user(), (address, f"{address}0")
    names = (service.new_user(), service.new_name("nobody"))
    for step in steps:
        if isinstance(step, int | float):
            service.clock.move(seconds=step)
        elif step == "me":
            assert [try_login(service, me, at=place).status_code for place in places] == [200, 200]
        else:
            asked = names if step == "?" else (step, step)
            answers = [try_login(service, name, WRONG, at=at) for name, at in zip(asked, places, strict=True)]
            assert everything(answers[0]) == everything(answers[1])


@pytest.mark.rule("auth-13")
@pytest.mark.parametrize("known", [True, False])
def test_many_attempts_at_once_are_no_more_than_one_after_the_other(
    service: RunningService, address: str, *, known: bool
) -> None:
    username = service.new_user() if known else service.new_name("nobody")
    with ThreadPoolExecutor(20) as threads:
        tries = [threads.submit(try_login, service, username, WRONG, at=address) for _ in range(20)]
        statuses = Counter(each.result().status_code for each in tries)
    assert statuses == {401: 5, 429: 15}


@pytest.mark.rule("auth-12", "auth-13")
def test_who_guesses_with_a_stolen_token_is_slowed_down_too(service: RunningService, address: str) -> None:
    with service.client(service.log_in(service.new_user())) as thief:
        thief.headers["X-Forwarded-For"] = address
        seen = [
            told(thief.put("/api/v1/auth/password", json={"current": WRONG, "password": WRONG}))
            for _ in range(6)
        ]
    assert seen == [REFUSED] * 5 + [wait(1)]
