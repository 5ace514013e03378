"""A stage for each test: on both databases, or on one where the database makes no difference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.service.live.live_service import LiveService, run_live_service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.db import Database


@pytest.fixture
def anyio_backend() -> str:
    """The hub knows only this one."""
    return "asyncio"


@pytest.fixture
def on_both(database: Database) -> Iterator[LiveService]:
    """A service on either database."""
    with run_live_service(database) as stage:
        yield stage


@pytest.fixture
def stage(sqlite_database: Database) -> Iterator[LiveService]:
    """A service on SQLite."""
    with run_live_service(sqlite_database) as stage:
        yield stage
    sqlite_database.close()
