"""Servers that refuse lines, or do not take any: only a line that is refused itself is given up."""

from __future__ import annotations

import base64
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from meshfleet.service.influx.target import InfluxTarget, TargetUnavailable
from meshfleet.settings.model import InfluxSettings
from tests.integrations.line_server import line_server
from tests.row_tables import each_row

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integrations.line_server import LineServer


def open_target(server: LineServer, *, timeout: float = 30, **settings: Any) -> closing[InfluxTarget]:
    return closing(InfluxTarget(InfluxSettings(url=server.url, **settings), timeout=timeout))


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def authority_file(authority: trustme.CA, tmp_path: Path) -> Path:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return tmp_path / "ca.pem"


@pytest.fixture(scope="module")
def server_tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


LINES = [b"meshfleet value=%d" % number for number in range(100)]
BAD = {LINES[3], LINES[64]}


@pytest.mark.rule("rest-237")
def test_only_the_lines_that_are_refused_are_skipped() -> None:
    with (
        line_server(lambda lines: (400, "bad line") if BAD & {*lines} else (204, "")) as server,
        open_target(server) as target,
    ):
        assert target.write(LINES) == (2, "bad line")
        assert server.accepted == {*LINES} - BAD


@pytest.mark.rule("rest-237")
@each_row(
    ("error", "refused"),
    [
        ("partial write: field type conflict: input field x dropped=7", 7),
        ("partial write: unable to parse 'a': y\nunable to parse 'b': y dropped=0", 2),
        ("partial write: points beyond retention policy dropped=100", 100),
        ("partial write: " + "long reason " * 60 + "dropped=9", 9),
    ],
)
def test_a_partial_write_is_not_repeated(error: str, refused: int) -> None:
    with line_server(lambda _: (400, error)) as server, open_target(server) as target:
        assert target.write(LINES).refused == refused
        assert len(server.requests) == 1


@pytest.mark.rule("rest-237")
def test_too_large_a_body_is_split() -> None:
    with (
        line_server(lambda lines: (413, "too large") if len(lines) > 30 else (204, "")) as server,
        open_target(server) as target,
    ):
        assert target.write(LINES).refused == 0
        assert server.accepted == {*LINES}


@pytest.mark.rule("rest-236", "rest-237")
@each_row("status", [400, 401, 403, 404, 429, 500, 503])
def test_nothing_is_given_up_if_everything_is_refused(status: int) -> None:
    with line_server(lambda _: (status, "no")) as server, open_target(server) as target:
        with pytest.raises(TargetUnavailable, match="no"):
            target.write(LINES)
        assert not server.accepted


@each_row(
    ("settings", "path", "authorization"),
    [
        ({}, "/write?db=meshfleet&precision=ns", None),
        ({"token": "abc==", "database": "a b"}, "/write?db=a+b&precision=ns", "Token abc=="),
        (
            {"token": "eva:secret", "org": "site", "database": "b"},
            "/api/v2/write?org=site&bucket=b&precision=ns",
            "Basic " + base64.b64encode(b"eva:secret").decode(),
        ),
    ],
)
def test_the_request_has_the_database_and_the_login(
    settings: dict[str, Any], path: str, authorization: str | None
) -> None:
    with line_server(lambda _: (204, "")) as server, open_target(server, **settings) as target:
        target.check()
        assert server.requests == [(path, authorization)]


def test_a_server_with_a_private_authority_needs_the_file_of_that_authority(
    server_tls: ssl.SSLContext, authority_file: Path
) -> None:
    with line_server(lambda _: (204, ""), tls=server_tls) as server:
        with (
            open_target(server) as target,
            pytest.raises(TargetUnavailable, match="certificate verify failed"),
        ):
            target.write(LINES)
        assert not server.accepted
        with open_target(server, ca=authority_file) as target:
            assert target.write(LINES).refused == 0
        assert server.accepted == {*LINES}


@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "tls"])
def test_a_server_that_closes_idle_connections_is_no_failure(
    server_tls: ssl.SSLContext, authority_file: Path, *, has_tls: bool
) -> None:
    with (
        line_server(lambda _: (204, ""), tls=server_tls if has_tls else None) as server,
        open_target(server, ca=authority_file if has_tls else None) as target,
    ):
        target.write(LINES[:1])
        server.close_connections()
        assert target.write(LINES[1:2]).refused == 0
        assert server.accepted == {*LINES[:2]}


def test_a_server_that_stops_to_answer_is_unavailable() -> None:
    is_over = Event()

    def answer(lines: list[bytes]) -> tuple[int, str]:
        if LINES[0] not in lines:
            is_over.wait(30)
        return 204, ""

    with line_server(answer) as server, open_target(server, timeout=0.2) as target:
        target.write(LINES[:1])
        with pytest.raises(TargetUnavailable, match="does not answer"):
            target.write(LINES[1:])
        is_over.set()


def test_a_write_to_a_server_that_never_answers_ends_when_the_client_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        target = InfluxTarget(InfluxSettings(url=f"http://127.0.0.1:{listener.getsockname()[1]}"))
        writing = pool.submit(target.write, LINES[:1])
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(1)
            target.close()
            with pytest.raises(TargetUnavailable):
                writing.result()


def test_settings_never_show_the_token() -> None:
    settings = InfluxSettings(url="http://127.0.0.1", token="top-secret")  # noqa: S106 # of the test
    assert "top-secret" not in repr(settings)
