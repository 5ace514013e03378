"""Fixture of a service on SQLite or PostgreSQL."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest

from tests.databases import create_database
from tests.scenarios.service_process import ServiceProcess, loopback_options

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_numbers = count(1)


@pytest.fixture
def service(request: pytest.FixtureRequest, database_kind: str, tmp_path: Path) -> Iterator[ServiceProcess]:
    """Run a service with an MQTT listener and an empty database."""
    options = loopback_options("--mqtt")
    if database_kind == "postgresql":
        server: str = request.getfixturevalue("postgresql_server")
        options += ["--database", create_database(server, f"scenario_{next(_numbers)}")]
    with ServiceProcess(tmp_path, *options) as running:
        yield running
