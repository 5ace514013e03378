"""Start and stop of services, concurrent starts on one PostgreSQL database, and outages while running."""

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

from meshfleet.db import connect_database, open_database
from meshfleet.db.schema import run_migrations
from meshfleet.service.accounts import user_store
from meshfleet.service.actor import SERVICE
from meshfleet.service.secret_store import load_or_create_secret
from tests.cli.programs import TEST_TIMEOUT, Program, log_in, run_command
from tests.eventually import eventually
from tests.servers import NO_TRUSTED_AUTHORITIES, free_port, postgresql

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import Connection

    from meshfleet.db import Database

_numbers = count()

_COUNT_WAITING_LOCKS = "SELECT count(*) FROM pg_locks WHERE NOT granted"
_COUNT_WAITING_BACKUPS = "SELECT count(*) FROM pg_locks WHERE mode = 'AccessShareLock' AND NOT granted"
_COUNT_LOCK_REQUESTS = """SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'meshfleet' AND query LIKE '%advisory%'"""


@pytest.fixture
def address(postgresql_server: str) -> Iterator[str]:
    """Create an empty PostgreSQL database and return its address."""
    name = f"start_{next(_numbers)}"
    with psycopg.connect(f"{postgresql_server}/postgres", autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name} STRATEGY file_copy".encode())
        yield f"{postgresql_server}/{name}"
        server.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def serve(folder: Path, address: str, *, port: int = 0, **variables: str) -> Program:
    arguments = [
        "serve",
        "--json",
        "--http",
        f"127.0.0.1:{port}",
        "--data",
        str(folder),
        "--database",
        address,
    ]
    # Only one service per database may run a broker; the tests of brokers check that.
    return Program(*arguments, **{"MESHFLEET_MQTT": "off", **variables})


def read_startup_info(program: Program) -> dict[str, Any]:
    info: dict[str, Any] = json.loads(program.read_line())
    return info


def wait_until(address: str, query: str, expected: int) -> None:
    """Wait until a query returns this number."""
    with psycopg.connect(address, autocommit=True) as server:
        eventually(lambda: server.execute(query.encode()).fetchone() == (expected,), query)


# --- Migrations ---


@pytest.mark.both_databases
def test_a_start_that_changes_the_schema_writes_a_backup_first(
    request: pytest.FixtureRequest, database_kind: str, tmp_path: Path
) -> None:
    address = "sqlite" if database_kind == "sqlite" else request.getfixturevalue("address")
    with closing(connect_database(address, tmp_path)) as database:
        database.write_now(run_migrations, "0012")
    for _ in range(2):
        with serve(tmp_path, address) as service:
            read_startup_info(service)
    (file,) = (tmp_path / "backups").iterdir()  # the second start changed nothing
    checked = run_command("restore", "--check", str(file))
    assert "schema 0012 (this Meshfleet: " in checked.stdout


def test_the_backup_before_a_migration_can_be_disabled(tmp_path: Path) -> None:
    with closing(connect_database("sqlite", tmp_path)) as database:
        database.write_now(run_migrations, "0012")
    with serve(tmp_path, "sqlite", MESHFLEET_BACKUP_BEFORE_MIGRATION="off") as service:
        read_startup_info(service)
    assert not (tmp_path / "backups").exists()


def test_the_backup_before_a_migration_can_be_stopped(address: str, tmp_path: Path) -> None:
    with closing(connect_database(address, tmp_path)) as database:
        database.write_now(run_migrations, "0012")
    with psycopg.connect(address) as other, serve(tmp_path, address) as program:
        other.execute("LOCK TABLE account IN ACCESS EXCLUSIVE MODE")
        wait_until(address, _COUNT_WAITING_BACKUPS, 1)
        release = threading.Timer(15, other.rollback)  # so that a failing test ends, too
        release.start()
        code, output, errors = program.wait_for_exit(SIGTERM)
        stopped_before_release = release.is_alive()
        release.cancel()
        release.join()
    assert (code, output, errors, stopped_before_release) == (0, "", "", True)
    assert list((tmp_path / "backups").iterdir()) == []
    with psycopg.connect(address) as server:
        assert server.execute("SELECT version_num FROM alembic_version").fetchone() == ("0012",)


# --- Concurrent starts ---


