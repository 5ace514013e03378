"""Keys for programs."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select

from meshfleet.db.tables import api_key, gateway
from meshfleet.protocol.ids import mac_to_int
from meshfleet.protocol.times import format_time, from_millis
from meshfleet.rest import Role
from tests.row_tables import each_row

if TYPE_CHECKING:
    from tests.service.http.running_service import RunningService

KEYS, ME = "/api/v1/api-keys", "/api/v1/auth/me"


def issue(service: RunningService, **other: object) -> dict[str, Any]:
    answer = service.admin.post(KEYS, json={"name": service.new_name("key"), "role": "viewer", **other})
    assert answer.status_code == 201, answer.text
    issued: dict[str, Any] = answer.json()
    return issued


def listed(service: RunningService) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = service.admin.get(KEYS, params={"MaxResults": 1000}).json()["items"]
    return items


@pytest.mark.rule("auth-24", "rest-8")
def test_a_key_is_told_once_and_never_again(service: RunningService) -> None:
    name = service.new_name("key")
    issued = issue(service, name=name, role="operator")
    assert issued == {
        "id": issued["id"],
        "name": name,
        "role": "operator",
        "expiresAt": None,
        "key": issued["key"],
    }
    (shown,) = [each for each in listed(service) if each["id"] == issued["id"]]
    assert shown == {
        "id": issued["id"],
        "name": name,
        "role": "operator",
        "createdBy": "api-key: key of a admin",
        "createdAt": shown["createdAt"],
        "expiresAt": None,
    }
    everything = service.admin.get(KEYS).text + service.admin.get("/api/v1/audit").text
    assert issued["key"] not in everything


@pytest.mark.rule("auth-20", "auth-25")
def test_a_key_has_256_bits_and_only_its_hash_is_stored(service: RunningService) -> None:
    issued = issue(service)
    secret = issued["key"].removeprefix("mfk_")
    assert len(base64.urlsafe_b64decode(secret + "=")) == 32
    query = select(api_key).where(api_key.c.id == issued["id"])
    row = service.database.read_now(lambda connection: connection.execute(query).one())
    assert row.hash == hashlib.sha256(issued["key"].encode()).digest()
    assert secret not in str(tuple(row))


@pytest.mark.rule("auth-20")
def test_the_password_of_a_gateway_has_256_bits_and_only_its_hash_is_stored(service: RunningService) -> None:
    mac = service.new_mac()
    password = service.admin.post("/api/v1/gateways", json={"mac": mac}).json()["password"]
    assert len(base64.urlsafe_b64decode(password + "=")) == 32
    query = select(gateway.c.password).where(gateway.c.device == mac_to_int(mac))
    stored = service.database.read_now(lambda connection: connection.execute(query).scalar_one())
    assert stored == hashlib.sha256(password.encode()).digest()


@pytest.mark.rule("auth-11", "auth-25")
@each_row("role", list(Role))
def test_a_key_is_a_bearer_with_its_role(service: RunningService, role: Role) -> None:
    issued = issue(service, role=role)
    with service.client(issued["key"]) as program:
        assert program.get(ME).json() == {"username": issued["name"], "role": role, "kind": "api-key"}
        assert program.get(KEYS).status_code == (200 if role == Role.ADMIN else 403)


@pytest.mark.rule("auth-25", "rest-13")
def test_nothing_but_the_very_key_opens_the_door(service: RunningService) -> None:
    issued = issue(service)
    key, row = issued["key"], hashlib.sha256(issued["key"].encode())
    others = (key[:-1], key + "x", key.swapcase(), key[4:], "mfk_", f"mfk_{row.hexdigest()}", issued["id"])
    for other in others:
        with service.client(other) as stranger:
            answer = stranger.get(ME)
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert other not in answer.json()["detail"]


@pytest.mark.rule("auth-24")
def test_a_key_ends_when_it_expires(service: RunningService) -> None:
    expires_at = format_time(from_millis(service.clock() + 3_600_000))
    issued = issue(service, expiresAt=expires_at)
    assert issued["expiresAt"] == expires_at
    with service.client(issued["key"]) as program:
        service.clock.move(seconds=3000)
        assert program.get(ME).status_code == 200
        service.clock.move(seconds=601)
        answer = program.get(ME)
        assert (answer.status_code, answer.json()["code"]) == (401, "not-logged-in")
    assert issued["id"] in {each["id"] for each in listed(service)}, "it can still be seen, and removed"


@pytest.mark.rule("auth-24")
@each_row(
    ("given", "shown"),
    [
        ("2999-01-02T03:04:05Z", "2999-01-02T03:04:05.000Z"),
        ("2999-01-02T03:04:05.6789+02:00", "2999-01-02T01:04:05.678Z"),
        ("9999-12-31T23:59:59.999Z", "9999-12-31T23:59:59.999Z"),
    ],
)
def test_an_expiry_is_read_in_any_spelling(service: RunningService, given: str, shown: str) -> None:
    issued = issue(service, expiresAt=given)
    assert issued["expiresAt"] == shown
    with service.client(issued["key"]) as program:
        assert program.get(ME).status_code == 200


@pytest.mark.rule("auth-24", "rest-5", "rest-10")
@each_row(
    ("field", "value"),
    [
        ("expiresAt", "2020-01-01T00:00:00Z"),
        ("expiresAt", "tomorrow"),
        ("expiresAt", ""),
        ("expiresAt", "2999-01-01"),
        ("expiresAt", "9999-12-31T23:59:59-12:00"),
        ("expiresAt", "0001-01-01T00:00:00+14:00"),
        ("expiresAt", 4_000_000_000_000),
        ("name", ""),
        ("name", "  "),
        ("name", "x" * 65),
        ("name", "a\nb"),
        ("name", "a\0b"),
        ("name", None),
        ("role", "root"),
        ("role", None),
        ("key", "mfk_mine"),
    ],
)
def test_a_key_that_cannot_be_is_refused(service: RunningService, field: str, value: object) -> None:
    answer = service.admin.post(KEYS, json={"name": service.new_name("key"), "role": "viewer", field: value})
    assert answer.status_code == 400
    assert [each["field"] for each in answer.json()["errors"]] == [field]


def test_a_name_is_taken_once(service: RunningService) -> None:
    name = issue(service)["name"]
    for again in (name, f" {name} "):
        answer = service.admin.post(KEYS, json={"name": again, "role": "viewer"})
        assert (answer.status_code, answer.json()["code"]) == (409, "already-exists")


@pytest.mark.rule("auth-25")
def test_a_revoked_key_is_out_at_once_and_its_name_is_free(service: RunningService) -> None:
    issued, other = issue(service), issue(service)
    with service.client(issued["key"]) as program, service.client(other["key"]) as bystander:
        assert program.get(ME).status_code == 200
        answer = service.admin.delete(f"{KEYS}/{issued['id']}")
        assert (answer.status_code, answer.content) == (204, b"")
        assert (program.get(ME).status_code, bystander.get(ME).status_code) == (401, 200)
        assert service.admin.delete(f"{KEYS}/{issued['id']}").status_code == 404
        assert issue(service, name=issued["name"])["key"] != issued["key"]
        assert program.get(ME).status_code == 401


@pytest.mark.rule("rest-15")
@each_row("identity", ["none", "%00", "%FF", "a%2Fb", "%20", "%F0%9F%98%80", "x" * 1000])
def test_a_key_that_is_not_there_is_not_found(service: RunningService, identity: str) -> None:
    answer = service.admin.delete(f"{KEYS}/{identity}")
    assert (answer.status_code, answer.json()["code"]) == (404, "not-found")


@pytest.mark.rule("auth-8", "auth-10", "auth-12")
def test_a_key_has_no_login_to_refresh_or_end_and_no_password(service: RunningService) -> None:
    passwords = {"current": "correct-horse-battery", "password": "another-horse-battery"}
    for answer in (
        service.admin.post("/api/v1/auth/refresh"),
        service.admin.post("/api/v1/auth/logout"),
        service.admin.put("/api/v1/auth/password", json=passwords),
    ):
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert service.admin.get(ME).status_code == 200


def test_a_key_outlives_who_made_it(service: RunningService) -> None:
    service.new_user(Role.ADMIN)
    maker = service.new_user(Role.ADMIN)
    with service.client(service.log_in(maker)) as client:
        answer = client.post(KEYS, json={"name": service.new_name("key"), "role": "viewer"})
    assert service.admin.delete(f"/api/v1/users/{maker}").status_code == 204
    with service.client(answer.json()["key"]) as program:
        assert program.get(ME).status_code == 200
    (shown,) = [each for each in listed(service) if each["id"] == answer.json()["id"]]
    assert shown["createdBy"] == maker


@pytest.mark.rule("rest-16", "rest-20", "rest-21", "rest-24")
def test_pages_of_keys_miss_none_while_others_come_and_go(service: RunningService) -> None:
    made = {name: issue(service, name=name) for name in ("Page", "page", "página", "pagE", "page 2", "頁")}
    stay, seen = {each["name"] for each in listed(service)}, list[str]()
    token: str | None = ""
    while token is not None:
        params = {"MaxResults": "1"} | ({"NextToken": token} if token else {})
        page = service.admin.get(KEYS, params=params).json()
        (name,) = [each["name"] for each in page["items"]]
        seen, token = [*seen, name], page["nextToken"]
        if name == "page":
            service.admin.delete(f"{KEYS}/{made['page']['id']}")
            issue(service, name="Aaa")
            issue(service, name="頁頁")
    assert seen == sorted(seen)
    assert set(seen) == stay | {"頁頁"}
