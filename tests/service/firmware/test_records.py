"""Firmware records: listed, shown, released, withdrawn and removed."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import insert, select

from meshfleet.db.tables import job, transition
from meshfleet.rest import FIRMWARE_PATH, JobState
from tests.row_tables import each_row
from tests.service.firmware.uploads import digest, faults, kept, new_content, new_version, released, uploaded

if TYPE_CHECKING:
    import httpx

    from tests.service.http.running_service import RunningService

_numbers = count(10**12)
"""Of jobs, far above those that a service gives."""


def _list(service: RunningService, **query: Any) -> list[dict[str, Any]]:
    answer = service.viewer.get(FIRMWARE_PATH, params=query)
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


def _do(service: RunningService, deed: str, record: dict[str, Any]) -> httpx.Response:
    return service.admin.post(f"{FIRMWARE_PATH}/{record['id']}/{deed}")


def _new_job(
    service: RunningService, record: dict[str, Any], state: JobState, *, finished: bool = False
) -> int:
    """A job in the database, of which nobody but the database knows."""
    number = next(_numbers)
    made = insert(job).values(
        id=number,
        firmware=record["id"],
        body="{}",
        state=state,
        seed=0,
        waves="[]",
        wave=0,
        paced_until=0,
        armed="{}",
        created_by="somebody",
        created_at=0,
        finished_at=1 if finished else None,
    )
    service.database.write_now(lambda connection: connection.execute(made).close())
    return number


def _audit(service: RunningService, target: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = service.admin.get("/api/v1/audit", params={"Target": target}).json()[
        "items"
    ]
    return items


@pytest.mark.both_databases
@pytest.mark.rule("rest-110")
def test_a_record_is_shown_and_listed_the_newest_first(service: RunningService) -> None:
    records = [uploaded(service, modelNumber="0A01") for _ in range(3)]
    assert service.viewer.get(f"{FIRMWARE_PATH}/{records[0]['id']}").json() == records[0]
    listed = _list(service, ModelNumber="0a01")
    assert listed == sorted(records, key=lambda each: (each["createdAt"], each["id"]), reverse=True)


@pytest.mark.both_databases
def test_a_list_comes_in_pages(service: RunningService) -> None:
    ids = {uploaded(service, modelNumber="0A02")["id"] for _ in range(25)}
    found, token = [], None
    for _ in range(10):
        query = {"ModelNumber": "0A02", "MaxResults": "10", **({"NextToken": token} if token else {})}
        page = service.viewer.get(FIRMWARE_PATH, params=query).json()
        found += [each["id"] for each in page["items"]]
        token = page["nextToken"]
        if token is None:
            break
    assert (len(found), set(found)) == (25, ids)


def test_a_token_belongs_to_its_filters(service: RunningService) -> None:
    for _ in range(11):
        uploaded(service, modelNumber="0A03")
    query = {"ModelNumber": "0A03", "MaxResults": "10"}
    token = service.viewer.get(FIRMWARE_PATH, params=query).json()["nextToken"]
    answer = service.viewer.get(FIRMWARE_PATH, params={"ModelNumber": "0A02", "NextToken": token})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid-token")


@pytest.mark.both_databases
def test_filters_hold_together(service: RunningService) -> None:
    version = new_version()
    draft = uploaded(service, modelNumber="0A04", version=version)
    other = released(service, modelNumber="0A05", version=version)
    gone = released(service, modelNumber="0A05")
    _do(service, "withdraw", gone)
    assert {each["id"] for each in _list(service, Version=version)} == {draft["id"], other["id"]}
    assert [each["id"] for each in _list(service, Version=version, State="released")] == [other["id"]]
    assert [each["id"] for each in _list(service, ModelNumber="0A05", State="withdrawn")] == [gone["id"]]
    assert _list(service, ModelNumber="0A04", State="withdrawn") == []


def test_a_wrong_filter_is_named(service: RunningService) -> None:
    query = {"ModelNumber": "x", "Version": "y", "State": "z"}
    assert set(faults(service.viewer.get(FIRMWARE_PATH, params=query))) == set(query)


@pytest.mark.rule("rest-111", "rest-108")
def test_a_draft_is_released_once(service: RunningService) -> None:
    record = uploaded(service)
    first = _do(service, "release", record).json()
    assert first == {**record, "state": "released", "releasedAt": first["releasedAt"]}
    assert first["releasedAt"] is not None
    service.clock.move(seconds=1)
    again = _do(service, "release", record)
    assert (again.status_code, again.json()) == (200, first)
    assert [each["action"] for each in _audit(service, record["id"])] == [
        "firmware.release",
        "firmware.upload",
    ]


@pytest.mark.rule("rest-111", "rest-108")
@pytest.mark.parametrize("make", [uploaded, released])
def test_what_is_withdrawn_stays_so(service: RunningService, make: Any) -> None:
    record = make(service)
    first = _do(service, "withdraw", record)
    assert (first.status_code, first.json()) == (200, {**record, "state": "withdrawn"})
    assert _do(service, "withdraw", record).json() == first.json()
    refused = _do(service, "release", record)
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    assert _audit(service, record["id"])[0]["action"] == "firmware.withdraw"
    assert len(_audit(service, record["id"])) == (2 if make is uploaded else 3)


def test_the_audit_log_tells_model_and_version(service: RunningService) -> None:
    record = uploaded(service)
    (row,) = _audit(service, record["id"])
    told = {"modelNumber": record["modelNumber"], "version": record["version"], "bare": True}
    assert row["detail"] == told
    assert row["actor"] == record["createdBy"]


STOPPED = ["CREATED", "PENDING_APPROVAL", "SCHEDULED", "IN_PROGRESS", "PAUSED"]


@pytest.mark.both_databases
@each_row("state", list(JobState))
@each_row("finished", [False, True])
def test_withdrawing_stops_the_jobs_that_are_not_over(
    service: RunningService, state: JobState, *, finished: bool
) -> None:
    record = released(service)
    number = _new_job(service, record, state, finished=finished)
    other = _new_job(service, released(service), state, finished=finished)
    _do(service, "withdraw", record)
    _do(service, "withdraw", record)
    stops = state in STOPPED and not finished
    state_now, cause = _job(service, number)
    assert state_now == ("CANCELING" if stops else state)
    assert cause == ("RELEASE_WITHDRAWN" if stops else None)
    assert _job(service, other) == (state, None)
    moves = _moves(service, number)
    assert moves == ([(None, state, "CANCELING", 0, 0, record["createdBy"])] if stops else [])
    told = [each["action"] for each in _audit(service, f"job-{number}")]
    assert told == (["job.cancel"] if stops else [])


def test_withdrawing_wakes_whoever_runs_jobs(service: RunningService) -> None:
    record, woken = released(service), []
    service.job_wakeup.subscribe(lambda: woken.append(record["id"]))
    _do(service, "withdraw", record)
    assert woken == [record["id"]]


def _job(service: RunningService, number: int) -> tuple[str, str | None]:
    query = select(job.c.state, job.c.stop_cause).where(job.c.id == number)
    return service.database.read_now(lambda connection: tuple(connection.execute(query).one()))


def _moves(service: RunningService, number: int) -> list[tuple[Any, ...]]:
    columns = transition.c
    query = select(
        columns.device, columns.before, columns.after, columns.version, columns.attempt, columns.actor
    ).where(columns.job == number)
    return service.database.read_now(lambda connection: [tuple(row) for row in connection.execute(query)])


@pytest.mark.rule("rest-112")
def test_a_record_is_removed_with_its_image(service: RunningService) -> None:
    content = new_content()
    record = uploaded(service, content)
    assert digest(content) in kept(service)
    assert service.admin.delete(f"{FIRMWARE_PATH}/{record['id']}").status_code == 204
    assert digest(content) not in kept(service)
    for path in ("", "/image"):
        assert service.viewer.get(f"{FIRMWARE_PATH}/{record['id']}{path}").status_code == 404
    assert service.admin.delete(f"{FIRMWARE_PATH}/{record['id']}").status_code == 404
    assert _audit(service, record["id"])[0]["action"] == "firmware.delete"
    assert uploaded(service, content, version=record["version"])["id"] != record["id"]


@pytest.mark.both_databases
@pytest.mark.rule("rest-112")
@pytest.mark.parametrize("finished", [False, True])
def test_what_a_job_has_used_is_not_removed(service: RunningService, *, finished: bool) -> None:
    record = released(service)
    _new_job(service, record, JobState.COMPLETED, finished=finished)
    answer = service.admin.delete(f"{FIRMWARE_PATH}/{record['id']}")
    assert (answer.status_code, answer.json()["code"]) == (409, "in-use")
    assert service.viewer.get(f"{FIRMWARE_PATH}/{record['id']}/image").status_code == 200


@each_row("firmware_id", ["fw-", "x", "%00", "a%2Fb", "%FF", "0" * 5000])
def test_what_nobody_knows_is_not_found(service: RunningService, firmware_id: str) -> None:
    path = f"{FIRMWARE_PATH}/{firmware_id}"
    answers = [
        service.viewer.get(path),
        service.viewer.get(f"{path}/image"),
        service.admin.post(f"{path}/release"),
        service.admin.post(f"{path}/withdraw"),
        service.admin.delete(path),
    ]
    assert {each.status_code for each in answers} == {404}
