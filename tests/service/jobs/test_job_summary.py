"""Tests of the summary of a job: all its counts add up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from meshfleet.rest.jobs import JobSummary
from tests.service.jobs.job_environment import JOBS

if TYPE_CHECKING:
    from tests.service.jobs.job_environment import JobEnvironment


def load_summary(env: JobEnvironment, job: str) -> JobSummary:
    response = env.service.viewer.get(f"{JOBS}/{job}/summary")
    assert response.status_code == 200, response.text
    return msgspec.json.decode(response.content, type=JobSummary)


@pytest.mark.rule("rest-207")
def test_executions_are_counted_by_reason_and_by_gateway(env: JobEnvironment) -> None:
    one, other = env.service.new_mac(), env.service.new_mac()
    here, there = env.devices(4, gateway=one), env.devices(3, gateway=other)
    without_gateway = env.devices(1)
    job = env.create_job(env.firmware(), [*here, *there, *without_gateway])["id"]
    for device in (*here[:2], there[0]):
        env.set_execution(job, device, state="TIMED_OUT", code="STALLED")
    env.set_execution(job, here[2], state="FAILED", code="BATTERY")
    env.set_execution(job, here[3], state="SUCCEEDED", code="STALLED")  # a code of an earlier attempt
    env.set_execution(job, without_gateway[0], state="CANCELED", gateway=None, code="CANCELED")
    result = load_summary(env, job)
    assert [(each.state, each.reason_code, each.count) for each in result.failures] == [
        ("TIMED_OUT", "STALLED", 3),
        ("FAILED", "BATTERY", 1),
    ]
    assert [(each.gateway, each.counts) for each in result.gateways] == [
        (other, {"TIMED_OUT": 1, "QUEUED": 2}),  # has unfinished executions, so it comes first
        (one, {"TIMED_OUT": 2, "FAILED": 1, "SUCCEEDED": 1}),
        (None, {"CANCELED": 1}),
    ]
    assert result.gateway_count == 2
    total = sum(sum(each.counts.values()) for each in result.gateways)
    assert total == sum(env.get_job(job)["counts"].values())
    assert msgspec.json.decode(msgspec.json.encode(result.job)) == env.get_job(job)


@pytest.mark.rule("rest-207", "rest-133")
def test_what_is_waited_for_is_counted_as_the_executions_tell_it(env: JobEnvironment) -> None:
    devices = env.devices(5)
    waves = [{"count": 3}, {"percent": 100}]
    job = env.create_job(env.firmware(), devices, waves=waves)["id"]
    first = [f"bmac-{row['device']:012x}" for row in env.rows(job) if row["wave"] == 0]
    env.set_execution(job, first[0], waiting="gateway-offline")
    env.set_execution(job, first[1], waiting="gateway-offline")
    result = load_summary(env, job).waiting
    assert result == {"gateway-offline": 2, "wave": 2, "rate": 1}
    reasons = [each["waitingFor"].split(":")[0] for each in env.executions(job).values()]
    assert result == {reason: reasons.count(reason) for reason in reasons}
    env.run_command("pause", job)
    assert load_summary(env, job).waiting == {"paused": 5}


@pytest.mark.rule("rest-207")
def test_of_many_gateways_the_busiest_are_told(env: JobEnvironment) -> None:
    devices = [env.device(gateway=env.service.new_mac()) for _ in range(101)]
    job = env.create_job(env.firmware(), devices)["id"]
    env.set_execution(job, devices[7], state="SUCCEEDED")
    result = load_summary(env, job)
    assert result.gateway_count == 101
    assert len(result.gateways) == 100
    assert all(each.counts == {"QUEUED": 1} for each in result.gateways)


@pytest.mark.rule("rest-207", "rest-199", "rest-140")
def test_who_was_left_out_is_counted_apart(env: JobEnvironment) -> None:
    gateway = env.service.new_mac()
    kept, newer = env.devices(2), env.devices(1, "9.0.0", gateway=gateway)
    meant = env.devices(3)
    env.create_job(env.firmware(), kept, onNewerJob="reject")
    job = env.create_job(env.firmware("3.5.0"), [*kept, *newer, *meant])
    assert job["leftOut"] == {"REJECTED": 2, "SKIPPED": 1}
    assert (job["counts"]["REJECTED"], job["counts"]["SKIPPED"], job["counts"]["QUEUED"]) == (2, 1, 3)
    env.set_execution(job["id"], meant[0], state="REJECTED", code="REFUSED")
    env.set_execution(job["id"], meant[1], state="SKIPPED", code="ALREADY_THERE")
    result = load_summary(env, job["id"])
    assert [(each.state, each.reason_code, each.count) for each in result.left_out] == [
        ("REJECTED", "EARLIER_JOB", 2),
        ("SKIPPED", "DOWNGRADE", 1),
    ]
    assert [(each.state, each.reason_code, each.count) for each in result.failures] == [
        ("REJECTED", "REFUSED", 1)
    ]
    assert sum(sum(each.counts.values()) for each in result.gateways) == 3
    assert gateway not in {each.gateway for each in result.gateways}
    assert set(env.executions(job["id"], LeftOut="true")) == {*kept, *newer}
    assert set(env.executions(job["id"], LeftOut="False")) == set(meant)
    assert set(env.executions(job["id"], LeftOut="true", State="SKIPPED")) == set(newer)
    refused = env.service.viewer.get(f"{JOBS}/{job['id']}/executions", params={"LeftOut": "1"})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (400, "LeftOut")


def test_there_is_no_summary_of_what_is_not_there(env: JobEnvironment) -> None:
    for job in ("job-999999", "x"):
        assert env.service.viewer.get(f"{JOBS}/{job}/summary").status_code == 404
