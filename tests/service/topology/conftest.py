"""Fixtures that run a service with ingest: on both databases, or on SQLite."""

from __future__ import annotations

from tests.service.live.conftest import service, service_on_each_database

__all__ = ["service", "service_on_each_database"]
