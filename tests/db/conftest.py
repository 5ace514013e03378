"""Fixtures of databases without a schema, besides the migrated ones of tests/conftest.py."""

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
    """Address and directory of a database that may not exist yet."""

    address: str
    folder: Path

    def open(self) -> Database:
        """Open and migrate the database like the service."""
        return open_database(self.address, self.folder)


@pytest.fixture
def database_location(request: pytest.FixtureRequest, database_kind: str) -> DatabaseLocation:
    """Return the location of an empty database without tables."""
    location: DatabaseLocation = request.getfixturevalue(f"{database_kind}_location")
    return location


@pytest.fixture
def sqlite_location(tmp_path: Path) -> DatabaseLocation:
    return DatabaseLocation("sqlite", tmp_path)


@pytest.fixture
def postgresql_location(postgresql_server: str, tmp_path: Path) -> Iterator[DatabaseLocation]:
    name = f"empty_{next(_numbers)}"
    with psycopg.connect(f"{postgresql_server}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} STRATEGY file_copy".encode())
        yield DatabaseLocation(f"{postgresql_server}/{name}", tmp_path)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
