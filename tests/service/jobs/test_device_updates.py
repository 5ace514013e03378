"""The updates of one device: its part in jobs that are not over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from meshfleet.rest import DeviceUpdatePage

if TYPE_CHECKING:
    import httpx

    from tests.service.jobs.job_environment import JobEnvironment


def ask(shop: JobEnvironment, device: str, **query: Any) -> httpx.Response:
    return shop.service.viewer.get(f"/api/v1/devices/{device}/updates", params=query)


def updates(shop: JobEnvironment, device: str) -> list[dict[str, Any]]:
    answer = ask(shop, device)
    assert answer.status_code == 200, answer.text
    msgspec.json.decode(answer.content, type=DeviceUpdatePage)
    assert answer.json()["nextToken"] is None
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


@pytest.mark.rule("rest-211")
def test_a_device_tells_which_jobs_update_it_the_newest_first(shop: JobEnvironment) -> None:
    device, other = shop.devices(2)
    first = shop.create_job(shop.firmware(), [device, other], name="First")["id"]
    shop.create_job(shop.firmware(), [other], name="Of another")
    second = shop.create_job(shop.firmware("3.5.0"), [device], name="Second", autoApply=False)["id"]
    shop.set_execution(first, device, attempt=2, waiting="back-off", reason="it broke off", code="STALLED")
    found = updates(shop, device)
    assert [(each["jobId"], each["jobName"], each["jobState"]) for each in found] == [
        (second, "Second", "CREATED"),
        (first, "First", "IN_PROGRESS"),
    ]
    for each in found:
        shown = {name: value for name, value in each.items() if name not in {"jobId", "jobName", "jobState"}}
        assert shown == shop.executions(each["jobId"])[device]
    assert found[1]["waitingFor"].endswith("; last error: it broke off")


@pytest.mark.rule("rest-211")
def test_a_job_that_is_over_updates_nobody(shop: JobEnvironment) -> None:
    device = shop.device()
    job = shop.create_job(shop.firmware(), [device])["id"]
    assert len(updates(shop, device)) == 1
    shop.set_job(job, state="COMPLETED", finished_at=shop.now)
    assert updates(shop, device) == []


@pytest.mark.rule("rest-211", "rest-16")
def test_updates_come_page_by_page(shop: JobEnvironment) -> None:
    device = shop.device()
    jobs = [shop.create_job(shop.firmware(), [device])["id"] for _ in range(3)]
    first = ask(shop, device, MaxResults=2).json()
    rest = ask(shop, device, MaxResults=2, NextToken=first["nextToken"]).json()
    assert [each["jobId"] for each in first["items"] + rest["items"]] == jobs[::-1]
    assert rest["nextToken"] is None


@pytest.mark.rule("rest-211")
def test_a_device_that_nobody_knows_has_none(shop: JobEnvironment) -> None:
    assert ask(shop, "bmac-0123456789ab").status_code == 404
    assert ask(shop, "nonsense").status_code == 404
