"""Fixtures for tests of requests: a running broker, and a whole service with a gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.databases import fresh_database
from tests.mqtt.broker.running_broker import RunningBroker
from tests.service.http.conftest import sqlite_of_module
from tests.service.requests.service_with_broker import ServiceWithBroker, run_service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from meshfleet.db import Database
    from meshfleet.protocol.ids import Mac
    from tests.service.requests.scripted_gateway import ScriptedGateway

__all__ = ["sqlite_of_module"]


@pytest.fixture
async def broker(sqlite_database: Database) -> AsyncIterator[RunningBroker]:
    async with RunningBroker(sqlite_database) as running:
        yield running


@pytest.fixture(scope="module")
def service(request: pytest.FixtureRequest, database_kind: str) -> Iterator[ServiceWithBroker]:
    """Run a service that executes requests, shared by the tests of a module."""
    with run_service(fresh_database(request, database_kind)) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(service: ServiceWithBroker) -> Iterator[ScriptedGateway]:
    """Connect a gateway of the latest version, shared by the tests of a module; tests set its responder."""
    with service.gateway() as gateway:
        service.wait_for_version(gateway)
        yield gateway


@pytest.fixture(scope="module")
def device(service: ServiceWithBroker, gateway: ScriptedGateway) -> Mac:
    """Return a device that the shared gateway has seen."""
    return service.device_behind(gateway)
