"""Databases that nobody has prepared, beside the fresh ones that the tests of the service use."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import psycopg
import pytest

from meshfleet.db import Database, open_database

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_numbers = count()


class DatabaseLocation(NamedTuple):
    """Where a database is, or will be."""

    address: str
    folder: Path

    def open(self) -> Database:
        """Open it as the service does."""
        return open_database(self.address, self.folder)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def place(request: pytest.FixtureRequest, database_kind: str) -> DatabaseLocation:
    """Where no table has been made yet."""
    found: DatabaseLocation = request.getfixturevalue(f"{database_kind}_place")
    return found


@pytest.fixture
def sqlite_place(tmp_path: Path) -> DatabaseLocation:
    return DatabaseLocation("sqlite", tmp_path)


@pytest.fixture
def postgresql_place(postgresql_server: str, tmp_path: Path) -> Iterator[DatabaseLocation]:
    name = f"empty_{next(_numbers)}"
    with psycopg.connect(f"{postgresql_server}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} STRATEGY file_copy".encode())
        yield DatabaseLocation(f"{postgresql_server}/{name}", tmp_path)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
