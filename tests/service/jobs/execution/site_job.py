"""A job for a whole estate, and what must be true of it when it is over, whoever was killed meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.cli.programs import TEST_TIMEOUT
from tests.eventually import eventually_async
from tests.service.jobs.execution.emulated_site import MODEL

if TYPE_CHECKING:
    from tests.scenarios.update_site import OperatorClient
    from tests.service.jobs.execution.emulated_site import EmulatedSite

NEW = "9.1.0"


async def create_job(
    estate: EmulatedSite,
    desk: OperatorClient,
    method: str,
    *,
    per_gateway: int = 4,
    **wishes: dict[str, float],
) -> str:
    """Make the job, as soon as all devices are known; its id."""

    async def are_known() -> bool:
        return len(await desk.list_device_ids(MODEL)) >= estate.size

    await eventually_async(are_known, "the service hears of all devices", patience=TEST_TIMEOUT)
    firmware = await desk.upload(MODEL, NEW)
    order = {
        "name": "all",
        "firmwareId": firmware,
        "targets": {"filter": {"ModelNumber": MODEL}},
        "method": method,
        "concurrency": {"perGateway": per_gateway},
        "retry": {"max": 5, "backoffSeconds": 1},
        "health": {"heartbeats": 1},
    } | wishes
    job: str = (await desk.call("POST", "/api/v1/jobs", order))["id"]
    return job


async def check_finished_job(estate: EmulatedSite, desk: OperatorClient, job: str) -> None:
    """Wait for its end: all is well, and nobody did more than was needed."""
    told = await desk.wait_until_finished(job, within=240)
    executions = await desk.executions(job)
    assert len(executions) == estate.size
    assert {each["state"] for each in executions.values()} == {"SUCCEEDED"}, told["counts"]
    assert {state: count for state, count in told["counts"].items() if count} == {"SUCCEEDED": estate.size}
    assert told["outcome"] == "SUCCEEDED"
    assert set(estate.versions().values()) == {NEW}
    for device, each in executions.items():
        assert estate.count_done(device) == 1, device
        # Only what has failed is begun anew: if nobody heard the first answer, within one attempt.
        assert estate.count_started(device) == estate.count_failed(device) + 1, (device, each)
        _check_evidence(await desk.call("GET", f"/api/v1/jobs/{job}/executions/{device}"))


def _check_evidence(shown: Any) -> None:
    last = shown["transitions"][-1]
    assert last["to"] == "SUCCEEDED"
    assert last["evidence"]["content"] == {"step": "version", "status": 0, "value": "090100"}