@pytest.mark.rule("auth-28", "rest-174")
def test_only_one_of_two_concurrent_starts_reports_the_admin_password(address: str, tmp_path: Path) -> None:
    with serve(tmp_path / "a", address) as one, serve(tmp_path / "b", address) as other:
        infos = [read_startup_info(one), read_startup_info(other)]
        passwords = [each["adminPassword"] for each in infos if each["adminPassword"] is not None]
        assert len(passwords) == 1
        assert [log_in(each["url"], passwords[0]).status_code for each in infos] == [200, 200]
        assert one.wait_for_exit(SIGTERM)[::2] == other.wait_for_exit(SIGTERM)[::2] == (0, "")


@pytest.fixture
def one(address: str, tmp_path: Path) -> Iterator[Database]:
    with closing(open_database(address, tmp_path)) as database:
        yield database


@pytest.fixture
def other(one: Database, address: str, tmp_path: Path) -> Iterator[Database]:
    """Open the database of `one` as another process would."""
    assert not one.is_sqlite
    with closing(open_database(address, tmp_path)) as database:
        yield database


@pytest.fixture
def thread() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as thread:
        yield thread


@pytest.mark.rule("auth-28")
def test_a_concurrent_second_start_creates_no_admin(
    one: Database, other: Database, thread: Executor, address: str
) -> None:
    def insert_both(connection: Connection) -> tuple[bool, Future[bool]]:
        created = user_store.insert_first_admin(connection, "admin", hashed="1", by=SERVICE, now=1)
        second = partial(user_store.insert_first_admin, username="admin", hashed="2", by=SERVICE, now=2)
        second_created = thread.submit(other.write_now, second)
        wait_until(address, _COUNT_WAITING_LOCKS, 1)  # the second one has found no user either
        return created, second_created

    created, second_created = one.write_now(insert_both)
    assert (created, second_created.result(TEST_TIMEOUT)) == (True, False)
    assert one.read_now(user_store.find_password_hash, "admin") == "1"
    assert one.read_now(_count_audit_rows) == 1


def _count_audit_rows(connection: Connection) -> object:
    count: object = connection.exec_driver_sql("SELECT count(*) FROM audit").scalar()
    return count


@pytest.mark.rule("rest-174")
def test_two_concurrent_requests_for_a_secret_return_the_same_one(
    one: Database, other: Database, thread: Executor, address: str
) -> None:
    def load_both(connection: Connection) -> tuple[bytes, Future[bytes]]:
        secret = load_or_create_secret(connection, "tokens")
        second = thread.submit(other.write_now, load_or_create_secret, "tokens")
        wait_until(address, _COUNT_WAITING_LOCKS, 1)
        return secret, second

    secret, second = one.write_now(load_both)
    assert second.result(TEST_TIMEOUT) == secret


# --- Starting ---


def test_a_service_does_not_start_on_a_newer_database(address: str, tmp_path: Path) -> None:
    open_database(address, tmp_path).close()
    with psycopg.connect(address) as server:
        server.execute("UPDATE alembic_version SET version_num = '9999'")
    _assert_start_fails(tmp_path / "data", address, "newer Meshfleet")


def test_a_service_does_not_start_without_its_database_server(tmp_path: Path) -> None:
    address = "postgresql://user:hush-hush@127.0.0.1:1/x"
    _assert_start_fails(tmp_path / "data", address, "the database is unavailable")


def test_a_missing_database_permission_is_reported_in_one_line(address: str, tmp_path: Path) -> None:
    role = f"starter_{address.rpartition('_')[2]}"
    with psycopg.connect(address) as server:
        server.execute(f"CREATE ROLE {role} LOGIN".encode())
    role_address = address.replace("postgres@", f"{role}:hush-hush@")
    _assert_start_fails(tmp_path / "data", role_address, "permission denied for schema public")


def test_a_file_that_is_not_a_database_is_reported(tmp_path: Path) -> None:
    (tmp_path / "meshfleet.sqlite").write_bytes(b"no database at all" * 1000)
    tmp_path.chmod(0o700)
    _assert_start_fails(tmp_path, "sqlite", "file is not a database")


def _assert_start_fails(folder: Path, address: str, text: str) -> None:
    arguments = ["serve", "--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0", "--data", str(folder)]
    result = run_command(*arguments, "--database", address)
    assert (result.exit_code, result.stdout) == (1, "")
    assert isinstance(result.exception, SystemExit), "it shows a traceback"
    assert text in result.stderr
    assert "hush-hush" not in result.stderr


