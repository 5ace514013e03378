"""A running service for each module of tests and each database."""

from __future__ import annotations

from tests.service.http.conftest import service, sqlite_of_module

__all__ = ["service", "sqlite_of_module"]
