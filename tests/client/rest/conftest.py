"""One running service for all tests of this directory, and clients of it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from meshfleet.client import Fleet
from meshfleet.db import Database
from meshfleet.db import sqlite as in_file
from meshfleet.rest.accounts import Role
from tests.service.http.running_service import PASSWORD
from tests.service.live.live_service import LiveService, run_live_service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


@pytest.fixture(scope="package")
def service(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    """Run a service that accepts reports. Tests create their own devices, users and labels."""
    path = tmp_path_factory.mktemp("service") / "meshfleet.sqlite"
    shutil.copy(sqlite_template, path)
    database = Database(in_file.create_sqlite_engines(path))
    with run_live_service(database) as running:
        yield running
    database.close()


@pytest.fixture
async def fleet(service: LiveService) -> AsyncIterator[Fleet]:
    """Client with the role admin, which logs in when needed."""
    async with Fleet(service.url, user=service.new_user(Role.ADMIN), password=PASSWORD) as fleet:
        yield fleet
