"""Presence on both databases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.service.presence.stored_presence_harness import StoredPresenceHarness

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from meshfleet.db import Database


@pytest.fixture
def anyio_backend() -> str:
    """Ingest knows only this one."""
    return "asyncio"


@pytest.fixture
def watched(database: Database, tmp_path: Path) -> Iterator[StoredPresenceHarness]:
    made = StoredPresenceHarness(database, tmp_path)
    yield made
    made.close()


@pytest.fixture
def in_file(sqlite_database: Database, tmp_path: Path) -> Iterator[StoredPresenceHarness]:
    """For what has nothing to do with the database."""
    made = StoredPresenceHarness(sqlite_database, tmp_path)
    yield made
    made.close()
    sqlite_database.close()
