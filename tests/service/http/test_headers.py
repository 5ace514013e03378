"""Headers that every answer has, or has not."""

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

EVERYWHERE = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
NOWHERE = ("server", "x-powered-by", "set-cookie", "access-control-allow-origin", "strict-transport-security")


def _check(headers: Mapping[str, str]) -> None:
    assert {name: headers.get(name) for name in EVERYWHERE} == EVERYWHERE
    assert [name for name in NOWHERE if name in headers] == []


@each_row("name", list(REQUIRED_ROLES))
def test_every_route_answers_with_safe_headers(service: RunningService, name: str) -> None:
    method, path = name.split()
    path = path.format(
        **dict.fromkeys(("device_id", "mac"), "x"),
        **dict.fromkeys(
            ("username", "key_id", "request_id", "firmware_id", "job_id", "token", "file_name"), "-"
        ),
        label="no-such-label",
    )
    path += "?Types=none" if path == STREAM_PATH else ""  # with a mistake, or it would never end
    body = b"{" if method in {"POST", "PUT"} else None
    _check(service.admin.request(method, path, content=body).headers)
    _check(service.anonymous.request(method, path, content=body).headers)


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
def test_errors_answer_with_safe_headers(service: RunningService, request_: bytes) -> None:
    answer = exchange_raw(service, request_)
    assert answer is not None
    _check({name.lower(): value for name, value in answer.headers.items()})


def test_a_head_answers_with_safe_headers_alone(service: RunningService) -> None:
    for path in ("/healthz", "/api/nothing", "/api/v1/devices"):
        answer = service.anonymous.head(path)
        assert answer.content == b""
        assert answer.headers["Content-Length"] == str(len(service.anonymous.get(path).content))
        _check(answer.headers)


def test_what_succeeds_answers_with_safe_headers(service: RunningService) -> None:
    label = service.new_name("label")
    for answer in (
        service.admin.post("/api/v1/labels", json={"label": label}),
        service.admin.delete(f"/api/v1/labels/{label}"),
        service.admin.post("/api/v1/api-keys", json={"name": service.new_name("key"), "role": "viewer"}),
    ):
        assert answer.is_success
        _check(answer.headers)


def test_no_header_of_a_request_comes_back(service: RunningService) -> None:
    answer = exchange_raw(
        service, build_head("GET /healthz", build_bearer_header(service), "X-Request-Id: abc", "X-Evil: abc")
    )
    assert answer is not None
    assert not [name for name, value in answer.headers.items() if "abc" in value or "mfk_" in value]


@pytest.mark.parametrize("path", ["/x%0D%0ASet-Cookie:%20a=b", "/api/v1/users/%0D%0AX:y"])
def test_a_line_end_in_a_path_makes_no_header(service: RunningService, path: str) -> None:
    answer = exchange_raw(service, build_head(f"GET {path}", build_bearer_header(service)))
    assert answer is not None
    assert answer.status == 404
    assert "set-cookie" not in answer.headers
    assert "x" not in answer.headers


def test_json_is_said_to_be_json(service: RunningService) -> None:
    for path in ("/healthz", "/readyz", "/api/v1/devices", "/api/v1/openapi.json"):
        assert service.admin.get(path).headers["Content-Type"] == "application/json"


def test_a_page_is_small_on_the_wire_or_says_how_long_it_is(service: RunningService) -> None:
    answer = service.admin.get("/api/v1/openapi.json")
    assert int(answer.headers["Content-Length"]) == answer.num_bytes_downloaded
