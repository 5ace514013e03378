"""The start and the end of services that share a server, and what the server does meanwhile."""

from __future__ import annotations

import json
import os
import socket
import threading
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import count
from signal import SIGKILL, SIGTERM
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

from meshfleet.db import open_database
from meshfleet.rest import LOGIN_PATH
from meshfleet.service.accounts import user_store
from meshfleet.service.actor import SERVICE
from meshfleet.service.secret_store import load_or_create_secret
from tests.cli.programs import TEST_TIMEOUT, Program, run_command
from tests.eventually import eventually
from tests.servers import free_port, postgresql

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import Connection

    from meshfleet.db import Database

_numbers = count()

_WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"
_WANTS_LOCK = """SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'meshfleet' AND query LIKE '%advisory%'"""


@pytest.fixture
def address(postgresql_server: str) -> Iterator[str]:
    """An empty database on a server."""
    name = f"start_{next(_numbers)}"
    with psycopg.connect(f"{postgresql_server}/postgres", autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name} STRATEGY file_copy".encode())
        yield f"{postgresql_server}/{name}"
        server.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def serve(folder: Path, address: str, *, port: int = 0, **variables: str) -> Program:
    given = ["serve", "--json", "--http", f"127.0.0.1:{port}", "--data", str(folder), "--database", address]
    # Of two on one database only one may have a broker: that is tried where brokers are.
    return Program(*given, **{"MESHFLEET_MQTT": "off", **variables})


def said(program: Program) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(program.read_line())
    return told


def log_in(url: str, password: str | None) -> int:
    body = {"username": "admin", "password": password}
    return httpx.post(url + LOGIN_PATH, json=body, timeout=TEST_TIMEOUT).status_code


def wait_until(address: str, query: str, expected: int) -> None:
    """Wait until a query on a server has this answer."""
    with psycopg.connect(address, autocommit=True) as server:
        eventually(lambda: server.execute(query.encode()).fetchone() == (expected,), query)


# --- Two that start at once ---


@pytest.mark.rule("auth-28", "rest-174")
def test_of_two_services_that_start_at_once_one_is_told_the_password(address: str, tmp_path: Path) -> None:
    with serve(tmp_path / "a", address) as one, serve(tmp_path / "b", address) as other:
        told = [said(one), said(other)]
        passwords = [each["adminPassword"] for each in told if each["adminPassword"] is not None]
        assert len(passwords) == 1
        assert [log_in(each["url"], passwords[0]) for each in told] == [200, 200]
        assert one.wait_for_exit(SIGTERM)[::2] == other.wait_for_exit(SIGTERM)[::2] == (0, "")


@pytest.fixture
def one(address: str, tmp_path: Path) -> Iterator[Database]:
    with closing(open_database(address, tmp_path)) as database:
        yield database


@pytest.fixture
def other(one: Database, address: str, tmp_path: Path) -> Iterator[Database]:
    """The same database in another program; `one` has made it."""
    assert not one.is_sqlite
    with closing(open_database(address, tmp_path)) as database:
        yield database


@pytest.fixture
def thread() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as thread:
        yield thread


@pytest.mark.rule("auth-28")
def test_who_comes_second_by_a_hair_makes_no_first_user(
    one: Database, other: Database, thread: Executor, address: str
) -> None:
    def first(connection: Connection) -> tuple[bool, Future[bool]]:
        made = user_store.insert_first_admin(connection, "admin", hashed="1", by=SERVICE, now=1)
        second = partial(user_store.insert_first_admin, username="admin", hashed="2", by=SERVICE, now=2)
        also = thread.submit(other.write_now, second)
        wait_until(address, _WAITING, 1)  # it has seen nobody either
        return made, also

    made, also = one.write_now(first)
    assert (made, also.result(TEST_TIMEOUT)) == (True, False)
    assert one.read_now(user_store.find_password_hash, "admin") == "1"
    assert one.read_now(_audited) == 1


def _audited(connection: Connection) -> object:
    found: object = connection.exec_driver_sql("SELECT count(*) FROM audit").scalar()
    return found


@pytest.mark.rule("rest-174")
def test_who_asks_for_a_secret_second_by_a_hair_gets_that_of_the_first(
    one: Database, other: Database, thread: Executor, address: str
) -> None:
    def first(connection: Connection) -> tuple[bytes, Future[bytes]]:
        secret = load_or_create_secret(connection, "tokens")
        also = thread.submit(other.write_now, load_or_create_secret, "tokens")
        wait_until(address, _WAITING, 1)
        return secret, also

    secret, also = one.write_now(first)
    assert also.result(TEST_TIMEOUT) == secret


# --- Starting ---


def test_a_service_does_not_start_on_a_newer_database(address: str, tmp_path: Path) -> None:
    open_database(address, tmp_path).close()
    with psycopg.connect(address) as server:
        server.execute("UPDATE alembic_version SET version_num = '9999'")
    _assert_refused(tmp_path / "data", address, "newer Meshfleet")


