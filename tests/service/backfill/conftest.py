"""Samples that are acknowledged, on both databases."""

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
def anyio_backend() -> str:
    """Ingest knows only this one."""
    return "asyncio"


@pytest.fixture
def ground(database: Database, tmp_path: Path) -> Iterator[AckHarness]:
    made = AckHarness(IngestHarness(database, tmp_path))
    yield made
    made.close()


@pytest.fixture
def in_file(sqlite_database: Database, tmp_path: Path) -> Iterator[AckHarness]:
    """For what has nothing to do with the database."""
    made = AckHarness(IngestHarness(sqlite_database, tmp_path))
    yield made
    made.close()
    sqlite_database.close()
