"""Tests with kills of the service during a job: no device is updated twice, and the job succeeds."""

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
"""Seconds of downtime after which timers are moved."""
_numbers = count(1)


@pytest.fixture
def service(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> Iterator[ServiceProcess]:
    options = loopback_options("--mqtt")
    if kind == "postgresql":
        server: str = request.getfixturevalue("postgresql_server")
        options += ["--database", create_database(server, f"job_killed_{next(_numbers)}")]
    with ServiceProcess(tmp_path, *options) as running:
        yield running


@pytest.mark.part("long")
@pytest.mark.rule("firmware-39", "firmware-40")
@pytest.mark.parametrize("kind", ["sqlite"])
async def test_updates_survive_an_outage_that_is_longer_than_their_timeouts(service: ServiceProcess) -> None:
    """Use a step timeout of six seconds and one attempt, so that any timeout is a failure."""
    site, operator = EmulatedSite(service, devices=3, speed=20.0), OperatorClient(service)
    async with site.running():
        job = await create_job(
            site, operator, "download", timeouts={"stepMinutes": 0.1}, retry={"max": 0, "backoffSeconds": 1}
        )

        async def have_transfers_started() -> bool:
            return all(each["progress"] for each in (await operator.executions(job)).values())

        await eventually_async(have_transfers_started, "all transfers start")
        await asyncio.to_thread(service.kill)
        await asyncio.sleep(OUTAGE)
        await asyncio.to_thread(service.start)
        await check_finished_job(site, operator, job)


@pytest.mark.parametrize(
    ("kind", "method", "size", "kills"),
    [
        ("sqlite", "download", {"devices": 4}, FEW_KILLS),
        pytest.param("sqlite", "download", {}, KILLS, marks=pytest.mark.part("long")),
        pytest.param("postgresql", "broadcast", {}, KILLS, marks=pytest.mark.part("long")),
        # A gateway updates one device after another; slower, because devices leave DFU mode by themselves.
        pytest.param(
            "sqlite", "nordic-dfu", {"devices": 4, "speed": 20.0}, KILLS, marks=pytest.mark.part("long")
        ),
    ],
)
async def test_a_job_survives_kills_of_the_service(
    service: ServiceProcess, method: str, size: dict[str, Any], kills: int
) -> None:
    site, operator = EmulatedSite(service, **size), OperatorClient(service)
    rng = random.Random(len(method))  # noqa: S311 # not used for secrets
    async with site.running():
        job = await create_job(site, operator, method)
        for _ in range(kills):
            await asyncio.sleep(rng.uniform(0.2, 2.5))  # at any moment
            await asyncio.to_thread(service.kill)
            await asyncio.to_thread(service.start)
        await check_finished_job(site, operator, job)
