"""The service is killed at any moment of a job: no device is updated twice, and the job ends as it should."""

from __future__ import annotations

import asyncio
import random
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.outside import PATIENCE
from tests.databases import make_database
from tests.scenarios.serving import Service, loopback
from tests.scenarios.updating import Desk
from tests.service.jobs.engine.estate import DEVICES, MODEL, Estate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.rule("rest-142", "rest-143", "rest-144")]

NEW = "9.1.0"
KILLS = 4
_numbers = count(1)


@pytest.fixture
def service(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> Iterator[Service]:
    given = loopback("--mqtt")
    if kind == "postgresql":
        server: str = request.getfixturevalue("postgresql_server")
        given += ["--database", make_database(server, f"job_killed_{next(_numbers)}")]
    with Service(tmp_path, *given) as running:
        yield running


def order(firmware: str, method: str) -> dict[str, Any]:
    return {
        "name": "all",
        "firmwareId": firmware,
        "targets": {"filter": {"ModelNumber": MODEL}},
        "method": method,
        "concurrency": {"perGateway": 4},
        "retry": {"max": 5, "backoffSeconds": 1},
        "health": {"heartbeats": 1},
    }


@pytest.mark.parametrize(("kind", "method"), [("sqlite", "download"), ("postgresql", "broadcast")])
async def test_a_job_survives_kills_of_the_service(service: Service, method: str) -> None:
    estate, desk = Estate(service), Desk(service)
    chance = random.Random(len(method))  # noqa: S311 # no secret
    async with estate.life():
        async with asyncio.timeout(PATIENCE):
            while len(await desk.known(MODEL)) < 2 * DEVICES:  # noqa: ASYNC110 # the service knows nothing of tests
                await asyncio.sleep(0.2)
        firmware = await desk.upload(MODEL, NEW)
        job = (await desk.ask("POST", "/api/v1/jobs", order(firmware, method)))["id"]
        for _ in range(KILLS):
            await asyncio.sleep(chance.uniform(0.2, 2.5))  # at any moment
            await asyncio.to_thread(service.kill)
            await asyncio.to_thread(service.start)
        told = await desk.finished(job, within=240)
        executions = await desk.executions(job)
        check(estate, told, executions)
        for device in executions:
            shown = await desk.ask("GET", f"/api/v1/jobs/{job}/executions/{device}")
            check_evidence(shown)


def check(estate: Estate, job: Any, executions: dict[str, Any]) -> None:
    """All is well, and nobody did more than was needed."""
    assert len(executions) == 2 * DEVICES
    assert {each["state"] for each in executions.values()} == {"SUCCEEDED"}, job["counts"]
    assert job["outcome"] == "SUCCEEDED"
    assert set(estate.versions().values()) == {NEW}
    for device, each in executions.items():
        assert estate.done(device) == 1, device
        assert estate.begun(device) <= each["attempt"], (device, each)


def check_evidence(shown: Any) -> None:
    last = shown["transitions"][-1]
    assert last["to"] == "SUCCEEDED"
    assert last["evidence"]["content"] == {"step": "version", "status": 0, "value": "090100"}
