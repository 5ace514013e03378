"""A stage for each test: on both databases, or on one where the database makes no difference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.service.live.stage import Stage, staged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.db import Database


@pytest.fixture
def anyio_backend() -> str:
    """The hub knows only this one."""
    return "asyncio"


@pytest.fixture
def on_both(database: Database) -> Iterator[Stage]:
    """A service on either database."""
    with staged(database) as stage:
        yield stage


@pytest.fixture
def stage(sqlite_database: Database) -> Iterator[Stage]:
    """A service on SQLite."""
    with staged(sqlite_database) as stage:
        yield stage
    sqlite_database.close()