@pytest.mark.rule("rest-160")
def test_a_service_that_waits_for_another_migration_reports_starting_and_can_be_stopped(
    address: str, tmp_path: Path
) -> None:
    port = free_port()
    with psycopg.connect(address) as other, serve(tmp_path, address, port=port) as program:
        other.execute("SELECT pg_advisory_xact_lock(%s)", (0x6D657368,))
        wait_until(address, _COUNT_LOCK_REQUESTS, 1)
        responses = [
            httpx.get(f"http://127.0.0.1:{port}{path}", verify=NO_TRUSTED_AUTHORITIES, timeout=TEST_TIMEOUT)
            for path in ("/readyz", "/healthz", "/api/v1/devices")
        ]
        release = threading.Timer(10, other.rollback)  # so that a failing test ends, too
        release.start()
        code, output, errors = program.wait_for_exit(SIGTERM)
        stopped_before_release = release.is_alive()
        release.cancel()
        release.join()
    assert (code, output, errors, stopped_before_release) == (0, "", "", True)
    assert [each.status_code for each in responses] == [503, 200, 503]
    assert responses[0].json() == {
        "status": "unavailable",
        "reasons": [{"code": "starting", "text": "The service is starting."}],
    }
    assert responses[2].json()["code"] == "unavailable"


# --- Problems while running ---


@pytest.mark.rule("rest-160")
def test_a_service_without_free_file_descriptors_is_not_ready(tmp_path: Path) -> None:
    arguments = ["serve", "--json", "--http", "127.0.0.1:0", "--data", str(tmp_path / "data")]
    with Program(*arguments, before="ulimit -n 96") as program:
        url = read_startup_info(program)["url"]
        parsed_url = urlsplit(url)
        with httpx.Client(base_url=url, verify=NO_TRUSTED_AUTHORITIES, timeout=TEST_TIMEOUT) as client:
            _wait_for_codes(client, [])
            with ExitStack() as stack:
                for _ in range(96):
                    stack.enter_context(
                        socket.create_connection((str(parsed_url.hostname), parsed_url.port or 0))
                    )
                _wait_for_codes(client, ["descriptors"])
            _wait_for_codes(client, [])
        assert program.wait_for_exit(SIGTERM)[0] == 0


def _wait_for_codes(client: httpx.Client, expected: list[str]) -> None:
    """Wait until a service reports these readiness codes, over the client's open connection."""

    def has_codes() -> bool:
        codes = [each["code"] for each in client.get("/readyz").json().get("reasons", [])]
        assert codes == expected
        return True

    eventually(has_codes, f"the readiness codes are {expected}")


def test_a_crash_of_the_database_server_causes_only_temporary_503_responses(tmp_path: Path) -> None:
    with postgresql() as (host, port):
        server = f"postgresql://postgres@{host}:{port}/postgres"
        _wait_for_server(server)
        with serve(tmp_path, server, MESHFLEET_ADMIN_PASSWORD="correct-horse") as program:  # noqa: S106 # a password of this test
            url = read_startup_info(program)["url"]
            assert log_in(url, "correct-horse").status_code == 200
            _crash_server(server)
            statuses: set[int] = set()

            def is_back() -> bool:
                statuses.add(log_in(url, "correct-horse").status_code)
                return 200 in statuses

            eventually(is_back, "the server answers again")
            assert statuses <= {200, 503}
            ready = httpx.get(f"{url}/readyz", verify=NO_TRUSTED_AUTHORITIES, timeout=TEST_TIMEOUT)
            assert ready.status_code == 200
            code, _, errors = program.wait_for_exit(SIGTERM)
    assert code == 0
    assert "correct-horse" not in errors
    assert "$argon2id$" not in errors


def _wait_for_server(server: str) -> None:
    def is_ready() -> bool:
        with suppress(psycopg.OperationalError), psycopg.connect(server):
            return True
        return False

    eventually(is_ready, "the server is ready")


def _crash_server(server: str) -> None:
    """Kill one session: the server ends all others too, and recovers."""
    with psycopg.connect(server) as connection:
        os.kill(connection.info.backend_pid, SIGKILL)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT pg_sleep(60)")
