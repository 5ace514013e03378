"""Mosquitto between gateways and the service: what it acknowledged is stored, whoever ends meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.cli.outside import url
from tests.scenarios.load import Load, PahoGateway
from tests.scenarios.serving import Service
from tests.scenarios.stored import check
from tests.servers import Mosquitto, PostgreSQL, postgresql_folder
from tests.service.mqtt.house import Credentials
from tests.service.mqtt.site import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

ONE, TWO, THREE = (Credentials(f"02005e00000{number}", "any") for number in range(1, 4))
LASTING = ("persistence true", "max_inflight_messages 2000", "max_queued_messages 0")


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    folder = tmp_path / "mosquitto"
    folder.mkdir()
    with Mosquitto(folder, *LASTING) as running:
        yield running


@pytest.mark.rule("broker-22")
async def test_nothing_is_lost_when_mosquitto_is_stopped_or_the_service_killed_or_both(
    tmp_path: Path, mosquitto: Mosquitto
) -> None:
    with Service(tmp_path, "--broker", url(mosquitto)) as service:
        await until(service.is_ready)
        place = mosquitto.address
        async with Load(place, [ONE, TWO]) as load, PahoGateway(place, THREE) as other:
            await load.go_on()
            await asyncio.to_thread(mosquitto.stop)
            await asyncio.to_thread(mosquitto.start)
            await load.go_on()
            await asyncio.to_thread(service.kill)
            await load.go_on()
            await asyncio.to_thread(service.start)
            await load.go_on()
            await asyncio.to_thread(service.kill)
            await asyncio.to_thread(mosquitto.stop)
            await asyncio.to_thread(mosquitto.start)
            await load.go_on()
            await asyncio.to_thread(service.start)
            await load.go_on()
        check(service, [*load.ledgers, other.ledger])
        assert service.is_ready()


@pytest.mark.rule("broker-22", "rest-160")
async def test_reports_wait_at_mosquitto_while_the_database_is_away(
    tmp_path: Path, mosquitto: Mosquitto
) -> None:
    """The first time the service goes on by itself; the second time it is killed with what it holds."""
    with postgresql_folder() as folder, PostgreSQL(folder) as server:
        given = ["--broker", url(mosquitto), "--database", f"{server.url}/postgres"]
        with Service(tmp_path, *given) as service:
            await until(service.is_ready)
            async with Load(mosquitto.address, [ONE, TWO]) as load:
                await load.go_on()
                await asyncio.to_thread(server.stop)
                await load.go_on(3000)
                await until(lambda: not service.is_ready())
                await asyncio.to_thread(server.start)
                await load.go_on()
                await until(service.is_ready)
                await asyncio.to_thread(server.stop)
                await load.go_on()
                await until(lambda: not service.is_ready())
                await asyncio.to_thread(service.kill)
                await asyncio.to_thread(server.start)
                await asyncio.to_thread(service.start)
                await load.go_on()
            check(service, load.ledgers)
            await until(service.is_ready)
