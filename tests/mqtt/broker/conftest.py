"""Fixtures that run a broker for each test, on a database of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.broker.broker import MAX_BATCH_BYTES
from meshfleet.mqtt.broker_limits import BrokerLimits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from meshfleet.db import Database
    from tests.mqtt.broker.running_broker import RunningBroker


@pytest.fixture
def limits() -> BrokerLimits:
    """Return the default limits. A test that needs others is parametrized with them."""
    return BrokerLimits()


@pytest.fixture
def slow_seconds() -> float:
    """Return how long a client with a full queue may acknowledge nothing, unless a test sets it."""
    return 10.0


@pytest.fixture
def sweep_seconds() -> float:
    """Return the seconds between two checks of all connections, unless a test sets it."""
    return 1.0


@pytest.fixture
def max_batch_bytes() -> int:
    """Return the bytes of a commit batch after which publishers wait, unless a test sets it."""
    return MAX_BATCH_BYTES


@pytest.fixture
async def server(
    sqlite_database: Database,
    limits: BrokerLimits,
    slow_seconds: float,
    sweep_seconds: float,
    max_batch_bytes: int,
) -> AsyncIterator[RunningBroker]:
    """Run a broker on SQLite. PostgreSQL is tested with the tables of the broker."""
    from tests.mqtt.broker.running_broker import RunningBroker  # noqa: PLC0415 # else all tests here count as slow (tests/fast_suite.py)

    async with RunningBroker(
        sqlite_database,
        limits,
        slow_seconds=slow_seconds,
        sweep_seconds=sweep_seconds,
        max_batch_bytes=max_batch_bytes,
    ) as running:
        yield running
