"""Fixtures: a running service for each module and database, and an environment for jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.service.http.conftest import service, sqlite_of_module
from tests.service.jobs.job_environment import JobEnvironment

if TYPE_CHECKING:
    from tests.service.http.running_service import RunningService

__all__ = ["service", "sqlite_of_module"]


@pytest.fixture
def env(service: RunningService) -> JobEnvironment:
    """Provide firmware and devices of a model that no other test uses."""
    return JobEnvironment(service)
