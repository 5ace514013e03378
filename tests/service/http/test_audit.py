"""The audit log: one row per change, without secrets."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.times import format_time, from_millis
from meshfleet.rest.accounts import Role
from tests.row_tables import each_row
from tests.service.http.proxied_logins import behind_a_proxy
from tests.service.http.running_service import PASSWORD, RunningService, run_service

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx
    from sqlalchemy import Connection

    from meshfleet.db import Database

AUDIT, USERS, KEYS = "/api/v1/audit", "/api/v1/users", "/api/v1/api-keys"
ADDRESS = "198.51.100.7"
OTHER_PASSWORD = "another-horse-battery"  # noqa: S105 # a password of this test


@pytest.fixture(scope="module")
def service(request: pytest.FixtureRequest, database_kind: str) -> Iterator[RunningService]:
    yield from behind_a_proxy(request, database_kind)


@pytest.fixture
def ada(service: RunningService) -> Iterator[httpx.Client]:
    """Log in as a new admin with a known client address."""
    username = service.new_user(Role.ADMIN)
    with service.client(service.log_in(username)) as client:
        client.headers.update({"X-Forwarded-For": ADDRESS, "X-Name": username})
        yield client


def list_rows(service: RunningService, **params: object) -> list[dict[str, Any]]:
    response = service.admin.get(
        AUDIT, params={"MaxResults": "1000", **{k: str(v) for k, v in params.items()}}
    )
    assert response.status_code == 200, response.text
    items: list[dict[str, Any]] = response.json()["items"]
    return items


def find_newest_id(service: RunningService) -> int:
    return max((row["id"] for row in list_rows(service)), default=0)


def list_rows_after(service: RunningService, mark: int) -> list[dict[str, Any]]:
    """Return the rows after that id, the oldest first."""
    return [row for row in reversed(list_rows(service)) if row["id"] > mark]


@pytest.mark.rule("auth-26", "auth-27", "rest-169")
def test_a_row_has_time_actor_action_target_and_address(service: RunningService, ada: httpx.Client) -> None:
    username = service.new_name("user")
    body = {"username": username, "password": PASSWORD, "role": "viewer"}
    assert ada.post(USERS, json=body).status_code == 201
    (row,) = list_rows(service, Target=username)
    assert list(row) == ["id", "time", "actor", "action", "target", "detail", "address"]
    assert row == {
        "id": row["id"],
        "time": format_time(from_millis(service.clock())),
        "actor": ada.headers["X-Name"],
        "action": "user.create",
        "target": username,
        "detail": {"role": "viewer"},
        "address": ADDRESS,
    }


@pytest.mark.rule("auth-26", "auth-27")
def test_every_change_of_users_and_keys_is_one_row(service: RunningService, ada: httpx.Client) -> None:
    name, bob, key = ada.headers["X-Name"], service.new_name("bob"), service.new_name("key")
    mark = find_newest_id(service)
    ada.post(USERS, json={"username": bob, "password": PASSWORD, "role": "viewer"})
    ada.put(f"{USERS}/{bob}", json={"role": "operator"})
    ada.put(f"{USERS}/{bob}", json={"password": OTHER_PASSWORD})
    ada.put(f"{USERS}/{bob}", json={"role": "viewer", "password": PASSWORD})
    ada.delete(f"{USERS}/{bob}")
    issued = ada.post(KEYS, json={"name": key, "role": "viewer"}).json()
    ada.delete(f"{KEYS}/{issued['id']}")
    ada.put("/api/v1/auth/password", json={"current": PASSWORD, "password": OTHER_PASSWORD})
    ada.post("/api/v1/auth/logout")
    changes = list_rows_after(service, mark)
    assert [(row["action"], row["target"]) for row in changes] == [
        ("user.create", bob),
        ("user.change-role", bob),
        ("user.change-password", bob),
        ("user.change-role", bob),
        ("user.change-password", bob),
        ("user.remove", bob),
        ("api-key.create", key),
        ("api-key.revoke", key),
        ("user.change-password", name),
        ("auth.logout", name),
    ]
    assert {(row["actor"], row["address"]) for row in changes} == {(name, ADDRESS)}
    assert changes[1]["detail"] == {"before": "viewer", "after": "operator"}


@pytest.mark.rule("auth-26")
def test_every_change_of_devices_labels_and_gateways_is_one_row(
    service: RunningService, ada: httpx.Client
) -> None:
    label, mac = service.new_name("label"), service.new_mac()
    device, gateway = service.new_device(), f"bmac-{mac}"
    mark = find_newest_id(service)
    for method, path, body in (
        ("PUT", f"devices/{device}/friendly-name", {"name": "Door"}),
        ("POST", "labels", {"label": label}),
        ("PUT", f"devices/{device}/labels/{label}", None),
        ("DELETE", f"devices/{device}/labels/{label}", None),
        ("DELETE", f"labels/{label}", None),
        ("DELETE", f"devices/{device}", None),
        ("POST", "gateways", {"mac": mac}),
        ("POST", f"gateways/{mac}/credentials", None),
        ("DELETE", f"gateways/{mac}", None),
    ):
        assert ada.request(method, f"/api/v1/{path}", json=body).is_success, path
    assert [(row["action"], row["target"]) for row in list_rows_after(service, mark)] == [
        ("device.rename", device),
        ("label.create", label),
        ("device.label", device),
        ("device.unlabel", device),
        ("label.remove", label),
        ("device.forget", device),
        ("gateway.claim", gateway),
        ("gateway.rotate", gateway),
        ("gateway.release", gateway),
    ]


@pytest.mark.rule("auth-26", "auth-27")
def test_a_login_is_one_row_with_its_client_address(service: RunningService) -> None:
    username = service.new_user()
    mark = find_newest_id(service)
    login = {"username": username.upper(), "password": PASSWORD}
    service.anonymous.post("/api/v1/auth/login", json=login, headers={"X-Forwarded-For": ADDRESS})
    (row,) = list_rows_after(service, mark)
    assert (row["actor"], row["action"], row["target"], row["address"]) == (
        username,
        "auth.login",
        username,
        ADDRESS,
    )


@pytest.mark.rule("auth-27")
def test_an_api_key_is_distinguished_from_a_user(service: RunningService) -> None:
    username = service.new_user()
    (row,) = list_rows(service, Target=username)
    assert (row["actor"], row["address"]) == ("api-key: key of a admin", "127.0.0.1")
    assert row in list_rows(service, Actor="api-key: key of a admin")


@pytest.mark.rule("auth-26")
def test_a_request_that_changes_nothing_adds_no_row(service: RunningService, ada: httpx.Client) -> None:
    bob = service.new_user(Role.OPERATOR)
    device, label = service.new_device(), service.new_name("label")
    ada.put(f"/api/v1/devices/{device}/labels/{label}")
    ada.put(f"/api/v1/devices/{device}/friendly-name", json={"name": "Door"})
    mark = find_newest_id(service)
    ada.get(USERS)
    ada.post("/api/v1/auth/refresh")
    ada.put(f"{USERS}/{bob}", json={})
    ada.put(f"{USERS}/{bob}", json={"role": "operator"})
    ada.put(f"{USERS}/{bob}", json={"role": "root"})
    ada.post(USERS, json={"username": bob, "password": PASSWORD, "role": "viewer"})
    ada.delete(f"{USERS}/unknown")
    ada.delete(f"{KEYS}/none")
    ada.put("/api/v1/auth/password", json={"current": OTHER_PASSWORD, "password": OTHER_PASSWORD})
    ada.post("/api/v1/labels", json={"label": label, "deviceIds": [device]})
    ada.put(f"/api/v1/devices/{device}/labels/{label}")
    ada.put(f"/api/v1/devices/{device}/friendly-name", json={"name": "Door"})
    ada.delete(f"/api/v1/devices/{device}/labels/other")
    ada.post("/api/v1/labels", json={"label": "new", "deviceIds": ["bmac-000000000001"]})
    service.viewer.delete(f"{USERS}/{bob}")
    service.anonymous.post("/api/v1/auth/login", json={"username": bob, "password": OTHER_PASSWORD})
    assert list_rows_after(service, mark) == []


@pytest.mark.rule("rest-11", "auth-27")
def test_no_row_contains_a_secret(service: RunningService, ada: httpx.Client) -> None:
    bob, mac = service.new_name("bob"), service.new_mac()
    ada.post(USERS, json={"username": bob, "password": PASSWORD, "role": "viewer"})
    token = service.log_in(bob)
    ada.put(f"{USERS}/{bob}", json={"password": OTHER_PASSWORD})
    key = ada.post(KEYS, json={"name": service.new_name("key"), "role": "viewer"}).json()["key"]
    claimed = ada.post("/api/v1/gateways", json={"mac": mac}).json()["password"]
    rotated = ada.post(f"/api/v1/gateways/{mac}/credentials").json()["password"]
    everything = service.admin.get(AUDIT, params={"MaxResults": 1000}).text
    assert bob in everything
    for secret in (PASSWORD, OTHER_PASSWORD, token, key, claimed, rotated, "argon2"):
        assert secret not in everything


@pytest.mark.rule("auth-27", "rest-3", "rest-4")
def test_rows_are_filtered_by_actor_action_and_target(service: RunningService, ada: httpx.Client) -> None:
    name, bob = ada.headers["X-Name"], service.new_user()
    ada.put(f"{USERS}/{bob}", json={"role": "operator"})
    ada.put(f"{USERS}/{bob}", json={"password": OTHER_PASSWORD})
    assert [row["action"] for row in list_rows(service, Target=bob, actor=name)] == [
        "user.change-password",
        "user.change-role",
    ]
    assert len(list_rows(service, TARGET=bob, Actor=name, Action="user.change-role")) == 1
    assert list_rows(service, Target=bob, Actor=name, Action="user.create") == []
    assert list_rows(service, Target="") == []
    assert service.admin.get(AUDIT, params={"Who": name}).status_code == 400
    assert service.admin.get(AUDIT, params=[("Actor", name), ("Actor", bob)]).status_code == 400


@pytest.mark.rule("auth-27")
def test_rows_are_filtered_by_time(service: RunningService, ada: httpx.Client) -> None:
    bob = service.new_user()
    for role in ("operator", "admin"):
        service.clock.move(seconds=1)
        ada.put(f"{USERS}/{bob}", json={"role": role})
    last, middle, first = (row["time"] for row in list_rows(service, Target=bob))
    assert [row["time"] for row in list_rows(service, Target=bob, From=middle)] == [last, middle]
    assert [row["time"] for row in list_rows(service, Target=bob, To=middle)] == [first]
    assert [row["time"] for row in list_rows(service, Target=bob, From=middle, To=last)] == [middle]
    for query, fields in (
        ({"From": last, "To": last}, ["From"]),
        ({"From": "yesterday"}, ["From"]),
        ({"To": ""}, ["To"]),
        ({"From": "yesterday", "To": "tomorrow"}, ["From", "To"]),
    ):
        response = service.admin.get(AUDIT, params=query)
        assert (response.status_code, response.json()["code"]) == (400, "invalid-request"), query
        assert [each["field"] for each in response.json()["errors"]] == fields


@each_row("value", ["\U0001f600", "' OR 1=1", "%", "x" * 5000])
def test_a_filter_without_matches_returns_no_rows(service: RunningService, value: str) -> None:
    for name in ("Actor", "Action", "Target"):
        assert list_rows(service, **{name: value}) == []


def test_a_filter_with_a_nul_causes_no_server_error(service: RunningService) -> None:
    response = service.admin.get(AUDIT, params={"Actor": "a\0b"})
    assert response.status_code == 400 or response.json()["items"] == []


@pytest.mark.rule("rest-16", "rest-17", "rest-20", "rest-21", "rest-24")
def test_pages_of_rows_repeat_and_miss_none_while_rows_are_added(
    service: RunningService, ada: httpx.Client
) -> None:
    name = ada.headers["X-Name"]
    for number in range(7):
        ada.post("/api/v1/labels", json={"label": f"{name} {number}"})
    expected, listed = list_rows(service, Actor=name), list[dict[str, Any]]()
    token: str | None = ""
    while token is not None:
        params = {"Actor": name, "MaxResults": "3"} | ({"NextToken": token} if token else {})
        page = service.admin.get(AUDIT, params=params).json()
        assert len(page["items"]) <= 3
        listed, token = listed + page["items"], page["nextToken"]
        ada.post("/api/v1/labels", json={"label": f"{name} {len(listed)} more"})
    assert listed == expected
    assert [row["id"] for row in listed] == sorted((row["id"] for row in listed), reverse=True)


@pytest.mark.rule("rest-18", "rest-19")
def test_the_page_token_of_one_list_is_refused_by_all_others(
    service: RunningService, ada: httpx.Client
) -> None:
    for _ in range(2):
        ada.post(KEYS, json={"name": service.new_name("key"), "role": "viewer"})
        ada.post("/api/v1/labels", json={"label": service.new_name("label")})
        ada.post("/api/v1/gateways", json={"mac": service.new_mac()})
        service.new_user()
    lists = [
        *(USERS, KEYS, AUDIT, f"{AUDIT}?Actor={ada.headers['X-Name']}", f"{AUDIT}?Action=label.create"),
        *("/api/v1/labels", "/api/v1/gateways", "/api/v1/devices"),
    ]
    tokens = {
        path: ada.get(path, params=_build_query(path, MaxResults="1")).json()["nextToken"] for path in lists
    }
    for origin, token in tokens.items():
        assert isinstance(token, str), origin
        for path in lists:
            response = ada.get(path.partition("?")[0], params=_build_query(path, NextToken=token))
            if path == origin:
                assert response.status_code == 200
            else:
                assert (response.status_code, response.json()["code"]) == (400, "invalid-token"), (
                    origin,
                    path,
                )


def _build_query(path: str, **more: str) -> dict[str, str]:
    """Return the filters of a path and more; the client would drop those of the path."""
    name, _, value = path.partition("?")[2].partition("=")
    return {name: value, **more} if name else more


@pytest.mark.rule("rest-11")
def test_a_database_failure_reveals_no_stored_values_in_log_or_response(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with run_service(database) as service:
        database.write_now(_break_table)
        body = {"username": "bob", "password": PASSWORD, "role": "viewer"}
        response = service.admin.post(USERS, json=body)
    assert response.status_code in {500, 503}
    for text in (caplog.text, response.text):
        assert "argon2id$" not in text
        assert PASSWORD not in text


def _break_table(connection: Connection) -> None:
    connection.exec_driver_sql("ALTER TABLE account RENAME COLUMN role TO rank")
