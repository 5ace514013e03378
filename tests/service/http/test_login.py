"""Login requests and responses, and secrets that must not leak."""

from __future__ import annotations

import base64
import logging
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from argon2 import PasswordHasher
from sqlalchemy import select

from meshfleet.db.tables import account
from meshfleet.rest.accounts import Role
from meshfleet.service.accounts import user_store
from meshfleet.service.actor import COMMAND_LINE
from tests.row_tables import each_row
from tests.service.http.proxied_logins import LOGIN, behind_a_proxy, try_login
from tests.service.http.running_service import PASSWORD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.service.http.running_service import RunningService

ME = "/api/v1/auth/me"


@pytest.fixture(scope="module")
def service(request: pytest.FixtureRequest, database_kind: str) -> Iterator[RunningService]:
    yield from behind_a_proxy(request, database_kind)


@pytest.mark.rule("auth-1", "auth-2", "rest-6")
def test_a_login_with_the_password_returns_a_token(service: RunningService) -> None:
    response = try_login(service, service.new_user(), at="192.0.2.1")
    assert (response.status_code, response.headers["Content-Type"]) == (200, "application/json")
    assert response.headers["Cache-Control"] == "no-store"
    body = response.json()
    assert body == {"status": "SUCCESS", "authToken": body["authToken"], "sessionId": None}
    header = jwt.get_unverified_header(body["authToken"])
    assert header == {"alg": "HS256", "typ": "JWT"}


@pytest.mark.rule("auth-6")
def test_a_token_contains_its_lifetime_of_30_minutes(service: RunningService) -> None:
    username = service.new_user()
    claims = jwt.decode(service.log_in(username), options={"verify_signature": False})
    assert (claims["sub"], claims["exp"] - claims["iat"]) == (username, 1800)
    assert claims["iat"] == service.clock() // 1000


@pytest.mark.rule("auth-11")
@each_row("role", list(Role))
def test_a_token_identifies_its_user(service: RunningService, role: Role) -> None:
    username = service.new_user(role)
    with service.client(service.log_in(username)) as client:
        assert client.get(ME).json() == {"username": username, "role": role, "kind": "user"}


def test_a_user_name_is_accepted_in_any_case(service: RunningService) -> None:
    username = service.new_user()
    with service.client(service.log_in(username.upper())) as client:
        assert client.get(ME).json()["username"] == username


