"""A pipeline on both databases."""

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
def anyio_backend() -> str:
    """Ingest knows only this one."""
    return "asyncio"


@pytest.fixture
def pauses() -> IngestTimings:
    """How long ingest waits."""
    return DEFAULT_TIMINGS


@pytest.fixture
def intake(database: Database, tmp_path: Path, pauses: IngestTimings) -> Iterator[IngestHarness]:
    made = IngestHarness(database, tmp_path, timings=pauses)
    yield made
    made.close()


@pytest.fixture
def in_file(sqlite_database: Database, tmp_path: Path, pauses: IngestTimings) -> Iterator[IngestHarness]:
    """For what has nothing to do with the database."""
    made = IngestHarness(sqlite_database, tmp_path, timings=pauses)
    yield made
    made.close()
    sqlite_database.close()
