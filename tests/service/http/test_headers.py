"""Headers that every response must have or must not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.rest.live import STREAM_PATH
from meshfleet.service.http.access import REQUIRED_ROLES
from tests.row_tables import each_row
from tests.service.http.raw_http import build_bearer_header, build_head, exchange_raw

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.service.http.running_service import RunningService

REQUIRED_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
FORBIDDEN_HEADERS = (
    "server",
    "x-powered-by",
    "set-cookie",
    "access-control-allow-origin",
    "strict-transport-security",
)


def _check_headers(headers: Mapping[str, str]) -> None:
    assert {name: headers.get(name) for name in REQUIRED_HEADERS} == REQUIRED_HEADERS
    assert [name for name in FORBIDDEN_HEADERS if name in headers] == []


@each_row("name", list(REQUIRED_ROLES))
def test_every_route_sends_security_headers(service: RunningService, name: str) -> None:
    method, path = name.split()
    path = path.format(
        **dict.fromkeys(("device_id", "mac"), "x"),
        **dict.fromkeys(
            ("username", "key_id", "request_id", "firmware_id", "job_id", "token", "file_name"), "-"
        ),
        **dict.fromkeys(
            (
                *("site_id", "floor", "zone_id", "point_id"),
                *("alarm_id", "rule_id", "silence_id", "channel_id", "delivery_id"),
            ),
            "-",
        ),
        label="no-such-label",
    )
    path += (
        "?Types=none" if path == STREAM_PATH else ""
    )  # an invalid query, so that the stream is not endless
    body = b"{" if method in {"POST", "PUT"} else None
    _check_headers(service.admin.request(method, path, content=body).headers)
    _check_headers(service.anonymous.request(method, path, content=body).headers)


@each_row(
    "request_",
    [
        build_head("GET /api/nothing"),
        build_head("PATCH /healthz"),
        build_head("OPTIONS /healthz", "Origin: http://elsewhere", "Access-Control-Request-Method: GET"),
        build_head("GET /healthz", "Origin: http://elsewhere"),
        build_head("GET /api/v1/devices?Unknown=x"),
        build_head("POST /api/v1/auth/login", "Content-Length: 2000000"),
        build_head("POST /api/v1/auth/login", "Content-Length: 2", "Content-Type: text/plain") + b"{}",
        b"this is no request\r\n\r\n",
    ],
)
def test_errors_have_security_headers(service: RunningService, request_: bytes) -> None:
    response = exchange_raw(service, request_)
    assert response is not None
    _check_headers({name.lower(): value for name, value in response.headers.items()})


def test_a_head_response_has_security_headers_and_no_body(service: RunningService) -> None:
    for path in ("/healthz", "/api/nothing", "/api/v1/devices"):
        response = service.anonymous.head(path)
        assert response.content == b""
        assert response.headers["Content-Length"] == str(len(service.anonymous.get(path).content))
        _check_headers(response.headers)


def test_successful_changes_have_security_headers(service: RunningService) -> None:
    label = service.new_name("label")
    for response in (
        service.admin.post("/api/v1/labels", json={"label": label}),
        service.admin.delete(f"/api/v1/labels/{label}"),
        service.admin.post("/api/v1/api-keys", json={"name": service.new_name("key"), "role": "viewer"}),
    ):
        assert response.is_success
        _check_headers(response.headers)


def test_no_request_header_is_echoed(service: RunningService) -> None:
    response = exchange_raw(
        service, build_head("GET /healthz", build_bearer_header(service), "X-Request-Id: abc", "X-Evil: abc")
    )
    assert response is not None
    assert not [name for name, value in response.headers.items() if "abc" in value or "mfk_" in value]


@pytest.mark.parametrize("path", ["/x%0D%0ASet-Cookie:%20a=b", "/api/v1/users/%0D%0AX:y"])
def test_a_line_break_in_a_path_adds_no_header(service: RunningService, path: str) -> None:
    response = exchange_raw(service, build_head(f"GET {path}", build_bearer_header(service)))
    assert response is not None
    assert response.status == 404
    assert "set-cookie" not in response.headers
    assert "x" not in response.headers


def test_json_responses_have_the_json_media_type(service: RunningService) -> None:
    for path in ("/healthz", "/readyz", "/api/v1/devices", "/api/v1/openapi.json"):
        assert service.admin.get(path).headers["Content-Type"] == "application/json"


def test_the_content_length_is_correct(service: RunningService) -> None:
    response = service.admin.get("/api/v1/openapi.json")
    assert int(response.headers["Content-Length"]) == response.num_bytes_downloaded
