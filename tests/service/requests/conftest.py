"""A broker that runs, for tests of those who ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.broker.stage import Stage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from meshfleet.db import Database


@pytest.fixture
def anyio_backend() -> str:
    """The broker's own tests have the others."""
    return "asyncio"


@pytest.fixture
async def stage(sqlite_database: Database) -> AsyncIterator[Stage]:
    async with Stage(sqlite_database) as running:
        yield running
    sqlite_database.close()
