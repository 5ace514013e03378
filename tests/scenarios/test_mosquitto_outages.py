"""Mosquitto between gateways and the service: acknowledged reports survive stops and kills."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.cli.programs import broker_url
from tests.scenarios.report_load import PahoGateway, ReportLoad
from tests.scenarios.service_process import ServiceProcess
from tests.scenarios.stored_samples import check_stored_samples
from tests.servers import Mosquitto, PostgreSQL, postgresql_directory
from tests.service.embedded_broker.mqtt_accounts import Credentials
from tests.service.embedded_broker.running_broker import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

ONE, TWO, THREE = (Credentials(f"02005e00000{number}", "any") for number in range(1, 4))
PERSISTENT_SETTINGS = ("persistence true", "max_inflight_messages 2000", "max_queued_messages 0")


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    directory = tmp_path / "mosquitto"
    directory.mkdir()
    with Mosquitto(directory, *PERSISTENT_SETTINGS) as running:
        yield running


@pytest.mark.rule("broker-22")
async def test_no_report_is_lost_when_mosquitto_is_stopped_or_the_service_killed_or_both(
    tmp_path: Path, mosquitto: Mosquitto
) -> None:
    with ServiceProcess(tmp_path, "--broker", broker_url(mosquitto)) as service:
        await until(service.is_ready)
        address = mosquitto.address
        async with ReportLoad(address, [ONE, TWO]) as load, PahoGateway(address, THREE) as other:
            await load.wait_for_acks()
            await asyncio.to_thread(mosquitto.stop)
            await asyncio.to_thread(mosquitto.start)
            await load.wait_for_acks()
            await asyncio.to_thread(service.kill)
            await load.wait_for_acks()
            await asyncio.to_thread(service.start)
            await load.wait_for_acks()
            await asyncio.to_thread(service.kill)
            await asyncio.to_thread(mosquitto.stop)
            await asyncio.to_thread(mosquitto.start)
            await load.wait_for_acks()
            await asyncio.to_thread(service.start)
            await load.wait_for_acks()
        check_stored_samples(service, [*load.sources, other.source])
        assert service.is_ready()


@pytest.mark.rule("broker-22", "rest-160")
async def test_reports_are_queued_in_mosquitto_while_the_database_is_stopped(
    tmp_path: Path, mosquitto: Mosquitto
) -> None:
    """Stop the database twice: first the service recovers by itself, then it is killed meanwhile."""
    with postgresql_directory() as directory, PostgreSQL(directory) as server:
        options = ["--broker", broker_url(mosquitto), "--database", f"{server.url}/postgres"]
        with ServiceProcess(tmp_path, *options) as service:
            await until(service.is_ready)
            async with ReportLoad(mosquitto.address, [ONE, TWO]) as load:
                await load.wait_for_acks()
                await asyncio.to_thread(server.stop)
                await load.wait_for_acks(3000)
                await until(lambda: not service.is_ready())
                await asyncio.to_thread(server.start)
                await load.wait_for_acks()
                await until(service.is_ready)
                await asyncio.to_thread(server.stop)
                await load.wait_for_acks()
                await until(lambda: not service.is_ready())
                await asyncio.to_thread(service.kill)
                await asyncio.to_thread(server.start)
                await asyncio.to_thread(service.start)
                await load.wait_for_acks()
            check_stored_samples(service, load.sources)
            await until(service.is_ready)
