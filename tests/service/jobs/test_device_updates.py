"""Tests of the updates of one device: its executions in open jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from meshfleet.rest.jobs import DeviceUpdatePage

if TYPE_CHECKING:
    import httpx

    from tests.service.jobs.job_environment import JobEnvironment


def get_updates(env: JobEnvironment, device: str, **query: Any) -> httpx.Response:
    return env.service.viewer.get(f"/api/v1/devices/{device}/updates", params=query)


def list_updates(env: JobEnvironment, device: str) -> list[dict[str, Any]]:
    response = get_updates(env, device)
    assert response.status_code == 200, response.text
    msgspec.json.decode(response.content, type=DeviceUpdatePage)
    assert response.json()["nextToken"] is None
    updates_found: list[dict[str, Any]] = response.json()["items"]
    return updates_found


@pytest.mark.rule("rest-211")
def test_the_updates_of_a_device_are_listed_newest_job_first(env: JobEnvironment) -> None:
    device, other = env.devices(2)
    first = env.create_job(env.firmware(), [device, other], name="First")["id"]
    env.create_job(env.firmware(), [other], name="Of another")
    second = env.create_job(env.firmware("3.5.0"), [device], name="Second", autoApply=False)["id"]
    env.set_execution(first, device, attempt=2, waiting="back-off", reason="it failed", code="STALLED")
    updates_found = list_updates(env, device)
    assert [(each["jobId"], each["jobName"], each["jobState"]) for each in updates_found] == [
        (second, "Second", "CREATED"),
        (first, "First", "IN_PROGRESS"),
    ]
    for each in updates_found:
        execution_fields = {
            name: value for name, value in each.items() if name not in {"jobId", "jobName", "jobState"}
        }
        assert execution_fields == env.executions(each["jobId"])[device]
    assert updates_found[1]["waitingFor"].endswith("; last error: it failed")


@pytest.mark.rule("rest-211")
def test_a_finished_job_is_not_listed(env: JobEnvironment) -> None:
    device = env.device()
    job = env.create_job(env.firmware(), [device])["id"]
    assert len(list_updates(env, device)) == 1
    env.set_job(job, state="COMPLETED", finished_at=env.now)
    assert list_updates(env, device) == []


@pytest.mark.rule("rest-211", "rest-16")
def test_updates_are_paginated(env: JobEnvironment) -> None:
    device = env.device()
    jobs = [env.create_job(env.firmware(), [device])["id"] for _ in range(3)]
    first = get_updates(env, device, MaxResults=2).json()
    last = get_updates(env, device, MaxResults=2, NextToken=first["nextToken"]).json()
    assert [each["jobId"] for each in first["items"] + last["items"]] == jobs[::-1]
    assert last["nextToken"] is None


@pytest.mark.rule("rest-211")
def test_the_updates_of_an_unknown_device_are_not_found(env: JobEnvironment) -> None:
    assert get_updates(env, "bmac-0123456789ab").status_code == 404
    assert get_updates(env, "nonsense").status_code == 404
