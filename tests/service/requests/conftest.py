"""A broker that runs, for tests of those who ask; and whole services, for those of people who do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.databases import fresh_database
from tests.mqtt.broker.running_broker import RunningBroker
from tests.service.http.conftest import sqlite_of_module
from tests.service.requests.service_with_broker import ServiceWithBroker
from tests.service.requests.service_with_broker import run_service as running_office

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from meshfleet.db import Database
    from meshfleet.protocol.ids import Mac
    from tests.service.requests.scripted_gateway import ScriptedGateway

__all__ = ["sqlite_of_module"]


@pytest.fixture
def anyio_backend() -> str:
    """The broker's own tests have the others."""
    return "asyncio"


@pytest.fixture
async def stage(sqlite_database: Database) -> AsyncIterator[RunningBroker]:
    async with RunningBroker(sqlite_database) as running:
        yield running
    sqlite_database.close()


@pytest.fixture(scope="module")
def office(request: pytest.FixtureRequest, database_kind: str) -> Iterator[ServiceWithBroker]:
    """A service that carries requests, shared by the tests of a module."""
    database = fresh_database(request, database_kind)
    with running_office(database) as running:
        yield running
    database.close()


@pytest.fixture(scope="module")
def third(office: ServiceWithBroker) -> Iterator[ScriptedGateway]:
    """A gateway of the newest version, shared too; a test gives it a manner of its own."""
    with office.gateway() as made:
        office.wait_for_version(made)
        yield made


@pytest.fixture(scope="module")
def device(office: ServiceWithBroker, third: ScriptedGateway) -> Mac:
    """A device that was heard behind it."""
    return office.device_behind(third)
