"""Job for all devices of an emulated site, and the check of its result."""

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
    site: EmulatedSite,
    operator: OperatorClient,
    method: str,
    *,
    per_gateway: int = 4,
    **options: dict[str, float],
) -> str:
    """Create the job as soon as all devices are known. Return its id."""

    async def are_devices_known() -> bool:
        return len(await operator.list_device_ids(MODEL)) >= site.size

    await eventually_async(are_devices_known, "the service knows all devices", patience=TEST_TIMEOUT)
    firmware = await operator.upload(MODEL, NEW)
    body = {
        "name": "all",
        "firmwareId": firmware,
        "targets": {"filter": {"ModelNumber": MODEL}},
        "method": method,
        "concurrency": {"perGateway": per_gateway},
        "retry": {"max": 5, "backoffSeconds": 1},
        "health": {"heartbeats": 1},
    } | options
    job: str = (await operator.call("POST", "/api/v1/jobs", body))["id"]
    return job


async def check_finished_job(site: EmulatedSite, operator: OperatorClient, job: str) -> None:
    """Wait until the job has finished, and check that each device was updated exactly once."""
    job_body = await operator.wait_until_finished(job, within=240)
    executions = await operator.executions(job)
    assert len(executions) == site.size
    assert {each["state"] for each in executions.values()} == {"SUCCEEDED"}, job_body["counts"]
    assert {state: count for state, count in job_body["counts"].items() if count} == {"SUCCEEDED": site.size}
    assert job_body["outcome"] == "SUCCEEDED"
    assert set(site.versions().values()) == {NEW}
    for device, each in executions.items():
        assert site.count_done(device) == 1, device
        # An update starts again only after a failure, possibly within one attempt.
        assert site.count_started(device) == site.count_failed(device) + 1, (device, each)
        _check_evidence(await operator.call("GET", f"/api/v1/jobs/{job}/executions/{device}"))


def _check_evidence(execution: Any) -> None:
    last = execution["transitions"][-1]
    assert last["to"] == "SUCCEEDED"
    assert last["evidence"]["content"] == {"step": "version", "status": 0, "value": "090100"}
