"""Too large or too slow requests are rejected at little cost and do not affect other clients."""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING

import pytest

from meshfleet.service.http import connection as connections
from meshfleet.service.http.limits import HttpLimits
from tests.row_tables import each_row
from tests.service.http.raw_http import (
    RawConnection,
    build_bearer_header,
    build_head,
    connect_raw,
    exchange_raw,
)
from tests.service.http.running_service import RunningService, run_service

if TYPE_CHECKING:
    from asyncio import Transport
    from collections.abc import Iterator

    from meshfleet.db import Database

MEBIBYTE = 1024 * 1024


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


@pytest.fixture
def short_timeout_service(sqlite_database: Database) -> Iterator[RunningService]:
    """Run a service with short timeouts."""
    limits = HttpLimits(head_seconds=0.1, body_seconds=0.1, keep_alive_seconds=0.1)
    with run_service(sqlite_database, limits=limits) as service:
        yield service


def _build_label_body(size: int) -> bytes:
    """Return a valid body of this size in bytes."""
    return b'{"label": "x"}' + b" " * (size - 14)


# --- Too large ---


@pytest.mark.rule("rest-27", "rest-12")
def test_a_body_of_one_mebibyte_is_accepted_and_one_byte_more_is_not(service: RunningService) -> None:
    assert service.admin.post("/api/v1/labels", content=_build_label_body(MEBIBYTE)).status_code == 200
    response = service.admin.post("/api/v1/labels", content=_build_label_body(MEBIBYTE + 1))
    assert (response.status_code, response.json()["code"]) == (413, "body-too-large")


@pytest.mark.rule("rest-27")
@pytest.mark.parametrize(("size", "status"), [(MEBIBYTE, 200), (MEBIBYTE + 1, 413)])
def test_a_chunked_body_has_the_same_limit(service: RunningService, size: int, status: int) -> None:
    body = _build_label_body(size)
    parts = (body[start : start + 60_000] for start in range(0, size, 60_000))
    assert service.admin.post("/api/v1/labels", content=parts).status_code == status


@pytest.mark.rule("rest-27")
def test_a_too_large_body_is_refused_before_it_is_sent(service: RunningService) -> None:
    response = exchange_raw(
        service,
        build_head("POST /api/v1/labels", build_bearer_header(service), f"Content-Length: {MEBIBYTE + 1}"),
    )
    assert response is not None
    assert response.status == 413


@pytest.mark.rule("rest-27")
def test_an_unauthorized_request_is_refused_before_its_body_is_sent(service: RunningService) -> None:
    response = exchange_raw(service, build_head("POST /api/v1/labels", f"Content-Length: {MEBIBYTE}"))
    assert response is not None
    assert response.status == 401


@each_row(
    "start",
    [
        "GET /" + "x" * 200_000,
        "GET /healthz HTTP/1.1\r\nX: " + "x" * 200_000,
        "GET /healthz HTTP/1.1\r\n" + "X: x\r\n" * 40_000,
    ],
)
@pytest.mark.rule("rest-27", "rest-12")
def test_an_endless_head_is_refused(service: RunningService, start: str) -> None:
    with connect_raw(service) as connection:
        connection.send(start.encode())
        _check_too_large(connection)


@pytest.mark.rule("rest-27", "rest-12")
@pytest.mark.parametrize("chunk", [2**20, 5_000], ids=["at once", "in pieces"])
def test_a_head_of_64_kib_is_accepted_and_a_longer_one_is_not(service: RunningService, chunk: int) -> None:
    fitting = build_head("GET /healthz", "X: ")
    fitting = build_head("GET /healthz", "X: " + "x" * (64 * 1024 - len(fitting)))
    with connect_raw(service) as connection:
        for _ in range(2):  # the count restarts with the second head
            _send_in_chunks(connection, fitting, chunk)
            response = connection.read()
            assert response is not None
            assert response.status == 200
        _send_in_chunks(connection, build_head("GET /healthz", "X: " + "x" * (64 * 1024)), chunk)
        _check_too_large(connection)


@pytest.mark.rule("rest-27")
def test_a_head_received_with_the_end_of_a_long_one_is_counted_separately(service: RunningService) -> None:
    long, short = (
        build_head("GET /healthz", "X: " + "x" * 60_000),
        build_head("GET /healthz", "Y: " + "y" * 10_000),
    )
    with connect_raw(service) as connection:
        for chunk in (long[:100], long[100:] + short[:8000], short[8000:]):
            connection.send(chunk)
        responses = [connection.read(), connection.read()]
    assert [each and each.status for each in responses] == [200, 200]


@pytest.mark.rule("rest-27")
def test_a_head_after_a_large_body_is_counted_separately(service: RunningService) -> None:
    body = b'{"label": "x"}' + b" " * 100_000
    first = (
        build_head("POST /api/v1/labels", build_bearer_header(service), f"Content-Length: {len(body)}") + body
    )
    second = build_head("GET /healthz")
    with connect_raw(service) as connection:
        connection.send(first + second[:30])
        responses = [connection.read()]
        connection.send(second[30:])
        responses.append(connection.read())
    assert [each and each.status for each in responses] == [200, 200]


