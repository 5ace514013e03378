"""What is too large, too slow, or no HTTP: it costs little, and nobody else notices."""

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
    """A service on one database: which one does not matter here."""
    with run_service(sqlite_of_module) as service:
        yield service
    sqlite_of_module.close()


@pytest.fixture(autouse=True)
def healthy(service: RunningService, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever happens, the service goes on and has no error to tell of."""
    yield
    assert service.anonymous.get("/healthz").status_code == 200
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []


@pytest.fixture
def impatient(sqlite_database: Database) -> Iterator[RunningService]:
    """A service all of whose limits of time are short."""
    short = HttpLimits(head_seconds=0.1, body_seconds=0.1, keep_alive_seconds=0.1)
    with run_service(sqlite_database, limits=short) as service:
        yield service
    sqlite_database.close()


def _label_of(size: int) -> bytes:
    """A body of so many bytes that is right but for its size."""
    return b'{"label": "x"}' + b" " * (size - 14)


# --- Too large ---


@pytest.mark.rule("rest-27", "rest-12")
def test_a_body_of_one_mebibyte_is_read_and_one_byte_more_is_not(service: RunningService) -> None:
    assert service.admin.post("/api/v1/labels", content=_label_of(MEBIBYTE)).status_code == 200
    answer = service.admin.post("/api/v1/labels", content=_label_of(MEBIBYTE + 1))
    assert (answer.status_code, answer.json()["code"]) == (413, "body-too-large")


@pytest.mark.rule("rest-27")
@pytest.mark.parametrize(("size", "status"), [(MEBIBYTE, 200), (MEBIBYTE + 1, 413)])
def test_the_same_holds_for_a_body_in_chunks(service: RunningService, size: int, status: int) -> None:
    body = _label_of(size)
    parts = (body[start : start + 60_000] for start in range(0, size, 60_000))
    assert service.admin.post("/api/v1/labels", content=parts).status_code == status


@pytest.mark.rule("rest-27")
def test_a_body_that_will_be_too_large_is_refused_before_it_comes(service: RunningService) -> None:
    answer = exchange_raw(
        service,
        build_head("POST /api/v1/labels", build_bearer_header(service), f"Content-Length: {MEBIBYTE + 1}"),
    )
    assert answer is not None
    assert answer.status == 413


@pytest.mark.rule("rest-27")
def test_who_may_not_come_in_need_not_send_a_body(service: RunningService) -> None:
    answer = exchange_raw(service, build_head("POST /api/v1/labels", f"Content-Length: {MEBIBYTE}"))
    assert answer is not None
    assert answer.status == 401


@each_row(
    "start",
    [
        "GET /" + "x" * 200_000,
        "GET /healthz HTTP/1.1\r\nX: " + "x" * 200_000,
        "GET /healthz HTTP/1.1\r\n" + "X: x\r\n" * 40_000,
    ],
)
@pytest.mark.rule("rest-27", "rest-12")
def test_a_head_without_end_is_refused(service: RunningService, start: str) -> None:
    with connect_raw(service) as connection:
        connection.send(start.encode())
        _check_too_large(connection)


@pytest.mark.rule("rest-27", "rest-12")
@pytest.mark.parametrize("piece", [2**20, 5_000], ids=["at once", "in pieces"])
def test_a_head_of_64_kib_is_read_and_a_longer_one_is_not(service: RunningService, piece: int) -> None:
    fitting = build_head("GET /healthz", "X: ")
    fitting = build_head("GET /healthz", "X: " + "x" * (64 * 1024 - len(fitting)))
    with connect_raw(service) as connection:
        for _ in range(2):  # the second is counted anew
            _send_in(connection, fitting, piece)
            answer = connection.read()
            assert answer is not None
            assert answer.status == 200
        _send_in(connection, build_head("GET /healthz", "X: " + "x" * (64 * 1024)), piece)
        _check_too_large(connection)


@pytest.mark.rule("rest-27")
def test_a_head_that_begins_with_the_end_of_a_long_one_is_counted_by_itself(service: RunningService) -> None:
    long, short = (
        build_head("GET /healthz", "X: " + "x" * 60_000),
        build_head("GET /healthz", "Y: " + "y" * 10_000),
    )
    with connect_raw(service) as connection:
        for piece in (long[:100], long[100:] + short[:8000], short[8000:]):
            connection.send(piece)
        answers = [connection.read(), connection.read()]
    assert [each and each.status for each in answers] == [200, 200]


@pytest.mark.rule("rest-27")
def test_a_head_behind_a_large_body_is_counted_by_itself(service: RunningService) -> None:
    body = b'{"label": "x"}' + b" " * 100_000
    first = (
        build_head("POST /api/v1/labels", build_bearer_header(service), f"Content-Length: {len(body)}") + body
    )
    second = build_head("GET /healthz")
    with connect_raw(service) as connection:
        connection.send(first + second[:30])
        answers = [connection.read()]
        connection.send(second[30:])
        answers.append(connection.read())
    assert [each and each.status for each in answers] == [200, 200]


def _send_in(connection: RawConnection, data: bytes, piece: int) -> None:
    for start in range(0, len(data), piece):
        connection.send(data[start : start + piece])


def _check_too_large(connection: RawConnection) -> None:
    answer = connection.read()
    assert answer is not None
    assert (answer.status, answer.headers["Content-Type"]) == (431, "application/problem+json")
    assert answer.json()["code"] == "head-too-large"
    assert connection.read() is None


# --- Too slow ---


def test_a_head_that_does_not_end_in_time_is_cut_off(impatient: RunningService) -> None:
    with connect_raw(impatient) as connection:
        connection.send(b"GET /healthz HTTP/1.1\r\nHost: ")
        assert connection.read() is None


def test_who_says_nothing_is_cut_off(impatient: RunningService) -> None:
    with connect_raw(impatient) as connection:
        assert connection.read() is None


def test_who_says_no_more_is_cut_off(impatient: RunningService) -> None:
    with connect_raw(impatient) as connection:
        connection.send(build_head("GET /healthz"))
        assert connection.read() is not None
        assert connection.read() is None


def test_a_second_head_that_does_not_end_is_cut_off(impatient: RunningService) -> None:
    with connect_raw(impatient) as connection:
        connection.send(build_head("GET /healthz"))
        assert connection.read() is not None
        connection.send(b"GET /hea")
        assert connection.read() is None


def test_an_empty_line_is_no_request_and_keeps_no_connection(impatient: RunningService) -> None:
    with connect_raw(impatient) as connection:
        connection.send(build_head("GET /healthz"))
        assert connection.read() is not None
        connection.send(b"\r\n")
        assert connection.read() is None


@each_row("line", ["POST /nothing", "POST /api/v1/labels", "GET /healthz"])
def test_the_rest_of_a_body_that_nobody_reads_keeps_no_connection(
    impatient: RunningService, line: str
) -> None:
    with connect_raw(impatient) as connection:
        connection.send(build_head(line, "Content-Length: 1000") + b"x")
        assert connection.read() is not None
        connection.send(b"x")
        assert connection.read() is None


def test_after_a_body_that_was_too_slow_the_connection_ends(impatient: RunningService) -> None:
    with connect_raw(impatient) as connection:
        connection.send(
            build_head("POST /api/v1/labels", build_bearer_header(impatient), "Content-Length: 1000") + b"{"
        )
        answer = connection.read()
        assert answer is not None
        assert answer.status == 408
        connection.send(b"x")
        assert connection.read() is None


@pytest.mark.parametrize("framing", ["Content-Length: 1000", "Transfer-Encoding: chunked"])
def test_who_goes_in_the_middle_of_a_body_is_not_missed(service: RunningService, framing: str) -> None:
    with connect_raw(service) as connection:
        connection.send(build_head("POST /api/v1/labels", build_bearer_header(service), framing) + b"5\r\n{")
        connection.hang_up()


# --- One after the other ---


def test_pipelined_requests_are_answered_in_their_order(service: RunningService) -> None:
    with connect_raw(service) as connection:
        paths = ("/healthz", "/api/v1/auth/me", "/api/v1/nothing", "/api/v1/openapi.json")
        connection.send(b"".join(build_head(f"GET {path}") for path in paths))
        answers = [connection.read() for _ in paths]
    assert [answer and answer.status for answer in answers] == [200, 401, 404, 200]


def test_a_request_behind_a_long_body_does_not_end_the_connection(service: RunningService) -> None:
    body = _label_of(100_000)
    second = build_head("GET /healthz")
    with connect_raw(service) as connection:
        first = build_head(
            "POST /api/v1/labels", build_bearer_header(service), f"Content-Length: {len(body)}"
        )
        connection.send(first + body + second[:20])
        answer = connection.read()
        assert answer is not None
        assert answer.status == 200
        connection.send(second[20:])
        assert connection.read() is not None


@pytest.mark.rule("rest-27")
def test_after_a_refused_body_the_connection_serves_again_or_ends(service: RunningService) -> None:
    size = 2 * MEBIBYTE
    with connect_raw(service) as connection:
        connection.send(
            build_head("POST /api/v1/labels", build_bearer_header(service), f"Content-Length: {size}")
        )
        answer = connection.read()
        assert answer is not None
        assert answer.status == 413
        try:
            connection.send(b"x" * size + build_head("GET /api/v1/nothing"))
        except (BrokenPipeError, ConnectionResetError):
            return
        after = connection.read()
        assert after is None or after.status == 404


def test_small_answers_are_not_held_back_until_they_fill_a_packet(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or every request on a connection that is kept takes 40 ms."""
    told: list[int] = []

    class Telling(connections.HttpConnection):
        def connection_made(self, transport: Transport) -> None:  # type: ignore[override] # as uvicorn has it
            super().connection_made(transport)
            connection = transport.get_extra_info("socket")
            told.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr("meshfleet.service.app.HttpConnection", Telling)
    with run_service(sqlite_database) as service:
        assert service.anonymous.get("/healthz").status_code == 200
    sqlite_database.close()
    assert all(told)
    assert told
