"""Password guessing is slowed down, reveals nothing, and does not affect other users."""

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

WRONG_PASSWORD = PASSWORD + "x"
_addresses = count(1)


@pytest.fixture(scope="module")
def service(request: pytest.FixtureRequest, database_kind: str) -> Iterator[RunningService]:
    yield from behind_a_proxy(request, database_kind)


@pytest.fixture
def address() -> str:
    """Return an address that no other test uses."""
    return f"198.51.{next(_addresses)}.1"


def summarize(response: httpx.Response) -> tuple[int, str, str | None]:
    return response.status_code, response.json()["code"], response.headers.get("Retry-After")


def list_visible(response: httpx.Response) -> dict[str, Any]:
    """Return all that a client sees of a response, except the date."""
    headers = {name: value for name, value in response.headers.items() if name != "date"}
    return {"status": response.status_code, "body": response.content, **headers}


REFUSED = (401, "wrong-credentials", None)


def expect_delay(seconds: int) -> tuple[int, str, str]:
    return 429, "too-many-attempts", str(seconds)


@pytest.mark.rule("auth-13")
@pytest.mark.parametrize("seconds", [-86_400, 86_400], ids=["back", "ahead"])
def test_delays_do_not_depend_on_the_wall_clock(service: RunningService, address: str, seconds: int) -> None:
    """Accept the correct password exactly after the delay although the clock is set by a day."""
    username = service.new_user()
    for _ in range(6):
        try_login(service, username, WRONG_PASSWORD, at=address)
    service.clock.set(seconds=seconds)
    try:
        assert summarize(try_login(service, username, PASSWORD, at=address)) == expect_delay(1)
        service.clock.move(seconds=1)
        assert try_login(service, username, PASSWORD, at=address).status_code == 200
    finally:
        service.clock.set(seconds=-seconds)


@pytest.mark.rule("auth-13")
def test_the_delay_of_an_address_does_not_depend_on_the_wall_clock(
    service: RunningService, address: str
) -> None:
    """Let users of failed names log in concurrently after the delay, and another name fail."""
    users = [service.new_user() for _ in range(3)]
    unknown_names = [service.new_name("unknown") for _ in range(4)]
    results = [
        summarize(try_login(service, each, WRONG_PASSWORD, at=address))
        for each in (*users, *unknown_names[:3])
    ]
    assert results == [REFUSED] * 5 + [expect_delay(1)]
    service.clock.set(seconds=-86_400)
    try:
        service.clock.move(seconds=2)
        with ThreadPoolExecutor(len(users)) as threads:
            tries = [threads.submit(try_login, service, each, at=address) for each in users]
            assert [each.result().status_code for each in tries] == [200] * len(users)
        assert summarize(try_login(service, unknown_names[3], WRONG_PASSWORD, at=address)) == REFUSED
    finally:
        service.clock.set(seconds=86_400)


@pytest.mark.rule("auth-13", "rest-14")
def test_after_five_failures_the_reported_delays_grow(service: RunningService, address: str) -> None:
    username = service.new_user()
    results = [summarize(try_login(service, username, WRONG_PASSWORD, at=address)) for _ in range(5)]
    for seconds in (1, 2, 4):
        results.append(summarize(try_login(service, username, WRONG_PASSWORD, at=address)))
        service.clock.move(seconds=seconds)
        results.append(summarize(try_login(service, username, WRONG_PASSWORD, at=address)))
    assert results == [REFUSED] * 5 + [
        expect_delay(1),
        REFUSED,
        expect_delay(2),
        REFUSED,
        expect_delay(4),
        REFUSED,
    ]


@pytest.mark.rule("auth-13", "rest-9", "rest-12", "rest-14")
def test_a_throttled_login_gets_a_problem(service: RunningService, address: str) -> None:
    for _ in range(5):
        try_login(service, "unknown", WRONG_PASSWORD, at=address)
    response = try_login(service, "unknown", WRONG_PASSWORD, at=address)
    assert response.headers["Content-Type"] == "application/problem+json"
    assert response.json() == {
        "type": "about:blank",
        "title": "Too Many Requests",
        "status": 429,
        "detail": "too many attempts; try again in 1 s",
        "instance": LOGIN,
        "code": "too-many-attempts",
        "errors": [],
    }


@pytest.mark.rule("auth-13")
def test_the_correct_password_is_refused_during_the_delay(service: RunningService, address: str) -> None:
    username = service.new_user()
    for _ in range(5):
        try_login(service, username, WRONG_PASSWORD, at=address)
    assert summarize(try_login(service, username, at=address)) == expect_delay(1)
    service.clock.move(seconds=1)
    assert try_login(service, username, at=address).status_code == 200
    assert [summarize(try_login(service, username, WRONG_PASSWORD, at=address)) for _ in range(5)] == [
        REFUSED
    ] * 5


