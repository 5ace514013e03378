"""Tests of audit records of jobs that stop by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.times import parse_millis
from meshfleet.service.clock import ClockReading
from meshfleet.service.jobs.execution import job_scheduler
from meshfleet.service.jobs.execution.queries import JobSpecCache
from tests.service.jobs.job_environment import job_number

if TYPE_CHECKING:
    from tests.service.jobs.job_environment import JobEnvironment

CRITERION: dict[str, Any] = {"minExecuted": 1, "percent": 50}


def advance_job_twice(env: JobEnvironment, job: str, at: int) -> None:
    """Advance a job twice: its transition must be recorded only once."""
    for _ in range(2):
        env.service.database.write_now(
            job_scheduler.advance_job, JobSpecCache(), job_number(job), ClockReading(at, at)
        )


def list_audit_records(env: JobEnvironment, job: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Return actor, action and detail of the audit records, without the creation; the newest first."""
    rows = env.service.admin.get("/api/v1/audit", params={"Target": job}).json()["items"]
    return [(row["actor"], row["action"], row["detail"]) for row in rows if row["action"] != "job.create"]


@pytest.mark.rule("rest-210")
@pytest.mark.parametrize(
    ("fields", "action", "cause", "reason"),
    [
        (
            {"abort": [CRITERION | {"action": "PAUSE"}]},
            "job.pause",
            "ABORT_CRITERIA",
            "1 of 1 executions did not succeed; the limit is 50 %",
        ),
        (
            {"abort": [CRITERION | {"action": "CANCEL"}]},
            "job.cancel",
            "ABORT_CRITERIA",
            "1 of 1 executions did not succeed; the limit is 50 %",
        ),
        (
            {"waves": [{"count": 1}], "gate": {"successPercent": 90}},
            "job.pause",
            "GATE_FAILED",
            "0 of 1 devices of wave 1 succeeded; 90 % is required",
        ),
        (
            {"waves": [{"count": 1}], "gate": {"pause": True}},
            "job.pause",
            "GATE",
            "wave 1 has ended; resume the job to start the next wave",
        ),
        ({"deadline": "2100-01-01T00:00:00Z"}, "job.cancel", "DEADLINE", "the deadline has passed"),
    ],
)
def test_a_job_that_stops_by_itself_is_in_the_audit_log_once(
    env: JobEnvironment, fields: dict[str, Any], action: str, cause: str, reason: str
) -> None:
    job = env.create_job(env.firmware(), env.devices(3), **fields)["id"]
    first = min(env.rows(job), key=lambda row: row["due"])
    env.set_execution(job, f"bmac-{first['device']:012x}", state="FAILED")
    advance_job_twice(env, job, env.now if "deadline" not in fields else parse_millis(fields["deadline"]))
    assert list_audit_records(env, job) == [("program: service", action, {"cause": cause, "reason": reason})]


@pytest.mark.rule("rest-210")
def test_the_start_of_the_next_wave_is_not_in_the_audit_log(env: JobEnvironment) -> None:
    job = env.create_job(env.firmware(), env.devices(2), waves=[{"count": 1}])["id"]
    first = min(env.rows(job), key=lambda row: row["due"])
    env.set_execution(job, f"bmac-{first['device']:012x}", state="SUCCEEDED")
    advance_job_twice(env, job, env.now)
    assert env.row(job)["wave"] == 1
    assert list_audit_records(env, job) == []
