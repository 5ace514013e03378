"""Tests of firmware records: list, show, release, withdraw and delete."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import insert, select

from meshfleet.db.tables import job, transition
from meshfleet.rest.firmware import FIRMWARE_PATH
from meshfleet.rest.jobs import JobState
from tests.row_tables import each_row
from tests.service.firmware.uploads import (
    faults,
    hash_hex,
    list_stored_images,
    new_content,
    new_version,
    upload_record,
    upload_released,
)

if TYPE_CHECKING:
    import httpx

    from tests.service.http.running_service import RunningService

_numbers = count(10**12)
"""Job numbers far above those that a service assigns."""


def _list(service: RunningService, **query: Any) -> list[dict[str, Any]]:
    response = service.viewer.get(FIRMWARE_PATH, params=query)
    assert response.status_code == 200, response.text
    items: list[dict[str, Any]] = response.json()["items"]
    return items


def _run_command(service: RunningService, command: str, record: dict[str, Any]) -> httpx.Response:
    return service.admin.post(f"{FIRMWARE_PATH}/{record['id']}/{command}")


def _insert_job(
    service: RunningService, record: dict[str, Any], state: JobState, *, finished: bool = False
) -> int:
    """Insert a job into the database without notifying the service."""
    number = next(_numbers)
    statement = insert(job).values(
        id=number,
        firmware=record["id"],
        body="{}",
        state=state,
        seed=0,
        waves="[]",
        wave=0,
        paced_until=0,
        armed="{}",
        created_by="admin",
        created_at=0,
        finished_at=1 if finished else None,
    )
    service.database.write_now(lambda connection: connection.execute(statement).close())
    return number


def _audit(service: RunningService, target: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = service.admin.get("/api/v1/audit", params={"Target": target}).json()[
        "items"
    ]
    return items


@pytest.mark.both_databases
@pytest.mark.rule("rest-110")
def test_a_record_is_shown_and_records_are_listed_newest_first(service: RunningService) -> None:
    records = [upload_record(service, modelNumber="0A01") for _ in range(3)]
    assert service.viewer.get(f"{FIRMWARE_PATH}/{records[0]['id']}").json() == records[0]
    listed = _list(service, ModelNumber="0a01")
    assert listed == sorted(records, key=lambda each: (each["createdAt"], each["id"]), reverse=True)


@pytest.mark.both_databases
def test_a_list_is_paginated(service: RunningService) -> None:
    ids = {upload_record(service, modelNumber="0A02")["id"] for _ in range(25)}
    found, token = [], None
    for _ in range(10):
        query = {"ModelNumber": "0A02", "MaxResults": "10", **({"NextToken": token} if token else {})}
        page = service.viewer.get(FIRMWARE_PATH, params=query).json()
        found += [each["id"] for each in page["items"]]
        token = page["nextToken"]
        if token is None:
            break
    assert (len(found), set(found)) == (25, ids)


def test_a_page_token_is_valid_only_for_its_filters(service: RunningService) -> None:
    for _ in range(11):
        upload_record(service, modelNumber="0A03")
    query = {"ModelNumber": "0A03", "MaxResults": "10"}
    token = service.viewer.get(FIRMWARE_PATH, params=query).json()["nextToken"]
    response = service.viewer.get(FIRMWARE_PATH, params={"ModelNumber": "0A02", "NextToken": token})
    assert (response.status_code, response.json()["code"]) == (400, "invalid-token")


@pytest.mark.both_databases
def test_filters_are_combined_with_and(service: RunningService) -> None:
    version = new_version()
    draft = upload_record(service, modelNumber="0A04", version=version)
    other = upload_released(service, modelNumber="0A05", version=version)
    withdrawn = upload_released(service, modelNumber="0A05")
    _run_command(service, "withdraw", withdrawn)
    assert {each["id"] for each in _list(service, Version=version)} == {draft["id"], other["id"]}
    assert [each["id"] for each in _list(service, Version=version, State="released")] == [other["id"]]
    assert [each["id"] for each in _list(service, ModelNumber="0A05", State="withdrawn")] == [withdrawn["id"]]
    assert _list(service, ModelNumber="0A04", State="withdrawn") == []


def test_an_invalid_filter_is_reported_by_its_name(service: RunningService) -> None:
    query = {"ModelNumber": "x", "Version": "y", "State": "z"}
    assert set(faults(service.viewer.get(FIRMWARE_PATH, params=query))) == set(query)


@pytest.mark.rule("rest-111", "rest-108")
def test_a_draft_is_released_once(service: RunningService) -> None:
    record = upload_record(service)
    first = _run_command(service, "release", record).json()
    assert first == {**record, "state": "released", "releasedAt": first["releasedAt"]}
    assert first["releasedAt"] is not None
    service.clock.move(seconds=1)
    repeated = _run_command(service, "release", record)
    assert (repeated.status_code, repeated.json()) == (200, first)
    assert [each["action"] for each in _audit(service, record["id"])] == [
        "firmware.release",
        "firmware.upload",
    ]


@pytest.mark.rule("rest-111", "rest-108")
@pytest.mark.parametrize("create", [upload_record, upload_released])
def test_withdrawn_firmware_stays_withdrawn(service: RunningService, create: Any) -> None:
    record = create(service)
    first = _run_command(service, "withdraw", record)
    assert (first.status_code, first.json()) == (200, {**record, "state": "withdrawn"})
    assert _run_command(service, "withdraw", record).json() == first.json()
    rejected = _run_command(service, "release", record)
    assert (rejected.status_code, rejected.json()["code"]) == (409, "conflict")
    assert _audit(service, record["id"])[0]["action"] == "firmware.withdraw"
    assert len(_audit(service, record["id"])) == (2 if create is upload_record else 3)


def test_the_audit_log_records_model_and_version(service: RunningService) -> None:
    record = upload_record(service)
    (row,) = _audit(service, record["id"])
    detail = {"modelNumber": record["modelNumber"], "version": record["version"], "bare": True}
    assert row["detail"] == detail
    assert row["actor"] == record["createdBy"]


STOPPED = ["CREATED", "PENDING_APPROVAL", "SCHEDULED", "IN_PROGRESS", "PAUSED"]


@pytest.mark.both_databases
@each_row("state", list(JobState))
@each_row("finished", [False, True])
def test_withdrawing_firmware_cancels_its_open_jobs(
    service: RunningService, state: JobState, *, finished: bool
) -> None:
    record = upload_released(service)
    number = _insert_job(service, record, state, finished=finished)
    other = _insert_job(service, upload_released(service), state, finished=finished)
    _run_command(service, "withdraw", record)
    _run_command(service, "withdraw", record)
    is_stopped = state in STOPPED and not finished
    state_now, cause = _load_job(service, number)
    assert state_now == ("CANCELING" if is_stopped else state)
    assert cause == ("RELEASE_WITHDRAWN" if is_stopped else None)
    assert _load_job(service, other) == (state, None)
    transitions = _load_transitions(service, number)
    assert transitions == ([(None, state, "CANCELING", 0, 0, record["createdBy"])] if is_stopped else [])
    actions = [each["action"] for each in _audit(service, f"job-{number}")]
    assert actions == (["job.cancel"] if is_stopped else [])


def test_withdrawing_firmware_wakes_the_job_runner(service: RunningService) -> None:
    record, wakeups = upload_released(service), []
    service.job_wakeup.subscribe(lambda: wakeups.append(record["id"]))
    _run_command(service, "withdraw", record)
    assert wakeups == [record["id"]]


def _load_job(service: RunningService, number: int) -> tuple[str, str | None]:
    query = select(job.c.state, job.c.stop_cause).where(job.c.id == number)
    return service.database.read_now(lambda connection: tuple(connection.execute(query).one()))


def _load_transitions(service: RunningService, number: int) -> list[tuple[Any, ...]]:
    columns = transition.c
    query = select(
        columns.device, columns.before, columns.after, columns.version, columns.attempt, columns.actor
    ).where(columns.job == number)
    return service.database.read_now(lambda connection: [tuple(row) for row in connection.execute(query)])


@pytest.mark.rule("rest-112")
def test_deleting_a_record_removes_its_image(service: RunningService) -> None:
    content = new_content()
    record = upload_record(service, content)
    assert hash_hex(content) in list_stored_images(service)
    assert service.admin.delete(f"{FIRMWARE_PATH}/{record['id']}").status_code == 204
    assert hash_hex(content) not in list_stored_images(service)
    for path in ("", "/image"):
        assert service.viewer.get(f"{FIRMWARE_PATH}/{record['id']}{path}").status_code == 404
    assert service.admin.delete(f"{FIRMWARE_PATH}/{record['id']}").status_code == 404
    assert _audit(service, record["id"])[0]["action"] == "firmware.delete"
    assert upload_record(service, content, version=record["version"])["id"] != record["id"]


@pytest.mark.both_databases
@pytest.mark.rule("rest-112")
@pytest.mark.parametrize("finished", [False, True])
def test_firmware_that_a_job_used_cannot_be_deleted(service: RunningService, *, finished: bool) -> None:
    record = upload_released(service)
    _insert_job(service, record, JobState.COMPLETED, finished=finished)
    response = service.admin.delete(f"{FIRMWARE_PATH}/{record['id']}")
    assert (response.status_code, response.json()["code"]) == (409, "in-use")
    assert service.viewer.get(f"{FIRMWARE_PATH}/{record['id']}/image").status_code == 200


@each_row("firmware_id", ["fw-", "x", "%00", "a%2Fb", "%FF", "0" * 5000])
def test_unknown_firmware_ids_are_not_found(service: RunningService, firmware_id: str) -> None:
    path = f"{FIRMWARE_PATH}/{firmware_id}"
    responses = [
        service.viewer.get(path),
        service.viewer.get(f"{path}/image"),
        service.admin.post(f"{path}/release"),
        service.admin.post(f"{path}/withdraw"),
        service.admin.delete(path),
    ]
    assert {each.status_code for each in responses} == {404}
