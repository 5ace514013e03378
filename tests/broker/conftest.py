"""A broker of its own for every test, on both event loops, on a database of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.settings import Limits
from tests.broker.stage import Stage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from meshfleet.db import Database


@pytest.fixture(
    params=[
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
        pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    ]
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


@pytest.fixture
def limits() -> Limits:
    """Those that hold unless set. A test that wants others is parametrized with them."""
    return Limits()


@pytest.fixture
def slow_seconds() -> float:
    """How long a client with a full queue may acknowledge nothing, unless a test says otherwise."""
    return 10.0


@pytest.fixture
async def stage(sqlite_database: Database, limits: Limits, slow_seconds: float) -> AsyncIterator[Stage]:
    """A broker that runs on SQLite. The other database is tried where the broker's tables are."""
    async with Stage(sqlite_database, limits, slow_seconds=slow_seconds) as running:
        yield running
    sqlite_database.close()
