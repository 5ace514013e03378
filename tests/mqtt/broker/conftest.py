"""A broker of its own for every test, on a database of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.broker.broker import MAX_BATCH_BYTES
from meshfleet.mqtt.broker_limits import BrokerLimits
from tests.selection import backend_for_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from meshfleet.db import Database
    from tests.mqtt.broker.running_broker import RunningBroker


@pytest.fixture
def anyio_backend(event_loop: str) -> tuple[str, dict[str, bool]]:
    return backend_for_loop(event_loop)


@pytest.fixture
def limits() -> BrokerLimits:
    """Those that hold unless set. A test that wants others is parametrized with them."""
    return BrokerLimits()


@pytest.fixture
def slow_seconds() -> float:
    """How long a client with a full queue may acknowledge nothing, unless a test says otherwise."""
    return 10.0


@pytest.fixture
def sweep_seconds() -> float:
    """Seconds between two looks of the broker at its own clock, unless a test says otherwise."""
    return 1.0


@pytest.fixture
def round_bytes() -> int:
    """Bytes of a round after which publishers wait, unless a test says otherwise."""
    return MAX_BATCH_BYTES


@pytest.fixture
async def stage(
    sqlite_database: Database,
    limits: BrokerLimits,
    slow_seconds: float,
    sweep_seconds: float,
    round_bytes: int,
) -> AsyncIterator[RunningBroker]:
    """A broker that runs on SQLite. The other database is tried where the broker's tables are."""
    from tests.mqtt.broker.running_broker import RunningBroker  # noqa: PLC0415 # or all tests here would count as slow (tests/fast_suite.py)

    async with RunningBroker(
        sqlite_database,
        limits,
        slow_seconds=slow_seconds,
        sweep_seconds=sweep_seconds,
        max_batch_bytes=round_bytes,
    ) as running:
        yield running
    sqlite_database.close()
