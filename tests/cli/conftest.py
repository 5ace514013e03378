"""A fleet for commands that talk to a service."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.testing import running_fleet
from tests.cli.shell import Shell, create_logged_in_shell, wait_until_known

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from meshfleet.testing import RunningFleet


@pytest.fixture(scope="package")
def place() -> Iterator[RunningFleet]:
    """A service whose devices are all known; a minute of theirs takes a second.

    All tests of this folder share it: they bring names of their own, and take away again what others count.
    """
    with running_fleet(devices=10, speed=60) as running:
        wait_until_known(running)
        yield running


@pytest.fixture(scope="package")
def login(place: RunningFleet, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What is kept of the login of an admin."""
    return create_logged_in_shell(tmp_path_factory.mktemp("home"), place).login.read_text()


@pytest.fixture
def admin(tmp_path: Path, login: str) -> Shell:
    """Somebody who may do everything but log out: other tests have the same login."""
    shell = Shell(tmp_path / "home")
    shell.write_login(login)
    return shell


@pytest.fixture
def nobody(tmp_path: Path) -> Shell:
    """Somebody who is not logged in."""
    return Shell(tmp_path / "home")
