"""Fixtures of notifications."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.service.notifications.fleet_harness import NotifiedFleet, NotifiedLog

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from meshfleet.db import Database


@pytest.fixture
def fleet(database: Database, tmp_path: Path) -> Iterator[NotifiedFleet]:
    fleet = NotifiedFleet(database, tmp_path)
    yield fleet
    fleet.close()


@pytest.fixture
def log(database: Database) -> NotifiedLog:
    return NotifiedLog(database)
