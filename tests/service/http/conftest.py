"""One running service for each module of tests and each database."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from meshfleet.db import Database
from meshfleet.db import postgresql as on_server
from meshfleet.db import sqlite as in_file
from tests.databases import make_database
from tests.service.http.running import Running, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def service(request: pytest.FixtureRequest) -> Iterator[Running]:
    """A service with an empty registry, shared by the tests of a module."""
    database: Database = request.getfixturevalue(f"{request.param}_of_module")
    with running(database) as service:
        yield service
    database.close()


@pytest.fixture(scope="module")
def sqlite_of_module(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Database:
    path = tmp_path_factory.mktemp("module") / "meshfleet.sqlite"
    shutil.copy(sqlite_template, path)
    return Database(in_file.engines(path))


@pytest.fixture(scope="module")
def postgresql_of_module(request: pytest.FixtureRequest, postgresql_server: str) -> Database:
    name = request.module.__name__.rpartition(".")[2]
    return Database(on_server.engines(make_database(postgresql_server, name)))
