"""Malformed and ambiguous request heads are refused and do not break the service."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from meshfleet.service.http.limits import HttpLimits
from tests.row_tables import each_row
from tests.service.http.raw_http import build_bearer_header, build_head, connect_raw, exchange_raw
from tests.service.http.running_service import RunningService, run_service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.db import Database


@pytest.fixture(scope="module")
def service(sqlite_of_module: Database) -> Iterator[RunningService]:
    """Run a service on SQLite only: the database does not matter here."""
    with run_service(sqlite_of_module) as service:
        yield service


@pytest.fixture(autouse=True)
def check_health(service: RunningService, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Check after each test that the service still responds and logged no error."""
    yield
    assert service.anonymous.get("/healthz").status_code == 200
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []


@each_row(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"hello\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /healthz HTTP/3.0\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: a\0b\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost : x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /healthz now HTTP/1.1\r\n\r\n",
        b"GET healthz HTTP/1.1\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\n\r\n",
        b"GET /?FriendlyName=\xff HTTP/1.1\r\n\r\n",
        b"CONNECT elsewhere:443 HTTP/1.1\r\n\r\n",
        b"EVIL /healthz HTTP/1.1\r\n\r\n",
        bytes(range(256)) * 4,
    ],
)
def test_invalid_http_is_refused_and_closes_the_connection(service: RunningService, data: bytes) -> None:
    with connect_raw(service) as connection:
        connection.send(data)
        response = connection.read()
        assert response is not None
        assert response.status == 400
        assert connection.read() is None


