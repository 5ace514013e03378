"""Who may do what, route by route."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.rest import Role
from meshfleet.rest.live import STREAM_PATH
from meshfleet.service.http.access import PUBLIC, REQUIRED_ROLES
from tests.row_tables import each_row

if TYPE_CHECKING:
    import httpx

    from tests.service.http.running_service import RunningService

OURS = [(name, least) for name, least in REQUIRED_ROLES.items() if least is not PUBLIC]
LOWER = [(name, role) for name, least in OURS for role in Role if not role.includes(least)]
NOBODY = {
    "device_id": "bmac-0",
    "label": "no-such-label",
    "mac": "0",
    "username": "-",
    "key_id": "-",
    "request_id": "-",
    "firmware_id": "-",
    "job_id": "-",
    "token": "-",
    "file_name": "-",
}
"""Ids of nothing: whoever gets in does no harm."""


@pytest.mark.rule("auth-4", "rest-13", "rest-12")
@each_row("name", [name for name, _ in OURS])
def test_without_a_token_a_route_is_closed(service: RunningService, name: str) -> None:
    answer = _ask(service.anonymous, name)
    assert (answer.status_code, answer.json()["code"]) == (401, "not-logged-in")
    assert answer.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.rule("auth-4")
@each_row("name", [name for name, least in REQUIRED_ROLES.items() if least is PUBLIC])
def test_an_open_route_needs_no_token_and_looks_at_none(service: RunningService, name: str) -> None:
    with service.client("nonsense") as client:
        assert _ask(client, name).status_code == _ask(service.anonymous, name).status_code
    assert _ask(service.anonymous, name).status_code in {200, 400, *([404] if "{token}" in name else [])}


@pytest.mark.rule("auth-16", "auth-17", "auth-18", "rest-12")
@each_row(("name", "role"), LOWER)
def test_a_lower_role_is_refused(service: RunningService, name: str, role: Role) -> None:
    answer = _ask(_client(service, role), name)
    assert (answer.status_code, answer.json()["code"]) == (403, "not-allowed")
    assert REQUIRED_ROLES[name] in answer.json()["detail"]


@pytest.mark.rule("auth-16", "auth-17", "auth-18")
@each_row(("name", "least"), OURS)
def test_the_least_role_is_let_in_and_so_are_those_above(
    service: RunningService, name: str, least: Role
) -> None:
    for role in Role:
        if role.includes(least):
            assert _ask(_client(service, role), name).status_code in {200, 400, 404, 409, 415}


@pytest.mark.rule("auth-4")
def test_only_these_routes_are_open() -> None:
    assert {name for name, least in REQUIRED_ROLES.items() if least is PUBLIC} == {
        "POST /api/v1/auth/login",
        "GET /api/v1/openapi.json",
        "GET /api/v1/asyncapi.json",
        "GET /api/v1/images/{token}/{file_name}",  # which the token opens
        "GET /healthz",
        "GET /readyz",
    }


@pytest.mark.rule("auth-16", "auth-17", "auth-18")
def test_reading_takes_a_viewer_work_an_operator_and_people_and_gateways_an_admin() -> None:
    for name, least in OURS:
        method, path = name.split()
        if path.startswith("/api/v1/auth/") or (method == "GET" and not _is_for_admins(path)):
            assert least is Role.VIEWER
        elif path.startswith(("/api/v1/labels", "/api/v1/jobs")) or _is_work(path):
            assert least is Role.OPERATOR
        else:
            assert least is Role.ADMIN


@pytest.mark.rule("rest-162")
def test_the_table_of_roles_and_the_document_have_the_same_routes(service: RunningService) -> None:
    document = service.anonymous.get("/api/v1/openapi.json").json()
    documented = {
        f"{method.upper()} {path}": operation
        for path, item in document["paths"].items()
        for method, operation in item.items()
    }
    assert set(documented) == set(REQUIRED_ROLES)
    for name, least in REQUIRED_ROLES.items():
        assert documented[name]["security"] == ([] if least is PUBLIC else [{"token": []}])
        assert ("401" in documented[name]["responses"]) is (
            least is not PUBLIC or name == "POST /api/v1/auth/login"
        )
        assert ("403" in documented[name]["responses"]) is (least not in {PUBLIC, Role.VIEWER})


@each_row("path", ["/api", "/api/v1", "/api/schema", "/api/v1/docs", "/openapi.json"])
def test_nothing_else_is_served(service: RunningService, path: str) -> None:
    assert service.admin.get(path).status_code == 404


@each_row("name", list(REQUIRED_ROLES))
def test_no_other_method_gets_in(service: RunningService, name: str) -> None:
    path = name.split()[1]
    allowed = {each.split()[0] for each in REQUIRED_ROLES if each.split()[1] == path}
    allowed |= {"HEAD"} if "GET" in allowed else set()
    for method in {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} - allowed:
        assert service.admin.request(method, path.format(**NOBODY)).status_code == 405


@pytest.mark.rule("auth-4")
@each_row("name", [name for name, _ in OURS if name.startswith("GET ")])
def test_a_head_needs_what_a_get_needs(service: RunningService, name: str) -> None:
    path = _place(name.removeprefix("GET "))
    assert service.anonymous.head(path).status_code == 401
    for client in (service.viewer, service.operator, service.admin):
        answer = client.head(path)
        assert (answer.status_code, answer.content) == (client.get(path).status_code, b"")


@pytest.mark.rule("auth-5")
@each_row("scheme", ["Bearer", "bearer", "BEARER", "bEaReR"])
def test_the_scheme_is_read_in_any_case(service: RunningService, scheme: str) -> None:
    key = service.viewer.headers["Authorization"].removeprefix("Bearer ")
    answer = service.anonymous.get("/api/v1/auth/me", headers={"Authorization": f"{scheme} {key}"})
    assert answer.status_code == 200


@pytest.mark.rule("auth-5")
@each_row(
    "form",
    [
        "{}",
        "Bearer{}",
        "Bearer  {}",
        "Bearer\t{}",
        "Basic {}",
        "Token {}",
        "Bearer {} x",
        "Bearer {},",
        'Bearer "{}"',
    ],
)
def test_no_other_form_is_a_token(service: RunningService, form: str) -> None:
    key = service.viewer.headers["Authorization"].removeprefix("Bearer ")
    answer = service.anonymous.get("/api/v1/auth/me", headers={"Authorization": form.format(key)})
    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert key not in answer.text


@pytest.mark.rule("auth-4", "auth-5")
def test_a_token_counts_in_its_header_alone_and_once(service: RunningService) -> None:
    token = service.viewer.headers["Authorization"]
    twice = [("Authorization", token), ("Authorization", token)]
    key = token.removeprefix("Bearer ")
    me = "/api/v1/auth/me"
    assert service.anonymous.get(me, headers=twice).status_code == 401
    assert service.anonymous.get(me, params={"access_token": key}).status_code == 401
    assert service.anonymous.get(me, headers={"Cookie": f"token={key}"}).status_code == 401


def _client(service: RunningService, role: Role) -> httpx.Client:
    return {Role.VIEWER: service.viewer, Role.OPERATOR: service.operator, Role.ADMIN: service.admin}[role]


def _ask(client: httpx.Client, name: str) -> httpx.Response:
    """Ask for what does no harm: with a body that cannot be, about nothing."""
    method, path = name.split()
    body = b"{" if method in {"POST", "PUT"} else None
    return client.request(method, _place(path), content=body)


def _place(path: str) -> str:
    """Where nothing is; a stream is asked for with a mistake, or it would never end."""
    return path.format(**NOBODY) + ("?Types=none" if path == STREAM_PATH else "")


def _is_for_admins(path: str) -> bool:
    return path.startswith(("/api/v1/users", "/api/v1/api-keys", "/api/v1/audit"))


def _is_work(path: str) -> bool:
    return "labels" in path or path.endswith(("/friendly-name", "/requests"))
