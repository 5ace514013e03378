"""Staying in, going, and being thrown out."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING

import jwt
import pytest

from meshfleet.rest import Role
from tests.service.http.proxied_logins import LOGIN
from tests.service.http.running_service import PASSWORD

if TYPE_CHECKING:
    import httpx

    from tests.service.http.running_service import RunningService

ME, REFRESH, LOGOUT = "/api/v1/auth/me", "/api/v1/auth/refresh", "/api/v1/auth/logout"
OWN_PASSWORD = "/api/v1/auth/password"  # noqa: S105 # where, not what
OTHER = "another-horse-battery"


def me(service: RunningService, token: str) -> int:
    """What becomes of somebody who comes with this token."""
    return ask(service, "GET", ME, token).status_code


def ask(service: RunningService, method: str, path: str, token: str, json: object = None) -> httpx.Response:
    return service.anonymous.request(method, path, json=json, headers={"Authorization": f"Bearer {token}"})


def refreshed(service: RunningService, token: str) -> str:
    answer = ask(service, "POST", REFRESH, token)
    assert answer.status_code == 200, answer.text
    new: str = answer.json()["authToken"]
    return new


@pytest.mark.rule("auth-6", "auth-7", "rest-13")
def test_a_token_ends_after_half_an_hour(service: RunningService) -> None:
    token = service.log_in(service.new_user())
    service.clock.move(seconds=1740)
    assert me(service, token) == 200
    service.clock.move(seconds=60)
    answer = ask(service, "GET", ME, token)
    assert (answer.status_code, answer.json()["code"]) == (401, "not-logged-in")
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert ask(service, "POST", REFRESH, token).status_code == 401


@pytest.mark.rule("auth-8")
def test_a_token_is_traded_for_a_new_one(service: RunningService) -> None:
    username = service.new_user()
    token = service.log_in(username)
    service.clock.move(seconds=600)
    answer = ask(service, "POST", REFRESH, token)
    new = answer.json()["authToken"]
    assert answer.json() == {"status": "SUCCESS", "authToken": new, "sessionId": None}
    before, after = (jwt.decode(each, options={"verify_signature": False}) for each in (token, new))
    assert (after["sub"], after["exp"]) == (username, after["iat"] + 1800)
    assert after["iat"] - before["iat"] >= 600
    service.clock.move(seconds=1300)
    assert (me(service, token), me(service, new)) == (401, 200)


@pytest.mark.rule("auth-8", "auth-9")
def test_refreshing_ends_twelve_hours_after_the_login(service: RunningService) -> None:
    token = service.log_in(service.new_user())
    for _ in range(28):
        service.clock.move(seconds=1500)
        token = refreshed(service, token)
    service.clock.move(seconds=1140)  # 19 minutes: one is left
    token = refreshed(service, token)
    service.clock.move(seconds=60)
    answer = ask(service, "POST", REFRESH, token)
    assert (answer.status_code, answer.json()["code"]) == (401, "not-logged-in")


@pytest.mark.rule("auth-6", "auth-9")
def test_the_last_token_of_a_login_lives_thirty_minutes_too(service: RunningService) -> None:
    """Only refreshing ends after twelve hours; a token that says it holds until then and then, holds."""
    token = service.log_in(service.new_user())
    for _ in range(28):
        service.clock.move(seconds=1500)
        token = refreshed(service, token)
    service.clock.move(seconds=1140)
    token = refreshed(service, token)
    service.clock.move(seconds=1200)
    assert me(service, token) == 200
    service.clock.move(seconds=600)
    assert me(service, token) == 401


@pytest.mark.rule("auth-10")
def test_logging_out_ends_all_tokens_of_that_login_and_no_others(service: RunningService) -> None:
    username = service.new_user()
    first, other = service.log_in(username), service.log_in(username)
    second = refreshed(service, first)
    third = refreshed(service, second)
    assert [me(service, each) for each in (first, second, third, other)] == [200] * 4
    answer = ask(service, "POST", LOGOUT, second)
    assert (answer.status_code, answer.content) == (204, b"")
    assert [me(service, each) for each in (first, second, third, other)] == [401, 401, 401, 200]
    assert ask(service, "POST", REFRESH, third).status_code == 401
    assert ask(service, "POST", LOGOUT, first).status_code == 401


@pytest.mark.rule("auth-10", "auth-26")
def test_logging_out_many_times_at_once_is_one_change(service: RunningService) -> None:
    username = service.new_user()
    token = service.log_in(username)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: ask(service, "POST", LOGOUT, token).status_code, range(8)))
    assert {204} <= set(answers) <= {204, 401}
    rows = service.admin.get("/api/v1/audit", params={"Target": username, "Action": "auth.logout"}).json()
    assert len(rows["items"]) == 1


@pytest.mark.rule("auth-12")
def test_changing_ones_password_keeps_this_login_and_ends_the_others(service: RunningService) -> None:
    username = service.new_user()
    mine, other = service.log_in(username), service.log_in(username)
    stranger = service.log_in(service.new_user())
    mine_too = refreshed(service, mine)
    answer = ask(service, "PUT", OWN_PASSWORD, mine, {"current": PASSWORD, "password": OTHER})
    assert (answer.status_code, answer.content) == (204, b"")
    assert [me(service, each) for each in (mine, mine_too, other, stranger)] == [200, 200, 401, 200]
    assert me(service, service.log_in(username, OTHER)) == 200
    wrong = service.anonymous.post(LOGIN, json={"username": username, "password": PASSWORD})
    assert wrong.status_code == 401


@pytest.mark.rule("auth-12", "auth-22", "rest-5", "rest-11")
def test_a_new_password_is_only_taken_from_who_knows_the_old_one(service: RunningService) -> None:
    username = service.new_user()
    token = service.log_in(username)
    for body, status in (
        ({"current": PASSWORD + "x", "password": OTHER}, 401),
        ({"current": PASSWORD, "password": "nine-char"}, 400),
        ({"current": PASSWORD, "password": "x" * 1025}, 400),
        ({"current": PASSWORD}, 400),
        ({"password": OTHER}, 400),
        ({"current": PASSWORD, "password": OTHER, "username": "admin"}, 400),
    ):
        answer = ask(service, "PUT", OWN_PASSWORD, token, body)
        assert answer.status_code == status
        assert PASSWORD not in answer.text
        assert OTHER not in answer.text
    assert me(service, token) == 200
    service.log_in(username)


@pytest.mark.rule("auth-12", "auth-23")
def test_a_password_given_by_an_admin_ends_all_logins(service: RunningService) -> None:
    username = service.new_user(Role.ADMIN)
    tokens = [service.log_in(username), service.log_in(username)]
    answer = ask(service, "PUT", f"/api/v1/users/{username}", tokens[0], {"password": OTHER})
    assert answer.status_code == 200
    assert [me(service, each) for each in tokens] == [401, 401]
    service.log_in(username, OTHER)


@pytest.mark.rule("auth-12")
def test_no_login_with_the_old_password_outlives_the_new_one(slow_hashing: RunningService) -> None:
    """Somebody who knows the old password keeps logging in while its owner changes it."""
    username, changed = slow_hashing.new_user(), Event()
    owner = slow_hashing.log_in(username)

    def keep_logging_in(_: int) -> list[str]:
        tokens = []
        while not changed.is_set():
            answer = slow_hashing.anonymous.post(LOGIN, json={"username": username, "password": PASSWORD})
            if answer.status_code == 200:
                tokens.append(answer.json()["authToken"])
        return tokens

    with ThreadPoolExecutor(3) as threads:
        thieves = threads.map(keep_logging_in, range(3))
        answer = ask(slow_hashing, "PUT", OWN_PASSWORD, owner, {"current": PASSWORD, "password": OTHER})
        changed.set()
        stolen = [token for tokens in thieves for token in tokens]
    assert answer.status_code == 204
    assert [me(slow_hashing, token) for token in stolen] == [401] * len(stolen)


@pytest.mark.rule("auth-12", "auth-23")
def test_a_password_given_by_an_admin_is_not_undone_by_a_change_that_was_under_way(
    slow_hashing: RunningService,
) -> None:
    """Who knew the password before cannot set another one once it has been replaced."""
    username = slow_hashing.new_user()
    thief = slow_hashing.log_in(username)
    body = {"current": PASSWORD, "password": "the-word-of-the-thief"}
    with ThreadPoolExecutor(1) as threads:
        theft = threads.submit(ask, slow_hashing, "PUT", OWN_PASSWORD, thief, body)
        reset = slow_hashing.admin.put(f"/api/v1/users/{username}", json={"password": OTHER})
        assert theft.result().status_code in {204, 401, 409}
    assert reset.status_code == 200
    slow_hashing.log_in(username, OTHER)


@pytest.mark.rule("auth-17", "auth-18")
def test_who_is_demoted_loses_rights_at_once_and_who_is_promoted_gains_them(service: RunningService) -> None:
    service.new_user(Role.ADMIN)  # one admin must stay
    username = service.new_user(Role.ADMIN)
    token = service.log_in(username)
    for role, status in ((Role.OPERATOR, 403), (Role.ADMIN, 200), (Role.VIEWER, 403), (Role.ADMIN, 200)):
        assert service.admin.put(f"/api/v1/users/{username}", json={"role": role}).status_code == 200
        assert ask(service, "GET", "/api/v1/users", token).status_code == status
        assert ask(service, "GET", ME, token).json()["role"] == role


@pytest.mark.rule("auth-23")
def test_who_is_removed_is_out_at_once_and_stays_out_when_somebody_takes_the_name(
    service: RunningService,
) -> None:
    service.new_user(Role.ADMIN)  # one admin must stay
    username = service.new_user(Role.ADMIN)
    token = service.log_in(username)
    assert me(service, token) == 200
    assert service.admin.delete(f"/api/v1/users/{username}").status_code == 204
    assert me(service, token) == 401
    again = {"username": username, "password": OTHER, "role": "admin"}
    assert service.admin.post("/api/v1/users", json=again).status_code == 201
    assert me(service, token) == 401
    assert ask(service, "POST", REFRESH, token).status_code == 401


def test_who_removes_oneself_is_out(service: RunningService) -> None:
    service.new_user(Role.ADMIN)  # one admin must stay
    username = service.new_user(Role.ADMIN)
    token = service.log_in(username)
    assert ask(service, "DELETE", f"/api/v1/users/{username}", token).status_code == 204
    assert me(service, token) == 401