@each_row(
    "headers",
    [
        ("Content-Length: 4", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: chunked", "Content-Length: 4"),
        ("Content-Length: 4", "Content-Length: 5"),
        ("Content-Length: 4, 5",),
        ("Content-Length: -4",),
        ("Content-Length: +4",),
        ("Content-Length: 0x4",),
        ("Content-Length: 99999999999999999999999999",),
        ("Transfer-Encoding: gzip",),
        ("Transfer-Encoding: chunked, gzip",),
        ("Transfer-Encoding: identity, chunked, chunked",),
    ],
)
def test_a_body_of_ambiguous_length_is_refused_and_closes_the_connection(
    service: RunningService, headers: tuple[str, ...]
) -> None:
    """Prevent request smuggling: a proxy might see another start of the next request."""
    with connect_raw(service) as connection:
        connection.send(
            build_head("POST /api/v1/labels", *headers) + b"0\r\n\r\n" + build_head("GET /healthz")
        )
        response = connection.read()
        assert response is not None
        assert response.status == 400
        assert connection.read() is None


@each_row("chunk", [b"x\r\n", b"-1\r\n", b"3 \r\nabcX", b"ffffffffffffffffff\r\n", b"3\r\nabcd\r\n"])
def test_a_broken_chunk_closes_the_connection(service: RunningService, chunk: bytes) -> None:
    with connect_raw(service) as connection:
        connection.send(
            build_head("POST /api/v1/labels", build_bearer_header(service), "Transfer-Encoding: chunked")
            + chunk
        )
        response = connection.read()
        assert response is not None
        assert response.status == 400
        assert connection.read() is None


_HOSTS = {
    "HTTP/1.1": 400,
    "HTTP/1.0": 200,
    "HTTP/1.1|Host: a|Host: a": 400,
    "HTTP/1.1|Host: a|host: b": 400,
    "HTTP/1.0|Host: a|Host: b": 400,
    "HTTP/1.1|Host: a b": 400,
    "HTTP/1.1|Host: a, b": 400,
    "HTTP/1.1|Host: user@a": 400,
    "HTTP/1.1|Host: http://a": 400,
    "HTTP/1.1|Host: a:x": 400,
    "HTTP/1.1|Host: [::1": 400,
    "HTTP/1.1|Host: a/b": 400,
    "HTTP/1.1|Host: \xe4": 400,
    "HTTP/1.1|Host:": 200,
    "HTTP/1.1|Host:  a.example:8080 ": 200,
    "HTTP/1.1|Host: [::1]:8080": 200,
    "HTTP/1.1|Host: my_host": 200,
    "HTTP/1.1|X: y|HOST: localhost": 200,
}
"""HTTP versions with headers, and the expected status (RFC 9112, 3.2)."""


@pytest.mark.rule("rest-12")
def test_a_request_must_have_exactly_one_host(service: RunningService) -> None:
    statuses = {}
    for text in _HOSTS:
        version, *headers = text.split("|")
        lines = [f"GET /healthz {version}", *headers, "Connection: close", "", ""]
        data = "\r\n".join(lines).encode("latin-1")
        with connect_raw(service) as connection:
            for start in range(0, len(data), 7):  # in fragments
                connection.send(data[start : start + 7])
            response = connection.read()
        statuses[text] = response and response.status
    assert statuses == _HOSTS


@pytest.mark.rule("rest-12", "rest-9")
def test_a_request_without_a_host_is_refused_and_closes_the_connection(service: RunningService) -> None:
    """Check plain requests and WebSocket handshakes."""
    for upgrade in ("", "Connection: Upgrade\r\nUpgrade: websocket\r\n"):
        with connect_raw(service) as connection:
            connection.send(
                f"GET /api/v1/live HTTP/1.1\r\n{upgrade}\r\n".encode() + build_head("GET /healthz")
            )
            response = connection.read()
            assert response is not None
            assert (response.status, response.headers["Content-Type"]) == (400, "application/problem+json")
            assert "Host" in response.json()["detail"]
            assert connection.read() is None


_TWO_HOSTS = build_head("GET /healthz", "Host: another")
_BROKEN_CHUNK = build_head("POST /api/v1/labels", "Transfer-Encoding: chunked") + b"x\r\n"


@pytest.mark.rule("rest-12")
@each_row("invalid", [_TWO_HOSTS, _BROKEN_CHUNK, b"no HTTP\r\n\r\n"])
@each_row("earlier", [1, 2])
def test_a_refusal_follows_the_responses_to_all_earlier_requests(
    service: RunningService, invalid: bytes, earlier: int
) -> None:
    """Otherwise the client would take the refusal for the response to an earlier request."""
    body = b'{"label": "before a refusal"}'
    valid = (
        build_head("POST /api/v1/labels", build_bearer_header(service), f"Content-Length: {len(body)}") + body
    )
    with connect_raw(service) as connection:
        connection.send(valid * earlier + invalid + build_head("GET /healthz"))
        responses = [connection.read() for _ in range(earlier + 2)]
    *answered, refused, end = responses
    assert [each and each.status for each in answered] == [200] * earlier
    assert (refused and refused.status, end) == (400, None)


@pytest.mark.rule("rest-12")
def test_no_refusal_is_written_into_a_running_response(service: RunningService) -> None:
    with connect_raw(service) as connection:
        connection.send(build_head("GET /api/v1/stream", build_bearer_header(service)))
        response = connection.read()
        assert response is not None
        assert response.status == 200
        connection.send(build_head("GET /healthz") + _TWO_HOSTS)
        assert b"HTTP/1.1" not in connection.read_rest()


def test_an_absolute_url_is_routed_by_its_path(service: RunningService) -> None:
    response = exchange_raw(service, build_head("GET http://elsewhere/healthz", "Connection: close"))
    assert response is not None
    assert response.status == 200


@each_row("path", ["*", "/healthz;x", "/./healthz", "/api/../healthz", "/HEALTHZ", "/%68ealthz%2F"])
def test_a_path_is_not_normalized(service: RunningService, path: str) -> None:
    response = exchange_raw(service, build_head(f"OPTIONS {path}", "Connection: close"))
    assert response is not None
    assert response.status == 404
    assert response.json()["instance"] == path


def test_an_upgrade_header_is_ignored(service: RunningService) -> None:
    response = exchange_raw(
        service,
        build_head("GET /healthz", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
    )
    assert response is not None
    assert response.status == 200


def test_expect_100_continue_is_answered(service: RunningService) -> None:
    with connect_raw(service) as connection:
        expect = build_head(
            "POST /api/v1/labels", build_bearer_header(service), "Expect: 100-continue", "Content-Length: 14"
        )
        connection.send(expect)
        go_on = connection.read()
        connection.send(b'{"label": "x"}')
        response = connection.read()
    assert [each and each.status for each in (go_on, response)] == [100, 200]


def test_an_http_1_0_client_gets_a_response_and_a_closed_connection(service: RunningService) -> None:
    with connect_raw(service) as connection:
        connection.send(b"GET /healthz HTTP/1.0\r\n\r\n")
        response = connection.read()
        assert response is not None
        assert response.status == 200
        assert connection.read() is None


def test_a_connection_beyond_the_limit_gets_a_problem(sqlite_database: Database) -> None:
    with (
        run_service(sqlite_database, limits=HttpLimits(connections=2)) as full,
        connect_raw(full),
        connect_raw(full),
    ):
        response = exchange_raw(full, build_head("GET /healthz", "Connection: close"))
    sqlite_database.close()
    assert response is not None
    assert (response.status, response.headers["Content-Type"]) == (503, "application/problem+json")


def test_pipelined_requests_are_limited(service: RunningService) -> None:
    with connect_raw(service) as connection:
        connection.send(build_head("GET /api/v1/openapi.json") * 2_000)
        responses = 0
        while connection.read() is not None:
            responses += 1
    assert responses < 100
    assert service.anonymous.get("/healthz").status_code == 200


def test_a_client_that_does_not_read_is_disconnected(sqlite_database: Database) -> None:
    limits = HttpLimits(read_seconds=0.05, pipelined=10_000)
    with run_service(sqlite_database, limits=limits) as service, connect_raw(service) as connection:
        connection.send(build_head("GET /api/v1/openapi.json") * 500)
        assert connection.is_cut_off()
