"""Sessions: refresh, logout, password changes and revocation."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING

import jwt
import pytest

from meshfleet.rest.accounts import Role
from tests.service.http.proxied_logins import LOGIN
from tests.service.http.running_service import PASSWORD

if TYPE_CHECKING:
    import httpx

    from tests.service.http.running_service import RunningService

ME, REFRESH, LOGOUT = "/api/v1/auth/me", "/api/v1/auth/refresh", "/api/v1/auth/logout"
OWN_PASSWORD = "/api/v1/auth/password"  # noqa: S105 # a path, not a password
NEW_PASSWORD = "another-horse-battery"  # noqa: S105 # a password of this test


def get_status(service: RunningService, token: str) -> int:
    """Return the status of a request with this token."""
    return send(service, "GET", ME, token).status_code


def send(service: RunningService, method: str, path: str, token: str, json: object = None) -> httpx.Response:
    return service.anonymous.request(method, path, json=json, headers={"Authorization": f"Bearer {token}"})


def refresh_token(service: RunningService, token: str) -> str:
    response = send(service, "POST", REFRESH, token)
    assert response.status_code == 200, response.text
    new: str = response.json()["authToken"]
    return new


@pytest.mark.rule("auth-6", "auth-7", "rest-13")
def test_a_token_expires_after_30_minutes(service: RunningService) -> None:
    token = service.log_in(service.new_user())
    service.clock.move(seconds=1740)
    assert get_status(service, token) == 200
    service.clock.move(seconds=60)
    response = send(service, "GET", ME, token)
    assert (response.status_code, response.json()["code"]) == (401, "not-logged-in")
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert send(service, "POST", REFRESH, token).status_code == 401


@pytest.mark.rule("auth-8")
def test_a_token_is_exchanged_for_a_new_one(service: RunningService) -> None:
    username = service.new_user()
    token = service.log_in(username)
    service.clock.move(seconds=600)
    response = send(service, "POST", REFRESH, token)
    new = response.json()["authToken"]
    assert response.json() == {"status": "SUCCESS", "authToken": new, "sessionId": None}
    before, after = (jwt.decode(each, options={"verify_signature": False}) for each in (token, new))
    assert (after["sub"], after["exp"]) == (username, after["iat"] + 1800)
    assert after["iat"] - before["iat"] >= 600
    service.clock.move(seconds=1300)
    assert (get_status(service, token), get_status(service, new)) == (401, 200)


@pytest.mark.rule("auth-8", "auth-9")
def test_a_session_can_be_refreshed_for_twelve_hours(service: RunningService) -> None:
    token = service.log_in(service.new_user())
    for _ in range(28):
        service.clock.move(seconds=1500)
        token = refresh_token(service, token)
    service.clock.move(seconds=1140)  # 19 minutes: one minute is left
    token = refresh_token(service, token)
    service.clock.move(seconds=60)
    response = send(service, "POST", REFRESH, token)
    assert (response.status_code, response.json()["code"]) == (401, "not-logged-in")


@pytest.mark.rule("auth-6", "auth-9")
def test_the_last_token_of_a_session_is_valid_for_30_minutes(service: RunningService) -> None:
    """Accept the last token until its own expiry: only the refresh ends after twelve hours."""
    token = service.log_in(service.new_user())
    for _ in range(28):
        service.clock.move(seconds=1500)
        token = refresh_token(service, token)
    service.clock.move(seconds=1140)
    token = refresh_token(service, token)
    service.clock.move(seconds=1200)
    assert get_status(service, token) == 200
    service.clock.move(seconds=600)
    assert get_status(service, token) == 401


@pytest.mark.rule("auth-10")
def test_a_logout_ends_all_tokens_of_its_session_and_no_others(service: RunningService) -> None:
    username = service.new_user()
    first, other = service.log_in(username), service.log_in(username)
    second = refresh_token(service, first)
    third = refresh_token(service, second)
    assert [get_status(service, each) for each in (first, second, third, other)] == [200] * 4
    response = send(service, "POST", LOGOUT, second)
    assert (response.status_code, response.content) == (204, b"")
    assert [get_status(service, each) for each in (first, second, third, other)] == [401, 401, 401, 200]
    assert send(service, "POST", REFRESH, third).status_code == 401
    assert send(service, "POST", LOGOUT, first).status_code == 401


@pytest.mark.rule("auth-10", "auth-26")
def test_concurrent_logouts_are_one_change(service: RunningService) -> None:
    username = service.new_user()
    token = service.log_in(username)
    with ThreadPoolExecutor(8) as threads:
        responses = list(threads.map(lambda _: send(service, "POST", LOGOUT, token).status_code, range(8)))
    assert {204} <= set(responses) <= {204, 401}
    rows = service.admin.get("/api/v1/audit", params={"Target": username, "Action": "auth.logout"}).json()
    assert len(rows["items"]) == 1


@pytest.mark.rule("auth-12")
def test_a_password_change_keeps_the_current_session_and_ends_the_others(service: RunningService) -> None:
    username = service.new_user()
    current, other = service.log_in(username), service.log_in(username)
    other_user = service.log_in(service.new_user())
    current_refreshed = refresh_token(service, current)
    response = send(service, "PUT", OWN_PASSWORD, current, {"current": PASSWORD, "password": NEW_PASSWORD})
    assert (response.status_code, response.content) == (204, b"")
    assert [get_status(service, each) for each in (current, current_refreshed, other, other_user)] == [
        200,
        200,
        401,
        200,
    ]
    assert get_status(service, service.log_in(username, NEW_PASSWORD)) == 200
    wrong = service.anonymous.post(LOGIN, json={"username": username, "password": PASSWORD})
    assert wrong.status_code == 401


@pytest.mark.rule("auth-12", "auth-22", "rest-5", "rest-11")
def test_a_password_change_requires_the_current_password(service: RunningService) -> None:
    username = service.new_user()
    token = service.log_in(username)
    for body, status in (
        ({"current": PASSWORD + "x", "password": NEW_PASSWORD}, 401),
        ({"current": PASSWORD, "password": "nine-char"}, 400),
        ({"current": PASSWORD, "password": "x" * 1025}, 400),
        ({"current": PASSWORD}, 400),
        ({"password": NEW_PASSWORD}, 400),
        ({"current": PASSWORD, "password": NEW_PASSWORD, "username": "admin"}, 400),
    ):
        response = send(service, "PUT", OWN_PASSWORD, token, body)
        assert response.status_code == status
        assert PASSWORD not in response.text
        assert NEW_PASSWORD not in response.text
    assert get_status(service, token) == 200
    service.log_in(username)


@pytest.mark.rule("auth-12", "auth-23")
def test_a_password_set_by_an_admin_ends_all_sessions(service: RunningService) -> None:
    username = service.new_user(Role.ADMIN)
    tokens = [service.log_in(username), service.log_in(username)]
    response = send(service, "PUT", f"/api/v1/users/{username}", tokens[0], {"password": NEW_PASSWORD})
    assert response.status_code == 200
    assert [get_status(service, each) for each in tokens] == [401, 401]
    service.log_in(username, NEW_PASSWORD)


@pytest.mark.rule("auth-12")
def test_no_concurrent_login_with_the_old_password_survives_its_change(slow_hashing: RunningService) -> None:
    """Keep logging in with the old password while its owner changes it."""
    username, changed = slow_hashing.new_user(), Event()
    owner = slow_hashing.log_in(username)

    def keep_logging_in(_: int) -> list[str]:
        tokens = []
        while not changed.is_set():
            response = slow_hashing.anonymous.post(LOGIN, json={"username": username, "password": PASSWORD})
            if response.status_code == 200:
                tokens.append(response.json()["authToken"])
        return tokens

    with ThreadPoolExecutor(3) as threads:
        thieves = threads.map(keep_logging_in, range(3))
        response = send(
            slow_hashing, "PUT", OWN_PASSWORD, owner, {"current": PASSWORD, "password": NEW_PASSWORD}
        )
        changed.set()
        stolen = [token for tokens in thieves for token in tokens]
    assert response.status_code == 204
    assert [get_status(slow_hashing, token) for token in stolen] == [401] * len(stolen)


@pytest.mark.rule("auth-12", "auth-23")
def test_a_password_set_by_an_admin_is_not_undone_by_a_concurrent_change(
    slow_hashing: RunningService,
) -> None:
    """Refuse a change that was checked against a password which has been replaced meanwhile."""
    username = slow_hashing.new_user()
    thief = slow_hashing.log_in(username)
    body = {"current": PASSWORD, "password": "the-word-of-the-thief"}
    with ThreadPoolExecutor(1) as threads:
        theft = threads.submit(send, slow_hashing, "PUT", OWN_PASSWORD, thief, body)
        reset = slow_hashing.admin.put(f"/api/v1/users/{username}", json={"password": NEW_PASSWORD})
        assert theft.result().status_code in {204, 401, 409}
    assert reset.status_code == 200
    slow_hashing.log_in(username, NEW_PASSWORD)


@pytest.mark.rule("auth-17", "auth-18")
def test_a_role_change_applies_at_once(service: RunningService) -> None:
    service.new_user(Role.ADMIN)  # one admin must remain
    username = service.new_user(Role.ADMIN)
    token = service.log_in(username)
    for role, status in ((Role.OPERATOR, 403), (Role.ADMIN, 200), (Role.VIEWER, 403), (Role.ADMIN, 200)):
        assert service.admin.put(f"/api/v1/users/{username}", json={"role": role}).status_code == 200
        assert send(service, "GET", "/api/v1/users", token).status_code == status
        assert send(service, "GET", ME, token).json()["role"] == role


@pytest.mark.rule("auth-23")
def test_a_removed_user_stays_logged_out_when_the_name_is_reused(
    service: RunningService,
) -> None:
    service.new_user(Role.ADMIN)  # one admin must remain
    username = service.new_user(Role.ADMIN)
    token = service.log_in(username)
    assert get_status(service, token) == 200
    assert service.admin.delete(f"/api/v1/users/{username}").status_code == 204
    assert get_status(service, token) == 401
    again = {"username": username, "password": NEW_PASSWORD, "role": "admin"}
    assert service.admin.post("/api/v1/users", json=again).status_code == 201
    assert get_status(service, token) == 401
    assert send(service, "POST", REFRESH, token).status_code == 401


def test_users_who_remove_themselves_are_logged_out(service: RunningService) -> None:
    service.new_user(Role.ADMIN)  # one admin must remain
    username = service.new_user(Role.ADMIN)
    token = service.log_in(username)
    assert send(service, "DELETE", f"/api/v1/users/{username}", token).status_code == 204
    assert get_status(service, token) == 401
