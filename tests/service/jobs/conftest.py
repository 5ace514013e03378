"""A running service for each module and database, with something to update."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.service.http.conftest import service, sqlite_of_module
from tests.service.jobs.shop import Shop

if TYPE_CHECKING:
    from tests.service.http.running import Running

__all__ = ["service", "sqlite_of_module"]


@pytest.fixture
def shop(service: Running) -> Shop:
    """Firmware and devices of a model that no other test has."""
    return Shop(service)