def _send_in_chunks(connection: RawConnection, data: bytes, chunk: int) -> None:
    for start in range(0, len(data), chunk):
        connection.send(data[start : start + chunk])


def _check_too_large(connection: RawConnection) -> None:
    response = connection.read()
    assert response is not None
    assert (response.status, response.headers["Content-Type"]) == (431, "application/problem+json")
    assert response.json()["code"] == "head-too-large"
    assert connection.read() is None


# --- Too slow ---


def test_a_slow_head_closes_the_connection(short_timeout_service: RunningService) -> None:
    with connect_raw(short_timeout_service) as connection:
        connection.send(b"GET /healthz HTTP/1.1\r\nHost: ")
        assert connection.read() is None


def test_a_client_that_sends_nothing_is_disconnected(short_timeout_service: RunningService) -> None:
    with connect_raw(short_timeout_service) as connection:
        assert connection.read() is None


def test_an_idle_client_is_disconnected(short_timeout_service: RunningService) -> None:
    with connect_raw(short_timeout_service) as connection:
        connection.send(build_head("GET /healthz"))
        assert connection.read() is not None
        assert connection.read() is None


def test_a_slow_second_head_closes_the_connection(short_timeout_service: RunningService) -> None:
    with connect_raw(short_timeout_service) as connection:
        connection.send(build_head("GET /healthz"))
        assert connection.read() is not None
        connection.send(b"GET /hea")
        assert connection.read() is None


def test_empty_lines_do_not_keep_a_connection_open(short_timeout_service: RunningService) -> None:
    with connect_raw(short_timeout_service) as connection:
        connection.send(build_head("GET /healthz"))
        assert connection.read() is not None
        connection.send(b"\r\n")
        assert connection.read() is None


@each_row("line", ["POST /nothing", "POST /api/v1/labels", "GET /healthz"])
def test_the_rest_of_an_unread_body_does_not_keep_a_connection_open(
    short_timeout_service: RunningService, line: str
) -> None:
    with connect_raw(short_timeout_service) as connection:
        connection.send(build_head(line, "Content-Length: 1000") + b"x")
        assert connection.read() is not None
        connection.send(b"x")
        assert connection.read() is None


def test_a_slow_body_closes_the_connection(short_timeout_service: RunningService) -> None:
    with connect_raw(short_timeout_service) as connection:
        connection.send(
            build_head(
                "POST /api/v1/labels", build_bearer_header(short_timeout_service), "Content-Length: 1000"
            )
            + b"{"
        )
        response = connection.read()
        assert response is not None
        assert response.status == 408
        connection.send(b"x")
        assert connection.read() is None


@pytest.mark.parametrize("framing", ["Content-Length: 1000", "Transfer-Encoding: chunked"])
def test_a_client_that_disconnects_during_its_body_causes_no_error(
    service: RunningService, framing: str
) -> None:
    with connect_raw(service) as connection:
        connection.send(build_head("POST /api/v1/labels", build_bearer_header(service), framing) + b"5\r\n{")
        connection.hang_up()


# --- Pipelining ---


def test_pipelined_requests_are_answered_in_order(service: RunningService) -> None:
    with connect_raw(service) as connection:
        paths = ("/healthz", "/api/v1/auth/me", "/api/v1/nothing", "/api/v1/openapi.json")
        connection.send(b"".join(build_head(f"GET {path}") for path in paths))
        responses = [connection.read() for _ in paths]
    assert [response and response.status for response in responses] == [200, 401, 404, 200]


def test_a_request_after_a_long_body_is_answered(service: RunningService) -> None:
    body = _build_label_body(100_000)
    second = build_head("GET /healthz")
    with connect_raw(service) as connection:
        first = build_head(
            "POST /api/v1/labels", build_bearer_header(service), f"Content-Length: {len(body)}"
        )
        connection.send(first + body + second[:20])
        response = connection.read()
        assert response is not None
        assert response.status == 200
        connection.send(second[20:])
        assert connection.read() is not None


@pytest.mark.rule("rest-27")
def test_a_refused_body_leaves_the_connection_usable_or_closed(service: RunningService) -> None:
    size = 2 * MEBIBYTE
    with connect_raw(service) as connection:
        connection.send(
            build_head("POST /api/v1/labels", build_bearer_header(service), f"Content-Length: {size}")
        )
        response = connection.read()
        assert response is not None
        assert response.status == 413
        try:
            connection.send(b"x" * size + build_head("GET /api/v1/nothing"))
        except (BrokenPipeError, ConnectionResetError):
            return
        after = connection.read()
        assert after is None or after.status == 404


def test_small_responses_are_sent_without_delay(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check TCP_NODELAY: without it every request on a kept-alive connection takes 40 ms."""
    options: list[int] = []

    class RecordingConnection(connections.HttpConnection):
        def connection_made(self, transport: Transport) -> None:  # type: ignore[override] # as uvicorn declares it
            super().connection_made(transport)
            connection = transport.get_extra_info("socket")
            options.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr("meshfleet.service.app.HttpConnection", RecordingConnection)
    with run_service(sqlite_database) as service:
        assert service.anonymous.get("/healthz").status_code == 200
    sqlite_database.close()
    assert all(options)
    assert options
