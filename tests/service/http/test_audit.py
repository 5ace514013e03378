"""Who changed what: one row for every change, and no secret in any."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.times import format_time, from_millis
from meshfleet.rest import Role
from tests.row_tables import each_row
from tests.service.http.proxied_logins import behind_a_proxy
from tests.service.http.running_service import PASSWORD, RunningService, run_service

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx
    from sqlalchemy import Connection

    from meshfleet.db import Database

AUDIT, USERS, KEYS = "/api/v1/audit", "/api/v1/users", "/api/v1/api-keys"
HERE = "198.51.100.7"
OTHER = "another-horse-battery"


@pytest.fixture(scope="module")
def service(request: pytest.FixtureRequest, database_kind: str) -> Iterator[RunningService]:
    yield from behind_a_proxy(request, database_kind)


@pytest.fixture
def ada(service: RunningService) -> Iterator[httpx.Client]:
    """An admin who came from somewhere, and whose name only this test has."""
    username = service.new_user(Role.ADMIN)
    with service.client(service.log_in(username)) as client:
        client.headers.update({"X-Forwarded-For": HERE, "X-Name": username})
        yield client


def rows(service: RunningService, **params: object) -> list[dict[str, Any]]:
    answer = service.admin.get(AUDIT, params={"MaxResults": "1000", **{k: str(v) for k, v in params.items()}})
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


def newest(service: RunningService) -> int:
    return max((row["id"] for row in rows(service)), default=0)


def since(service: RunningService, mark: int) -> list[dict[str, Any]]:
    """What happened after that, the oldest first."""
    return [row for row in reversed(rows(service)) if row["id"] > mark]


@pytest.mark.rule("auth-26", "auth-27", "rest-169")
def test_a_row_tells_when_who_what_and_from_where(service: RunningService, ada: httpx.Client) -> None:
    username = service.new_name("user")
    body = {"username": username, "password": PASSWORD, "role": "viewer"}
    assert ada.post(USERS, json=body).status_code == 201
    (row,) = rows(service, Target=username)
    assert list(row) == ["id", "time", "actor", "action", "target", "detail", "address"]
    assert row == {
        "id": row["id"],
        "time": format_time(from_millis(service.clock())),
        "actor": ada.headers["X-Name"],
        "action": "user.create",
        "target": username,
        "detail": {"role": "viewer"},
        "address": HERE,
    }


@pytest.mark.rule("auth-26", "auth-27")
def test_every_change_of_people_and_keys_is_one_row(service: RunningService, ada: httpx.Client) -> None:
    name, bob, key = ada.headers["X-Name"], service.new_name("bob"), service.new_name("key")
    mark = newest(service)
    ada.post(USERS, json={"username": bob, "password": PASSWORD, "role": "viewer"})
    ada.put(f"{USERS}/{bob}", json={"role": "operator"})
    ada.put(f"{USERS}/{bob}", json={"password": OTHER})
    ada.put(f"{USERS}/{bob}", json={"role": "viewer", "password": PASSWORD})
    ada.delete(f"{USERS}/{bob}")
    issued = ada.post(KEYS, json={"name": key, "role": "viewer"}).json()
    ada.delete(f"{KEYS}/{issued['id']}")
    ada.put("/api/v1/auth/password", json={"current": PASSWORD, "password": OTHER})
    ada.post("/api/v1/auth/logout")
    found = since(service, mark)
    assert [(row["action"], row["target"]) for row in found] == [
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
    assert {(row["actor"], row["address"]) for row in found} == {(name, HERE)}
    assert found[1]["detail"] == {"before": "viewer", "after": "operator"}


@pytest.mark.rule("auth-26")
def test_every_change_of_devices_labels_and_gateways_is_one_row(
    service: RunningService, ada: httpx.Client
) -> None:
    label, mac = service.new_name("label"), service.new_mac()
    device, gateway = service.new_device(), f"bmac-{mac}"
    mark = newest(service)
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
    assert [(row["action"], row["target"]) for row in since(service, mark)] == [
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
def test_a_login_is_one_row_with_the_address_it_came_from(service: RunningService) -> None:
    username = service.new_user()
    mark = newest(service)
    login = {"username": username.upper(), "password": PASSWORD}
    service.anonymous.post("/api/v1/auth/login", json=login, headers={"X-Forwarded-For": HERE})
    (row,) = since(service, mark)
    assert (row["actor"], row["action"], row["target"], row["address"]) == (
        username,
        "auth.login",
        username,
        HERE,
    )


@pytest.mark.rule("auth-27")
def test_a_program_is_told_from_a_person(service: RunningService) -> None:
    username = service.new_user()
    (row,) = rows(service, Target=username)
    assert (row["actor"], row["address"]) == ("api-key: key of a admin", "127.0.0.1")
    assert row in rows(service, Actor="api-key: key of a admin")


@pytest.mark.rule("auth-26")
def test_what_changes_nothing_leaves_no_row(service: RunningService, ada: httpx.Client) -> None:
    bob = service.new_user(Role.OPERATOR)
    device, label = service.new_device(), service.new_name("label")
    ada.put(f"/api/v1/devices/{device}/labels/{label}")
    ada.put(f"/api/v1/devices/{device}/friendly-name", json={"name": "Door"})
    mark = newest(service)
    ada.get(USERS)
    ada.post("/api/v1/auth/refresh")
    ada.put(f"{USERS}/{bob}", json={})
    ada.put(f"{USERS}/{bob}", json={"role": "operator"})
    ada.put(f"{USERS}/{bob}", json={"role": "root"})
    ada.post(USERS, json={"username": bob, "password": PASSWORD, "role": "viewer"})
    ada.delete(f"{USERS}/nobody")
    ada.delete(f"{KEYS}/none")
    ada.put("/api/v1/auth/password", json={"current": OTHER, "password": OTHER})
    ada.post("/api/v1/labels", json={"label": label, "deviceIds": [device]})
    ada.put(f"/api/v1/devices/{device}/labels/{label}")
    ada.put(f"/api/v1/devices/{device}/friendly-name", json={"name": "Door"})
    ada.delete(f"/api/v1/devices/{device}/labels/other")
    ada.post("/api/v1/labels", json={"label": "new", "deviceIds": ["bmac-000000000001"]})
    service.viewer.delete(f"{USERS}/{bob}")
    service.anonymous.post("/api/v1/auth/login", json={"username": bob, "password": OTHER})
    assert since(service, mark) == []


@pytest.mark.rule("rest-11", "auth-27")
def test_no_row_holds_a_secret(service: RunningService, ada: httpx.Client) -> None:
    bob, mac = service.new_name("bob"), service.new_mac()
    ada.post(USERS, json={"username": bob, "password": PASSWORD, "role": "viewer"})
    token = service.log_in(bob)
    ada.put(f"{USERS}/{bob}", json={"password": OTHER})
    key = ada.post(KEYS, json={"name": service.new_name("key"), "role": "viewer"}).json()["key"]
    claimed = ada.post("/api/v1/gateways", json={"mac": mac}).json()["password"]
    rotated = ada.post(f"/api/v1/gateways/{mac}/credentials").json()["password"]
    everything = service.admin.get(AUDIT, params={"MaxResults": 1000}).text
    assert bob in everything
    for secret in (PASSWORD, OTHER, token, key, claimed, rotated, "argon2"):
        assert secret not in everything


@pytest.mark.rule("auth-27", "rest-3", "rest-4")
def test_rows_are_chosen_by_actor_action_and_target_together(
    service: RunningService, ada: httpx.Client
) -> None:
    name, bob = ada.headers["X-Name"], service.new_user()
    ada.put(f"{USERS}/{bob}", json={"role": "operator"})
    ada.put(f"{USERS}/{bob}", json={"password": OTHER})
    assert [row["action"] for row in rows(service, Target=bob, actor=name)] == [
        "user.change-password",
        "user.change-role",
    ]
    assert len(rows(service, TARGET=bob, Actor=name, Action="user.change-role")) == 1
    assert rows(service, Target=bob, Actor=name, Action="user.create") == []
    assert rows(service, Target="") == []
    assert service.admin.get(AUDIT, params={"Who": name}).status_code == 400
    assert service.admin.get(AUDIT, params=[("Actor", name), ("Actor", bob)]).status_code == 400


@pytest.mark.rule("auth-27")
def test_rows_are_chosen_by_their_time(service: RunningService, ada: httpx.Client) -> None:
    bob = service.new_user()
    for role in ("operator", "admin"):
        service.clock.move(seconds=1)
        ada.put(f"{USERS}/{bob}", json={"role": role})
    last, middle, first = (row["time"] for row in rows(service, Target=bob))
    assert [row["time"] for row in rows(service, Target=bob, From=middle)] == [last, middle]
    assert [row["time"] for row in rows(service, Target=bob, To=middle)] == [first]
    assert [row["time"] for row in rows(service, Target=bob, From=middle, To=last)] == [middle]
    for wrong, fields in (
        ({"From": last, "To": last}, ["From"]),
        ({"From": "yesterday"}, ["From"]),
        ({"To": ""}, ["To"]),
        ({"From": "yesterday", "To": "tomorrow"}, ["From", "To"]),
    ):
        answer = service.admin.get(AUDIT, params=wrong)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid-request"), wrong
        assert [each["field"] for each in answer.json()["errors"]] == fields


@each_row("value", ["\U0001f600", "' OR 1=1", "%", "x" * 5000])
def test_a_filter_that_nothing_meets_finds_nothing(service: RunningService, value: str) -> None:
    for name in ("Actor", "Action", "Target"):
        assert rows(service, **{name: value}) == []


def test_a_filter_that_a_database_cannot_hold_is_no_failure_of_ours(service: RunningService) -> None:
    answer = service.admin.get(AUDIT, params={"Actor": "a\0b"})
    assert answer.status_code == 400 or answer.json()["items"] == []


@pytest.mark.rule("rest-16", "rest-17", "rest-20", "rest-21", "rest-24")
def test_pages_of_rows_repeat_and_miss_none_while_new_ones_come(
    service: RunningService, ada: httpx.Client
) -> None:
    name = ada.headers["X-Name"]
    for number in range(7):
        ada.post("/api/v1/labels", json={"label": f"{name} {number}"})
    wanted, seen = rows(service, Actor=name), list[dict[str, Any]]()
    token: str | None = ""
    while token is not None:
        params = {"Actor": name, "MaxResults": "3"} | ({"NextToken": token} if token else {})
        page = service.admin.get(AUDIT, params=params).json()
        assert len(page["items"]) <= 3
        seen, token = seen + page["items"], page["nextToken"]
        ada.post("/api/v1/labels", json={"label": f"{name} {len(seen)} more"})
    assert seen == wanted
    assert [row["id"] for row in seen] == sorted((row["id"] for row in seen), reverse=True)


@pytest.mark.rule("rest-18", "rest-19")
def test_the_token_of_one_list_is_refused_by_every_other(service: RunningService, ada: httpx.Client) -> None:
    for _ in range(2):
        ada.post(KEYS, json={"name": service.new_name("key"), "role": "viewer"})
        ada.post("/api/v1/labels", json={"label": service.new_name("label")})
        ada.post("/api/v1/gateways", json={"mac": service.new_mac()})
        service.new_user()
    lists = [
        *(USERS, KEYS, AUDIT, f"{AUDIT}?Actor={ada.headers['X-Name']}", f"{AUDIT}?Action=label.create"),
        *("/api/v1/labels", "/api/v1/gateways", "/api/v1/devices"),
    ]
    tokens = {path: ada.get(path, params=_query(path, MaxResults="1")).json()["nextToken"] for path in lists}
    for origin, token in tokens.items():
        assert isinstance(token, str), origin
        for path in lists:
            answer = ada.get(path.partition("?")[0], params=_query(path, NextToken=token))
            if path == origin:
                assert answer.status_code == 200
            else:
                assert (answer.status_code, answer.json()["code"]) == (400, "invalid-token"), (origin, path)


def _query(path: str, **more: str) -> dict[str, str]:
    """The filters of a path and some more; a client would drop those of the path."""
    name, _, value = path.partition("?")[2].partition("=")
    return {name: value, **more} if name else more


@pytest.mark.rule("rest-11")
def test_when_the_database_fails_neither_log_nor_answer_tells_what_was_to_be_stored(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with run_service(database) as service:
        database.write_now(_break)
        body = {"username": "bob", "password": PASSWORD, "role": "viewer"}
        answer = service.admin.post(USERS, json=body)
    assert answer.status_code in {500, 503}
    for text in (caplog.text, answer.text):
        assert "argon2id$" not in text
        assert PASSWORD not in text


def _break(connection: Connection) -> None:
    connection.exec_driver_sql("ALTER TABLE account RENAME COLUMN role TO rank")
