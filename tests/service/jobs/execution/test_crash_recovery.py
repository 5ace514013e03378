"""The service is killed at any moment of a job: no device is updated twice, and the job ends as it should."""

from __future__ import annotations

import asyncio
import random
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from tests.databases import create_database
from tests.eventually import eventually_async
from tests.scenarios.service_process import ServiceProcess, loopback_options
from tests.scenarios.update_site import OperatorClient
from tests.service.jobs.execution.emulated_site import EmulatedSite
from tests.service.jobs.execution.site_job import check_finished_job, create_job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.rule("rest-142", "rest-143", "rest-144")]

KILLS, FEW_KILLS = 4, 2
OUTAGE = 25
"""Seconds after which clocks are moved, and some more."""
_numbers = count(1)


@pytest.fixture
def service(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> Iterator[ServiceProcess]:
    given = loopback_options("--mqtt")
    if kind == "postgresql":
        server: str = request.getfixturevalue("postgresql_server")
        given += ["--database", create_database(server, f"job_killed_{next(_numbers)}")]
    with ServiceProcess(tmp_path, *given) as running:
        yield running


@pytest.mark.part("long")
@pytest.mark.rule("firmware-39", "firmware-40")
@pytest.mark.parametrize("kind", ["sqlite"])
async def test_updates_outlive_an_outage_that_is_longer_than_their_clocks(service: ServiceProcess) -> None:
    """Nothing may stand still for six seconds, and there is one attempt: whoever is given up has failed."""
    estate, desk = EmulatedSite(service, devices=3, speed=20.0), OperatorClient(service)
    async with estate.running():
        job = await create_job(
            estate, desk, "download", timeouts={"stepMinutes": 0.1}, retry={"max": 0, "backoffSeconds": 1}
        )

        async def are_under_way() -> bool:
            return all(each["progress"] for each in (await desk.executions(job)).values())

        await eventually_async(are_under_way, "all transfers begin")
        await asyncio.to_thread(service.kill)
        await asyncio.sleep(OUTAGE)
        await asyncio.to_thread(service.start)
        await check_finished_job(estate, desk, job)


@pytest.mark.parametrize(
    ("kind", "method", "size", "kills"),
    [
        ("sqlite", "download", {"devices": 4}, FEW_KILLS),
        pytest.param("sqlite", "download", {}, KILLS, marks=pytest.mark.part("long")),
        pytest.param("postgresql", "broadcast", {}, KILLS, marks=pytest.mark.part("long")),
        # A gateway sends to one after the other. And slower, for nobody waits in DFU mode for long.
        pytest.param(
            "sqlite", "nordic-dfu", {"devices": 4, "speed": 20.0}, KILLS, marks=pytest.mark.part("long")
        ),
    ],
)
async def test_a_job_survives_kills_of_the_service(
    service: ServiceProcess, method: str, size: dict[str, Any], kills: int
) -> None:
    estate, desk = EmulatedSite(service, **size), OperatorClient(service)
    chance = random.Random(len(method))  # noqa: S311 # no secret
    async with estate.running():
        job = await create_job(estate, desk, method)
        for _ in range(kills):
            await asyncio.sleep(chance.uniform(0.2, 2.5))  # at any moment
            await asyncio.to_thread(service.kill)
            await asyncio.to_thread(service.start)
        await check_finished_job(estate, desk, job)
