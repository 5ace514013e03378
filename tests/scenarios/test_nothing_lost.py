"""Whatever breaks while gateways report: all that they got acknowledged is stored, as it was said, and once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.scenarios.load import Load, PahoGateway
from tests.scenarios.serving import Service, loopback
from tests.scenarios.stored import check
from tests.servers import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.service.mqtt.house import Credentials

pytestmark = pytest.mark.anyio

KILLS = 3


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PostgreSQL]:
    """A server that this test may break."""
    folder = tmp_path / "postgresql"
    folder.mkdir()
    with PostgreSQL(folder) as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    given = loopback("--mqtt")
    if request.param == "postgresql":
        server: PostgreSQL = request.getfixturevalue("server")
        given += ["--database", f"{server.url}/postgres"]
    with Service(tmp_path, *given) as running:
        yield running


@pytest.fixture
def gateways(service: Service) -> list[Credentials]:
    return [service.claim(f"02005e00000{number}") for number in range(1, 4)]


@pytest.mark.rule("broker-2")
async def test_a_service_that_is_killed_again_and_again_has_what_it_acknowledged(
    service: Service, gateways: list[Credentials]
) -> None:
    *ours, other = gateways
    place = service.mqtt["mqtt"]
    async with Load(place, ours) as load, PahoGateway(place, other) as paho:
        for _ in range(KILLS):
            await load.go_on()
            await asyncio.to_thread(service.kill)
            await asyncio.to_thread(service.start)
        await load.go_on()
    check(service, [*load.ledgers, paho.ledger])
