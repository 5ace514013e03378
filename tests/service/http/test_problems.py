"""All errors have the same form of problem."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.service.http.limits import HttpLimits
from tests.row_tables import each_row
from tests.service.http.raw_http import build_bearer_header, build_head, connect_raw, exchange_raw
from tests.service.http.running_service import PASSWORD, RunningService, run_service

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from meshfleet.db import Database

FIELDS = ["type", "title", "status", "detail", "instance", "code", "errors"]
MEDIA_TYPE = "application/problem+json"


def _conflict(service: RunningService) -> httpx.Response:
    return service.admin.post(
        "/api/v1/users", json={"username": service.new_user(), "password": PASSWORD, "role": "viewer"}
    )


def _wrong_password(service: RunningService) -> httpx.Response:
    return _log_in(service, service.new_name("unknown"))


def _throttled(service: RunningService) -> httpx.Response:
    username = service.new_name("guessed")
    responses = [_log_in(service, username) for _ in range(6)]
    return responses[-1]


def _log_in(service: RunningService, username: str) -> httpx.Response:
    return service.anonymous.post("/api/v1/auth/login", json={"username": username, "password": "wrong-one"})


PROBLEMS: dict[tuple[int, str], Callable[[RunningService], httpx.Response]] = {
    (400, "malformed-payload"): lambda service: service.admin.post("/api/v1/labels", content=b"{"),
    (400, "malformed-text"): lambda service: service.admin.post("/api/v1/labels", json={"label": ""}),
    (400, "malformed-mac"): lambda service: service.admin.post("/api/v1/gateways", json={"mac": "x"}),
    (400, "invalid-request"): lambda service: service.admin.get("/api/v1/devices", params={"Lable": "x"}),
    (400, "invalid-token"): lambda service: service.admin.get("/api/v1/labels", params={"NextToken": "x"}),
    (401, "not-logged-in"): lambda service: service.anonymous.get("/api/v1/devices"),
    (401, "wrong-credentials"): _wrong_password,
    (403, "not-allowed"): lambda service: service.viewer.get("/api/v1/users"),
    (404, "not-found"): lambda service: service.admin.get("/api/v1/devices/bmac-ffffffffffff"),
    (405, "method-not-allowed"): lambda service: service.admin.patch("/api/v1/devices"),
    (409, "already-exists"): _conflict,
    (409, "conflict"): lambda service: service.admin.post("/api/v1/auth/logout"),
    (413, "body-too-large"): lambda service: service.admin.post(
        "/api/v1/labels", content=b" " * (1024 * 1024 + 1)
    ),
    (415, "unsupported-media-type"): lambda service: service.admin.post(
        "/api/v1/labels", data={"label": "x"}
    ),
    (429, "too-many-attempts"): _throttled,
}


@pytest.mark.rule("rest-9", "rest-10", "rest-12")
@each_row(("status", "code"), PROBLEMS)
def test_every_error_is_a_problem(service: RunningService, status: int, code: str) -> None:
    response = PROBLEMS[status, code](service)
    problem = response.json()
    assert (response.status_code, problem["code"]) == (status, code)
    assert response.headers["Content-Type"] == MEDIA_TYPE
    _check_form(problem)
    assert (problem["type"], problem["status"]) == ("about:blank", status)
    assert problem["instance"] == response.request.url.raw_path.decode().partition("?")[0]
    assert "Traceback" not in response.text


@pytest.mark.rule("rest-13")
def test_401_names_the_authentication_scheme(service: RunningService) -> None:
    for ask_wrongly in (PROBLEMS[401, "not-logged-in"], PROBLEMS[401, "wrong-credentials"]):
        assert ask_wrongly(service).headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.rule("rest-14")
def test_429_has_a_retry_after_header(service: RunningService) -> None:
    wait = _throttled(service).headers["Retry-After"]
    assert wait.isascii()
    assert wait.isdigit()
    assert int(wait) >= 1


@pytest.mark.rule("rest-12")
@each_row(
    ("path", "methods"),
    [
        ("/healthz", {"GET"}),
        ("/api/v1/devices", {"GET"}),
        ("/api/v1/devices/bmac-c0ffee000000", {"GET", "DELETE"}),
        ("/api/v1/devices/bmac-c0ffee000000/labels/x", {"PUT", "DELETE"}),
        ("/api/v1/users/ada", {"GET", "PUT", "DELETE"}),
        ("/api/v1/labels", {"GET", "POST"}),
    ],
)
@each_row("method", ["PATCH", "OPTIONS", "TRACE"])
def test_405_lists_the_allowed_methods(
    service: RunningService, path: str, methods: set[str], method: str
) -> None:
    response = service.admin.request(method, path)
    assert response.status_code == 405
    _check_form(response.json())
    extra = {"HEAD"} if "GET" in methods else set()
    assert set(response.headers["Allow"].split(", ")) == methods | extra


@pytest.mark.rule("rest-9", "rest-10", "rest-5")
def test_every_fault_is_reported_with_its_field(service: RunningService) -> None:
    query = {"MaxResults": "0", "ModelNumber": "x", "FirmwareVersion": "x", "Ids": "x", "Wrong": "x"}
    fields: set[str] = set()
    for name, value in query.items():
        [error] = service.admin.get("/api/v1/devices", params={name: value}).json()["errors"]
        fields.add(error["field"])
    assert fields == set(query)
    for body, field in (
        (b'{"label": 1}', "label"),
        (b'{"lable": "x"}', "lable"),
        (b"{}", "label"),
        (b'{"label": "x", "deviceIds": ["x"]}', "deviceIds[0]"),
        (b"[", "body"),
    ):
        [error] = service.admin.post("/api/v1/labels", content=body).json()["errors"]
        assert error["field"] == field


@pytest.mark.rule("rest-10")
def test_all_invalid_filters_are_reported_together(service: RunningService) -> None:
    query = {"ModelNumber": "x", "FirmwareVersion": "x", "Ids": "x", "Gateway": "x"}
    errors = service.admin.get("/api/v1/devices", params=query).json()["errors"]
    assert {each["field"] for each in errors} == set(query)


@pytest.mark.rule("rest-15")
@each_row("malformed", ["x", "bmac-", "BMAC-C0FFEE000000", "bmac-c0ffee00000g", "c0ffee000000", "%20"])
@each_row(
    ("method", "path"),
    [
        ("GET", "/api/v1/devices/{}"),
        ("DELETE", "/api/v1/devices/{}"),
        ("PUT", "/api/v1/devices/{}/friendly-name"),
        ("PUT", "/api/v1/devices/{}/labels/x"),
        ("DELETE", "/api/v1/devices/{}/labels/x"),
    ],
)
def test_a_malformed_device_id_in_a_path_is_not_found(
    service: RunningService, method: str, path: str, malformed: str
) -> None:
    body = {"name": "x"} if path.endswith("friendly-name") else None
    response = service.admin.request(method, path.format(malformed), json=body)
    assert (response.status_code, response.json()["code"]) == (404, "not-found")


@pytest.mark.rule("rest-15")
@each_row("malformed", ["x", "bmac-", "c0ffee00000", "c0ffee00000g", "c0:ff:ee:00:00:00"])
@each_row(("method", "tail"), [("GET", ""), ("DELETE", ""), ("POST", "/credentials")])
def test_a_malformed_mac_in_a_path_is_not_found(
    service: RunningService, method: str, tail: str, malformed: str
) -> None:
    response = service.admin.request(method, f"/api/v1/gateways/{malformed}{tail}")
    assert (response.status_code, response.json()["code"]) == (404, "not-found")


@pytest.mark.rule("rest-11")
def test_a_refused_password_or_key_is_not_repeated(service: RunningService) -> None:
    secret = "hunter2-and-a-half"  # noqa: S105 # a password of this test
    user = service.new_user()
    with service.client(service.log_in(user)) as client:
        responses = [
            service.anonymous.post("/api/v1/auth/login", json={"username": user, "password": secret}),
            service.anonymous.post("/api/v1/auth/login", json={"username": user, "password": [secret]}),
            service.anonymous.post("/api/v1/auth/login", json={"username": user, "passwort": secret}),
            service.anonymous.post("/api/v1/auth/login", content=f'{{"password":"{secret}"'.encode()),
            client.put("/api/v1/auth/password", json={"current": secret, "password": secret}),
            service.admin.put(f"/api/v1/users/{user}", json={"role": "viewer", "password": secret[:9]}),
            service.anonymous.get("/api/v1/auth/me", headers={"Authorization": f"Bearer mfk_{secret}"}),
        ]
    for response in responses:
        assert response.status_code in {400, 401, 429}
        assert secret[:9] not in response.text


@pytest.mark.rule("rest-9")
def test_invalid_http_gets_a_problem(service: RunningService) -> None:
    response = exchange_raw(service, b"this is no request\r\n\r\n")
    assert response is not None
    assert (response.status, response.headers["Content-Type"]) == (400, MEDIA_TYPE)
    _check_form(response.json())


@pytest.mark.rule("rest-9", "rest-12")
def test_a_slow_body_gets_a_problem(sqlite_database: Database) -> None:
    limits = HttpLimits(body_seconds=0.05)
    with run_service(sqlite_database, limits=limits) as service, connect_raw(service) as connection:
        connection.send(
            build_head("POST /api/v1/labels", build_bearer_header(service), "Content-Length: 15")
            + b'{"label"'
        )
        response = connection.read()
    sqlite_database.close()
    assert response is not None
    assert (response.status, response.headers["Content-Type"]) == (408, MEDIA_TYPE)
    assert response.json()["code"] == "too-slow"
    _check_form(response.json())


def _check_form(problem: Any) -> None:
    assert list(problem) == FIELDS
    assert all(isinstance(problem[each], str) and problem[each] for each in ("title", "detail", "code"))
    assert all(set(each) == {"field", "message"} for each in problem["errors"])
