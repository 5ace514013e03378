"""Fixtures of all scenarios."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Run on asyncio: the service chooses its own loop."""
    return "asyncio"
