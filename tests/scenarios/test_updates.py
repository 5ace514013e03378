"""Updates of a fleet by all three methods, with devices that fail and devices that do not respond."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from tests.eventually import eventually_async
from tests.scenarios.service_process import ServiceProcess, loopback_options
from tests.scenarios.update_site import (
    BROKEN,
    BY_BROADCAST,
    BY_DFU,
    BY_DOWNLOAD,
    FAILING,
    HEALTHY,
    MODELS,
    SILENT,
    OperatorClient,
    UpdateSite,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

NEW_VERSION = "9.1.0"
METHODS = {BY_DOWNLOAD: "download", BY_BROADCAST: "broadcast", BY_DFU: "nordic-dfu"}

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.rule("firmware-20", "firmware-31", "firmware-32", "firmware-33", "firmware-34"),
]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(tmp_path, *loopback_options("--mqtt")) as running:
        yield running


LONG_TIMEOUTS = {"stepMinutes": 1, "totalMinutes": 5}
"""For devices that all respond: none may time out, however busy the machine is."""
SHORT_TIMEOUTS = {"stepMinutes": 0.1, "totalMinutes": 1}
"""For devices of which some never respond."""


def build_job(model: str, firmware: str, timeouts: Mapping[str, float]) -> dict[str, Any]:
    """Build the body of a job as an operator would write it."""
    return {
        "name": f"{model} to {NEW_VERSION}",
        "firmwareId": firmware,
        "targets": {"filter": {"ModelNumber": model}},
        "method": METHODS[model] if model == BY_BROADCAST else None,
        "concurrency": {"perGateway": None},
        "retry": {"max": 1, "backoffSeconds": 1},
        "health": {"heartbeats": 2},
        "timeouts": {"queueMinutes": 5, **timeouts},
    }


FEW_DEVICES = {
    HEALTHY: {BY_DOWNLOAD: 2, BY_BROADCAST: 3, BY_DFU: 1},
    BROKEN: {BY_DOWNLOAD: 2, BY_BROADCAST: 2},
}
PER_GATEWAY = {BY_DOWNLOAD: 8, BY_BROADCAST: 8, BY_DFU: 6}
SIXTY_DEVICES = {HEALTHY: PER_GATEWAY, FAILING: PER_GATEWAY, SILENT: {BY_DOWNLOAD: 8, BY_BROADCAST: 8}}


@pytest.mark.part("long")
async def test_devices_of_three_models_are_updated_by_three_methods(service: ServiceProcess) -> None:
    """Expect that all updates behind one gateway fail, and all others succeed."""
    outcomes = await update(service, UpdateSite(service, FEW_DEVICES), LONG_TIMEOUTS)
    assert outcomes == {(HEALTHY, "SUCCEEDED"), (BROKEN, "FAILED")}


@pytest.mark.part("long")
async def test_sixty_devices_are_updated_though_some_fail_and_some_do_not_respond(
    service: ServiceProcess,
) -> None:
    """Expect that devices that do not respond time out after a minute, the shortest possible time."""
    outcomes = await update(service, UpdateSite(service, SIXTY_DEVICES), SHORT_TIMEOUTS)
    assert {(FAILING, "FAILED"), (SILENT, "TIMED_OUT")} <= outcomes, "no update failed, or none timed out"


async def update(
    service: ServiceProcess, site: UpdateSite, timeouts: Mapping[str, float]
) -> set[tuple[str, str]]:
    """Update all devices and check all results. Return the gateways with the states that occurred there."""
    operator = OperatorClient(service)
    async with site.running():

        async def are_all_registered() -> bool:
            return all(
                [len(await operator.list_device_ids(model)) >= count for model, count in site.counts.items()]
            )

        await eventually_async(are_all_registered)
        firmware = {model: await operator.upload(model, NEW_VERSION) for model in MODELS}
        jobs = {
            model: (await operator.call("POST", "/api/v1/jobs", build_job(model, firmware[model], timeouts)))[
                "id"
            ]
            for model in MODELS
        }
        finished_jobs = {
            model: await operator.wait_until_finished(job, within=300) for model, job in jobs.items()
        }
        executions = {model: await operator.executions(job) for model, job in jobs.items()}
        outcomes = {
            (each["gateway"], each["state"])
            for by_device in executions.values()
            for each in by_device.values()
        }
        for model in MODELS:
            check(site, finished_jobs[model], executions[model], model)
            await check_registry(operator, model, executions[model])
        await check_evidence(operator, jobs[BY_DFU], executions[BY_DFU])
        await check_deletion(service, operator, list(jobs.values()))
    return outcomes


async def check_deletion(service: ServiceProcess, operator: OperatorClient, jobs: list[str]) -> None:
    """Check that nothing is left of deleted jobs, while the service runs."""
    assert await asyncio.to_thread(count_job_rows, service) > 0
    for job in jobs:
        await operator.call("DELETE", f"/api/v1/jobs/{job}")
    assert (await operator.call("GET", "/api/v1/jobs"))["items"] == []

    await eventually_async(lambda: count_job_rows(service) == 0)


def count_job_rows(service: ServiceProcess) -> int:
    """Count the rows of all job tables in the database of a service."""
    tables = ("job", "job_draft", "execution", "tally", "transition", "evidence", "job_outbox")
    file = service.data / "meshfleet.sqlite"
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        counts = [connection.execute(f"SELECT count(*) FROM {each}").fetchone()[0] for each in tables]  # noqa: S608 # constant table names
    return sum(counts)


def check(site: UpdateSite, job: Any, executions: dict[str, Any], model: str) -> None:
    """Check that the job, its counts and its reasons match the devices."""
    states = Counter(each["state"] for each in executions.values())
    assert {state: count for state, count in job["counts"].items() if count} == states
    assert sum(states.values()) == site.counts[model]
    assert job["state"] == "COMPLETED"
    assert job["outcome"] == ("SUCCEEDED" if set(states) == {"SUCCEEDED"} else "PARTIAL"), states
    actual_versions = site.actual_versions(model)
    for device, each in executions.items():
        assert each["method"] == METHODS[model]
        assert (each["state"] == "SUCCEEDED") <= (actual_versions[device] == NEW_VERSION), (
            each,
            actual_versions[device],
        )
        assert (each["state"] == "SUCCEEDED") == (each["reason"] is None), each
        assert each["waitingFor"] is None
        if each["state"] != "SUCCEEDED":
            assert each["gateway"] in {FAILING, SILENT, BROKEN}, each
            assert each["reasonCode"], each


async def check_registry(operator: OperatorClient, model: str, executions: dict[str, Any]) -> None:
    """Check that the device list shows the new version of all updated devices."""
    updated = {device for device, each in executions.items() if each["state"] == "SUCCEEDED"}
    assert updated

    async def are_all_listed() -> bool:
        return updated <= set(await operator.list_device_ids(model, NEW_VERSION))

    await eventually_async(are_all_listed)


async def check_evidence(operator: OperatorClient, job: str, executions: dict[str, Any]) -> None:
    """Check that a successful execution has evidence of the version and of DFU mode."""
    device = next(device for device, each in executions.items() if each["state"] == "SUCCEEDED")
    execution = await operator.call("GET", f"/api/v1/jobs/{job}/executions/{device}")
    last = execution["transitions"][-1]
    assert last["to"] == "SUCCEEDED"
    assert last["evidence"]["content"] == {"step": "version", "status": 0, "value": "090100"}
    assert "dfu" in {each["kind"] for each in execution["evidence"]}
