"""One running service for each test module."""

from __future__ import annotations

from tests.client.rest.conftest import service

__all__ = ["service"]