def test_a_service_does_not_start_without_its_server(tmp_path: Path) -> None:
    address = "postgresql://somebody:hush-hush@127.0.0.1:1/x"
    _assert_refused(tmp_path / "data", address, "the database is unavailable")


def test_a_service_tells_in_one_line_which_permission_it_lacks(address: str, tmp_path: Path) -> None:
    role = f"starter_{address.rpartition('_')[2]}"
    with psycopg.connect(address) as server:
        server.execute(f"CREATE ROLE {role} LOGIN".encode())
    guest = address.replace("postgres@", f"{role}:hush-hush@")
    _assert_refused(tmp_path / "data", guest, "permission denied for schema public")


def test_a_service_tells_that_its_file_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "meshfleet.sqlite").write_bytes(b"no database at all" * 1000)
    tmp_path.chmod(0o700)
    _assert_refused(tmp_path, "sqlite", "file is not a database")


def _assert_refused(folder: Path, address: str, word: str) -> None:
    given = ["serve", "--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0", "--data", str(folder)]
    ended = run_command(*given, "--database", address)
    assert (ended.exit_code, ended.stdout) == (1, "")
    assert isinstance(ended.exception, SystemExit), "it shows a traceback"
    assert word in ended.stderr
    assert "hush-hush" not in ended.stderr


@pytest.mark.rule("rest-160")
def test_who_waits_for_another_to_bring_the_database_up_to_date_says_so_and_can_be_stopped(
    address: str, tmp_path: Path
) -> None:
    port = free_port()
    with psycopg.connect(address) as other, serve(tmp_path, address, port=port) as program:
        other.execute("SELECT pg_advisory_xact_lock(%s)", (0x6D657368,))
        wait_until(address, _WANTS_LOCK, 1)
        probed = [
            httpx.get(f"http://127.0.0.1:{port}{path}", timeout=TEST_TIMEOUT)
            for path in ("/readyz", "/healthz", "/api/v1/devices")
        ]
        gave_way = threading.Timer(10, other.rollback)  # else a wrong one would never end
        gave_way.start()
        code, output, errors = program.wait_for_exit(SIGTERM)
        ended_first = gave_way.is_alive()
        gave_way.cancel()
        gave_way.join()
    assert (code, output, errors, ended_first) == (0, "", "", True)
    assert [each.status_code for each in probed] == [503, 200, 503]
    assert probed[0].json() == {
        "status": "unavailable",
        "reasons": [{"code": "starting", "text": "The service is starting."}],
    }
    assert probed[2].json()["code"] == "unavailable"


# --- While it runs ---


@pytest.mark.rule("rest-160")
def test_a_service_that_runs_out_of_file_descriptors_says_so(tmp_path: Path) -> None:
    given = ["serve", "--json", "--http", "127.0.0.1:0", "--data", str(tmp_path / "data")]
    with Program(*given, before="ulimit -n 96") as program:
        url = said(program)["url"]
        place = urlsplit(url)
        with httpx.Client(base_url=url, timeout=TEST_TIMEOUT) as client:
            _wait_for_codes(client, [])
            with ExitStack() as stack:
                for _ in range(96):
                    stack.enter_context(socket.create_connection((str(place.hostname), place.port or 0)))
                _wait_for_codes(client, ["descriptors"])
            _wait_for_codes(client, [])
        assert program.wait_for_exit(SIGTERM)[0] == 0


def _wait_for_codes(client: httpx.Client, expected: list[str]) -> None:
    """Wait until a service gives these reasons why it is not ready, over a connection that it has already."""

    def is_told() -> bool:
        found = [each["code"] for each in client.get("/readyz").json().get("reasons", [])]
        assert found == expected
        return True

    eventually(is_told, f"it is not ready because of {expected}")


def test_a_server_that_crashes_is_a_moment_without_answers(tmp_path: Path) -> None:
    with postgresql() as (host, port):
        server = f"postgresql://postgres@{host}:{port}/postgres"
        _wait_for(server)
        with serve(tmp_path, server, MESHFLEET_ADMIN_PASSWORD="correct-horse") as program:  # noqa: S106 # made here
            url = said(program)["url"]
            assert log_in(url, "correct-horse") == 200
            _crash(server)
            told: set[int] = set()

            def is_back() -> bool:
                told.add(log_in(url, "correct-horse"))
                return 200 in told

            eventually(is_back, "the server answers again")
            assert told <= {200, 503}
            assert httpx.get(f"{url}/readyz", timeout=TEST_TIMEOUT).status_code == 200
            code, _, errors = program.wait_for_exit(SIGTERM)
    assert code == 0
    assert "correct-horse" not in errors
    assert "$argon2id$" not in errors


def _wait_for(server: str) -> None:
    def is_ready() -> bool:
        with suppress(psycopg.OperationalError), psycopg.connect(server):
            return True
        return False

    eventually(is_ready, "the server is ready")


def _crash(server: str) -> None:
    """Kill one session: the server ends all others too, and recovers."""
    with psycopg.connect(server) as connection:
        os.kill(connection.info.backend_pid, SIGKILL)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT pg_sleep(60)")
