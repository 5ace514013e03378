"""Fixtures that run a service with live events: on both databases, or on SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.service.live.live_service import LiveService, run_live_service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.db import Database


@pytest.fixture
def service_on_each_database(database: Database) -> Iterator[LiveService]:
    """Run a service on each of the databases."""
    with run_live_service(database) as service:
        yield service


@pytest.fixture
def service(sqlite_database: Database) -> Iterator[LiveService]:
    """Run a service on SQLite."""
    with run_live_service(sqlite_database) as service:
        yield service
