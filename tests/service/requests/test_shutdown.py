"""Services that end in the middle of requests, and databases that are away."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from meshfleet.rest import Role
from tests.service.embedded_broker.mqtt_accounts import database_outage as server_away
from tests.service.requests.scripted_gateway import never_respond
from tests.service.requests.service_with_broker import SHORT_TIMEOUT_MS
from tests.service.requests.service_with_broker import run_service as running_office

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from meshfleet.db import Database


def execute(database: Database, statement: str) -> None:
    database.write_now(lambda connection: connection.execute(text(statement)))


def status_and_code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


@contextmanager
def away(database: Database) -> Iterator[None]:
    """Let nothing be written down for a while; on a server, let nothing be read either."""
    if not database.is_sqlite:
        with server_away(database):
            yield
        return
    execute(database, "ALTER TABLE request RENAME TO request_away")
    yield
    execute(database, "ALTER TABLE request_away RENAME TO request")


@pytest.mark.rule("rest-25", "rest-104", "rest-197")
def test_a_service_that_ends_gives_up_what_runs_and_the_next_one_knows(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    headers, later = {"Idempotency-Key": "waited"}, {"Idempotency-Key": "later", "Prefer": "respond-async"}
    with ThreadPoolExecutor(2) as people, ExitStack() as stack:
        with running_office(database) as office:
            third = office.connect(office.new_mac(), never_respond)
            stack.callback(third.stop)  # only when the service has gone
            key = office.new_key(Role.OPERATOR, "same")
            person = stack.enter_context(office.client(key))
            device = office.device_behind(third)
            write = partial(office.send, device, "write", "8010", by=person, timeoutMs=60_000)
            waiting = people.submit(write, value="01", headers=headers)
            reading = people.submit(office.send, device, "read", "8010", by=person, timeoutMs=60_000)
            assert write(value="02", headers=later).status_code == 202
            office.wait_until(lambda: len(third.requests) == 3)
        assert status_and_code(waiting.result()) == (504, "interrupted")
        assert status_and_code(reading.result()) == (504, "interrupted")
    with running_office(database) as office, office.client(key) as person:
        records = office.history(device)
        assert {each["request"]["operation"] for each in records} == {"read", "write"}
        assert {each["state"] for each in records} == {"FAILED"}
        assert len({each["id"] for each in records}) == 3
        assert {each["problem"]["code"] for each in records} == {"interrupted"}
        for value, given in (("01", headers), ("02", {"Idempotency-Key": "later"})):
            again = office.send(
                device, "write", "8010", by=person, value=value, timeoutMs=60_000, headers=given
            )
            assert again.status_code == 504
        other = office.send(device, "write", "8010", by=person, value="03", headers=headers)
        assert status_and_code(other) == (409, "idempotency-key-reused")
    assert "Traceback" not in caplog.text


@pytest.mark.rule("rest-25")
def test_a_key_holds_beyond_a_restart(database: Database) -> None:
    headers, late = {"Idempotency-Key": "k"}, {"Idempotency-Key": "late"}
    with running_office(database) as office:
        key = office.new_key(Role.OPERATOR, "same")
        with (
            office.gateway(lambda asked: [asked.build_response(route="r")]) as third,
            office.client(key) as person,
        ):
            device = office.device_behind(third)
            first = office.send(device, "write", "8010", value="01", by=person, headers=headers)
            third.responder = never_respond
            slow = office.send(
                device, "write", "8010", value="02", timeoutMs=SHORT_TIMEOUT_MS, by=person, headers=late
            )
    assert (first.status_code, slow.status_code) == (200, 504)
    with running_office(database) as office, office.client(key) as person:
        again = office.send(device, "write", "8010", value="01", by=person, headers=headers)
        assert (again.status_code, again.json()) == (200, first.json())
        slow_again = office.send(
            device, "write", "8010", value="02", timeoutMs=SHORT_TIMEOUT_MS, by=person, headers=late
        )
        assert slow_again.json() == slow.json()


@pytest.mark.rule("rest-195")
def test_what_changes_something_is_not_sent_while_it_cannot_be_written_down(database: Database) -> None:
    with (
        running_office(database) as office,
        office.gateway(lambda a: [a.build_response(value="ff")]) as third,
    ):
        device = office.device_behind(third)
        office.wait_for_version(third)
        headers = {"Idempotency-Key": "k"}
        with away(database):
            refused = [
                office.send(device, "write", "8010", value="01"),
                office.send(device, "write", "8010", value="01", headers=headers),
                office.send(device, "ack", "8100", time="2026-01-02T03:04:05Z", type=0),
                office.send(device, "read", "8010", headers={"Prefer": "respond-async"}),
                office.send(device, "read", "8010", headers=headers),
            ]
        assert {status_and_code(answer) for answer in refused} <= {
            (503, "unrecorded"),
            (503, "database-unavailable"),
        }
        assert office.send(device, "write", "8010", value="02", headers=headers).status_code == 200
        assert [each.body.get("value") for each in third.requests] == ["02"]
        sent, *others = office.history(device)
        assert sent["state"] == "DONE"
        assert {each["problem"]["code"] for each in others} <= {"unrecorded"}
        assert office.is_idle()


def test_a_read_is_answered_and_its_history_follows_when_the_database_is_back(
    sqlite_database: Database,
) -> None:
    database = sqlite_database
    with (
        running_office(database) as office,
        office.gateway(lambda a: [a.build_response(value="ff")]) as third,
    ):
        device = office.device_behind(third)
        execute(database, "ALTER TABLE request RENAME TO request_away")
        assert office.send(device, "read", "8010").status_code == 200
        assert office.viewer.get(f"/api/v1/devices/bmac-{device}/requests").status_code == 503
        execute(database, "ALTER TABLE request_away RENAME TO request")
        office.wait_until(
            lambda: office.viewer.get(f"/api/v1/devices/bmac-{device}/requests").status_code == 200
        )
        office.wait_until(lambda: office.history(device))
        assert [each["state"] for each in office.history(device)] == ["DONE"]
    database.close()


def test_many_that_end_with_the_service_all_end(sqlite_database: Database) -> None:
    """None is left pending, and the end does not wait for the gateway."""
    with ThreadPoolExecutor(30) as people, ExitStack() as stack:
        with running_office(sqlite_database) as office:
            third = office.connect(office.new_mac(), never_respond)
            stack.callback(third.stop)
            device = office.device_behind(third)
            waiting = [
                people.submit(office.send, device, "write", "8010", value="ff", timeoutMs=120_000)
                for _ in range(30)
            ]
            office.wait_until(lambda: len(third.requests) == 16)
        answers = [each.result() for each in waiting]
    assert {each.status_code for each in answers} <= {503, 504}
    with running_office(sqlite_database) as office:
        states = [each["state"] for each in office.history(device, MaxResults=100)]
        assert states == ["FAILED"] * 30
    sqlite_database.close()
