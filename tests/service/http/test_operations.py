"""Health, readiness and metrics."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, LiteralString, NamedTuple

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from meshfleet.db import open_database
from meshfleet.db.bulk import insert_rows
from meshfleet.db.tables import backup
from meshfleet.errors import FleetError
from meshfleet.errors.readiness import ReadinessCode, ReadinessProblem
from meshfleet.service.readiness import READINESS_TEXTS, Readiness
from tests.eventually import eventually
from tests.row_tables import each_row
from tests.servers import postgresql
from tests.service.http.running_service import PASSWORD, RunningService, run_service

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx
    from prometheus_client.samples import Sample

    from meshfleet.db import Database


@pytest.mark.rule("rest-159", "rest-160", "rest-175")
@pytest.mark.parametrize(("path", "status"), [("/healthz", "ok"), ("/readyz", "ready")])
def test_a_running_service_is_healthy_and_ready(service: RunningService, path: str, status: str) -> None:
    response = service.anonymous.get(path)
    assert (response.status_code, response.json()) == (200, {"status": status})


class _Check(NamedTuple):
    problem: ReadinessProblem | None = None


@pytest.mark.rule("rest-160")
def test_a_service_is_starting_until_report_processing_is_ready() -> None:
    readiness = Readiness()
    assert readiness.list_problems() == []
    readiness.expect_report_intake()
    assert [each.code for each in readiness.list_problems()] == [ReadinessCode.STARTING]
    readiness.add_check(_Check())
    assert readiness.list_problems() == []
    readiness.drain()
    assert [each.code for each in readiness.list_problems()] == [ReadinessCode.DRAINING]


@pytest.mark.rule("rest-161", "rest-175")
def test_metrics_need_a_viewer_and_have_the_prometheus_format(service: RunningService) -> None:
    assert service.anonymous.get("/metrics").status_code == 401
    response = service.viewer.get("/metrics")
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith("text/plain; version=")
    families = list(text_string_to_metric_families(response.text))
    assert {"meshfleet_http_request_seconds", "meshfleet_logins", "meshfleet_devices"} <= {
        family.name for family in families
    }
    assert all(family.documentation for family in families)


@pytest.mark.rule("rest-161")
def test_the_access_token_of_a_user_authorizes_metrics(service: RunningService) -> None:
    with service.client(service.log_in(service.new_user())) as client:
        assert client.get("/metrics").status_code == 200


@pytest.mark.rule("rest-161")
def test_requests_are_counted_by_their_route(service: RunningService) -> None:
    device = service.new_device()
    before = _load_request_counts(service)
    service.viewer.get(f"/api/v1/devices/{device}")
    service.viewer.get("/api/v1/devices/bmac-ffffffffffff")
    service.viewer.delete(f"/api/v1/devices/{device}")
    service.viewer.get(f"/api/no/such/{device}")
    service.viewer.get(f"/devices/{device}")
    after = _load_request_counts(service)
    increase = {
        key: count - before.get(key, 0) for key, count in after.items() if count != before.get(key, 0)
    }
    assert increase == {
        ("GET", "/api/v1/devices/{device_id}", "200"): 1,
        ("GET", "/api/v1/devices/{device_id}", "404"): 1,
        ("DELETE", "/api/v1/devices/{device_id}", "403"): 1,
        ("GET", "none", "404"): 1,
        ("GET", "console", "200"): 1,
        ("GET", "/metrics", "200"): 1,
    }


@pytest.mark.rule("rest-161")
def test_metrics_have_the_moment_of_the_newest_backup_with_samples(service: RunningService) -> None:
    def load_values() -> list[float]:
        service.clock.move(seconds=15)  # values from the database are kept for so long
        families = text_string_to_metric_families(service.viewer.get("/metrics").text)
        return [
            sample.value
            for family in families
            if family.name == "meshfleet_backup_timestamp_seconds"
            for sample in family.samples
        ]

    assert load_values() == []
    records = [(1, 9_500, 0, True), (2, 8_000, 0, True), (3, 99_000, 0, False)]
    service.database.write_now(insert_rows, backup, records)
    assert load_values() == [9.5]


@pytest.mark.rule("rest-161")
def test_metrics_contain_no_names_or_ids_except_of_gateways(service: RunningService) -> None:
    username, label, device = service.new_user(), service.new_name("label"), service.new_device()
    service.log_in(username)
    service.admin.get(f"/api/v1/users/{username}")
    service.admin.put(f"/api/v1/devices/{device}/labels/{label}")
    service.admin.get("/api/v1/devices", params={"Label": label})
    service.admin.get(f"/{username}/{label}")
    service.anonymous.request("PATCH", f"/api/v1/users/{username}")
    text = service.viewer.get("/metrics").text
    assert not [each for each in (username, label, device, "%", "mfk_") if each in text]


@pytest.mark.rule("rest-161")
def test_metrics_tell_why_the_service_is_not_ready(sqlite_database: Database) -> None:
    with run_service(sqlite_database) as service:
        sqlite_database.write_now(
            lambda connection: connection.exec_driver_sql("DELETE FROM alembic_version")
        )
        codes = _load_metrics(service, "meshfleet_not_ready", "code")
    assert {code for (code,), value in codes.items() if value} == {"schema"}


@pytest.mark.rule("rest-161")
def test_unknown_paths_add_no_time_series(service: RunningService) -> None:
    service.anonymous.get("/first")
    service.anonymous.get("/%ff")
    _load_request_counts(service)  # adds the line of /metrics itself, if no other test has read it before
    before = len(_load_request_counts(service))
    for number in range(5):
        service.anonymous.get(f"/first/{number}")
        service.anonymous.get(f"/{number}%ff")
    assert len(_load_request_counts(service)) == before


@pytest.mark.rule("rest-161")
def test_logins_are_counted_by_their_outcome(service: RunningService) -> None:
    before = _load_metrics(service, "meshfleet_logins_total", "outcome")
    username = service.new_user()
    service.log_in(username)
    guesses: Counter[int] = Counter()
    for _ in range(100):  # the throttle depends on time, so the number of guesses depends on the machine
        guesses[_guess(service, username)] += 1
        if guesses[429]:
            break
    after = _load_metrics(service, "meshfleet_logins_total", "outcome")
    increase = {key: count - before.get(key, 0) for key, count in after.items()}
    assert increase == {("succeeded",): 1, ("failed",): guesses[401], ("throttled",): 1}
    assert guesses[401] >= 5


@pytest.mark.rule("rest-161")
def test_metrics_tell_version_process_and_readiness(service: RunningService) -> None:
    kind = "sqlite" if service.database.is_sqlite else "postgresql"
    info = _load_metrics(service, "meshfleet_build_info", "version", "database")
    assert info == {(version("meshfleet"), kind): 1}
    assert _load_metrics(service, "meshfleet_not_ready", "code") == {(code,): 0 for code in ReadinessCode}
    values = {sample.name: sample.value for sample in _load_samples(service)}
    assert min(values["process_cpu_seconds_total"], values["process_resident_memory_bytes"]) > 0
    assert "meshfleet_certificate_end_timestamp_seconds" not in values


@pytest.mark.rule("rest-161")
def test_devices_are_counted(service: RunningService) -> None:
    service.clock.move(seconds=15)  # values from the database are kept for so long
    before = _load_metrics(service, "meshfleet_devices", "connected")
    service.new_device()
    service.clock.move(seconds=15)
    after = _load_metrics(service, "meshfleet_devices", "connected")
    assert sum(after.values()) == sum(before.values()) + 1
    summary = service.viewer.get("/api/v1/devices/summary").json()
    assert after == {("true",): summary["connected"], ("false",): summary["disconnected"]}


class ServiceWithPostgresql(NamedTuple):
    """Service with a PostgreSQL server of its own."""

    service: RunningService
    server: str

    @contextmanager
    def without_database(self) -> Iterator[RunningService]:
        """Close all connections to the database and refuse new ones while the block runs."""
        self._execute("ALTER DATABASE postgres ALLOW_CONNECTIONS false")
        self._execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'postgres'")
        self.service.clock.move(seconds=10)  # expires cached authentications
        yield self.service
        self._execute("ALTER DATABASE postgres ALLOW_CONNECTIONS true")

    def _execute(self, command: LiteralString) -> None:
        with psycopg.connect(f"{self.server}/template1", autocommit=True) as connection:
            connection.execute(command)


@pytest.fixture(scope="module")
def isolated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceWithPostgresql]:
    with postgresql() as (host, port):
        server = f"postgresql://postgres@{host}:{port}"
        database = _open_when_ready(f"{server}/postgres", tmp_path_factory.mktemp("unused"))
        with run_service(database) as service:
            yield ServiceWithPostgresql(service, server)
        database.close()


def _open_when_ready(address: str, folder: Path) -> Database:
    """Open a database, with retries while its server is starting."""

    def try_to_open() -> Database | None:
        try:
            return open_database(address, folder)
        except FleetError:
            return None

    return eventually(try_to_open, f"a server at {address}")


@pytest.mark.rule("rest-159")
def test_a_service_without_its_database_is_healthy(isolated: ServiceWithPostgresql) -> None:
    with isolated.without_database() as service:
        assert service.anonymous.get("/healthz").status_code == 200
        assert service.anonymous.get("/api/v1/openapi.json").status_code == 200


@pytest.mark.rule("rest-160", "rest-9", "rest-12", "rest-11")
def test_a_service_is_not_ready_while_its_database_is_unavailable(
    isolated: ServiceWithPostgresql, caplog: pytest.LogCaptureFixture
) -> None:
    with isolated.without_database() as service:
        for _ in range(3):
            response = service.anonymous.get("/readyz")
            assert (response.status_code, response.headers["Content-Type"]) == (503, "application/json")
            assert response.json() == {
                "status": "unavailable",
                "reasons": [
                    {
                        "code": "database-unreachable",
                        "text": READINESS_TEXTS[ReadinessCode.DATABASE_UNREACHABLE],
                    }
                ],
            }
        logged = [each for each in caplog.records if "ready" in each.getMessage()]
        assert [each.levelno for each in logged] == [logging.WARNING], "only the first probe is logged"
        _check_unavailable(service.viewer.get("/api/v1/devices"))
    assert service.anonymous.get("/readyz").status_code == 200
    assert service.viewer.get("/api/v1/devices").status_code == 200


@pytest.mark.rule("rest-9", "rest-12", "rest-11")
@each_row(
    ("method", "path", "body"),
    [
        ("GET", "/api/v1/auth/me", None),
        ("GET", "/metrics", None),
        ("POST", "/api/v1/labels", {"label": "x"}),
        ("POST", "/api/v1/auth/login", {"username": "ada", "password": PASSWORD}),
        ("DELETE", "/api/v1/devices/bmac-c0ffee000000", None),
    ],
)
def test_requests_fail_with_503_while_the_database_is_unavailable(
    isolated: ServiceWithPostgresql, method: str, path: str, body: object
) -> None:
    with isolated.without_database() as service:
        _check_unavailable(service.admin.request(method, path, json=body))


def _check_unavailable(response: httpx.Response) -> None:
    assert (response.status_code, response.headers["Content-Type"]) == (503, "application/problem+json")
    problem = response.json()
    assert list(problem) == ["type", "title", "status", "detail", "instance", "code", "errors"]
    assert problem["code"] == "database-unavailable"
    assert not [each for each in ("psycopg", "postgres", "127.0.0.1", "Traceback") if each in response.text]


def _guess(service: RunningService, username: str) -> int:
    body = {"username": username, "password": "wrong-one"}
    return service.anonymous.post("/api/v1/auth/login", json=body).status_code


def _load_samples(service: RunningService) -> Iterator[Sample]:
    for family in text_string_to_metric_families(service.viewer.get("/metrics").text):
        yield from family.samples


def _load_metrics(service: RunningService, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(sample.labels[label] for label in labels): sample.value
        for sample in _load_samples(service)
        if sample.name == name
    }


def _load_request_counts(service: RunningService) -> dict[tuple[str, ...], float]:
    return _load_metrics(service, "meshfleet_http_request_seconds_count", "method", "route", "status")
