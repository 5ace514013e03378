"""One running service for each test module."""

from __future__ import annotations

from tests.client.rest.conftest import anyio_backend, service

__all__ = ["anyio_backend", "service"]
