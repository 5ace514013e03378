"""Fixtures: one running service per test module and database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.databases import fresh_database
from tests.service.http.running_service import RunningService, run_service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.db import Database


@pytest.fixture(scope="module")
def service(request: pytest.FixtureRequest, database_kind: str) -> Iterator[RunningService]:
    """Run a service with an empty registry, shared by the tests of a module."""
    with run_service(fresh_database(request, database_kind)) as service:
        yield service


@pytest.fixture(scope="module")
def slow_hashing(request: pytest.FixtureRequest) -> Iterator[RunningService]:
    """Run a service that hashes passwords at production cost, unlike the others."""
    with run_service(fresh_database(request, "sqlite"), hashes_slowly=True) as service:
        yield service


@pytest.fixture(scope="module")
def sqlite_of_module(request: pytest.FixtureRequest) -> Database:
    return fresh_database(request, "sqlite")
