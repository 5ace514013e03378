"""Heads that no decent client sends: what is ambiguous is refused, and nothing breaks."""

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
def test_what_is_no_http_is_refused_and_ends_the_connection(service: RunningService, data: bytes) -> None:
    with connect_raw(service) as connection:
        connection.send(data)
        answer = connection.read()
        assert answer is not None
        assert answer.status == 400
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
def test_a_body_of_doubtful_length_is_refused_and_ends_the_connection(
    service: RunningService, headers: tuple[str, ...]
) -> None:
    """Or a proxy and we might not agree where the next request begins."""
    with connect_raw(service) as connection:
        connection.send(
            build_head("POST /api/v1/labels", *headers) + b"0\r\n\r\n" + build_head("GET /healthz")
        )
        answer = connection.read()
        assert answer is not None
        assert answer.status == 400
        assert connection.read() is None


@each_row("chunk", [b"x\r\n", b"-1\r\n", b"3 \r\nabcX", b"ffffffffffffffffff\r\n", b"3\r\nabcd\r\n"])
def test_a_broken_chunk_ends_the_connection(service: RunningService, chunk: bytes) -> None:
    with connect_raw(service) as connection:
        connection.send(
            build_head("POST /api/v1/labels", build_bearer_header(service), "Transfer-Encoding: chunked")
            + chunk
        )
        answer = connection.read()
        assert answer is not None
        assert answer.status == 400
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
"""Request lines without a target, with headers, and the status of the answer (RFC 9112, 3.2)."""


@pytest.mark.rule("rest-12")
def test_a_request_is_for_exactly_one_host(service: RunningService) -> None:
    found = {}
    for text in _HOSTS:
        version, *headers = text.split("|")
        lines = [f"GET /healthz {version}", *headers, "Connection: close", "", ""]
        data = "\r\n".join(lines).encode("latin-1")
        with connect_raw(service) as connection:
            for start in range(0, len(data), 7):  # also in fragments
                connection.send(data[start : start + 7])
            answer = connection.read()
        found[text] = answer and answer.status
    assert found == _HOSTS


@pytest.mark.rule("rest-12", "rest-9")
def test_a_request_without_a_host_is_told_so_and_what_follows_is_not_read(service: RunningService) -> None:
    """Also one that would be a WebSocket."""
    for upgrade in ("", "Connection: Upgrade\r\nUpgrade: websocket\r\n"):
        with connect_raw(service) as connection:
            connection.send(
                f"GET /api/v1/live HTTP/1.1\r\n{upgrade}\r\n".encode() + build_head("GET /healthz")
            )
            answer = connection.read()
            assert answer is not None
            assert (answer.status, answer.headers["Content-Type"]) == (400, "application/problem+json")
            assert "Host" in answer.json()["detail"]
            assert connection.read() is None


_TWO_HOSTS = build_head("GET /healthz", "Host: another")
_BROKEN_CHUNK = build_head("POST /api/v1/labels", "Transfer-Encoding: chunked") + b"x\r\n"


@pytest.mark.rule("rest-12")
@each_row("bad", [_TWO_HOSTS, _BROKEN_CHUNK, b"no HTTP\r\n\r\n"])
@each_row("earlier", [1, 2])
def test_a_refusal_comes_behind_the_answers_to_all_requests_before_it(
    service: RunningService, bad: bytes, earlier: int
) -> None:
    """Or the client takes the refusal for the answer to a request that took effect."""
    body = b'{"label": "before a refusal"}'
    good = (
        build_head("POST /api/v1/labels", build_bearer_header(service), f"Content-Length: {len(body)}") + body
    )
    with connect_raw(service) as connection:
        connection.send(good * earlier + bad + build_head("GET /healthz"))
        answers = [connection.read() for _ in range(earlier + 2)]
    *answered, refused, end = answers
    assert [each and each.status for each in answered] == [200] * earlier
    assert (refused and refused.status, end) == (400, None)


@pytest.mark.rule("rest-12")
def test_no_refusal_is_written_into_an_answer_that_has_begun(service: RunningService) -> None:
    with connect_raw(service) as connection:
        connection.send(build_head("GET /api/v1/stream", build_bearer_header(service)))
        began = connection.read()
        assert began is not None
        assert began.status == 200
        connection.send(build_head("GET /healthz") + _TWO_HOSTS)
        assert b"HTTP/1.1" not in connection.read_rest()


def test_a_whole_address_counts_by_its_path(service: RunningService) -> None:
    answer = exchange_raw(service, build_head("GET http://elsewhere/healthz", "Connection: close"))
    assert answer is not None
    assert answer.status == 200


@each_row("path", ["*", "/healthz;x", "/./healthz", "/api/../healthz", "/HEALTHZ", "/%68ealthz%2F"])
def test_a_path_is_what_it_says(service: RunningService, path: str) -> None:
    answer = exchange_raw(service, build_head(f"OPTIONS {path}", "Connection: close"))
    assert answer is not None
    assert answer.status == 404
    assert answer.json()["instance"] == path


def test_an_upgrade_is_not_taken_up(service: RunningService) -> None:
    answer = exchange_raw(
        service,
        build_head("GET /healthz", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
    )
    assert answer is not None
    assert answer.status == 200


def test_who_waits_to_be_asked_for_a_body_is_asked(service: RunningService) -> None:
    with connect_raw(service) as connection:
        expect = build_head(
            "POST /api/v1/labels", build_bearer_header(service), "Expect: 100-continue", "Content-Length: 14"
        )
        connection.send(expect)
        go_on = connection.read()
        connection.send(b'{"label": "x"}')
        answer = connection.read()
    assert [each and each.status for each in (go_on, answer)] == [100, 200]


def test_an_old_client_gets_an_answer_and_a_closed_connection(service: RunningService) -> None:
    with connect_raw(service) as connection:
        connection.send(b"GET /healthz HTTP/1.0\r\n\r\n")
        answer = connection.read()
        assert answer is not None
        assert answer.status == 200
        assert connection.read() is None


def test_when_all_connections_are_taken_a_problem_says_so(sqlite_database: Database) -> None:
    with (
        run_service(sqlite_database, limits=HttpLimits(connections=2)) as full,
        connect_raw(full),
        connect_raw(full),
    ):
        answer = exchange_raw(full, build_head("GET /healthz", "Connection: close"))
    sqlite_database.close()
    assert answer is not None
    assert (answer.status, answer.headers["Content-Type"]) == (503, "application/problem+json")


def test_requests_that_wait_in_a_row_are_limited(service: RunningService) -> None:
    with connect_raw(service) as connection:
        connection.send(build_head("GET /api/v1/openapi.json") * 2_000)
        answers = 0
        while connection.read() is not None:
            answers += 1
    assert answers < 100
    assert service.anonymous.get("/healthz").status_code == 200


def test_who_does_not_read_is_cut_off(sqlite_database: Database) -> None:
    limits = HttpLimits(read_seconds=0.05, pipelined=10_000)
    with run_service(sqlite_database, limits=limits) as patient, connect_raw(patient) as connection:
        connection.send(build_head("GET /api/v1/openapi.json") * 500)
        assert connection.is_cut_off()
    sqlite_database.close()
