"""Stores for tests, on SQLite and on PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.db.samples.store_harness import StoreHarness

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from meshfleet.db import Database


@pytest.fixture
def trial(database: Database, tmp_path: Path) -> Iterator[StoreHarness]:
    """An empty store, on each of the two databases."""
    with StoreHarness(database, tmp_path) as made:
        yield made


@pytest.fixture
def files(sqlite_database: Database, tmp_path: Path) -> Iterator[StoreHarness]:
    """An empty store on SQLite, which is what has files."""
    with StoreHarness(sqlite_database, tmp_path) as made:
        yield made
    sqlite_database.close()


@pytest.fixture
def tables(postgresql_database: Database, tmp_path: Path) -> Iterator[StoreHarness]:
    """An empty store on PostgreSQL, which is what has partitions."""
    with StoreHarness(postgresql_database, tmp_path) as made:
        yield made
    postgresql_database.close()