@pytest.mark.rule("auth-3", "rest-9", "rest-13")
def test_an_unknown_user_and_a_wrong_password_look_the_same(service: RunningService) -> None:
    username = service.new_user()
    tries = [(username, PASSWORD + "x"), ("unknown", PASSWORD), (username.upper(), ""), ("", "")]
    responses = [try_login(service, *each, at=f"203.0.113.{index}") for index, each in enumerate(tries)]
    for response in responses:
        assert (response.status_code, response.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert response.json() == {
            "type": "about:blank",
            "title": "Unauthorized",
            "status": 401,
            "detail": "wrong user name or password",
            "instance": LOGIN,
            "code": "wrong-credentials",
            "errors": [],
        }
    visible = [{**response.headers, "date": "", "body": response.content} for response in responses]
    assert visible == visible[:1] * 4


@pytest.mark.rule("auth-3")
@each_row(
    "username", ["a\0b", " ", "é", "x" * 100_000, "' OR 1=1 --", "apikey", "c0ffee000001", "\U0001f600", "%"]
)
def test_an_invalid_user_name_is_treated_as_unknown(service: RunningService, username: str) -> None:
    response = try_login(service, username, at=f"203.0.114.{len(username) % 200}")
    assert (response.status_code, response.json()["code"]) == (401, "wrong-credentials")


@pytest.mark.rule("auth-3", "auth-5")
def test_a_removed_user_is_treated_as_unknown(service: RunningService) -> None:
    username = service.new_user()
    assert service.admin.delete(f"/api/v1/users/{username}").status_code == 204
    response = try_login(service, username, at="203.0.115.1")
    assert (response.status_code, response.json()["code"]) == (401, "wrong-credentials")


@pytest.mark.rule("auth-1", "rest-5", "rest-10", "rest-11")
@each_row(
    ("body", "field"),
    [
        ({"username": "ada"}, "password"),
        ({"password": PASSWORD}, "username"),
        ({"username": 5, "password": PASSWORD}, "username"),
        ({"username": "ada", "password": None}, "password"),
        ({"username": "ada", "password": [PASSWORD]}, "password"),
        ({"username": "ada", "password": PASSWORD, "remember": True}, "remember"),
        ({"Username": "ada", "password": PASSWORD}, "Username"),
        ({}, "username"),
        ([], "body"),
        (PASSWORD, "body"),
    ],
)
def test_an_invalid_body_is_refused_with_the_name_of_its_field(
    service: RunningService, body: Any, field: str
) -> None:
    response = service.anonymous.post(LOGIN, json=body)
    assert response.status_code == 400
    assert [each["field"] for each in response.json()["errors"]] == [field]
    assert PASSWORD not in response.text


@pytest.mark.rule("rest-11")
@each_row(
    "body",
    [
        b"",
        f'{{"username": "ada", "password": "{PASSWORD}"'.encode(),
        f'{{"username": "ada", "password": "{PASSWORD}\\ud800"}}'.encode(),
        f'{{"username": "ada", "password": "{PASSWORD}'.encode() + b'\xff"}',
        f"username=ada&password={PASSWORD}".encode(),
    ],
)
def test_an_unreadable_body_is_refused_and_not_repeated(service: RunningService, body: bytes) -> None:
    response = service.anonymous.post(LOGIN, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert PASSWORD not in response.text


def test_other_methods_and_media_types_are_refused(service: RunningService) -> None:
    login = {"username": "ada", "password": PASSWORD}
    assert service.anonymous.post(LOGIN, data=login).status_code == 415
    assert service.anonymous.post(LOGIN, params=login).status_code == 400
    assert service.anonymous.get(LOGIN).status_code == 405


@pytest.mark.rule("auth-5", "rest-13")
def test_a_token_is_accepted_from_one_header_in_one_form(service: RunningService) -> None:
    token = service.log_in(service.new_user())
    for header in (f"Bearer {token}", f"bearer {token}", f"BEARER {token}", f"bEaReR {token}"):
        assert service.anonymous.get(ME, headers={"Authorization": header}).status_code == 200
    basic = base64.b64encode(f"ada:{PASSWORD}".encode()).decode()
    for header in (
        *("", "Bearer", token, f"Bearer  {token}", f"Bearer\t{token}", f"Token {token}"),
        *(f"Bearer {token} x", f"Bearer {token},{token}", f"Basic {basic}"),
    ):
        response = service.anonymous.get(ME, headers={"Authorization": header})
        assert (response.status_code, response.headers["WWW-Authenticate"]) == (401, "Bearer"), header
        assert response.json()["code"] == "not-logged-in"
    twice = [("Authorization", f"Bearer {token}"), ("Authorization", f"Bearer {token}")]
    assert service.anonymous.get(ME, headers=twice).status_code == 401


def test_a_token_is_not_accepted_outside_its_header(service: RunningService) -> None:
    token = service.log_in(service.new_user())
    assert service.anonymous.get(ME, headers={"Cookie": f"authToken={token}"}).status_code == 401
    for name in ("access_token", "authToken", "token"):
        assert service.anonymous.get(ME, params={name: token}).status_code == 401


@pytest.mark.rule("auth-7", "rest-13")
def test_a_forged_token_is_refused_and_not_repeated(service: RunningService) -> None:
    claims = jwt.decode(service.log_in(service.new_user()), options={"verify_signature": False})
    for forged in (
        jwt.encode(claims, bytes(32), "HS256"),
        jwt.encode(claims, "", "none"),
        jwt.encode(claims, bytes(64), "HS512"),
        "mfk_" + "x" * 43,
        "~",
    ):
        with service.client(forged) as client:
            response = client.get(ME)
        assert (response.status_code, response.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert forged not in response.json()["detail"]


@pytest.mark.rule("auth-19")
def test_an_outdated_hash_is_replaced_at_login(slow_hashing: RunningService) -> None:
    username, weak = slow_hashing.new_name("old"), PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    old = weak.hash(PASSWORD)
    slow_hashing.database.write_now(
        user_store.insert_user,
        username,
        hashed=old,
        role=Role.VIEWER,
        by=COMMAND_LINE,
        now=slow_hashing.clock(),
    )
    assert try_login(slow_hashing, username, PASSWORD + "x", at="203.0.116.1").status_code == 401
    assert load_password_hash(slow_hashing, username) == old
    slow_hashing.log_in(username)
    renewed = load_password_hash(slow_hashing, username)
    assert renewed.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    slow_hashing.log_in(username)
    assert load_password_hash(slow_hashing, username) == renewed


def load_password_hash(service: RunningService, username: str) -> str:
    query = select(account.c.password).where(account.c.username == username)
    hashed: str = service.database.read_now(lambda connection: connection.execute(query).scalar_one())
    return hashed


@pytest.mark.rule("rest-11")
def test_the_log_contains_neither_passwords_nor_tokens(
    service: RunningService, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    username = service.new_user()
    token = service.log_in(username)
    wrong = "a-wrong-password-here"
    with service.client(token) as client:
        assert client.get(ME).status_code == 200
        client.put("/api/v1/auth/password", json={"current": wrong, "password": PASSWORD + "!"})
        client.post("/api/v1/auth/logout")
        assert client.get(ME).status_code == 401
    try_login(service, username, wrong, at="203.0.117.1")
    logged = [caplog.text, *(str(record.__dict__) for record in caplog.records)]
    for secret in (PASSWORD, wrong, token, token.rpartition(".")[2]):
        assert not any(secret in each for each in logged if "httpcore" not in each)
