"""Fixture: one service per test module, on SQLite only, as the database does not matter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.databases import fresh_database
from tests.service.http.running_service import RunningService, run_service

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def service(request: pytest.FixtureRequest) -> Iterator[RunningService]:
    """Run a service with the built console."""
    with run_service(fresh_database(request, "sqlite")) as service:
        yield service
