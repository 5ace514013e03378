"""Fixtures of presence with a database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.service.presence.stored_presence_harness import StoredPresenceHarness

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from meshfleet.db import Database


@pytest.fixture
def harness(database: Database, tmp_path: Path) -> Iterator[StoredPresenceHarness]:
    harness = StoredPresenceHarness(database, tmp_path)
    yield harness
    harness.close()


@pytest.fixture
def sqlite_harness(sqlite_database: Database, tmp_path: Path) -> Iterator[StoredPresenceHarness]:
    """Create a harness on SQLite, for tests that do not depend on the database."""
    harness = StoredPresenceHarness(sqlite_database, tmp_path)
    yield harness
    harness.close()
