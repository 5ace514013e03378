"""A pipeline on both databases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.service.ingest.ingest import PAUSES, Pauses
from tests.service.ingest.intake import Intake

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from meshfleet.db import Database


@pytest.fixture
def anyio_backend() -> str:
    """Ingest knows only this one."""
    return "asyncio"


@pytest.fixture
def pauses() -> Pauses:
    """How long ingest waits."""
    return PAUSES


@pytest.fixture
def intake(database: Database, tmp_path: Path, pauses: Pauses) -> Iterator[Intake]:
    made = Intake(database, tmp_path, pauses=pauses)
    yield made
    made.close()


@pytest.fixture
def in_file(sqlite_database: Database, tmp_path: Path, pauses: Pauses) -> Iterator[Intake]:
    """For what has nothing to do with the database."""
    made = Intake(sqlite_database, tmp_path, pauses=pauses)
    yield made
    made.close()
    sqlite_database.close()
