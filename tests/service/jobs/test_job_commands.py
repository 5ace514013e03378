"""Tests of job commands: every command in every state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from meshfleet.protocol.times import format_millis
from tests.row_tables import each_row
from tests.service.jobs.job_environment import JOBS, MINUTE

if TYPE_CHECKING:
    from tests.service.jobs.job_environment import JobEnvironment

REJECTED = None

TRANSITIONS: dict[str, dict[str, str | None]] = {
    "CREATED": {"apply": "IN_PROGRESS", "pause": REJECTED, "resume": REJECTED, "cancel": "CANCELING"},
    "PENDING_APPROVAL": {"apply": REJECTED, "pause": REJECTED, "resume": REJECTED, "cancel": "CANCELING"},
    "SCHEDULED": {"apply": REJECTED, "pause": "PAUSED", "resume": REJECTED, "cancel": "CANCELING"},
    "IN_PROGRESS": {"apply": REJECTED, "pause": "PAUSED", "resume": REJECTED, "cancel": "CANCELING"},
    "PAUSED": {"apply": REJECTED, "pause": "PAUSED", "resume": "IN_PROGRESS", "cancel": "CANCELING"},
    "CANCELING": {"apply": REJECTED, "pause": REJECTED, "resume": REJECTED, "cancel": "CANCELING"},
    "CANCELED": {"apply": REJECTED, "pause": REJECTED, "resume": REJECTED, "cancel": REJECTED},
    "COMPLETED": {"apply": REJECTED, "pause": REJECTED, "resume": REJECTED, "cancel": REJECTED},
    "DELETING": {"apply": REJECTED, "pause": REJECTED, "resume": REJECTED, "cancel": REJECTED},
}
CASES = [
    (state, command, after) for state, commands in TRANSITIONS.items() for command, after in commands.items()
]


def create_job_in_state(
    env: JobEnvironment, state: str = "IN_PROGRESS", *, devices: int = 3, **fields: Any
) -> str:
    """Create a job in a state and return its id."""
    job = env.create_job(env.firmware(), env.devices(devices), autoApply=False, **fields)
    values: dict[str, Any] = {"state": state}
    if state in {"IN_PROGRESS", "PAUSED", "CANCELING"}:
        values |= {"started_at": env.now, "queue_until": env.now + MINUTE}
    if state in {"CANCELED", "COMPLETED"}:
        values |= {"finished_at": env.now, "outcome": "NONE"}
    if state == "PAUSED":
        values |= {"pause_reason": "USER"}
    if state == "CANCELING":
        values |= {"stop_cause": "DEADLINE"}
    env.set_job(job["id"], **values)
    return str(job["id"])


def list_audit_actions(env: JobEnvironment, job_id: str) -> list[str]:
    page = env.service.admin.get("/api/v1/audit", params={"Target": job_id}).json()
    return [each["action"] for each in reversed(page["items"])]


@pytest.mark.rule("rest-137", "rest-138", "rest-132")
@each_row(("state", "command", "after"), CASES)
def test_a_command_changes_the_state_of_a_job_or_is_rejected(
    env: JobEnvironment, state: str, command: str, after: str | None
) -> None:
    job = create_job_in_state(env, state)
    before = env.row(job)
    response = env.run_command(command, job)
    if after is REJECTED:
        assert (response.status_code, response.json()["code"]) == (409, "conflict")
        assert env.row(job) == before
    else:
        assert response.status_code == 200, response.text
        assert response.json()["state"] == after
        assert response.json() == env.get_job(job)
    if after in {REJECTED, state}:
        assert env.row(job) == before
        assert list_audit_actions(env, job) == ["job.create"]
        assert len(env.transitions(job)) == 1
    else:
        assert list_audit_actions(env, job) == ["job.create", f"job.{command}"]
        assert env.transitions(job)[1:] == [(state, after, command)]


def test_a_rejection_names_the_state_of_the_job(env: JobEnvironment) -> None:
    assert (
        env.run_command("pause", create_job_in_state(env, "COMPLETED")).json()["detail"]
        == "the job is completed"
    )
    assert env.run_command("apply", create_job_in_state(env)).json()["detail"] == "the job is in progress"


@pytest.mark.rule("rest-132")
def test_an_applied_job_starts_or_waits_for_its_start_time(env: JobEnvironment) -> None:
    job = create_job_in_state(env, "CREATED", timeouts={"queueMinutes": 5})
    applied = env.run_command("apply", job).json()
    row = env.row(job)
    assert applied["startedAt"] == format_millis(row["started_at"])
    assert row["started_at"] is not None
    later = create_job_in_state(env, "CREATED", startAt=format_millis(env.now + 60 * MINUTE))
    scheduled = env.run_command("apply", later).json()
    assert (scheduled["state"], scheduled["startedAt"]) == ("SCHEDULED", None)
    assert env.row(later)["started_at"] is None


@each_row("state", ["IN_PROGRESS", "PAUSED"])
def test_a_staged_job_is_applied_once(env: JobEnvironment, state: str) -> None:
    job = create_job_in_state(env, state, stage=True)
    assert env.run_command("apply", job).json()["state"] == state
    applied_at = env.row(job)["applied_at"]
    assert applied_at is not None
    assert env.get_job(job)["appliedAt"] == format_millis(applied_at)
    env.service.clock.move(seconds=1)
    assert env.run_command("apply", job).status_code == 200
    assert env.row(job)["applied_at"] == applied_at
    assert list_audit_actions(env, job) == ["job.create", "job.apply"]
    assert env.transitions(job)[1:] == [(state, state, "apply")]


@each_row("state", ["CANCELING", "CANCELED", "COMPLETED", "SCHEDULED"])
def test_a_staged_job_can_be_applied_only_while_it_runs(env: JobEnvironment, state: str) -> None:
    assert env.run_command("apply", create_job_in_state(env, state, stage=True)).status_code == 409


def test_a_paused_job_has_a_pause_reason_and_a_resumed_job_has_none(env: JobEnvironment) -> None:
    job = create_job_in_state(env)
    assert env.run_command("pause", job).json()["pauseReason"] == "USER"
    assert env.run_command("resume", job).json()["pauseReason"] is None


def test_a_pause_at_a_gate_keeps_its_reason(env: JobEnvironment) -> None:
    job = create_job_in_state(env, "PAUSED")
    env.set_job(job, pause_reason="GATE")
    assert env.run_command("pause", job).json()["pauseReason"] == "GATE"


def test_a_job_paused_before_its_start_time_is_scheduled_again_when_resumed(env: JobEnvironment) -> None:
    future = format_millis(env.now + 60 * MINUTE)
    job = create_job_in_state(env, "SCHEDULED", startAt=future)
    assert env.run_command("pause", job).json()["state"] == "PAUSED"
    assert env.run_command("resume", job).json()["state"] == "SCHEDULED"
    assert env.run_command("pause", job).json()["state"] == "PAUSED"
    env.set_job(job, start_at=env.now - MINUTE)
    resumed = env.run_command("resume", job).json()
    assert (resumed["state"], resumed["startedAt"] is None) == ("IN_PROGRESS", False)
    assert env.row(job)["started_at"] is not None


@pytest.mark.both_databases
def test_resuming_resets_the_counts_of_abort_criteria(env: JobEnvironment) -> None:
    eligible, on_target = env.devices(4), env.devices(1, "3.4.2")
    job = env.create_job(env.firmware(), [*eligible, *on_target])["id"]
    env.set_execution(job, eligible[0], state="FAILED")
    env.set_execution(job, eligible[1], state="SUCCEEDED")
    started = env.row(job)["started_at"]
    env.run_command("pause", job)
    assert env.row(job)["armed"] == "{}"
    env.run_command("resume", job)
    assert msgspec.json.decode(env.row(job)["armed"]) == {"FAILED": 1, "SUCCEEDED": 1}
    assert env.row(job)["started_at"] == started


@each_row(
    ("reason", "wave", "soaks"),
    [("GATE", 1, False), ("GATE_FAILED", 1, False), ("ABORT_CRITERIA", 0, True), ("USER", 0, True)],
)
def test_resuming_at_a_gate_starts_the_next_wave(
    env: JobEnvironment, reason: str, wave: int, *, soaks: bool
) -> None:
    job = create_job_in_state(env, "PAUSED", waves=[{"count": 1}])
    env.set_job(job, pause_reason=reason, soaks_until=env.now)
    assert env.run_command("resume", job).status_code == 200
    row = env.row(job)
    assert (row["wave"], row["soaks_until"] is not None, row["pause_reason"]) == (wave, soaks, None)


def test_a_canceled_job_keeps_its_first_stop_cause(env: JobEnvironment) -> None:
    job = create_job_in_state(env, "PAUSED")
    canceled = env.run_command("cancel", job).json()
    assert (canceled["stopCause"], canceled["pauseReason"]) == ("USER", None)
    canceling = create_job_in_state(env, "CANCELING")
    assert env.run_command("cancel", canceling).json()["stopCause"] == "DEADLINE"


@each_row("command", ["apply", "pause", "resume", "cancel", "retry"])
@each_row("job", ["job-0", "job-999999999999999999", "job-x", "1", "job-01", "job-1%00", "%2e%2e"])
def test_commands_on_unknown_job_ids_are_not_found(env: JobEnvironment, command: str, job: str) -> None:
    response = env.service.operator.post(f"{JOBS}/{job}/{command}")
    assert response.status_code == 404


@pytest.mark.rule("rest-214")
def test_only_a_finished_or_never_started_job_can_be_deleted(env: JobEnvironment) -> None:
    failures = []
    for state in TRANSITIONS:
        job = create_job_in_state(env, state)
        before = env.row(job)
        assert env.service.viewer.delete(f"{JOBS}/{job}").status_code == 403
        response = env.service.operator.delete(f"{JOBS}/{job}")
        if state in {"CREATED", "CANCELED", "COMPLETED"}:
            status_after = env.service.viewer.get(f"{JOBS}/{job}").status_code
            is_expected = (response.status_code, response.content, status_after) == (204, b"", 404)
        else:
            is_expected = (response.status_code, response.json()["code"]) == (409, "conflict")
            is_expected = is_expected and env.row(job) == before
        if not is_expected:
            failures.append((state, response.status_code, response.text))
    assert not failures


@pytest.mark.both_databases
@pytest.mark.rule("rest-214", "rest-215")
def test_a_deleted_job_remains_only_in_the_audit_log(env: JobEnvironment) -> None:
    eligible, newer = env.devices(3), env.devices(1, "4.0.0")
    job = env.create_job(env.firmware(), [*eligible, *newer], name="Old")["id"]
    for device, state in zip(eligible, ("SUCCEEDED", "FAILED", "FAILED"), strict=True):
        env.set_execution(job, device, state=state)
    env.set_job(job, state="COMPLETED", outcome="PARTIAL", finished_at=env.now)
    child = env.run_command("retry", job).json()
    before = env.get_job(child["id"])
    assert env.service.operator.delete(f"{JOBS}/{job}").status_code == 204
    for path in ("", "/summary", "/executions", f"/executions/{eligible[0]}"):
        assert env.service.viewer.get(f"{JOBS}/{job}{path}").status_code == 404
    assert env.service.operator.delete(f"{JOBS}/{job}").status_code == 404
    assert job not in env.service.viewer.get(JOBS, params={"MaxResults": 1000}).text.replace(
        f'"parentJobId":"{job}"', ""
    )
    row = env.service.admin.get("/api/v1/audit", params={"Target": job, "Action": "job.delete"}).json()
    detail = row["items"][0]["detail"]
    assert (detail["name"], detail["firmware"], detail["version"]) == ("Old", env.firmware(), "3.4.2")
    assert (detail["state"], detail["outcome"]) == ("COMPLETED", "PARTIAL")
    assert detail["counts"] == {"SUCCEEDED": 1, "FAILED": 2, "SKIPPED": 1}
    assert env.get_job(child["id"]) == before
    assert before["parentJobId"] == job
    assert env.run_command("cancel", child["id"]).json()["state"] == "CANCELING"


@pytest.mark.both_databases
def test_firmware_can_be_deleted_once_its_jobs_are_deleted(env: JobEnvironment) -> None:
    job = create_job_in_state(env, "COMPLETED")
    path = f"/api/v1/firmware/{env.firmware()}"
    assert env.service.admin.delete(path).status_code == 409
    assert env.service.operator.delete(f"{JOBS}/{job}").status_code == 204
    assert env.service.admin.delete(path).status_code == 204


@each_row("command", ["apply", "pause", "resume", "cancel", "retry"])
def test_a_viewer_cannot_run_commands(env: JobEnvironment, command: str) -> None:
    job = create_job_in_state(env, "PAUSED")
    assert env.service.viewer.post(f"{JOBS}/{job}/{command}").status_code == 403
    assert env.get_job(job)["state"] == "PAUSED"
