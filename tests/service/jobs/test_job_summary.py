"""The executions of a job, counted: all ways of counting add up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from meshfleet.rest import JobSummary
from tests.service.jobs.job_environment import JOBS

if TYPE_CHECKING:
    from tests.service.jobs.job_environment import JobEnvironment


def summary(shop: JobEnvironment, job: str) -> JobSummary:
    answer = shop.service.viewer.get(f"{JOBS}/{job}/summary")
    assert answer.status_code == 200, answer.text
    return msgspec.json.decode(answer.content, type=JobSummary)


@pytest.mark.rule("rest-207")
def test_executions_are_counted_by_reason_and_by_gateway(shop: JobEnvironment) -> None:
    one, other = shop.service.new_mac(), shop.service.new_mac()
    here, there = shop.devices(4, gateway=one), shop.devices(3, gateway=other)
    lost = shop.devices(1)
    job = shop.create_job(shop.firmware(), [*here, *there, *lost])["id"]
    for device in (*here[:2], there[0]):
        shop.set_execution(job, device, state="TIMED_OUT", code="STALLED")
    shop.set_execution(job, here[2], state="FAILED", code="BATTERY")
    shop.set_execution(job, here[3], state="SUCCEEDED", code="STALLED")  # at a first try
    shop.set_execution(job, lost[0], state="CANCELED", gateway=None, code="CANCELED")
    told = summary(shop, job)
    assert [(each.state, each.reason_code, each.count) for each in told.failures] == [
        ("TIMED_OUT", "STALLED", 3),
        ("FAILED", "BATTERY", 1),
    ]
    assert [(each.gateway, each.counts) for each in told.gateways] == [
        (other, {"TIMED_OUT": 1, "QUEUED": 2}),  # there is something left to do
        (one, {"TIMED_OUT": 2, "FAILED": 1, "SUCCEEDED": 1}),
        (None, {"CANCELED": 1}),
    ]
    assert told.gateway_count == 2
    counted = sum(sum(each.counts.values()) for each in told.gateways)
    assert counted == sum(shop.get_job(job)["counts"].values())
    assert msgspec.json.decode(msgspec.json.encode(told.job)) == shop.get_job(job)


@pytest.mark.rule("rest-207", "rest-133")
def test_what_is_waited_for_is_counted_as_the_executions_tell_it(shop: JobEnvironment) -> None:
    devices = shop.devices(5)
    waves = [{"count": 3}, {"percent": 100}]
    job = shop.create_job(shop.firmware(), devices, waves=waves)["id"]
    first = [f"bmac-{row['device']:012x}" for row in shop.rows(job) if row["wave"] == 0]
    shop.set_execution(job, first[0], waiting="gateway-offline")
    shop.set_execution(job, first[1], waiting="gateway-offline")
    told = summary(shop, job).waiting
    assert told == {"gateway-offline": 2, "wave": 2, "rate": 1}
    words = [each["waitingFor"].split(":")[0] for each in shop.executions(job).values()]
    assert told == {word: words.count(word) for word in words}
    shop.run_command("pause", job)
    assert summary(shop, job).waiting == {"paused": 5}


@pytest.mark.rule("rest-207")
def test_of_many_gateways_the_busiest_are_told(shop: JobEnvironment) -> None:
    devices = [shop.device(gateway=shop.service.new_mac()) for _ in range(101)]
    job = shop.create_job(shop.firmware(), devices)["id"]
    shop.set_execution(job, devices[7], state="SUCCEEDED")
    told = summary(shop, job)
    assert told.gateway_count == 101
    assert len(told.gateways) == 100
    assert all(each.counts == {"QUEUED": 1} for each in told.gateways)


@pytest.mark.rule("rest-207", "rest-199", "rest-140")
def test_who_was_left_out_is_counted_apart(shop: JobEnvironment) -> None:
    gateway = shop.service.new_mac()
    kept, newer = shop.devices(2), shop.devices(1, "9.0.0", gateway=gateway)
    meant = shop.devices(3)
    shop.create_job(shop.firmware(), kept, onNewerJob="reject")
    job = shop.create_job(shop.firmware("3.5.0"), [*kept, *newer, *meant])
    assert job["leftOut"] == {"REJECTED": 2, "SKIPPED": 1}
    assert (job["counts"]["REJECTED"], job["counts"]["SKIPPED"], job["counts"]["QUEUED"]) == (2, 1, 3)
    shop.set_execution(job["id"], meant[0], state="REJECTED", code="REFUSED")
    shop.set_execution(job["id"], meant[1], state="SKIPPED", code="ALREADY_THERE")
    told = summary(shop, job["id"])
    assert [(each.state, each.reason_code, each.count) for each in told.left_out] == [
        ("REJECTED", "EARLIER_JOB", 2),
        ("SKIPPED", "DOWNGRADE", 1),
    ]
    assert [(each.state, each.reason_code, each.count) for each in told.failures] == [
        ("REJECTED", "REFUSED", 1)
    ]
    assert sum(sum(each.counts.values()) for each in told.gateways) == 3
    assert gateway not in {each.gateway for each in told.gateways}
    assert set(shop.executions(job["id"], LeftOut="true")) == {*kept, *newer}
    assert set(shop.executions(job["id"], LeftOut="False")) == set(meant)
    assert set(shop.executions(job["id"], LeftOut="true", State="SKIPPED")) == set(newer)
    refused = shop.service.viewer.get(f"{JOBS}/{job['id']}/executions", params={"LeftOut": "1"})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (400, "LeftOut")


def test_there_is_no_summary_of_what_is_not_there(shop: JobEnvironment) -> None:
    for job in ("job-999999", "x"):
        assert shop.service.viewer.get(f"{JOBS}/{job}/summary").status_code == 404
