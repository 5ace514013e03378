"""What a job does by itself is in the audit log, as what people do to it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.times import parse_millis
from meshfleet.service.clock import Moment
from meshfleet.service.jobs.execution import job_scheduler
from meshfleet.service.jobs.execution.queries import JobSpecCache
from tests.service.jobs.job_environment import job_number

if TYPE_CHECKING:
    from tests.service.jobs.job_environment import JobEnvironment

FAILING: dict[str, Any] = {"minExecuted": 1, "percent": 50}


def let_step(shop: JobEnvironment, job: str, at: int) -> None:
    """Let a job do what it is time for, and then look again: nothing is noted twice."""
    for _ in range(2):
        shop.service.database.write_now(
            job_scheduler.advance_job, JobSpecCache(), job_number(job), Moment(at, at)
        )


def noted(shop: JobEnvironment, job: str) -> list[tuple[str, str, dict[str, Any]]]:
    """By whom, what, and what is told of it, but for who made the job; the newest first."""
    rows = shop.service.admin.get("/api/v1/audit", params={"Target": job}).json()["items"]
    return [(row["actor"], row["action"], row["detail"]) for row in rows if row["action"] != "job.create"]


@pytest.mark.rule("rest-210")
@pytest.mark.parametrize(
    ("order", "action", "cause", "reason"),
    [
        (
            {"abort": [FAILING | {"action": "PAUSE"}]},
            "job.pause",
            "ABORT_CRITERIA",
            "1 of 1 executions did not succeed; the limit is 50 %",
        ),
        (
            {"abort": [FAILING | {"action": "CANCEL"}]},
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
    shop: JobEnvironment, order: dict[str, Any], action: str, cause: str, reason: str
) -> None:
    job = shop.create_job(shop.firmware(), shop.devices(3), **order)["id"]
    first = min(shop.rows(job), key=lambda row: row["due"])
    shop.set_execution(job, f"bmac-{first['device']:012x}", state="FAILED")
    let_step(shop, job, shop.now if "deadline" not in order else parse_millis(order["deadline"]))
    assert noted(shop, job) == [("program: service", action, {"cause": cause, "reason": reason})]


@pytest.mark.rule("rest-210")
def test_what_a_job_does_on_its_way_is_no_change_of_it(shop: JobEnvironment) -> None:
    job = shop.create_job(shop.firmware(), shop.devices(2), waves=[{"count": 1}])["id"]
    first = min(shop.rows(job), key=lambda row: row["due"])
    shop.set_execution(job, f"bmac-{first['device']:012x}", state="SUCCEEDED")
    let_step(shop, job, shop.now)
    assert shop.row(job)["wave"] == 1
    assert noted(shop, job) == []
