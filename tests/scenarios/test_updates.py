"""A fleet is updated in all three ways, with devices among it that fail and that do not answer."""

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

NEW = "9.1.0"
WAYS = {BY_DOWNLOAD: "download", BY_BROADCAST: "broadcast", BY_DFU: "nordic-dfu"}

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.rule("firmware-20", "firmware-31", "firmware-32", "firmware-33", "firmware-34"),
]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(tmp_path, *loopback_options("--mqtt")) as running:
        yield running


PATIENT = {"stepMinutes": 1, "totalMinutes": 5}
"""For devices that all answer: none is given up, however busy the machine is."""
SHORT = {"stepMinutes": 0.1, "totalMinutes": 1}
"""For devices of which some never answer, and are waited for in vain."""


def order(model: str, firmware: str, minutes: Mapping[str, float]) -> dict[str, Any]:
    """An order as an operator would write it, with so many minutes."""
    return {
        "name": f"{model} to {NEW}",
        "firmwareId": firmware,
        "targets": {"filter": {"ModelNumber": model}},
        "method": WAYS[model] if model == BY_BROADCAST else None,
        "concurrency": {"perGateway": None},
        "retry": {"max": 1, "backoffSeconds": 1},
        "health": {"heartbeats": 2},
        "timeouts": {"queueMinutes": 5, **minutes},
    }


FEW = {HEALTHY: {BY_DOWNLOAD: 2, BY_BROADCAST: 3, BY_DFU: 1}, BROKEN: {BY_DOWNLOAD: 2, BY_BROADCAST: 2}}
EACH = {BY_DOWNLOAD: 8, BY_BROADCAST: 8, BY_DFU: 6}
SIXTY = {HEALTHY: EACH, FAILING: EACH, SILENT: {BY_DOWNLOAD: 8, BY_BROADCAST: 8}}


async def test_devices_of_three_models_are_updated_in_three_ways(service: ServiceProcess) -> None:
    """Whatever one gateway updates fails, in one way or another; all others are updated."""
    ends = await update(service, UpdateSite(service, FEW), PATIENT)
    assert ends == {(HEALTHY, "SUCCEEDED"), (BROKEN, "FAILED")}


@pytest.mark.part("long")
async def test_sixty_devices_are_updated_though_some_fail_and_some_do_not_answer(
    service: ServiceProcess,
) -> None:
    """Whoever does not answer is given up after a minute, the least that an order may say."""
    ends = await update(service, UpdateSite(service, SIXTY), SHORT)
    assert {(FAILING, "FAILED"), (SILENT, "TIMED_OUT")} <= ends, "nobody failed, or nobody was silent"


async def update(
    service: ServiceProcess, estate: UpdateSite, minutes: Mapping[str, float]
) -> set[tuple[str, str]]:
    """Update all devices, and see that all is told as it is; give where which ends were seen."""
    desk = OperatorClient(service)
    async with estate.running():

        async def all_are_known() -> bool:
            return all(
                [len(await desk.list_device_ids(model)) >= count for model, count in estate.counts.items()]
            )

        await eventually_async(all_are_known)
        firmware = {model: await desk.upload(model, NEW) for model in MODELS}
        jobs = {
            model: (await desk.call("POST", "/api/v1/jobs", order(model, firmware[model], minutes)))["id"]
            for model in MODELS
        }
        told = {model: await desk.wait_until_finished(job, within=300) for model, job in jobs.items()}
        executions = {model: await desk.executions(job) for model, job in jobs.items()}
        ends = {(each["gateway"], each["state"]) for told in executions.values() for each in told.values()}
        for model in MODELS:
            check(estate, told[model], executions[model], model)
            await check_registry(desk, model, executions[model])
        await check_evidence(desk, jobs[BY_DFU], executions[BY_DFU])
        await check_deletion(service, desk, list(jobs.values()))
    return ends


async def check_deletion(service: ServiceProcess, desk: OperatorClient, jobs: list[str]) -> None:
    """Nothing is left of jobs that are deleted, while the service runs."""
    assert await asyncio.to_thread(rows_of_jobs, service) > 0
    for job in jobs:
        await desk.call("DELETE", f"/api/v1/jobs/{job}")
    assert (await desk.call("GET", "/api/v1/jobs"))["items"] == []

    await eventually_async(lambda: rows_of_jobs(service) == 0)


def rows_of_jobs(service: ServiceProcess) -> int:
    """How many rows of jobs the database of a service has."""
    tables = ("job", "job_draft", "execution", "tally", "transition", "evidence", "job_outbox")
    file = service.data / "meshfleet.sqlite"
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        counts = [connection.execute(f"SELECT count(*) FROM {each}").fetchone()[0] for each in tables]  # noqa: S608 # our own names
    return sum(counts)


def check(estate: UpdateSite, job: Any, executions: dict[str, Any], model: str) -> None:
    """Job, counts and reasons tell what is true of the devices."""
    states = Counter(each["state"] for each in executions.values())
    assert {state: count for state, count in job["counts"].items() if count} == states
    assert sum(states.values()) == estate.counts[model]
    assert job["state"] == "COMPLETED"
    assert job["outcome"] == ("SUCCEEDED" if set(states) == {"SUCCEEDED"} else "PARTIAL"), states
    runs = estate.actual_versions(model)
    for device, each in executions.items():
        assert each["method"] == WAYS[model]
        assert (each["state"] == "SUCCEEDED") <= (runs[device] == NEW), (each, runs[device])
        assert (each["state"] == "SUCCEEDED") == (each["reason"] is None), each
        assert each["waitingFor"] is None
        if each["state"] != "SUCCEEDED":
            assert each["gateway"] in {FAILING, SILENT, BROKEN}, each
            assert each["reasonCode"], each


async def check_registry(desk: OperatorClient, model: str, executions: dict[str, Any]) -> None:
    """The list of devices shows the new version for all that have it."""
    done = {device for device, each in executions.items() if each["state"] == "SUCCEEDED"}
    assert done

    async def all_are_shown() -> bool:
        return done <= set(await desk.list_device_ids(model, NEW))

    await eventually_async(all_are_shown)


async def check_evidence(desk: OperatorClient, job: str, executions: dict[str, Any]) -> None:
    """Whoever succeeded has shown its version, and was seen in DFU mode on the way."""
    device = next(device for device, each in executions.items() if each["state"] == "SUCCEEDED")
    shown = await desk.call("GET", f"/api/v1/jobs/{job}/executions/{device}")
    last = shown["transitions"][-1]
    assert last["to"] == "SUCCEEDED"
    assert last["evidence"]["content"] == {"step": "version", "status": 0, "value": "090100"}
    assert "dfu" in {each["kind"] for each in shown["evidence"]}
