"""Fixtures: a running service for each test module and database."""

from __future__ import annotations

from tests.service.http.conftest import service

__all__ = ["service"]
