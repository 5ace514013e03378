"""Fixtures of alarms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.service.alarms.alarm_harness import AlarmHarness
from tests.service.alarms.presence_log import PresenceLog

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from meshfleet.db import Database


@pytest.fixture
def fleet(database: Database, tmp_path: Path) -> Iterator[AlarmHarness]:
    harness = AlarmHarness(database, tmp_path)
    yield harness
    harness.close()


@pytest.fixture
def log(database: Database) -> PresenceLog:
    return PresenceLog(database)
