"""Users and their roles."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select

from meshfleet.db.tables import account
from meshfleet.protocol.times import format_time, from_millis
from meshfleet.rest.accounts import Role
from tests.databases import fresh_database
from tests.row_tables import each_row
from tests.service.http.running_service import PASSWORD, RunningService, run_service

if TYPE_CHECKING:
    import httpx

    from meshfleet.db import Database

USERS = "/api/v1/users"
NEW_PASSWORD = "another-horse-battery"  # noqa: S105 # a password of this test


def create_user(
    service: RunningService, username: object, *, password: object = PASSWORD, role: object = "viewer"
) -> httpx.Response:
    return service.admin.post(USERS, json={"username": username, "password": password, "role": role})


@pytest.mark.rule("auth-21", "auth-23", "rest-8")
def test_a_new_user_is_returned_as_created(service: RunningService) -> None:
    username = service.new_name("User")
    earliest = service.clock()
    response = create_user(service, username, role="operator")
    user = response.json()
    assert response.status_code == 201
    assert user == {
        "username": username.lower(),
        "role": "operator",
        "createdAt": user["createdAt"],
        "lastLoginAt": None,
    }
    assert (
        format_time(from_millis(earliest)) <= user["createdAt"] <= format_time(from_millis(service.clock()))
    )
    assert service.admin.get(f"{USERS}/{username}").json() == user
    assert user in service.admin.get(USERS, params={"MaxResults": 1000}).json()["items"]


@pytest.mark.rule("auth-21")
def test_the_last_login_is_returned(service: RunningService) -> None:
    username = service.new_user()
    times = []
    for _ in range(2):
        service.clock.move(seconds=60)
        earliest = service.clock()
        service.log_in(username)
        times.append(service.admin.get(f"{USERS}/{username}").json()["lastLoginAt"])
        assert format_time(from_millis(earliest)) <= times[-1] <= format_time(from_millis(service.clock()))
    assert times[0] < times[1]


@pytest.mark.rule("auth-19")
def test_a_password_is_stored_only_as_argon2id(service: RunningService) -> None:
    username = service.new_user()
    query = select(account).where(account.c.username == username)
    row = service.database.read_now(lambda connection: connection.execute(query).one())
    assert row.password.startswith("$argon2id$")
    assert PASSWORD not in str(tuple(row))


@pytest.mark.rule("auth-22")
@each_row(
    ("password", "status"),
    [
        ("x" * 9, 400),
        ("x" * 10, 201),
        ("x" * 1024, 201),
        ("x" * 1025, 400),
        ("\U0001f600" * 10, 201),
        ("é" * 9, 400),
    ],
)
def test_a_password_must_have_at_least_ten_characters(
    service: RunningService, password: str, status: int
) -> None:
    username = service.new_name("user")
    response = create_user(service, username, password=password)
    assert response.status_code == status
    if status == 201:
        service.log_in(username, password)
    else:
        assert [each["field"] for each in response.json()["errors"]] == ["password"]
        assert password not in response.text


@pytest.mark.rule("auth-21")
@each_row(
    "username",
    [
        "",
        " ",
        "a b",
        "a/b",
        "a:b",
        "-a",
        ".",
        "..",
        "_x",
        "é",
        "a\n",
        "a\0",
        "x" * 65,
        "apikey",
        "ApiKey",
        5,
        None,
    ],
)
def test_an_invalid_user_name_is_refused(service: RunningService, username: object) -> None:
    response = create_user(service, username)
    assert response.status_code == 400
    assert [each["field"] for each in response.json()["errors"]] == ["username"]


@each_row("username", ["c0ffee000001", "C0FFEE000001", "000000000000"])
def test_a_user_name_like_a_mac_is_refused(service: RunningService, username: str) -> None:
    assert create_user(service, username).status_code == 400
    assert create_user(service, f"{username}0").status_code == 201 or username.isupper()


def test_names_with_all_allowed_characters_work_in_paths(service: RunningService) -> None:
    for username in ("a.b_c@d.e+f-g", "0", "x" * 64, "me..", "summary"):
        assert create_user(service, username).status_code == 201
        assert service.admin.get(f"{USERS}/{username.upper()}").json()["username"] == username
        assert service.admin.delete(f"{USERS}/{username}").status_code == 204
        assert service.admin.get(f"{USERS}/{username}").status_code == 404


@pytest.mark.rule("auth-21", "rest-5")
@each_row("role", ["root", "Admin", "", None, 1, ["admin"]])
def test_there_are_three_roles_and_no_others(service: RunningService, role: object) -> None:
    for response in (
        create_user(service, service.new_name("user"), role=role),
        *([] if role is None else [service.admin.put(f"{USERS}/{service.new_user()}", json={"role": role})]),
    ):
        assert response.status_code == 400
        assert [each["field"] for each in response.json()["errors"]] == ["role"]


@pytest.mark.rule("rest-12")
def test_user_names_are_unique_regardless_of_case(service: RunningService) -> None:
    username = service.new_user()
    for name in (username, username.upper()):
        response = create_user(service, name, password=NEW_PASSWORD, role="admin")
        assert (response.status_code, response.json()["code"]) == (409, "already-exists")
    assert service.admin.get(f"{USERS}/{username}").json()["role"] == "viewer"
    service.log_in(username)


def test_only_one_of_several_concurrent_creations_succeeds(service: RunningService) -> None:
    username = service.new_name("user")
    with ThreadPoolExecutor(6) as threads:
        responses = list(threads.map(lambda _: create_user(service, username).status_code, range(6)))
    assert sorted(responses) == [201] + [409] * 5


@pytest.mark.rule("auth-23")
def test_fields_missing_in_a_change_are_unchanged(service: RunningService) -> None:
    username = service.new_user(Role.OPERATOR)
    before = service.admin.get(f"{USERS}/{username}").json()
    assert service.admin.put(f"{USERS}/{username}", json={}).json() == before
    assert service.admin.put(f"{USERS}/{username}", json={"password": NEW_PASSWORD}).json() == before
    after = service.admin.put(f"{USERS}/{username}", json={"role": "viewer"}).json()
    assert after == {**before, "role": "viewer"}
    service.log_in(username, NEW_PASSWORD)


@pytest.mark.rule("auth-23", "rest-15")
@each_row("name", ["unknown", "a%20b", "%00", "%FF", "a%2Fb", "%2E%2E", "x" * 65, "apikey", "c0ffee000001"])
def test_an_unknown_user_is_not_found(service: RunningService, name: str) -> None:
    changes: list[dict[str, str]] = [{"role": "viewer"}, {"password": NEW_PASSWORD}, {}]
    for method, body in (("GET", None), *(("PUT", change) for change in changes), ("DELETE", None)):
        response = service.admin.request(method, f"{USERS}/{name}", json=body)
        assert (response.status_code, response.json()["code"]) == (404, "not-found"), method


def test_a_user_cannot_be_renamed(service: RunningService) -> None:
    username = service.new_user()
    for field in ("username", "createdAt", "lastLoginAt"):
        response = service.admin.put(f"{USERS}/{username}", json={field: "2020-01-01T00:00:00.000Z"})
        assert response.status_code == 400
        assert [each["field"] for each in response.json()["errors"]] == [field]


@pytest.mark.rule("rest-16", "rest-20", "rest-21", "rest-24")
def test_pages_of_users_miss_none_while_users_are_added_and_removed(service: RunningService) -> None:
    for username in ("page-a", "page_a", "page.a", "page+a", "page@a", "page0", "page-aa", "page-b"):
        assert create_user(service, username).status_code == 201
    expected = {
        each["username"] for each in service.admin.get(USERS, params={"MaxResults": 1000}).json()["items"]
    }
    listed: list[str] = []
    token: str | None = ""
    while token is not None:
        params = {"MaxResults": "2"} | ({"NextToken": token} if token else {})
        page = service.admin.get(USERS, params=params).json()
        names = [each["username"] for each in page["items"]]
        assert len(names) <= 2
        listed, token = listed + names, page["nextToken"]
        if len(listed) == 4:  # remove the last listed user; add one before and one after the next page
            service.admin.delete(f"{USERS}/{listed[-1]}")
            create_user(service, "0-early")
            create_user(service, "zz-late")
    assert listed == sorted(listed)
    assert set(listed) == expected | {"zz-late"}


@pytest.mark.rule("auth-23")
def test_the_last_admin_is_neither_removed_nor_demoted(database: Database) -> None:
    with run_service(database) as service:
        last, viewer = service.new_user(Role.ADMIN), service.new_user()
        for response in (
            service.admin.delete(f"{USERS}/{last}"),
            service.admin.put(f"{USERS}/{last}", json={"role": "operator"}),
            service.admin.put(f"{USERS}/{last}", json={"role": "viewer", "password": NEW_PASSWORD}),
        ):
            assert (response.status_code, response.json()["code"]) == (409, "last-admin")
        service.log_in(last)
        assert service.admin.put(f"{USERS}/{last}", json={"role": "admin"}).status_code == 200
        assert service.admin.put(f"{USERS}/{viewer}", json={"role": "admin"}).status_code == 200
        assert service.admin.delete(f"{USERS}/{last}").status_code == 204
        assert service.admin.delete(f"{USERS}/{viewer}").status_code == 409


def test_admins_who_concurrently_remove_each_other_leave_one(
    request: pytest.FixtureRequest, database_kind: str
) -> None:
    with (
        # One attempt is enough: no transaction conflicts with another.
        closing(fresh_database(request, database_kind, tries=1)) as database,
        run_service(database) as service,
    ):
        names = [service.new_user(Role.ADMIN) for _ in range(4)]
        clients = [service.client(service.log_in(name)) for name in names]

        def remove_or_demote(number: int) -> int:
            client, victim = clients[number], f"{USERS}/{names[(number + 1) % 4]}"
            if number % 2:
                return client.delete(victim).status_code
            return client.put(victim, json={"role": "viewer"}).status_code

        with ThreadPoolExecutor(4) as threads:
            responses = list(threads.map(remove_or_demote, range(4)))
        remaining = [each for each in service.admin.get(USERS).json()["items"] if each["role"] == "admin"]
        for client in clients:
            client.close()
    assert len(remaining) >= 1
    assert set(responses) <= {200, 204, 401, 403, 409}
