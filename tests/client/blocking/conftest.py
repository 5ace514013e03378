"""One running service for each module of tests."""

from __future__ import annotations

from tests.client.rest.conftest import anyio_backend, service

__all__ = ["anyio_backend", "service"]
