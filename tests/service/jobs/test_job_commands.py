"""What people do to jobs: every deed in every state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from meshfleet.protocol.times import format_millis
from tests.row_tables import each_row
from tests.service.jobs.job_environment import JOBS, MINUTE

if TYPE_CHECKING:
    from tests.service.jobs.job_environment import JobEnvironment

REFUSED = None

TABLE: dict[str, dict[str, str | None]] = {
    "CREATED": {"apply": "IN_PROGRESS", "pause": REFUSED, "resume": REFUSED, "cancel": "CANCELING"},
    "PENDING_APPROVAL": {"apply": REFUSED, "pause": REFUSED, "resume": REFUSED, "cancel": "CANCELING"},
    "SCHEDULED": {"apply": REFUSED, "pause": "PAUSED", "resume": REFUSED, "cancel": "CANCELING"},
    "IN_PROGRESS": {"apply": REFUSED, "pause": "PAUSED", "resume": REFUSED, "cancel": "CANCELING"},
    "PAUSED": {"apply": REFUSED, "pause": "PAUSED", "resume": "IN_PROGRESS", "cancel": "CANCELING"},
    "CANCELING": {"apply": REFUSED, "pause": REFUSED, "resume": REFUSED, "cancel": "CANCELING"},
    "CANCELED": {"apply": REFUSED, "pause": REFUSED, "resume": REFUSED, "cancel": REFUSED},
    "COMPLETED": {"apply": REFUSED, "pause": REFUSED, "resume": REFUSED, "cancel": REFUSED},
    "DELETING": {"apply": REFUSED, "pause": REFUSED, "resume": REFUSED, "cancel": REFUSED},
}
CASES = [(state, deed, after) for state, deeds in TABLE.items() for deed, after in deeds.items()]


def make(shop: JobEnvironment, state: str = "IN_PROGRESS", *, devices: int = 3, **order: Any) -> str:
    """A job in a state."""
    job = shop.create_job(shop.firmware(), shop.devices(devices), autoApply=False, **order)
    values: dict[str, Any] = {"state": state}
    if state in {"IN_PROGRESS", "PAUSED", "CANCELING"}:
        values |= {"started_at": shop.now, "queue_until": shop.now + MINUTE}
    if state in {"CANCELED", "COMPLETED"}:
        values |= {"finished_at": shop.now, "outcome": "NONE"}
    if state == "PAUSED":
        values |= {"pause_reason": "USER"}
    if state == "CANCELING":
        values |= {"stop_cause": "DEADLINE"}
    shop.set_job(job["id"], **values)
    return str(job["id"])


def audited(shop: JobEnvironment, job_id: str) -> list[str]:
    page = shop.service.admin.get("/api/v1/audit", params={"Target": job_id}).json()
    return [each["action"] for each in reversed(page["items"])]


@pytest.mark.rule("rest-137", "rest-138", "rest-132")
@each_row(("state", "deed", "after"), CASES)
def test_a_deed_moves_a_job_or_is_refused(
    shop: JobEnvironment, state: str, deed: str, after: str | None
) -> None:
    job = make(shop, state)
    before = shop.row(job)
    answer = shop.run_command(deed, job)
    if after is REFUSED:
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
        assert shop.row(job) == before
    else:
        assert answer.status_code == 200, answer.text
        assert answer.json()["state"] == after
        assert answer.json() == shop.get_job(job)
    if after in {REFUSED, state}:
        assert shop.row(job) == before
        assert audited(shop, job) == ["job.create"]
        assert len(shop.transitions(job)) == 1
    else:
        assert audited(shop, job) == ["job.create", f"job.{deed}"]
        assert shop.transitions(job)[1:] == [(state, after, deed)]


def test_a_refusal_tells_where_the_job_is(shop: JobEnvironment) -> None:
    assert shop.run_command("pause", make(shop, "COMPLETED")).json()["detail"] == "the job is completed"
    assert shop.run_command("apply", make(shop)).json()["detail"] == "the job is in progress"


@pytest.mark.rule("rest-132")
def test_an_applied_job_begins_or_waits_for_its_time(shop: JobEnvironment) -> None:
    job = make(shop, "CREATED", timeouts={"queueMinutes": 5})
    applied = shop.run_command("apply", job).json()
    row = shop.row(job)
    assert applied["startedAt"] == format_millis(row["started_at"])
    assert row["started_at"] is not None
    later = make(shop, "CREATED", startAt=format_millis(shop.now + 60 * MINUTE))
    scheduled = shop.run_command("apply", later).json()
    assert (scheduled["state"], scheduled["startedAt"]) == ("SCHEDULED", None)
    assert shop.row(later)["started_at"] is None


@each_row("state", ["IN_PROGRESS", "PAUSED"])
def test_what_is_staged_is_applied_once(shop: JobEnvironment, state: str) -> None:
    job = make(shop, state, stage=True)
    assert shop.run_command("apply", job).json()["state"] == state
    applied_at = shop.row(job)["applied_at"]
    assert applied_at is not None
    assert shop.get_job(job)["appliedAt"] == format_millis(applied_at)
    shop.service.clock.move(seconds=1)
    assert shop.run_command("apply", job).status_code == 200
    assert shop.row(job)["applied_at"] == applied_at
    assert audited(shop, job) == ["job.create", "job.apply"]
    assert shop.transitions(job)[1:] == [(state, state, "apply")]


@each_row("state", ["CANCELING", "CANCELED", "COMPLETED", "SCHEDULED"])
def test_what_is_staged_is_applied_while_the_job_runs(shop: JobEnvironment, state: str) -> None:
    assert shop.run_command("apply", make(shop, state, stage=True)).status_code == 409


def test_a_pause_tells_its_reason_and_a_resumed_job_has_none(shop: JobEnvironment) -> None:
    job = make(shop)
    assert shop.run_command("pause", job).json()["pauseReason"] == "USER"
    assert shop.run_command("resume", job).json()["pauseReason"] is None


def test_a_pause_by_a_gate_stays_one(shop: JobEnvironment) -> None:
    job = make(shop, "PAUSED")
    shop.set_job(job, pause_reason="GATE")
    assert shop.run_command("pause", job).json()["pauseReason"] == "GATE"


def test_a_job_that_was_paused_before_its_time_goes_back_to_wait_for_it(shop: JobEnvironment) -> None:
    ahead = format_millis(shop.now + 60 * MINUTE)
    job = make(shop, "SCHEDULED", startAt=ahead)
    assert shop.run_command("pause", job).json()["state"] == "PAUSED"
    assert shop.run_command("resume", job).json()["state"] == "SCHEDULED"
    assert shop.run_command("pause", job).json()["state"] == "PAUSED"
    shop.set_job(job, start_at=shop.now - MINUTE)
    resumed = shop.run_command("resume", job).json()
    assert (resumed["state"], resumed["startedAt"] is None) == ("IN_PROGRESS", False)
    assert shop.row(job)["started_at"] is not None


@pytest.mark.both_databases
def test_resuming_forgives_what_failed_up_to_now(shop: JobEnvironment) -> None:
    fitting, there = shop.devices(4), shop.devices(1, "3.4.2")
    job = shop.create_job(shop.firmware(), [*fitting, *there])["id"]
    shop.set_execution(job, fitting[0], state="FAILED")
    shop.set_execution(job, fitting[1], state="SUCCEEDED")
    started = shop.row(job)["started_at"]
    shop.run_command("pause", job)
    assert shop.row(job)["armed"] == "{}"
    shop.run_command("resume", job)
    assert msgspec.json.decode(shop.row(job)["armed"]) == {"FAILED": 1, "SUCCEEDED": 1}
    assert shop.row(job)["started_at"] == started


@each_row(
    ("reason", "wave", "soaks"),
    [("GATE", 1, False), ("GATE_FAILED", 1, False), ("ABORT_CRITERIA", 0, True), ("USER", 0, True)],
)
def test_resuming_at_a_gate_begins_the_next_wave(
    shop: JobEnvironment, reason: str, wave: int, *, soaks: bool
) -> None:
    job = make(shop, "PAUSED", waves=[{"count": 1}])
    shop.set_job(job, pause_reason=reason, soaks_until=shop.now)
    assert shop.run_command("resume", job).status_code == 200
    row = shop.row(job)
    assert (row["wave"], row["soaks_until"] is not None, row["pause_reason"]) == (wave, soaks, None)


def test_a_cancelled_job_tells_who_stopped_it_first(shop: JobEnvironment) -> None:
    job = make(shop, "PAUSED")
    canceled = shop.run_command("cancel", job).json()
    assert (canceled["stopCause"], canceled["pauseReason"]) == ("USER", None)
    stopped = make(shop, "CANCELING")
    assert shop.run_command("cancel", stopped).json()["stopCause"] == "DEADLINE"


@each_row("deed", ["apply", "pause", "resume", "cancel", "retry"])
@each_row("job", ["job-0", "job-999999999999999999", "job-x", "1", "job-01", "job-1%00", "%2e%2e"])
def test_there_is_no_job_with_such_an_id(shop: JobEnvironment, deed: str, job: str) -> None:
    answer = shop.service.operator.post(f"{JOBS}/{job}/{deed}")
    assert answer.status_code == 404


@pytest.mark.rule("rest-214")
def test_a_job_is_deleted_when_it_is_over_or_was_never_started(shop: JobEnvironment) -> None:
    wrong = []
    for state in TABLE:
        job = make(shop, state)
        before = shop.row(job)
        assert shop.service.viewer.delete(f"{JOBS}/{job}").status_code == 403
        answer = shop.service.operator.delete(f"{JOBS}/{job}")
        if state in {"CREATED", "CANCELED", "COMPLETED"}:
            gone = shop.service.viewer.get(f"{JOBS}/{job}").status_code
            is_right = (answer.status_code, answer.content, gone) == (204, b"", 404)
        else:
            is_right = (answer.status_code, answer.json()["code"]) == (409, "conflict")
            is_right = is_right and shop.row(job) == before
        if not is_right:
            wrong.append((state, answer.status_code, answer.text))
    assert not wrong


@pytest.mark.both_databases
@pytest.mark.rule("rest-214", "rest-215")
def test_a_deleted_job_is_kept_in_the_audit_log_alone(shop: JobEnvironment) -> None:
    fitting, newer = shop.devices(3), shop.devices(1, "4.0.0")
    job = shop.create_job(shop.firmware(), [*fitting, *newer], name="Old")["id"]
    for device, state in zip(fitting, ("SUCCEEDED", "FAILED", "FAILED"), strict=True):
        shop.set_execution(job, device, state=state)
    shop.set_job(job, state="COMPLETED", outcome="PARTIAL", finished_at=shop.now)
    child = shop.run_command("retry", job).json()
    before = shop.get_job(child["id"])
    assert shop.service.operator.delete(f"{JOBS}/{job}").status_code == 204
    for path in ("", "/summary", "/executions", f"/executions/{fitting[0]}"):
        assert shop.service.viewer.get(f"{JOBS}/{job}{path}").status_code == 404
    assert shop.service.operator.delete(f"{JOBS}/{job}").status_code == 404
    assert job not in shop.service.viewer.get(JOBS, params={"MaxResults": 1000}).text.replace(
        f'"parentJobId":"{job}"', ""
    )
    row = shop.service.admin.get("/api/v1/audit", params={"Target": job, "Action": "job.delete"}).json()
    detail = row["items"][0]["detail"]
    assert (detail["name"], detail["firmware"], detail["version"]) == ("Old", shop.firmware(), "3.4.2")
    assert (detail["state"], detail["outcome"]) == ("COMPLETED", "PARTIAL")
    assert detail["counts"] == {"SUCCEEDED": 1, "FAILED": 2, "SKIPPED": 1}
    assert shop.get_job(child["id"]) == before
    assert before["parentJobId"] == job
    assert shop.run_command("cancel", child["id"]).json()["state"] == "CANCELING"


@pytest.mark.both_databases
def test_firmware_can_be_removed_when_its_jobs_are_deleted(shop: JobEnvironment) -> None:
    job = make(shop, "COMPLETED")
    path = f"/api/v1/firmware/{shop.firmware()}"
    assert shop.service.admin.delete(path).status_code == 409
    assert shop.service.operator.delete(f"{JOBS}/{job}").status_code == 204
    assert shop.service.admin.delete(path).status_code == 204


@each_row("deed", ["apply", "pause", "resume", "cancel", "retry"])
def test_who_may_only_look_does_nothing(shop: JobEnvironment, deed: str) -> None:
    job = make(shop, "PAUSED")
    assert shop.service.viewer.post(f"{JOBS}/{job}/{deed}").status_code == 403
    assert shop.get_job(job)["state"] == "PAUSED"
