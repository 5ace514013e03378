"""Fixtures of sample stores on SQLite and PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.db.samples.store_harness import StoreHarness

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from meshfleet.db import Database


@pytest.fixture
def harness(database: Database, tmp_path: Path) -> Iterator[StoreHarness]:
    """Create an empty store, on each of the two databases."""
    with StoreHarness(database, tmp_path) as harness:
        yield harness


@pytest.fixture
def sqlite_harness(sqlite_database: Database, tmp_path: Path) -> Iterator[StoreHarness]:
    """Create an empty store on SQLite, which has segment files."""
    with StoreHarness(sqlite_database, tmp_path) as harness:
        yield harness


@pytest.fixture
def postgresql_harness(postgresql_database: Database, tmp_path: Path) -> Iterator[StoreHarness]:
    """Create an empty store on PostgreSQL, which has partitions."""
    with StoreHarness(postgresql_database, tmp_path) as harness:
        yield harness
