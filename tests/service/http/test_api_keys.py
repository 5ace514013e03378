"""API keys."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select

from meshfleet.db.tables import api_key, gateway
from meshfleet.protocol.ids import mac_to_int
from meshfleet.protocol.times import format_time, from_millis
from meshfleet.rest.accounts import Role
from tests.row_tables import each_row

if TYPE_CHECKING:
    from tests.service.http.running_service import RunningService

KEYS, ME = "/api/v1/api-keys", "/api/v1/auth/me"


def issue_key(service: RunningService, **other: object) -> dict[str, Any]:
    response = service.admin.post(KEYS, json={"name": service.new_name("key"), "role": "viewer", **other})
    assert response.status_code == 201, response.text
    issued: dict[str, Any] = response.json()
    return issued


def list_keys(service: RunningService) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = service.admin.get(KEYS, params={"MaxResults": 1000}).json()["items"]
    return items


@pytest.mark.rule("auth-24", "rest-8")
def test_a_key_is_returned_only_when_it_is_created(service: RunningService) -> None:
    name = service.new_name("key")
    issued = issue_key(service, name=name, role="operator")
    assert issued == {
        "id": issued["id"],
        "name": name,
        "role": "operator",
        "kind": "program",
        "expiresAt": None,
        "key": issued["key"],
    }
    (item,) = [each for each in list_keys(service) if each["id"] == issued["id"]]
    assert item == {
        "id": issued["id"],
        "name": name,
        "role": "operator",
        "kind": "program",
        "createdBy": "api-key: key of a admin",
        "createdAt": item["createdAt"],
        "expiresAt": None,
    }
    everything = service.admin.get(KEYS).text + service.admin.get("/api/v1/audit").text
    assert issued["key"] not in everything


@pytest.mark.rule("auth-20", "auth-25")
def test_a_key_has_256_bits_and_only_its_hash_is_stored(service: RunningService) -> None:
    issued = issue_key(service)
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
    assert len(base64.urlsafe_b64decode(password)) >= 32
    query = select(gateway.c.password).where(gateway.c.device == mac_to_int(mac))
    stored = service.database.read_now(lambda connection: connection.execute(query).scalar_one())
    assert stored == hashlib.sha256(password.encode()).digest()


@pytest.mark.rule("auth-11", "auth-25")
@each_row("role", list(Role))
def test_a_key_authenticates_with_its_role(service: RunningService, role: Role) -> None:
    issued = issue_key(service, role=role)
    with service.client(issued["key"]) as program:
        assert program.get(ME).json() == {"username": issued["name"], "role": role, "kind": "api-key"}
        assert program.get(KEYS).status_code == (200 if role == Role.ADMIN else 403)


@pytest.mark.rule("auth-25", "rest-13")
def test_only_the_exact_key_authenticates(service: RunningService) -> None:
    issued = issue_key(service)
    key, row = issued["key"], hashlib.sha256(issued["key"].encode())
    others = (key[:-1], key + "x", key.swapcase(), key[4:], "mfk_", f"mfk_{row.hexdigest()}", issued["id"])
    for other in others:
        with service.client(other) as client:
            response = client.get(ME)
        assert (response.status_code, response.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert other not in response.json()["detail"]


@pytest.mark.rule("auth-24")
def test_a_key_is_refused_after_its_expiry(service: RunningService) -> None:
    expires_at = format_time(from_millis(service.clock() + 3_600_000))
    issued = issue_key(service, expiresAt=expires_at)
    assert issued["expiresAt"] == expires_at
    with service.client(issued["key"]) as program:
        service.clock.move(seconds=3000)
        assert program.get(ME).status_code == 200
        service.clock.move(seconds=601)
        response = program.get(ME)
        assert (response.status_code, response.json()["code"]) == (401, "not-logged-in")
    assert issued["id"] in {each["id"] for each in list_keys(service)}, "an expired key is still listed"


@pytest.mark.rule("auth-24")
@each_row(
    ("text", "expected"),
    [
        ("2999-01-02T03:04:05Z", "2999-01-02T03:04:05.000Z"),
        ("2999-01-02T03:04:05.6789+02:00", "2999-01-02T01:04:05.678Z"),
        ("9999-12-31T23:59:59.999Z", "9999-12-31T23:59:59.999Z"),
    ],
)
def test_an_expiry_is_accepted_in_any_iso_8601_form(
    service: RunningService, text: str, expected: str
) -> None:
    issued = issue_key(service, expiresAt=text)
    assert issued["expiresAt"] == expected
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
        ("kind", "gateway"),
        ("kind", None),
        ("key", "mfk_mine"),
    ],
)
def test_an_invalid_key_request_is_refused(service: RunningService, field: str, value: object) -> None:
    response = service.admin.post(
        KEYS, json={"name": service.new_name("key"), "role": "viewer", field: value}
    )
    assert response.status_code == 400
    assert [each["field"] for each in response.json()["errors"]] == [field]


@pytest.mark.rule("auth-33")
@each_row("role", [Role.VIEWER, Role.OPERATOR])
def test_a_key_for_home_assistant_is_not_valid_for_rest(service: RunningService, role: Role) -> None:
    issued = issue_key(service, role=role, kind="homeassistant")
    assert issued["kind"] == "homeassistant"
    (item,) = [each for each in list_keys(service) if each["id"] == issued["id"]]
    assert (item["kind"], item["role"]) == ("homeassistant", role)
    with service.client(issued["key"]) as program:
        for path in (ME, "/api/v1/devices", "/api/v1/stream", "/metrics"):
            response = program.get(path)
            assert (response.status_code, response.json()["code"]) == (401, "not-logged-in")
            assert "only for MQTT" in response.json()["detail"]
    (row,) = service.admin.get("/api/v1/audit", params={"Target": issued["name"]}).json()["items"]
    assert row["detail"] == {"role": role, "kind": "homeassistant"}


@pytest.mark.rule("auth-33")
def test_a_key_for_home_assistant_cannot_be_an_admin(service: RunningService) -> None:
    body = {"name": service.new_name("key"), "role": "admin", "kind": "homeassistant"}
    response = service.admin.post(KEYS, json=body)
    assert response.status_code == 400
    assert [each["field"] for each in response.json()["errors"]] == ["role"]


def test_a_key_name_is_unique(service: RunningService) -> None:
    name = issue_key(service)["name"]
    for again in (name, f" {name} "):
        response = service.admin.post(KEYS, json={"name": again, "role": "viewer"})
        assert (response.status_code, response.json()["code"]) == (409, "already-exists")


@pytest.mark.rule("auth-25")
def test_a_revoked_key_is_refused_at_once_and_its_name_can_be_reused(service: RunningService) -> None:
    issued, other = issue_key(service), issue_key(service)
    with service.client(issued["key"]) as program, service.client(other["key"]) as other_program:
        assert program.get(ME).status_code == 200
        response = service.admin.delete(f"{KEYS}/{issued['id']}")
        assert (response.status_code, response.content) == (204, b"")
        assert (program.get(ME).status_code, other_program.get(ME).status_code) == (401, 200)
        assert service.admin.delete(f"{KEYS}/{issued['id']}").status_code == 404
        assert issue_key(service, name=issued["name"])["key"] != issued["key"]
        assert program.get(ME).status_code == 401


@pytest.mark.rule("rest-15")
@each_row("identity", ["none", "%00", "%FF", "a%2Fb", "%20", "%F0%9F%98%80", "x" * 1000])
def test_an_unknown_key_is_not_found(service: RunningService, identity: str) -> None:
    response = service.admin.delete(f"{KEYS}/{identity}")
    assert (response.status_code, response.json()["code"]) == (404, "not-found")


@pytest.mark.rule("auth-8", "auth-10", "auth-12")
def test_a_key_has_no_session_and_no_password(service: RunningService) -> None:
    passwords = {"current": "correct-horse-battery", "password": "another-horse-battery"}
    for response in (
        service.admin.post("/api/v1/auth/refresh"),
        service.admin.post("/api/v1/auth/logout"),
        service.admin.put("/api/v1/auth/password", json=passwords),
    ):
        assert (response.status_code, response.json()["code"]) == (409, "conflict")
    assert service.admin.get(ME).status_code == 200


def test_a_key_remains_valid_when_its_creator_is_removed(service: RunningService) -> None:
    service.new_user(Role.ADMIN)
    creator = service.new_user(Role.ADMIN)
    with service.client(service.log_in(creator)) as client:
        response = client.post(KEYS, json={"name": service.new_name("key"), "role": "viewer"})
    assert service.admin.delete(f"/api/v1/users/{creator}").status_code == 204
    with service.client(response.json()["key"]) as program:
        assert program.get(ME).status_code == 200
    (item,) = [each for each in list_keys(service) if each["id"] == response.json()["id"]]
    assert item["createdBy"] == creator


@pytest.mark.rule("rest-16", "rest-20", "rest-21", "rest-24")
def test_pages_of_keys_miss_none_while_keys_are_added_and_removed(service: RunningService) -> None:
    issued = {
        name: issue_key(service, name=name) for name in ("Page", "page", "página", "pagE", "page 2", "頁")
    }
    expected, listed = {each["name"] for each in list_keys(service)}, list[str]()
    token: str | None = ""
    while token is not None:
        params = {"MaxResults": "1"} | ({"NextToken": token} if token else {})
        page = service.admin.get(KEYS, params=params).json()
        (name,) = [each["name"] for each in page["items"]]
        listed, token = [*listed, name], page["nextToken"]
        if name == "page":
            service.admin.delete(f"{KEYS}/{issued['page']['id']}")
            issue_key(service, name="Aaa")
            issue_key(service, name="頁頁")
    assert listed == sorted(listed)
    assert set(listed) == expected | {"頁頁"}
