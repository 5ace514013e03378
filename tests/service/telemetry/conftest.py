"""A running service for each module of tests and each database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.service.telemetry.reading import Blocks
from tests.databases import fresh_database
from tests.service.http.conftest import service, sqlite_of_module
from tests.service.http.running import running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.service.http.running import Running

__all__ = ["service", "sqlite_of_module"]


@pytest.fixture(scope="module")
def in_blocks(request: pytest.FixtureRequest) -> Iterator[Running]:
    """A service that reads a few samples at a time."""
    database = fresh_database(request, "sqlite")
    with running(database, blocks=Blocks(lines=5, numbers=20, minutes=7)) as service:
        yield service
    database.close()
