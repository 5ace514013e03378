"""Fixtures of running services, one for each module and database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.service.telemetry.chunked_read import ChunkSizes
from tests.databases import fresh_database
from tests.service.http.conftest import service, sqlite_of_module
from tests.service.http.running_service import RunningService, run_service

if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = ["service", "sqlite_of_module"]


@pytest.fixture(scope="module")
def chunked_service(request: pytest.FixtureRequest) -> Iterator[RunningService]:
    """Run a service that reads a few samples at a time."""
    with run_service(
        fresh_database(request, "sqlite"),
        chunk_sizes=ChunkSizes(csv_lines=5, series_samples=20, link_minutes=7),
    ) as service:
        yield service
