"""Fixtures of ingest pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.service.ingest.pipeline import DEFAULT_TIMINGS, IngestTimings
from tests.service.ingest.ingest_harness import IngestHarness

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from meshfleet.db import Database


@pytest.fixture
def timings() -> IngestTimings:
    """Return the intervals and timeouts of ingest."""
    return DEFAULT_TIMINGS


@pytest.fixture
def harness(database: Database, tmp_path: Path, timings: IngestTimings) -> Iterator[IngestHarness]:
    harness = IngestHarness(database, tmp_path, timings=timings)
    yield harness
    harness.close()


@pytest.fixture
def sqlite_harness(
    sqlite_database: Database, tmp_path: Path, timings: IngestTimings
) -> Iterator[IngestHarness]:
    """Create a pipeline on SQLite, for tests that do not depend on the database."""
    harness = IngestHarness(sqlite_database, tmp_path, timings=timings)
    yield harness
    harness.close()
