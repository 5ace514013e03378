"""Services that stop during requests, and databases that are unavailable."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from meshfleet.rest.accounts import Role
from tests.service.embedded_broker.mqtt_accounts import database_outage
from tests.service.requests.scripted_gateway import never_respond
from tests.service.requests.service_with_broker import SHORT_TIMEOUT_MS, run_service

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from meshfleet.db import Database


def execute(database: Database, statement: str) -> None:
    database.write_now(lambda connection: connection.execute(text(statement)))


def status_and_code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["code"]


@contextmanager
def unwritable_history(database: Database) -> Iterator[None]:
    """Make the history unwritable for a while; on PostgreSQL, make the database unavailable."""
    if not database.is_sqlite:
        with database_outage(database):
            yield
        return
    execute(database, "ALTER TABLE request RENAME TO request_away")
    yield
    execute(database, "ALTER TABLE request_away RENAME TO request")


@pytest.mark.rule("rest-25", "rest-104", "rest-197")
def test_stopping_interrupts_running_requests_and_the_next_process_knows_them(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    headers, async_headers = (
        {"Idempotency-Key": "waited"},
        {"Idempotency-Key": "later", "Prefer": "respond-async"},
    )
    with ThreadPoolExecutor(2) as executor, ExitStack() as stack:
        with run_service(database) as service:
            gateway = service.connect(service.new_mac(), never_respond)
            stack.callback(gateway.stop)  # after the service has stopped
            key = service.new_key(Role.OPERATOR, "same")
            client = stack.enter_context(service.client(key))
            device = service.device_behind(gateway)
            write = partial(service.send, device, "write", "8010", by=client, timeoutMs=60_000)
            pending_write = executor.submit(write, value="01", headers=headers)
            pending_read = executor.submit(service.send, device, "read", "8010", by=client, timeoutMs=60_000)
            assert write(value="02", headers=async_headers).status_code == 202
            service.wait_until(lambda: len(gateway.requests) == 3)
        assert status_and_code(pending_write.result()) == (504, "interrupted")
        assert status_and_code(pending_read.result()) == (504, "interrupted")
    with run_service(database) as service, service.client(key) as client:
        records = service.history(device)
        assert {each["request"]["operation"] for each in records} == {"read", "write"}
        assert {each["state"] for each in records} == {"FAILED"}
        assert len({each["id"] for each in records}) == 3
        assert {each["problem"]["code"] for each in records} == {"interrupted"}
        for value, key_headers in (("01", headers), ("02", {"Idempotency-Key": "later"})):
            again = service.send(
                device, "write", "8010", by=client, value=value, timeoutMs=60_000, headers=key_headers
            )
            assert again.status_code == 504
        other = service.send(device, "write", "8010", by=client, value="03", headers=headers)
        assert status_and_code(other) == (409, "idempotency-key-reused")
    assert "Traceback" not in caplog.text


@pytest.mark.rule("rest-25")
def test_an_idempotency_key_is_valid_after_a_restart(database: Database) -> None:
    headers, late_headers = {"Idempotency-Key": "k"}, {"Idempotency-Key": "late"}
    with run_service(database) as service:
        key = service.new_key(Role.OPERATOR, "same")
        with (
            service.gateway(lambda request: [request.build_response(route="r")]) as gateway,
            service.client(key) as client,
        ):
            device = service.device_behind(gateway)
            first = service.send(device, "write", "8010", value="01", by=client, headers=headers)
            gateway.responder = never_respond
            slow = service.send(
                device,
                "write",
                "8010",
                value="02",
                timeoutMs=SHORT_TIMEOUT_MS,
                by=client,
                headers=late_headers,
            )
    assert (first.status_code, slow.status_code) == (200, 504)
    with run_service(database) as service, service.client(key) as client:
        again = service.send(device, "write", "8010", value="01", by=client, headers=headers)
        assert (again.status_code, again.json()) == (200, first.json())
        slow_again = service.send(
            device, "write", "8010", value="02", timeoutMs=SHORT_TIMEOUT_MS, by=client, headers=late_headers
        )
        assert slow_again.json() == slow.json()


@pytest.mark.rule("rest-195")
def test_a_write_is_not_sent_while_the_history_is_unwritable(database: Database) -> None:
    with (
        run_service(database) as service,
        service.gateway(lambda a: [a.build_response(value="ff")]) as gateway,
    ):
        device = service.device_behind(gateway)
        service.wait_for_version(gateway)
        headers = {"Idempotency-Key": "k"}
        with unwritable_history(database):
            refusals = [
                service.send(device, "write", "8010", value="01"),
                service.send(device, "write", "8010", value="01", headers=headers),
                service.send(device, "ack", "8100", time="2026-01-02T03:04:05Z", type=0),
                service.send(device, "read", "8010", headers={"Prefer": "respond-async"}),
                service.send(device, "read", "8010", headers=headers),
            ]
        assert {status_and_code(response) for response in refusals} <= {
            (503, "unrecorded"),
            (503, "database-unavailable"),
        }
        assert service.send(device, "write", "8010", value="02", headers=headers).status_code == 200
        assert [each.body.get("value") for each in gateway.requests] == ["02"]
        sent, *others = service.history(device)
        assert sent["state"] == "DONE"
        assert {each["problem"]["code"] for each in others} <= {"unrecorded"}
        service.wait_until(service.is_idle)


def test_a_read_succeeds_and_is_recorded_when_the_database_is_available_again(
    sqlite_database: Database,
) -> None:
    database = sqlite_database
    with (
        run_service(database) as service,
        service.gateway(lambda a: [a.build_response(value="ff")]) as gateway,
    ):
        device = service.device_behind(gateway)
        execute(database, "ALTER TABLE request RENAME TO request_away")
        assert service.send(device, "read", "8010").status_code == 200
        assert service.viewer.get(f"/api/v1/devices/bmac-{device}/requests").status_code == 503
        execute(database, "ALTER TABLE request_away RENAME TO request")
        service.wait_until(
            lambda: service.viewer.get(f"/api/v1/devices/bmac-{device}/requests").status_code == 200
        )
        service.wait_until(lambda: service.history(device))
        assert [each["state"] for each in service.history(device)] == ["DONE"]
    database.close()


def test_stopping_fails_all_running_and_queued_requests(sqlite_database: Database) -> None:
    """Check that no request stays pending, and that stopping does not wait for the gateway."""
    with ThreadPoolExecutor(30) as executor, ExitStack() as stack:
        with run_service(sqlite_database) as service:
            gateway = service.connect(service.new_mac(), never_respond)
            stack.callback(gateway.stop)
            device = service.device_behind(gateway)
            pending = [
                executor.submit(service.send, device, "write", "8010", value="ff", timeoutMs=120_000)
                for _ in range(30)
            ]
            service.wait_until(lambda: len(gateway.requests) == 16)
        responses = [each.result() for each in pending]
    assert {each.status_code for each in responses} <= {503, 504}
    with run_service(sqlite_database) as service:
        states = [each["state"] for each in service.history(device, MaxResults=100)]
        assert states == ["FAILED"] * 30
