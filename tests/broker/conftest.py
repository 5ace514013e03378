"""A broker of its own for every test, on a database of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.broker.broker import ROUND_BYTES
from meshfleet.settings import Limits
from tests.selection import backend

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from meshfleet.db import Database
    from tests.broker.stage import Stage


@pytest.fixture
def anyio_backend(event_loop: str) -> tuple[str, dict[str, bool]]:
    return backend(event_loop)


@pytest.fixture
def limits() -> Limits:
    """Those that hold unless set. A test that wants others is parametrized with them."""
    return Limits()


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
    return ROUND_BYTES


@pytest.fixture
async def stage(
    sqlite_database: Database, limits: Limits, slow_seconds: float, sweep_seconds: float, round_bytes: int
) -> AsyncIterator[Stage]:
    """A broker that runs on SQLite. The other database is tried where the broker's tables are."""
    from tests.broker.stage import Stage  # noqa: PLC0415 # or all tests here would count as slow (tests/fast.py)

    async with Stage(
        sqlite_database,
        limits,
        slow_seconds=slow_seconds,
        sweep_seconds=sweep_seconds,
        round_bytes=round_bytes,
    ) as running:
        yield running
    sqlite_database.close()
