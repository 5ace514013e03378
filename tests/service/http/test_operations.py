"""What operators look at."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, LiteralString, NamedTuple

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from meshfleet.db import open_database
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


@pytest.mark.rule("rest-159", "rest-160")
@pytest.mark.parametrize(("path", "status"), [("/healthz", "ok"), ("/readyz", "ready")])
def test_a_service_that_runs_is_healthy_and_ready(service: RunningService, path: str, status: str) -> None:
    answer = service.anonymous.get(path)
    assert (answer.status_code, answer.json()) == (200, {"status": status})


class _Part(NamedTuple):
    trouble: ReadinessProblem | None = None


@pytest.mark.rule("rest-160")
def test_a_service_that_is_to_take_reports_is_starting_until_it_takes_them() -> None:
    readiness = Readiness()
    assert readiness.list_troubles() == []
    readiness.expect_report_intake()
    assert [each.code for each in readiness.list_troubles()] == [ReadinessCode.STARTING]
    readiness.add_check(_Part())
    assert readiness.list_troubles() == []
    readiness.drain()
    assert [each.code for each in readiness.list_troubles()] == [ReadinessCode.DRAINING]


@pytest.mark.rule("rest-161")
def test_figures_are_for_viewers_and_in_the_form_of_prometheus(service: RunningService) -> None:
    assert service.anonymous.get("/metrics").status_code == 401
    answer = service.viewer.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/plain; version=")
    families = list(text_string_to_metric_families(answer.text))
    assert {"meshfleet_http_request_seconds", "meshfleet_logins", "meshfleet_devices"} <= {
        family.name for family in families
    }
    assert all(family.documentation for family in families)


@pytest.mark.rule("rest-161")
def test_a_token_of_a_person_opens_the_figures_too(service: RunningService) -> None:
    with service.client(service.log_in(service.new_user())) as client:
        assert client.get("/metrics").status_code == 200


@pytest.mark.rule("rest-161")
def test_requests_are_counted_by_their_route(service: RunningService) -> None:
    device = service.new_device()
    before = _requests(service)
    service.viewer.get(f"/api/v1/devices/{device}")
    service.viewer.get("/api/v1/devices/bmac-ffffffffffff")
    service.viewer.delete(f"/api/v1/devices/{device}")
    service.viewer.get(f"/api/no/such/{device}")
    service.viewer.get(f"/devices/{device}")
    after = _requests(service)
    more = {key: count - before.get(key, 0) for key, count in after.items() if count != before.get(key, 0)}
    assert more == {
        ("GET", "/api/v1/devices/{device_id}", "200"): 1,
        ("GET", "/api/v1/devices/{device_id}", "404"): 1,
        ("DELETE", "/api/v1/devices/{device_id}", "403"): 1,
        ("GET", "none", "404"): 1,
        ("GET", "console", "200"): 1,
        ("GET", "/metrics", "200"): 1,
    }


@pytest.mark.rule("rest-161")
def test_no_name_and_no_id_gets_into_the_figures(service: RunningService) -> None:
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
def test_what_nobody_knows_makes_no_new_lines_in_the_figures(service: RunningService) -> None:
    service.anonymous.get("/first")
    service.anonymous.get("/%ff")
    _requests(service)  # adds the line of /metrics itself, if no other test has read it before
    before = len(_requests(service))
    for number in range(5):
        service.anonymous.get(f"/first/{number}")
        service.anonymous.get(f"/{number}%ff")
    assert len(_requests(service)) == before


@pytest.mark.rule("rest-161")
def test_logins_are_counted_by_their_outcome(service: RunningService) -> None:
    before = _figures(service, "meshfleet_logins_total", "outcome")
    username = service.new_user()
    service.log_in(username)
    guesses: Counter[int] = Counter()
    for _ in range(100):  # the limit is per minute, so how many it takes depends on the machine
        guesses[_guess(service, username)] += 1
        if guesses[429]:
            break
    after = _figures(service, "meshfleet_logins_total", "outcome")
    more = {key: count - before.get(key, 0) for key, count in after.items()}
    assert more == {("succeeded",): 1, ("failed",): guesses[401], ("throttled",): 1}
    assert guesses[401] >= 5


@pytest.mark.rule("rest-161")
def test_the_fleet_is_counted(service: RunningService) -> None:
    before = _figures(service, "meshfleet_devices", "connected")
    service.new_device()
    after = _figures(service, "meshfleet_devices", "connected")
    assert sum(after.values()) == sum(before.values()) + 1
    summary = service.viewer.get("/api/v1/devices/summary").json()
    assert after == {("true",): summary["connected"], ("false",): summary["disconnected"]}


class Lonely(NamedTuple):
    """A service, and the PostgreSQL server that only it uses."""

    service: RunningService
    server: str

    @contextmanager
    def without_database(self) -> Iterator[RunningService]:
        """Let nobody in to the database meanwhile, and throw out who is in."""
        self._command("ALTER DATABASE postgres ALLOW_CONNECTIONS false")
        self._command("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'postgres'")
        self.service.clock.move(seconds=10)  # it must look up anew who asks
        yield self.service
        self._command("ALTER DATABASE postgres ALLOW_CONNECTIONS true")

    def _command(self, command: LiteralString) -> None:
        with psycopg.connect(f"{self.server}/template1", autocommit=True) as connection:
            connection.execute(command)


@pytest.fixture(scope="module")
def lonely(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lonely]:
    with postgresql() as (host, port):
        server = f"postgresql://postgres@{host}:{port}"
        database = _open(f"{server}/postgres", tmp_path_factory.mktemp("unused"))
        with run_service(database) as service:
            yield Lonely(service, server)
        database.close()


def _open(address: str, folder: Path) -> Database:
    """A server that listens may still refuse, because it is starting up."""

    def try_to_open() -> Database | None:
        try:
            return open_database(address, folder)
        except FleetError:
            return None

    return eventually(try_to_open, f"a server at {address}")


@pytest.mark.rule("rest-159")
def test_without_its_database_a_service_is_healthy(lonely: Lonely) -> None:
    with lonely.without_database() as service:
        assert service.anonymous.get("/healthz").status_code == 200
        assert service.anonymous.get("/api/v1/openapi.json").status_code == 200


@pytest.mark.rule("rest-160", "rest-9", "rest-12", "rest-11")
def test_without_its_database_a_service_is_not_ready_until_it_is_back(
    lonely: Lonely, caplog: pytest.LogCaptureFixture
) -> None:
    with lonely.without_database() as service:
        for _ in range(3):
            answer = service.anonymous.get("/readyz")
            assert (answer.status_code, answer.headers["Content-Type"]) == (503, "application/json")
            assert answer.json() == {
                "status": "unavailable",
                "reasons": [
                    {
                        "code": "database-unreachable",
                        "text": READINESS_TEXTS[ReadinessCode.DATABASE_UNREACHABLE],
                    }
                ],
            }
        logged = [each for each in caplog.records if "ready" in each.getMessage()]
        assert [each.levelno for each in logged] == [logging.WARNING], "each probe is logged, or none"
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
        ("POST", "/api/v1/auth/login", {"username": "somebody", "password": PASSWORD}),
        ("DELETE", "/api/v1/devices/bmac-c0ffee000000", None),
    ],
)
def test_without_its_database_a_service_says_so(lonely: Lonely, method: str, path: str, body: object) -> None:
    with lonely.without_database() as service:
        _check_unavailable(service.admin.request(method, path, json=body))


def _check_unavailable(answer: httpx.Response) -> None:
    assert (answer.status_code, answer.headers["Content-Type"]) == (503, "application/problem+json")
    problem = answer.json()
    assert list(problem) == ["type", "title", "status", "detail", "instance", "code", "errors"]
    assert problem["code"] == "database-unavailable"
    assert not [each for each in ("psycopg", "postgres", "127.0.0.1", "Traceback") if each in answer.text]


def _guess(service: RunningService, username: str) -> int:
    wrong = {"username": username, "password": "wrong-one"}
    return service.anonymous.post("/api/v1/auth/login", json=wrong).status_code


def _samples(service: RunningService) -> Iterator[Sample]:
    for family in text_string_to_metric_families(service.viewer.get("/metrics").text):
        yield from family.samples


def _figures(service: RunningService, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(sample.labels[label] for label in labels): sample.value
        for sample in _samples(service)
        if sample.name == name
    }


def _requests(service: RunningService) -> dict[tuple[str, ...], float]:
    return _figures(service, "meshfleet_http_request_seconds_count", "method", "route", "status")