@pytest.mark.rule("auth-15", "rest-169")
def test_the_owner_can_log_in_from_another_address(service: RunningService, address: str) -> None:
    username = service.new_user()
    for _ in range(5):
        try_login(service, username, WRONG_PASSWORD, at=address)
    assert try_login(service, username, at=address).status_code == 429
    assert try_login(service, username, at=f"{address}9").status_code == 200
    assert try_login(service, username, at=address).status_code == 429


@pytest.mark.rule("rest-169")
def test_a_forged_forwarded_address_is_ignored(service: RunningService, address: str) -> None:
    results = [
        summarize(try_login(service, "unknown", WRONG_PASSWORD, at=f"203.0.113.{number}, {address}"))
        for number in range(6)
    ]
    assert results == [REFUSED] * 5 + [expect_delay(1)]


@pytest.mark.rule("auth-13")
def test_names_are_throttled_regardless_of_case(service: RunningService, address: str) -> None:
    username = service.new_user()
    spelling = [username, username.upper(), username.title(), username.replace("s", "S"), "U" + username[1:]]
    assert [summarize(try_login(service, name, WRONG_PASSWORD, at=address)) for name in spelling] == [
        REFUSED
    ] * 5
    assert summarize(
        try_login(service, username.replace("r", "R"), WRONG_PASSWORD, at=address)
    ) == expect_delay(1)


@pytest.mark.rule("auth-14")
def test_many_failed_names_at_one_address_cause_growing_delays(service: RunningService, address: str) -> None:
    results = [
        summarize(try_login(service, f"unknown-{number}", WRONG_PASSWORD, at=address)) for number in range(8)
    ]
    assert results == [REFUSED] * 5 + [expect_delay(1), expect_delay(2), expect_delay(4)]


@pytest.mark.rule("auth-15")
def test_the_correct_password_is_accepted_where_many_names_failed(
    service: RunningService, address: str
) -> None:
    username = service.new_user()
    for number in range(7):
        try_login(service, f"unknown-{number}", WRONG_PASSWORD, at=address)
    assert try_login(service, username, at=address).status_code == 200


_SEQUENCES: list[Sequence[str | float]] = [
    ["?", "?", "?", "?", "?", 1, "?", "?"],
    ["a", "b", "c", "d", "e", "f", "?", "?", 8, "?", "?"],
    ["?", "me", "?", "?", "me", "?", "?", "me", "?"],
    ["a", "b", "c", "d", "?", 3601, "?", "me", "?"],
]
"""Steps: `?` is the tested name, a number is a pause, `me` logs in correctly, other names are unknown."""


@pytest.mark.rule("auth-3", "auth-14")
@pytest.mark.parametrize("steps", _SEQUENCES)
def test_no_sequence_distinguishes_known_from_unknown_names(
    service: RunningService, address: str, steps: Sequence[str | float]
) -> None:
    me, addresses = service.new_user(), (address, f"{address}0")
    names = (service.new_user(), service.new_name("unknown"))
    for step in steps:
        if isinstance(step, int | float):
            service.clock.move(seconds=step)
        elif step == "me":
            assert [try_login(service, me, at=each).status_code for each in addresses] == [200, 200]
        else:
            step_names = names if step == "?" else (step, step)
            responses = [
                try_login(service, name, WRONG_PASSWORD, at=at)
                for name, at in zip(step_names, addresses, strict=True)
            ]
            assert list_visible(responses[0]) == list_visible(responses[1])


@pytest.mark.rule("auth-13")
@pytest.mark.parametrize("is_known", [True, False])
def test_concurrent_attempts_are_throttled_like_sequential_ones(
    service: RunningService, address: str, *, is_known: bool
) -> None:
    username = service.new_user() if is_known else service.new_name("unknown")
    with ThreadPoolExecutor(20) as threads:
        tries = [threads.submit(try_login, service, username, WRONG_PASSWORD, at=address) for _ in range(20)]
        statuses = Counter(each.result().status_code for each in tries)
    assert statuses == {401: 5, 429: 15}


@pytest.mark.rule("auth-12", "auth-13")
def test_guessing_the_current_password_with_a_token_is_throttled(
    service: RunningService, address: str
) -> None:
    with service.client(service.log_in(service.new_user())) as thief:
        thief.headers["X-Forwarded-For"] = address
        results = [
            summarize(
                thief.put(
                    "/api/v1/auth/password", json={"current": WRONG_PASSWORD, "password": WRONG_PASSWORD}
                )
            )
            for _ in range(6)
        ]
    assert results == [REFUSED] * 5 + [expect_delay(1)]
