"""Fixtures of ingest pipelines with acknowledgments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.service.backfill.ack_harness import AckHarness
from tests.service.ingest.ingest_harness import IngestHarness

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from meshfleet.db import Database


@pytest.fixture
def harness(database: Database, tmp_path: Path) -> Iterator[AckHarness]:
    harness = AckHarness(IngestHarness(database, tmp_path))
    yield harness
    harness.close()


@pytest.fixture
def sqlite_harness(sqlite_database: Database, tmp_path: Path) -> Iterator[AckHarness]:
    """Create a pipeline on SQLite, for tests that do not depend on the database."""
    harness = AckHarness(IngestHarness(sqlite_database, tmp_path))
    yield harness
    harness.close()
