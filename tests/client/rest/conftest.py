"""One running service for each module of tests, and fleets that talk to it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from meshfleet.client import Fleet
from meshfleet.db import Database
from meshfleet.db import sqlite as in_file
from meshfleet.wire.rest import Role
from tests.service.http.running import PASSWORD
from tests.service.live.stage import Stage, staged

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

_HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a running service stay on one worker, which so starts it once."""
    for item in items:
        if item.path.is_relative_to(_HERE) and "service" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(f"client/{item.path.name}"))


@pytest.fixture
def anyio_backend() -> str:
    """Httpx knows how to be on any loop; the link has tests on all."""
    return "asyncio"


@pytest.fixture(scope="module")
def service(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A service with an empty registry, which takes reports."""
    path = tmp_path_factory.mktemp("module") / "meshfleet.sqlite"
    shutil.copy(sqlite_template, path)
    database = Database(in_file.engines(path))
    with staged(database) as stage:
        yield stage
    database.close()


@pytest.fixture
async def fleet(service: Stage) -> AsyncIterator[Fleet]:
    """An admin who logs in when that is needed."""
    async with Fleet(service.url, user=service.new_user(Role.ADMIN), password=PASSWORD) as fleet:
        yield fleet
