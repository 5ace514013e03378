"""Fixtures for commands that use a service."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.testing import running_fleet
from tests.cli.backup_data import create_data
from tests.cli.installation import Installation
from tests.cli.shell import Shell, create_logged_in_shell, wait_until_known

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from meshfleet.testing import RunningFleet


@pytest.fixture(scope="package")
def service() -> Iterator[RunningFleet]:
    """Run a service whose devices are all connected, at 30 times real speed.

    All tests of this directory share it: they use names of their own, and remove what other tests count.
    """
    with running_fleet(devices=10, speed=30) as running:
        wait_until_known(running)
        yield running


@pytest.fixture(scope="package")
def login(service: RunningFleet, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Log in as admin, and return the content of the login file."""
    return create_logged_in_shell(tmp_path_factory.mktemp("home"), service).login.read_text()


@pytest.fixture
def admin(tmp_path: Path, login: str) -> Shell:
    """Create a shell logged in as admin. Tests must not log out: they share the login."""
    shell = Shell(tmp_path / "home")
    shell.write_login(login)
    return shell


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Create a data directory for a backup."""
    return create_data(tmp_path / "data")


@pytest.fixture
def logged_out(tmp_path: Path) -> Shell:
    """Create a shell without a login."""
    return Shell(tmp_path / "home")


@pytest.fixture
def create_installation(
    tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path
) -> Callable[[], Installation]:
    """Return a function that creates a healthy installation, of which a test breaks a part."""
    return lambda: Installation(tmp_path_factory.mktemp("installation"), sqlite_template)
