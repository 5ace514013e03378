"""Samples in a real InfluxDB: all of them, once, whatever is killed."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import pytest

from tests.databases import create_database
from tests.eventually import eventually
from tests.integrations.influx_server import InfluxServer
from tests.scenarios.report_load import ReportLoad
from tests.scenarios.service_process import ServiceProcess, loopback_options

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.part("integrations"), pytest.mark.both_databases]

SAMPLES = 100_000
KILLS = 10
PATIENCE = 180.0
"""Seconds until all samples must have arrived; reached only by a defect."""


@pytest.fixture
def influx(tmp_path: Path) -> Iterator[InfluxServer]:
    with InfluxServer(tmp_path / "influx") as server:
        yield server


@pytest.fixture
def service(
    request: pytest.FixtureRequest, database_kind: str, tmp_path: Path, influx: InfluxServer
) -> Iterator[ServiceProcess]:
    options = [*loopback_options("--mqtt"), "--influx-url", influx.url]
    if database_kind == "postgresql":
        server: str = request.getfixturevalue("postgresql_server")
        options += ["--database", create_database(server, "influx")]
    with ServiceProcess(tmp_path, *options) as running:
        yield running


async def test_every_sample_arrives_once_although_both_are_killed_repeatedly(
    service: ServiceProcess, influx: InfluxServer
) -> None:
    gateways = [service.claim(f"02005e00000{number}") for number in range(1, 3)]
    load = ReportLoad(service.mqtt["mqtt"], gateways)
    async with load:
        for number in range(1, KILLS + 1):
            while load.acknowledged < SAMPLES * 1.15 * number / KILLS:  # every tenth is published twice
                await load.wait_for_acks()
            await asyncio.to_thread(influx.stop, signal.SIGKILL)
            await load.wait_for_acks()
            await asyncio.to_thread(service.kill)
            await asyncio.to_thread(service.start)
            await load.wait_for_acks()
            await asyncio.to_thread(influx.start)
        await load.wait_for_acks()
    expected = sum(len(samples) for source in load.sources for samples in source.expected.values())
    assert expected >= SAMPLES
    eventually(lambda: influx.count_values() >= expected, "all samples", patience=PATIENCE)
    assert influx.count_values() == expected
