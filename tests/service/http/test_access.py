"""Required roles of all routes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.rest.accounts import Role
from meshfleet.rest.live import STREAM_PATH
from meshfleet.service.http.access import PUBLIC, REQUIRED_ROLES
from tests.row_tables import each_row

if TYPE_CHECKING:
    import httpx

    from tests.service.http.running_service import RunningService

PROTECTED_ROUTES = [(name, required) for name, required in REQUIRED_ROLES.items() if required is not PUBLIC]
TOO_LOW_ROLES = [
    (name, role) for name, required in PROTECTED_ROUTES for role in Role if not role.includes(required)
]
UNKNOWN_IDS = {
    "device_id": "bmac-0",
    "label": "no-such-label",
    "mac": "0",
    "username": "-",
    "key_id": "-",
    "request_id": "-",
    "firmware_id": "-",
    "job_id": "-",
    "site_id": "-",
    "floor": "-",
    "zone_id": "-",
    "alarm_id": "-",
    "channel_id": "-",
    "rule_id": "-",
    "silence_id": "-",
    "delivery_id": "-",
    "point_id": "-",
    "token": "-",
    "file_name": "-",
}
"""Ids that do not exist, so that an admitted request changes nothing."""


@pytest.mark.rule("auth-4", "rest-13", "rest-12")
@each_row("name", [name for name, _ in PROTECTED_ROUTES])
def test_a_protected_route_is_refused_without_a_token(service: RunningService, name: str) -> None:
    response = _request(service.anonymous, name)
    assert (response.status_code, response.json()["code"]) == (401, "not-logged-in")
    assert response.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.rule("auth-4")
@each_row("name", [name for name, required in REQUIRED_ROLES.items() if required is PUBLIC])
def test_a_public_route_ignores_tokens(service: RunningService, name: str) -> None:
    with service.client("nonsense") as client:
        assert _request(client, name).status_code == _request(service.anonymous, name).status_code
    assert _request(service.anonymous, name).status_code in {200, 400, *([404] if "{token}" in name else [])}


@pytest.mark.rule("auth-16", "auth-17", "auth-18", "rest-12")
@each_row(("name", "role"), TOO_LOW_ROLES)
def test_a_lower_role_is_refused(service: RunningService, name: str, role: Role) -> None:
    response = _request(_get_client(service, role), name)
    assert (response.status_code, response.json()["code"]) == (403, "not-allowed")
    assert REQUIRED_ROLES[name] in response.json()["detail"]


@pytest.mark.rule("auth-16", "auth-17", "auth-18")
@each_row(("name", "required"), PROTECTED_ROUTES)
def test_the_required_role_and_higher_roles_are_allowed(
    service: RunningService, name: str, required: Role
) -> None:
    for role in Role:
        if role.includes(required):
            assert _request(_get_client(service, role), name).status_code in {200, 400, 404, 409, 415}


@pytest.mark.rule("auth-4")
def test_only_these_routes_are_public() -> None:
    assert {name for name, required in REQUIRED_ROLES.items() if required is PUBLIC} == {
        "POST /api/v1/auth/login",
        "GET /api/v1/openapi.json",
        "GET /api/v1/asyncapi.json",
        "GET /api/v1/images/{token}/{file_name}",  # authorized by the token in its path
        "GET /healthz",
        "GET /readyz",
    }


OPERATOR_PATHS = (
    *("/api/v1/labels", "/api/v1/jobs", "/api/v1/sites"),
    *("/api/v1/alarms", "/api/v1/alarm-rules", "/api/v1/silences"),
)
OTHER_TASKS = {
    "PUT /api/v1/alarms/seen": Role.VIEWER,  # what a user has seen is the user's own
    "POST /api/v1/alarm-rules/{rule_id}/reset": Role.ADMIN,  # a built-in rule
}


@pytest.mark.rule("auth-16", "auth-17", "auth-18")
def test_viewers_read_operators_change_devices_and_admins_manage_accounts_and_gateways() -> None:
    for name, required in PROTECTED_ROUTES:
        method, path = name.split()
        if name in OTHER_TASKS:
            assert required is OTHER_TASKS[name]
        elif path.startswith("/api/v1/auth/") or (method == "GET" and not _is_for_admins(path)):
            assert required is Role.VIEWER
        elif path.startswith(OPERATOR_PATHS) or _is_operator_task(path):
            assert required is Role.OPERATOR
        else:
            assert required is Role.ADMIN


@pytest.mark.rule("rest-162")
def test_the_table_of_roles_and_the_document_have_the_same_routes(service: RunningService) -> None:
    document = service.anonymous.get("/api/v1/openapi.json").json()
    documented = {
        f"{method.upper()} {path}": operation
        for path, item in document["paths"].items()
        for method, operation in item.items()
    }
    assert set(documented) == set(REQUIRED_ROLES)
    for name, required in REQUIRED_ROLES.items():
        assert documented[name]["security"] == ([] if required is PUBLIC else [{"token": []}])
        assert ("401" in documented[name]["responses"]) is (
            required is not PUBLIC or name == "POST /api/v1/auth/login"
        )
        assert ("403" in documented[name]["responses"]) is (required not in {PUBLIC, Role.VIEWER})


@each_row("path", ["/api", "/api/v1", "/api/schema", "/api/v1/docs", "/openapi.json"])
def test_other_paths_are_not_found(service: RunningService, path: str) -> None:
    assert service.admin.get(path).status_code == 404


@each_row("name", list(REQUIRED_ROLES))
def test_other_methods_are_refused(service: RunningService, name: str) -> None:
    path = name.split()[1]
    allowed = {each.split()[0] for each in REQUIRED_ROLES if each.split()[1] == path}
    allowed |= {"HEAD"} if "GET" in allowed else set()
    for method in {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} - allowed:
        assert service.admin.request(method, path.format(**UNKNOWN_IDS)).status_code == 405


@pytest.mark.rule("auth-4")
@each_row("name", [name for name, _ in PROTECTED_ROUTES if name.startswith("GET ")])
def test_a_head_request_needs_the_same_role_as_a_get(service: RunningService, name: str) -> None:
    path = _format_path(name.removeprefix("GET "))
    assert service.anonymous.head(path).status_code == 401
    for client in (service.viewer, service.operator, service.admin):
        response = client.head(path)
        assert (response.status_code, response.content) == (client.get(path).status_code, b"")


@pytest.mark.rule("auth-5")
@each_row("scheme", ["Bearer", "bearer", "BEARER", "bEaReR"])
def test_the_bearer_scheme_is_accepted_in_any_case(service: RunningService, scheme: str) -> None:
    key = service.viewer.headers["Authorization"].removeprefix("Bearer ")
    response = service.anonymous.get("/api/v1/auth/me", headers={"Authorization": f"{scheme} {key}"})
    assert response.status_code == 200


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
def test_other_forms_of_the_authorization_header_are_refused(service: RunningService, form: str) -> None:
    key = service.viewer.headers["Authorization"].removeprefix("Bearer ")
    response = service.anonymous.get("/api/v1/auth/me", headers={"Authorization": form.format(key)})
    assert (response.status_code, response.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert key not in response.text


@pytest.mark.rule("auth-4", "auth-5")
def test_a_token_is_accepted_only_once_and_only_in_its_header(service: RunningService) -> None:
    token = service.viewer.headers["Authorization"]
    twice = [("Authorization", token), ("Authorization", token)]
    key = token.removeprefix("Bearer ")
    me = "/api/v1/auth/me"
    assert service.anonymous.get(me, headers=twice).status_code == 401
    assert service.anonymous.get(me, params={"access_token": key}).status_code == 401
    assert service.anonymous.get(me, headers={"Cookie": f"token={key}"}).status_code == 401


def _get_client(service: RunningService, role: Role) -> httpx.Client:
    return {Role.VIEWER: service.viewer, Role.OPERATOR: service.operator, Role.ADMIN: service.admin}[role]


def _request(client: httpx.Client, name: str) -> httpx.Response:
    """Send a harmless request: an invalid body, and ids that do not exist."""
    method, path = name.split()
    body = b"{" if method in {"POST", "PUT"} else None
    return client.request(method, _format_path(path), content=body)


def _format_path(path: str) -> str:
    """Return the path with ids that do not exist; an invalid query keeps a stream from being endless."""
    return path.format(**UNKNOWN_IDS) + ("?Types=none" if path == STREAM_PATH else "")


def _is_for_admins(path: str) -> bool:
    return path.startswith(
        ("/api/v1/users", "/api/v1/api-keys", "/api/v1/audit", "/api/v1/storage", "/api/v1/samples/export")
    )


def _is_operator_task(path: str) -> bool:
    return "labels" in path or path.endswith(("/friendly-name", "/place", "/requests"))
